// C interface: scoring.
#include "stet/generate/score.hpp"

#include "src/c/internal.hpp"

using namespace stet::c;

stet_status stet_session_score(const stet_session* session, const stet_score_request* requests,
                               size_t count, const stet_score_options* options,
                               stet_score_callback on_score, void* context, stet_error** error) {
  return guarded(error, [&] {
    const stet_score_options o = input(options, "options");
    std::vector<stet::ScoreRequest> all;
    for (const stet_score_request& r : items(requests, count, "requests")) {
      const auto ids = items(r.ids, r.count, "requests.ids");
      all.push_back({{ids.begin(), ids.end()}, r.begin});
    }
    if (on_score == nullptr) fail("on_score", "not NULL", "NULL");
    stet::ScoreOptions how;
    if (o.batch > 0) how.batch = o.batch;
    how.done = [&](size_t index, const stet::Score& score) {
      std::vector<stet_token_score> tokens;
      for (const stet::TokenScore& t : score.tokens)
        tokens.push_back({t.log_probability, t.id, t.best});
      if (on_score(context, index, tokens.data(), tokens.size()) != 0) throw Canceled();
    };
    stet::score(*at(session, "session").at, all, how);
  });
}

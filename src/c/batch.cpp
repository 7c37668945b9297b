// C interface: replies of many sessions at once.
#include <deque>

#include "src/c/capture.hpp"
#include "stet/generate/batch.hpp"

using namespace stet::c;

namespace {

// Throws for hook_state, which is captured at given positions: those of a reply are not known yet.
void refuse_states(std::span<const char* const> points) {
  for (size_t i = 0; i < points.size(); ++i) {
    if (point_of(points[i], "points").point == stet::Point::state)
      fail("points[" + std::to_string(i) + "]",
           "one of every drawn token; appending the reply's tokens captures hook_state", points[i]);
  }
}

}  // namespace

stet_status stet_batch_generate(const stet_batch_reply* entries, size_t count,
                                const stet_tokenizer* tokenizer, const char* const* points,
                                size_t point_count, stet_capture** captures, stet_reply** replies,
                                stet_error** error) {
  return guarded(error, [&] {
    const auto names = items(points, point_count, "points");
    refuse_states(names);
    const auto given = items(entries, count, "entries");
    if (captures != nullptr) std::fill_n(captures, count, nullptr);
    if (count > 0) output(replies, "replies");
    std::fill_n(replies, count, nullptr);
    if (captures == nullptr && point_count > 0) fail("captures", "not NULL", "NULL");
    std::deque<Generation> generations;
    std::deque<CaptureBuilder> captured;
    std::vector<stet::BatchReply> batch;
    for (const stet_batch_reply& entry : given) {
      stet::Session& s = *at(entry.session, "entries.session").at;
      const Generation& g = generations.emplace_back(entry.options, s);
      const int64_t most = std::min(g.options().max_tokens, s.capacity() - s.size());
      const CaptureBuilder& k = captured.emplace_back(s, static_cast<size_t>(most), names, false);
      batch.push_back({&s, g.options(), g.sink(), names.empty() ? nullptr : &k.watch()});
    }
    const stet::Tokenizer* const shared =
        batch.empty() ? nullptr : optional_tokenizer(tokenizer, *batch[0].session);
    std::vector<stet::Reply> all = stet::generate(batch, shared);
    std::vector<std::unique_ptr<stet_reply, void (*)(stet_reply*)>> made;
    for (stet::Reply& reply : all) made.emplace_back(new_reply(std::move(reply)), stet_reply_free);
    for (size_t i = 0; i < count; ++i) {
      captured[i].end_at(batch[i].session->size());
      if (captures != nullptr) captures[i] = captured[i].release();
      replies[i] = made[i].release();
    }
  });
}

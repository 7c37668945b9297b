// stet bench --turns: alternates with another program, because a machine's speed varies over time.
#include "tools/bench/turns.hpp"

#include <charconv>

#include "stet/base/error.hpp"
#include "tools/bench/figures.hpp"

namespace stet::tool {
namespace {

constexpr int64_t kMostDecoded = 1 << 20;

// Returns N of "decode N", or 0 for any other line.
int64_t decoded_tokens(std::string_view line) {
  constexpr std::string_view kDecode = "decode ";
  if (!line.starts_with(kDecode)) return 0;
  int64_t n = 0;
  const char* const end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data() + kDecode.size(), end, n);
  return error == std::errc() && stop == end && n > 0 && n <= kMostDecoded ? n : 0;
}

}  // namespace

void answer_turns(Session& session, const SessionOptions& options, Json loaded, int64_t prompt,
                  int repeat) {
  const std::vector<int32_t> ids = some_tokens(session.model(), prompt),
                             next = some_tokens(session.model(), 1);
  const auto decode = [&] { session.append(next); };
  loaded["first_token_s"] = time_of(decode);  // first use of the scratch memory
  out(dump(loaded) + "\n");
  flush_output();
  each_line([&](const std::string& line, const std::string& where) {
    Json answer;
    if (line == "prefill") {
      session.rewind(0);
      answer["s"] = time_of([&] { session.append(ids); });
    } else if (const int64_t n = decoded_tokens(line)) {
      answer["s"] = time_of([&] {
        for (int64_t i = 0; i < n; ++i) decode();
      });
    } else if (line == "state") {
      const size_t peak = peak_bytes();
      answer = state_figures(session, options, repeat);
      answer["peak_bytes"] = peak;
    } else {
      throw Error(ErrorKind::format, where, "", "prefill, decode N or state", '"' + line + '"');
    }
    return dump(answer);
  });
}

}  // namespace stet::tool

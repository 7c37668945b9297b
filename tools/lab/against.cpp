#include "tools/lab/against.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include "stet/base/error.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {
namespace {

// A program that answers each line with one line.
class PeerProgram {
 public:
  explicit PeerProgram(const std::string& command) : command_(command) {
    int to[2], from[2];
    if (::pipe(to) != 0 || ::pipe(from) != 0) fail("two pipes", "none");
    child_ = ::fork();
    if (child_ < 0) fail("a process", "none");
    if (child_ == 0) {
      ::dup2(to[0], 0);
      ::dup2(from[1], 1);
      for (const int fd : {to[0], to[1], from[0], from[1]}) ::close(fd);
      ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    to_ = ::fdopen(to[1], "w");
    from_ = ::fdopen(from[0], "r");
    previous_ = std::signal(SIGPIPE, SIG_IGN);
  }
  ~PeerProgram() {
    std::fclose(to_);
    std::fclose(from_);
    ::waitpid(child_, nullptr, 0);
    std::signal(SIGPIPE, previous_);
  }
  PeerProgram(const PeerProgram&) = delete;
  PeerProgram& operator=(const PeerProgram&) = delete;

  Json ask(const Json& question) {
    const std::string line = dump(question) + "\n";
    std::fwrite(line.data(), 1, line.size(), to_);
    if (std::fflush(to_) != 0) fail("a program that reads its input", "one that has ended");
    char* answer = nullptr;
    size_t room = 0;
    const ssize_t size = ::getline(&answer, &room, from_);
    const std::string text(answer == nullptr ? "" : answer,
                           size < 0 ? 0 : static_cast<size_t>(size));
    std::free(answer);
    if (size < 0) fail("a line for every line", "the end of its output");
    Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) fail("an object of JSON", printable(text, 100));
    return json;
  }
  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    throw Error(ErrorKind::io, "", "--against " + command_, expected, found);
  }

 private:
  std::string command_;
  pid_t child_ = -1;
  std::FILE *to_ = nullptr, *from_ = nullptr;
  void (*previous_)(int) = nullptr;
};

struct AgainstCase {
  std::string name;
  Json question;
};

// Returns the ends of pieces of `each` tokens.
std::vector<size_t> cuts_of(size_t count, size_t each) {
  std::vector<size_t> cuts;
  for (size_t at = each; at < count; at += each) cuts.push_back(at);
  return cuts;
}

std::vector<AgainstCase> cases_of(const std::vector<int32_t>& ids, int64_t window) {
  const size_t n = ids.size(), half = n / 2;
  const auto ask = [&](const Json& more) {
    Json q = {{"ids", ids}, {"cuts", Json::array()}};
    if (more.is_object()) q.update(more);
    return q;
  };
  std::vector<AgainstCase> all = {{"all at once", ask({})},
                                  {"all at once, again", ask({})},
                                  {"one token at a time", ask({{"cuts", cuts_of(n, 1)}})},
                                  {"pieces of 7", ask({{"cuts", cuts_of(n, 7)}})},
                                  {"pieces of 64", ask({{"cuts", cuts_of(n, 64)}})},
                                  {"all but the last, then it", ask({{"cuts", {n - 1}}})}};
  if (window > 1 && static_cast<size_t>(window) + 1 < n) {
    const auto edge = static_cast<size_t>(window);
    all.push_back({"cut before, at and behind the window's edge",
                   ask({{"cuts", {edge - 1, edge, edge + 1}}})});
    all.push_back(
        {"saved and restored at the window's edge", ask({{"cuts", {edge}}, {"save_at", edge}})});
    all.push_back({"rewound from other tokens to the window's edge",
                   ask({{"cuts", {edge}}, {"rewind_at", edge}})});
  }
  const std::vector<int32_t> other(ids.rbegin(), ids.rend());
  all.push_back({"beside others in a batch",
                 ask({{"batch", {other, std::vector<int32_t>(other.begin() + 1, other.end())}}})});
  all.push_back({"saved and restored in the middle", ask({{"cuts", {half}}, {"save_at", half}})});
  all.push_back({"forked in the middle", ask({{"cuts", {half}}, {"fork_at", half}})});
  all.push_back({"rewound from other tokens", ask({{"cuts", {half}}, {"rewind_at", half}})});
  return all;
}

std::vector<float> logits_of(const PeerProgram& peer, const Json& answer) {
  if (!answer.contains("logits") || !answer["logits"].is_array() || answer["logits"].empty())
    peer.fail("\"logits\": an array of numbers, or \"unsupported\": true",
              dump(answer).substr(0, 100));
  std::vector<float> logits;
  for (const Json& x : answer["logits"]) {
    const auto logit = x.is_number() ? static_cast<float>(x.get<double>()) : NAN;
    if (!std::isfinite(logit))
      peer.fail("finite float32 numbers as logits", printable(dump(x), 40));
    logits.push_back(logit);
  }
  return logits;
}

}  // namespace

size_t run_against(const std::string& command, const std::vector<int32_t>& ids, int64_t window,
                   bool json) {
  PeerProgram peer(command);
  std::optional<std::vector<float>> first;
  Json rows = Json::array();
  size_t changed = 0;
  if (window > 1 && static_cast<size_t>(window) + 1 >= ids.size())
    say("the window's edge is at position {}, beyond these {} tokens, so it is not tested\n",
        window, ids.size());
  if (!json)
    out(fmt::format("{:<44}  {:<9}  {:<12}  {}\n", "way", "bits", "greedy token",
                    "largest difference"));
  for (const AgainstCase& c : cases_of(ids, window)) {
    const Json answer = peer.ask(c.question);
    if (answer.value("unsupported", false)) {
      rows.push_back({{"way", c.name}, {"unsupported", true}});
      if (!json) out(fmt::format("{:<44}  not supported\n", c.name));
      continue;
    }
    const std::vector<float> logits = logits_of(peer, answer);
    if (!first) first = logits;
    if (logits.size() != first->size())
      peer.fail(fmt::format("{} logits", first->size()), std::to_string(logits.size()));
    const bool same = std::memcmp(logits.data(), first->data(), logits.size() * sizeof(float)) == 0;
    double worst = 0;
    for (size_t i = 0; i < logits.size(); ++i)
      worst = std::max(worst, std::abs(double{logits[i]} - (*first)[i]));
    const auto best = [](const std::vector<float>& x) {
      return std::max_element(x.begin(), x.end()) - x.begin();
    };
    const bool token = best(logits) == best(*first);
    changed += same ? 0 : 1;
    rows.push_back(
        {{"way", c.name}, {"same_bits", same}, {"same_token", token}, {"difference", worst}});
    if (!json)
      out(fmt::format("{:<44}  {:<9}  {:<12}  {:.3g}\n", c.name, same ? "same" : "DIFFERENT",
                      token ? "same" : "DIFFERENT", worst));
  }
  if (json) out(dump(rows, 1) + "\n");
  return changed;
}

}  // namespace stet::tool

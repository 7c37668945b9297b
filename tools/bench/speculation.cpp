#include "tools/bench/speculation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "stet/base/error.hpp"
#include "tools/bench/figures.hpp"

namespace stet::tool {
namespace {

// Knows the tokens of a session and drafts each of them with a probability, else another one.
class ErringDrafter : public Drafter {
 public:
  ErringDrafter(const std::vector<int32_t>& tokens, double rate, uint64_t seed)
      : tokens_(tokens), rate_(rate), random_(seed) {}

  Offer offer(const Session& session, int32_t, size_t most) override {
    draft_.clear();
    const auto from = static_cast<size_t>(session.size()) + 1;
    for (size_t at = from; at < tokens_.size() && draft_.size() < most; ++at) {
      const bool right = std::uniform_real_distribution<double>()(random_) < rate_;
      draft_.push_back(right ? tokens_[at] : tokens_[at] == 0 ? 1 : 0);
    }
    return {draft_.size(), draft_, 0, 0};
  }
  std::span<const int32_t> draft(const Session&, int32_t, size_t count) override {
    return std::span(draft_).first(std::min(count, draft_.size()));
  }

 private:
  const std::vector<int32_t>& tokens_;
  double rate_;
  std::mt19937_64 random_;
  std::vector<int32_t> draft_;
};

struct TimedReply {
  Reply reply;
  double seconds;
  StateDigests digests;
  std::vector<int32_t> tokens;
};

TimedReply timed_reply(const Session& prompted, int64_t tokens, Speculator* speculator) {
  Session session = prompted.fork();
  GenerateOptions options{tokens, true};
  options.speculator = speculator;
  TimedReply timed{};
  timed.seconds = time_of([&] { timed.reply = generate(session, nullptr, options); });
  timed.digests = digests_of(session);
  timed.tokens = session.tokens();
  return timed;
}

}  // namespace

Json speculation_figures(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                         int64_t prompt, int64_t tokens, const std::vector<double>& rates,
                         int repeat) {
  Session session(model, options);
  session.append(some_tokens(*model, prompt));
  std::vector<double> plain;
  std::vector<std::vector<double>> gains(rates.size());
  std::vector<Reply> last(rates.size());
  const TimedReply expected = timed_reply(session, tokens, nullptr);
  for (int run = 0; run < repeat; ++run) {
    for (size_t i = 0; i < rates.size(); ++i) {
      const double before = timed_reply(session, tokens, nullptr).seconds;
      const auto drafter =
          std::make_shared<ErringDrafter>(expected.tokens, rates[i], static_cast<uint64_t>(run));
      Speculator speculator(drafter);
      TimedReply timed = timed_reply(session, tokens, &speculator);
      const double after = timed_reply(session, tokens, nullptr).seconds;
      if (!(timed.digests.state == expected.digests.state))
        throw std::runtime_error("a reply with drafts has another state");
      plain.push_back((before + after) / 2);
      gains[i].push_back(plain.back() / timed.seconds);
      last[i] = std::move(timed.reply);
    }
  }
  Json rows = Json::array();
  for (size_t i = 0; i < rates.size(); ++i) {
    rows.push_back({{"right", rates[i]},
                    {"drafted", last[i].drafted},
                    {"accepted", last[i].accepted},
                    {"of_plain", median(gains[i])}});
  }
  return {{"tokens", tokens},
          {"plain_tokens_per_s", static_cast<double>(tokens) / median(plain)},
          {"rates", rows}};
}

Json row_figures(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                 int64_t prompt, const std::vector<int64_t>& rows, int repeat) {
  constexpr int kPasses = 8;  // passes in one measurement
  const std::vector<int32_t> ids = some_tokens(*model, prompt), some = some_tokens(*model, 64);
  Session session(model, options);
  std::vector<std::vector<double>> costs(rows.size());
  std::vector<double> ratios;  // time of a prompt's token / time of a pass of one row
  const auto most = static_cast<size_t>(*std::ranges::max_element(rows)) - 1;
  // Recurrent layers end a draft before an anchor. More tokens are appended to place it further on.
  const auto make_room = [&] {
    for (size_t i = 1; session.most_drafted() < most && i < some.size(); ++i)
      session.append({&some[i], 1});
    if (session.most_drafted() < most)
      throw Error(ErrorKind::capacity, "", "--rows",
                  fmt::format("at most {}", session.most_drafted() + 1), std::to_string(most + 1));
  };
  const auto passes = [&](size_t drafted) {
    const BatchEntry entry{&session, {some.data(), 1}, nullptr, {some.data() + 1, drafted}};
    const int64_t size = session.size();
    double seconds = 0;
    for (int i = 0; i < kPasses; ++i) {
      seconds += time_of([&] { append({&entry, 1}); });
      session.rewind(size);
    }
    return seconds / kPasses;
  };
  for (int run = 0; run < repeat; ++run) {
    session.rewind(0);
    const double prefill = time_of([&] { session.append(ids); }) / static_cast<double>(prompt);
    make_room();
    session.keep_anchor();
    double before = passes(0);
    ratios.push_back(prefill / before);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double several = passes(static_cast<size_t>(rows[i] - 1)), after = passes(0);
      costs[i].push_back(2 * several / (before + after));
      before = after;
    }
  }
  Json all = Json::array();
  for (size_t i = 0; i < rows.size(); ++i) {
    const double bound = std::max(1.0, static_cast<double>(rows[i]) * median(ratios));
    all.push_back({{"rows", rows[i]},
                   {"of_one_row", median(costs[i])},
                   {"bound", bound},
                   {"of_bound", median(costs[i]) / bound}});
  }
  return all;
}

void print_speculation(const Json& j) {
  const auto number = [](const Json& of, const char* name) { return of[name].get<double>(); };
  for (const Json& r : j.value("rows", Json::array())) {
    out(fmt::format("rows      {} rows: {:.2f} x one row, bound {:.2f}, {:.2f} of it\n",
                    r["rows"].get<int64_t>(), number(r, "of_one_row"), number(r, "bound"),
                    number(r, "of_bound")));
  }
  if (!j.contains("speculation")) return;
  for (const Json& r : j["speculation"]["rates"]) {
    out(fmt::format("drafts    {:g} right: {:.2f} x without drafts, {} of {} accepted\n",
                    number(r, "right"), number(r, "of_plain"), r["accepted"].get<uint64_t>(),
                    r["drafted"].get<uint64_t>()));
  }
}

}  // namespace stet::tool

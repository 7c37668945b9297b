// Estimates the gain of drafts. The estimate affects only speed, so its arithmetic need not be
// reproducible.
#include "stet/generate/speculate.hpp"

#include <algorithm>
#include <cmath>

#include "stet/threads/interrupt.hpp"

namespace stet {

double average_seconds(double average, std::chrono::steady_clock::duration took, size_t count) {
  const std::chrono::duration<double> all = took;
  const double each = all.count() / static_cast<double>(std::max<size_t>(1, count));
  return average == 0 ? each : average + 0.2 * (each - average);
}

void PassCosts::add(size_t rows, double seconds) {
  if (rows == 0 || rows > kRows || seconds <= 0) return;
  ++now_;
  Cost& cost = at_[rows];
  const bool forgotten = !known(rows);
  cost.when = now_;
  if (forgotten)
    cost.seconds = seconds;
  else if (seconds < cost.seconds)  // passes can be slow by accident, but not fast
    cost.seconds += 0.5 * (seconds - cost.seconds);
  else
    cost.seconds += 0.1 * (std::min(seconds, 2 * cost.seconds) - cost.seconds);
}

// Interpolates between the nearest measured numbers of rows.
double PassCosts::of(size_t rows) const {
  size_t below = std::min(rows, kRows), above = below;
  while (below > 0 && !known(below)) --below;
  while (above <= kRows && !known(above)) ++above;
  const auto at = static_cast<double>(rows);
  if (below == 0 && above > kRows) return 1 + kSlope * (at - 1);
  if (below == 0)
    return at_[above].seconds * (1 + kSlope * (at - 1)) /
           (1 + kSlope * (static_cast<double>(above) - 1));
  const double low = at_[below].seconds;
  if (above > kRows) {
    const double measured =
        known(1) && below > 1 ? (low - at_[1].seconds) / static_cast<double>(below - 1) : 0;
    const double assumed = kSlope * (known(1) ? at_[1].seconds : low);
    return low + std::max(measured, below == 1 ? assumed : 0.25 * assumed) *
                     (at - static_cast<double>(below));
  }
  if (above == below) return low;
  const double part = (at - static_cast<double>(below)) / static_cast<double>(above - below);
  return low + part * (at_[above].seconds - low);
}

namespace {

constexpr size_t kChunk = 64;  // most tokens that a drafter processes before one pass

// Chooses the drafter that catches up before a pass, and returns the time that it takes. The mean
// over several passes is at most kShare of their time. The whole must be a small part of the reply.
double choose_catch_up(std::span<DraftChoice> replies, double alone, double slowest) {
  constexpr double kShare = 0.25, kUnknown = 0.01, kMostOfRest = 0.125;
  constexpr size_t kFirst = 8;  // tokens whose cost is unknown
  const double most = (slowest - 1) * alone;
  for (DraftChoice& r : replies) {
    if (r.lacking == 0 || r.all || r.seconds > most) continue;
    const bool known = r.catch_up_seconds > 0;
    const double each = known ? r.catch_up_seconds : kUnknown * alone;
    if (each * static_cast<double>(r.lacking) > kMostOfRest * alone * static_cast<double>(r.left))
      continue;
    const size_t some = std::min(r.lacking, known ? kChunk : kFirst);
    const double time = std::min(kShare * alone * static_cast<double>(r.waited), most);
    const auto count = static_cast<size_t>(std::min(time / each, static_cast<double>(some)));
    if (count < some && time < most) return 0;  // later, more fit at once, which costs less
    if (count == 0) continue;
    r.catching_up = count;
    return each * static_cast<double>(count);
  }
  return 0;
}

}  // namespace

void choose_drafts(std::span<DraftChoice> replies, size_t rows, const PassCosts& costs,
                   double slowest) {
  constexpr double kLeastGain = 1.03, kLeastSlope = 0.02;
  constexpr size_t kTrial = 2;
  const auto next_gain = [](const DraftChoice& r) {
    return r.chosen < r.most && !r.all ? std::pow(r.acceptance, static_cast<double>(r.chosen + 1))
                                       : 0.0;
  };
  for (DraftChoice& r : replies) {
    r.chosen = r.all ? r.most : 0;
    r.catching_up = r.all ? std::min(r.lacking, kChunk) : 0;
  }
  if (costs.is_stale(rows)) return;
  const double alone = costs.of(rows);
  double tokens = static_cast<double>(rows), drafting = choose_catch_up(replies, alone, slowest);
  for (DraftChoice& r : replies) {
    const size_t few = std::min(r.most, kTrial);
    const double seconds = r.seconds * static_cast<double>(few);
    if (!r.trial || r.all || few == 0) continue;
    if (costs.of(rows + few) + drafting + seconds > slowest * alone) continue;
    r.chosen = few, rows += few, drafting += seconds;
    break;
  }
  std::vector<size_t> added;  // in order of their gain
  double best = kLeastGain * tokens / (costs.of(rows) + drafting);
  size_t kept = 0;
  while (rows + added.size() < PassCosts::kRows) {
    const auto next = std::ranges::max_element(replies, {}, next_gain);
    if (next == replies.end() || next_gain(*next) <= 0) break;
    tokens += next_gain(*next);
    drafting += next->seconds;
    ++next->chosen;
    added.push_back(static_cast<size_t>(next - replies.begin()));
    // more rows are never cheaper, even if a disturbed measurement says so
    const double least = alone * (1 + kLeastSlope * static_cast<double>(added.size()));
    const double seconds = std::max(costs.of(rows + added.size()), least) + drafting;
    if (seconds > slowest * alone) break;
    if (tokens / seconds > best) best = tokens / seconds, kept = added.size();
  }
  for (size_t i = kept; i < added.size(); ++i) --replies[added[i]].chosen;
}

// Runs a call of the drafter. Returns false if it fails, which costs the draft and not the reply.
template <class Call>
bool Speculator::ask(const Call& call) {
  try {
    call();
    return true;
  } catch (const Interrupted&) {
    throw;
  } catch (...) {
    expected_.clear();
    resting_ = kTry;  // the next call would probably fail, too
    return false;
  }
}

DraftChoice Speculator::consider(const Session& session, int32_t next, size_t limit) {
  expected_.clear();
  at_ = 0;
  if (resting_ > 0) {
    --resting_;
    return {};
  }
  Drafter::Offer offer;
  const bool offered = ask([&] {
    offer = drafter_->offer(session, next, std::min(limit, kMost));
    expected_.assign(offer.known.begin(), offer.known.end());
  });
  if (!offered) return {};
  confidence_ = offer.confidence;
  const Record& record = records_[confidence_];
  DraftChoice choice{record.right / record.all, offer.seconds, offer.most, 0, always_};
  // a drafter that takes time is tried occasionally, because only drafting measures its acceptance
  choice.trial = offer.known.empty() && ++untried_ > kTry;
  choice.waited = ++waited_;
  if (choice.trial || always_) choice.lacking = offer.lacking;
  choice.catch_up_seconds = offer.catch_up_seconds;
  return choice;
}

void Speculator::catch_up(const Session& session, int32_t next, size_t count) {
  if (count == 0) return;
  waited_ = 0;
  ask([&] { drafter_->catch_up(session, next, count); });
}

std::span<const int32_t> Speculator::take(const Session& session, int32_t next, size_t count) {
  if (count == 0) return {};
  std::span<const int32_t> draft;
  const bool drafted = ask([&] {
    draft = drafter_->draft(session, next, count);
    if (expected_.empty()) expected_.assign(draft.begin(), draft.end());
  });
  untried_ = 0;
  return drafted ? draft : std::span<const int32_t>{};
}

void Speculator::drawn(int32_t id) {
  if (at_ >= expected_.size()) return;
  const bool right = expected_[at_] == id;
  Record& record = records_[confidence_];
  record.right = kMemory * record.right + (right ? 1 : 0);
  record.all = kMemory * record.all + 1;
  if (right)
    ++at_;
  else
    expected_.clear();
}

}  // namespace stet

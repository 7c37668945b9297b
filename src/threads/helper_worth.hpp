// Decides whether helper threads of a parallel region pay off.
#pragma once

#include <algorithm>
#include <chrono>

#include "stet/threads/team.hpp"

namespace stet {

// The balance of one calling thread. A parallel region ends only when all its threads have
// finished. Beside other programs, a thread that the system has suspended can hold up a short run
// for many times its length. So the time that helpers saved is weighed against the time lost by
// waiting for them. While the balance is negative, runs use no helpers, except occasionally to try
// again.
class HelperBalance {
 public:
  using Clock = std::chrono::steady_clock;
  // A run as seen by its calling thread, which waited from `done` on, when all operations were
  // finished.
  struct Run {
    int helpers;
    Clock::time_point start, done = {};
    TeamProgress tally = {};  // the calling thread's own
  };

  // Returns whether the next run should use helpers. Call it before each run. Reads a clock only
  // while the balance is negative.
  template <class Now>
  bool are_worth_it(Now now) {
    if (balance_ >= Seconds(0)) return true;
    const Clock::time_point time = now();
    balance_ += kTried * std::min(Seconds(time - seen_), -kLeast / kTried);
    seen_ = time;
    return balance_ >= Seconds(0);
  }
  // Records a run that ended at `now`.
  void note(const Run& run, Clock::time_point now) {
    const double mine = std::max(1.0, static_cast<double>(run.tally.done)),
                 pieces = std::max(mine, static_cast<double>(run.tally.pieces));
    const Seconds busy = run.done - run.start, waited = now - run.done,
                  saved = busy * std::min<double>(run.helpers, pieces / mine - 1);
    usual_ += (busy - usual_) / (usual_ == Seconds(0) ? 1 : 8);
    balance_ = std::clamp(balance_ + saved - waited, kLeast, std::max(kMost, 2 * usual_));
    seen_ = now;
  }

 private:
  using Seconds = std::chrono::duration<double>;
  static constexpr double kTried = 0.03;                 // share of the time for trying them again
  static constexpr Seconds kLeast{-0.01}, kMost{0.005};  // kMost grows to two usual runs

  Seconds balance_{0};      // time saved less time lost, within limits
  Seconds usual_{0};        // average length of the latest runs
  Clock::time_point seen_;  // time of the latest update
};

}  // namespace stet

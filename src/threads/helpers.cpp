#include "src/threads/helpers.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "stet/kernels/float_environment.hpp"

namespace stet {
namespace {

constexpr uint64_t kCame = 0xFFFF;  // of the gate
constexpr int kMostHelpers = 0xFFFE;

// Beside other programs a thread may run for 3 to 4 ms at a time. One that is then put aside in the
// middle of a piece holds up its team for as long; so a helper gives way shortly before, between
// two runs, where nobody waits for it.
using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kGivesWay(2500);

// Whether this thread is a member of a team: then a run of its own is this thread's alone.
thread_local bool in_team = false;

int size_of(uint64_t gate) { return static_cast<int>(gate >> 16 & 0xFFFF); }

void run_member(Team team, const std::function<void(Team)>& work) {
  const FloatEnvironment contract;
  work(team);
}

}  // namespace

Helpers::~Helpers() {
  forget_those_of_the_parent();
  ending_ = true;
  run_.add_one();
  run_.wake();
  for (std::thread& t : threads_) t.join();
}

// A process that was forked has none of the threads that it knows of: they can be neither used nor
// joined.
void Helpers::forget_those_of_the_parent() {
  if (threads_.empty() || process_ == getpid()) return;
  new std::vector<std::thread>(std::move(threads_));
  threads_.clear();
}

// What memory or the system refuses, the run does without.
int Helpers::grow(int count) try {
  forget_those_of_the_parent();
  process_ = getpid();
  while (static_cast<int>(threads_.size()) < count) {
    threads_.emplace_back(&Helpers::serve, this, static_cast<int>(threads_.size()) + 1);
  }
  return count;
} catch (const std::exception&) {
  return static_cast<int>(threads_.size());
}

void Helpers::run(int size, Wait wait, const std::function<void(Team)>& work) {
  const int helpers = size > 1 && !in_team ? grow(std::min(size - 1, kMostHelpers)) : 0;
  if (helpers == 0) return run_member({}, work);
  in_team = true;
  open(helpers + 1, work);
  uint32_t op = first_op_;
  run_member({0, helpers + 1, &operations_, &op}, work);
  const auto wait_until_left = [this](uint32_t n) {
    for (uint32_t left = left_.load(); left != n;) left = left_.changed_from(left);
  };
  if (wait == Wait::for_all) wait_until_left(static_cast<uint32_t>(helpers));
  wait_until_left(static_cast<uint32_t>(gate_.exchange(0) & kCame));
  first_op_ = op;
  in_team = false;
}

void Helpers::open(int size, const std::function<void(Team)>& work) {
  work_ = &work;
  left_.set(0);
  const uint32_t run = run_.load() + 1;
  gate_.store(uint64_t{run} << 32 | static_cast<uint64_t>(size) << 16);
  run_.set(run);
  run_.wake();
}

// The size of the team, or 0 when the run is over, or without this helper.
int Helpers::enter(uint32_t run, int rank) {
  uint64_t gate = gate_.load();
  while (gate >> 32 == run && rank < size_of(gate)) {
    if (gate_.compare_exchange_weak(gate, gate + 1)) return size_of(gate);
  }
  return 0;
}

void Helpers::serve(int rank) {
  in_team = true;
  Clock::time_point gave_way = Clock::now();
  for (uint32_t run = 0;;) {
    if (Clock::now() - gave_way > kGivesWay) {
      sched_yield();
      gave_way = Clock::now();
    }
    run = run_.changed_from(run);
    if (ending_) return;
    const int size = enter(run, rank);
    if (size == 0) continue;
    uint32_t op = first_op_;
    run_member({rank, size, &operations_, &op}, *work_);
    left_.add_one();
    left_.wake();
  }
}

}  // namespace stet

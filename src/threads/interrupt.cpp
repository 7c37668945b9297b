#include "stet/threads/interrupt.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "src/threads/interrupt_check.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

using Time = std::chrono::steady_clock::time_point;

// Returns when the interrupt may be asked again.
Time next_question(const Interrupt& interrupt) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(interrupt.between_ms);
}

}  // namespace

// The interrupt of one run. The thread that began the run polls it; its whole team sees the result.
class Interruption {
 public:
  explicit Interruption(const Interrupt& what) : what_(what) {}

  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  bool poll() {
    if (stopped() || std::this_thread::get_id() != owner_) return stopped();
    if (std::chrono::steady_clock::now() < next_) return false;
    if (what_.ask(what_.context) != 0) stopped_.store(true, std::memory_order_relaxed);
    next_ = next_question(what_);
    return stopped();
  }

 private:
  Interrupt what_;
  std::thread::id owner_ = std::this_thread::get_id();
  Time next_ = {};
  std::atomic<bool> stopped_{false};
};

namespace {

thread_local Interrupt interrupt_of_thread;
thread_local Time next_of_thread;  // of check_interrupt()

}  // namespace

Interrupt set_interrupt(const Interrupt& interrupt) noexcept {
  next_of_thread = {};
  return std::exchange(interrupt_of_thread, interrupt);
}

const char* Interrupted::what() const noexcept { return "interrupted"; }

void check_interrupt() {
  const Interrupt interrupt = interrupt_of_thread;
  if (interrupt.ask == nullptr || std::chrono::steady_clock::now() < next_of_thread) return;
  if (interrupt.ask(interrupt.context) != 0) throw Interrupted();
  next_of_thread = next_question(interrupt);
}

bool interrupted(Interruption& interruption) { return interruption.poll(); }

void run_interruptible(const TeamOptions& options, const std::function<void(Team)>& work) {
  if (interrupt_of_thread.ask == nullptr) return run_operations(options, work);
  Interruption interruption(interrupt_of_thread);
  if (interruption.poll()) throw Interrupted();
  run_operations(options, [&](Team team) {
    team.interruption = &interruption;
    work(team);
  });
  if (interruption.stopped()) throw Interrupted();
}

}  // namespace stet

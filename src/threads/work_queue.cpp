#include "stet/threads/team.hpp"

namespace stet {
namespace {

constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Returns the value once it differs from `seen`. Spins for a while, then sleeps.
template <class Value>
Value wait_for_change(std::atomic<Value>& value, std::atomic<uint32_t>& sleepers, Value seen) {
  for (int i = 0; i < kSpins; ++i) {
    if (const Value now = value.load(std::memory_order_acquire); now != seen) return now;
    pause();
  }
  sleepers.fetch_add(1);
  value.wait(seen);
  sleepers.fetch_sub(1);
  return value.load(std::memory_order_acquire);
}

}  // namespace

uint32_t EventCount::wait_while(uint32_t seen) { return wait_for_change(value_, sleepers_, seen); }

uint32_t WorkQueue::take(uint32_t op, uint32_t n) {
  uint64_t next = next_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(next >> 32) == op) {
    const uint32_t piece = static_cast<uint32_t>(next);
    if (piece == n) {
      next = wait_for_change(next_, sleepers_, next);
    } else if (next_.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) {
      return piece;
    }
  }
  return kNone;
}

// Finishes a piece. The write that ends an operation also opens the next one, so a waiter never
// sees a half-published state, even if this thread is suspended.
bool WorkQueue::finish(uint32_t op, uint32_t n) {
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 != n) return false;
  done_.store(0, std::memory_order_relaxed);
  next_.store(static_cast<uint64_t>(op + 1) << 32);
  if (sleepers_.load() > 0) next_.notify_all();
  return true;
}

}  // namespace stet

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

}  // namespace

uint32_t EventCount::wait_while(uint32_t seen) {
  for (int i = 0; i < kSpins; ++i) {
    if (const uint32_t now = load(); now != seen) return now;
    pause();
  }
  sleepers_.fetch_add(1);
  value_.wait(seen);
  sleepers_.fetch_sub(1);
  return load();
}

uint32_t WorkQueue::take(uint32_t op, uint32_t n) {
  uint64_t next = next_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(next >> 32) == op) {
    const uint32_t piece = static_cast<uint32_t>(next);
    if (piece == n) {
      op_.wait_while(op);
      next = next_.load(std::memory_order_acquire);
    } else if (next_.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) {
      return piece;
    }
  }
  return kNone;
}

bool WorkQueue::finish(uint32_t op, uint32_t n) {
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 != n) return false;
  done_.store(0, std::memory_order_relaxed);
  op_.store(op + 1);
  next_.store(static_cast<uint64_t>(op + 1) << 32, std::memory_order_release);
  op_.wake();
  return true;
}

}  // namespace stet

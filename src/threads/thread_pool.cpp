#include "src/threads/thread_pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "src/threads/member.hpp"

namespace stet {
namespace {

// Beside other programs a thread runs for 3 to 4 ms before the system suspends it. If that happens
// within a piece of work, the team waits as long. So a helper yields shortly before, between two
// runs, when no caller waits for it.
using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kYieldAfter(2500);

// State of a helper. A caller claims an idle one, posts a run and frees it afterwards. A helper
// that has not started by then is freed at once and skips the run; otherwise the caller waits until
// it is done.
enum HelperState : uint32_t { kIdle, kClaimed, kPosted, kRunning, kDone, kEnded };

}  // namespace

struct ThreadPool::Run {
  const std::function<void(Team)>& work;
  int size = 1;
  WorkQueue queue;
};

struct ThreadPool::Helper {
  alignas(64) EventCount state;
  // Written by the caller before posting, and read by the helper once it is running.
  Run* run = nullptr;
  int rank = 0;
  Helper* next = nullptr;  // next helper of the run, for its caller only
  std::thread thread;
};

ThreadPool::ThreadPool(const ThreadPool* of_parent) : of_parent_(of_parent) {}
ThreadPool::~ThreadPool() = default;

pid_t ThreadPool::current_process() { return getpid(); }

ThreadPool& ThreadPool::of_process() {
  static std::atomic<ThreadPool*> current{nullptr};
  struct Ender {
    ~Ender() {
      ThreadPool* pool = current.load();
      if (pool->process_ == current_process()) pool->end();
    }
  };
  for (ThreadPool* pool = current.load();;) {
    if (pool != nullptr && pool->process_ == current_process()) {
      static const Ender at_the_end;
      return *pool;
    }
    auto* const made = new ThreadPool(pool);
    if (current.compare_exchange_strong(pool, made)) {
      pool = made;
    } else {
      delete made;
    }
  }
}

void ThreadPool::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  for (const std::unique_ptr<Helper>& helper : helpers_) {
    if (helper->state.replace(kIdle, kEnded)) {
      helper->state.wake();
      helper->thread.join();
    } else {
      helper->thread.detach();  // still running; its run may be what ended the process
    }
  }
}

// Starts helpers up to `count`. If memory or threads run out, runs do with fewer.
void ThreadPool::grow(int count) try {
  if (static_cast<int>(helpers_.size()) < count) helpers_.reserve(static_cast<size_t>(count));
  while (static_cast<int>(helpers_.size()) < count) {
    auto helper = std::make_unique<Helper>();
    helper->thread = std::thread(&ThreadPool::serve, std::ref(*helper));
    helpers_.push_back(std::move(helper));
  }
} catch (const std::exception&) {
}

// Claims up to `count` idle helpers as a linked list with ranks from 1 on, and counts them in
// run.size.
ThreadPool::Helper* ThreadPool::claim(int count, Run& run) {
  const std::lock_guard lock(mutex_);
  if (ended_) return nullptr;
  grow(count);
  Helper* claimed = nullptr;
  for (const std::unique_ptr<Helper>& helper : helpers_) {
    if (run.size > count) break;
    if (!helper->state.replace(kIdle, kClaimed)) continue;
    helper->run = &run;
    helper->rank = run.size++;
    helper->next = claimed;
    claimed = helper.get();
  }
  return claimed;
}

void ThreadPool::run(int size, Wait wait, const std::function<void(Team)>& work) {
  Run run{.work = work, .queue = {}};
  Helper* const helpers = claim(size - 1, run);
  if (helpers == nullptr) return run_alone(work);
  for (Helper* h = helpers; h != nullptr; h = h->next) {
    h->state.store(kPosted);
    h->state.wake();
  }
  run_member(0, run.size, run.queue, work);
  for (Helper *h = helpers, *next; h != nullptr; h = next) {
    next = h->next;  // once idle, another caller may claim it
    if (wait == Wait::for_started && h->state.replace(kPosted, kIdle)) continue;
    for (uint32_t now = h->state.load(); now != kDone;) now = h->state.wait_while(now);
    h->state.store(kIdle);
  }
}

void ThreadPool::serve(Helper& me) {
  Clock::time_point gave_way = Clock::now();
  for (uint32_t state = me.state.load(); state != kEnded;) {
    if (state != kPosted) {
      state = me.state.wait_while(state);
      continue;
    }
    if (me.state.replace(kPosted, kRunning)) {
      run_member(me.rank, me.run->size, me.run->queue, me.run->work);
      me.state.store(kDone);
      me.state.wake();
      if (Clock::now() - gave_way > kYieldAfter) {
        sched_yield();
        gave_way = Clock::now();
      }
    }
    state = me.state.load();
  }
}

}  // namespace stet

#include "src/files/mapping_guard.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

namespace stet {

// A guarded range of memory. Ranges are never freed, because a handler may read one at any time.
// Unused ones have no end and are reused.
struct GuardedRange {
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<uint64_t> read_failures{0};
  bool used = true;  // guarded by `mutex`
  GuardedRange* next = nullptr;
};

namespace {

std::mutex mutex;
std::atomic<GuardedRange*> ranges{nullptr};
struct sigaction before = {};
uintptr_t page = 4096;

GuardedRange* find(uintptr_t address) {
  for (GuardedRange* r = ranges.load(std::memory_order_acquire); r != nullptr; r = r->next) {
    if (address >= r->begin.load(std::memory_order_acquire) &&
        address < r->end.load(std::memory_order_acquire))
      return r;
  }
  return nullptr;
}

void pass_on(int signal, siginfo_t* info, void* context) {
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    return before.sa_handler(signal);
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  sigaction(SIGBUS, &standard, nullptr);
  raise(SIGBUS);  // delivered when this handler returns
}

bool replace_by_zeros(uintptr_t begin, uintptr_t end) {
  void* const wanted = reinterpret_cast<void*>(begin);
  return mmap(wanted, end - begin, PROT_READ,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == wanted;
}

// Replaces the unreadable page and the rest of its range by zeros. A truncated file lacks all that
// follows, and a process may have only so many mappings. POSIX does not list mmap as safe in
// handlers, but here it is a plain system call.
void on_sigbus(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr) / page * page;
  GuardedRange* const range = info->si_code > 0 ? find(at) : nullptr;
  if (range == nullptr || !replace_by_zeros(at, range->end.load()))
    return pass_on(signal, info, context);
  range->read_failures.fetch_add(1);
  errno = error;
}

void install() {
  page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGBUS, &action, &before);
}

GuardedRange* take_range() {
  for (GuardedRange* r = ranges.load(); r != nullptr; r = r->next) {
    if (!r->used) return r;
  }
  GuardedRange* const made = new GuardedRange;
  made->next = ranges.load();
  ranges.store(made, std::memory_order_release);
  return made;
}

}  // namespace

MappingGuard::MappingGuard(const void* begin, size_t size) {
  static std::once_flag installed;
  std::call_once(installed, install);
  const std::lock_guard lock(mutex);
  range_ = take_range();
  range_->used = true;
  range_->read_failures.store(0);
  range_->begin.store(reinterpret_cast<uintptr_t>(begin));
  range_->end.store(reinterpret_cast<uintptr_t>(begin) + size);
}

MappingGuard::~MappingGuard() {
  const std::lock_guard lock(mutex);
  range_->end.store(0);
  range_->used = false;
}

uint64_t MappingGuard::read_failures() const { return range_->read_failures.load(); }

}  // namespace stet

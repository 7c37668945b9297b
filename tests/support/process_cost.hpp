// What a piece of work costs, measured in a process of its own: for promises about memory and time
// that hold for any input.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <exception>

namespace stet::test {

struct ProcessCost {
  int status = 0;      // 0: it returned; minus the signal that ended it; 1: it threw
  size_t memory = 0;   // bytes resident at the most, beyond what this process had
  double seconds = 0;  // of processor time
};

inline size_t resident_bytes() {
  size_t total = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%zu %zu", &total, &resident) != 2) resident = 0;
  if (file != nullptr) std::fclose(file);
  return resident * static_cast<size_t>(::getpagesize());
}

// Whatever threads this process has do not exist in the other one.
template <class Work>
ProcessCost cost_of(const Work& work) {
  const size_t before = resident_bytes();
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  struct rusage usage = {};
  ::wait4(child, &status, 0, &usage);
  const size_t most = static_cast<size_t>(usage.ru_maxrss) * 1024;
  const auto seconds = [](const struct timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return {WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status),
          most > before ? most - before : 0, seconds(usage.ru_utime) + seconds(usage.ru_stime)};
}

}  // namespace stet::test

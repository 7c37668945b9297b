// Measures the memory and time of a piece of work in a child process, to test limits that must hold
// for any input.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <vector>

namespace stet::test {

struct ProcessCost {
  int status = 0;      // 0: returned; 1: threw; negative: minus the signal that ended it
  size_t memory = 0;   // peak resident bytes beyond those of this process
  double seconds = 0;  // processor time, scaled to a machine where seconds_of_sorting() is kSort
};

// Machines differ in speed, and shared ones vary while they work. Times are therefore scaled by the
// time that a job of known size takes.
constexpr double kSort = 0.08;
inline double seconds_of_sorting() {
  std::vector<uint32_t> numbers(size_t{1} << 20);
  uint32_t next = 1;
  for (uint32_t& n : numbers) n = next = next * 1664525 + 1013904223;
  const std::clock_t begin = std::clock();
  std::sort(numbers.begin(), numbers.end());
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

inline size_t resident_bytes() {
  size_t total = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%zu %zu", &total, &resident) != 2) resident = 0;
  if (file != nullptr) std::fclose(file);
  return resident * static_cast<size_t>(::getpagesize());
}

// Runs `work` in a forked child. The threads of this process do not exist there.
template <class Work>
ProcessCost cost_of(const Work& work) {
  const double sorting = seconds_of_sorting();
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
          most > before ? most - before : 0,
          (seconds(usage.ru_utime) + seconds(usage.ru_stime)) * kSort / std::max(sorting, 0.01)};
}

}  // namespace stet::test

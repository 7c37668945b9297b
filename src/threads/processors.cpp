#include "src/threads/processors.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "stet/threads/team.hpp"

namespace stet {

int count_processors(const std::function<int(size_t, cpu_set_t*)>& get_affinity) {
  for (size_t most = 1024; most <= size_t{1} << 20; most *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(most),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    const size_t bytes = CPU_ALLOC_SIZE(most);
    if (get_affinity(bytes, set.get()) == 0)
      return std::clamp(CPU_COUNT_S(bytes, set.get()), 1, kMaxThreads);
    if (errno != EINVAL) break;  // EINVAL: the set is too small
  }
  return 1;
}

namespace {

// Reads the first line of a small file; "" if there is none. The file streams of the C++ library,
// which bring all locales into a static program, are not used.
std::string line_of(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return "";
  char* text = nullptr;
  size_t room = 0;
  const ssize_t size = ::getline(&text, &room, file);
  std::string line;
  if (size > 0) line.assign(text, static_cast<size_t>(size) - (text[size - 1] == '\n' ? 1 : 0));
  std::free(text);
  std::fclose(file);
  return line;
}

// Counts the numbers of a list such as "0-7,16".
int count_listed(const std::string& list) {
  int count = 0;
  const char* p = list.data();
  const char* const end = p + list.size();
  while (p < end) {
    int first = 0, last = 0;
    auto read = std::from_chars(p, end, first);
    if (read.ec != std::errc()) break;
    last = first;
    if (read.ptr < end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
    if (read.ec != std::errc() || last < first || last - first > kMaxThreads) break;
    count += last - first + 1;
    p = read.ptr + 1;
  }
  return count;
}

// Counts the cores of each capacity, slowest first. Linux reports capacities on Arm.
std::map<int, int> capacities(const std::string& root) {
  std::map<int, int> counts;
  for (int i = 0; i < kMaxThreads; ++i) {
    const std::string line =
        line_of(root + "/system/cpu/cpu" + std::to_string(i) + "/cpu_capacity");
    int capacity = 0;
    if (std::from_chars(line.data(), line.data() + line.size(), capacity).ec != std::errc()) break;
    ++counts[capacity];
  }
  return counts;
}

}  // namespace

std::string processor_kinds(const std::string& root) {
  std::string text;
  const int nodes = count_listed(line_of(root + "/system/node/online"));
  if (nodes > 1) text = std::to_string(nodes) + " NUMA nodes";
  // Intel's performance and efficiency cores have lists of their own.
  int fast = count_listed(line_of(root + "/cpu_core/cpus")),
      slow = count_listed(line_of(root + "/cpu_atom/cpus"));
  if (const std::map<int, int> kinds = capacities(root); kinds.size() > 1) {
    fast = kinds.rbegin()->second;
    slow = 0;
    for (const auto& [capacity, count] : kinds) slow += count;
    slow -= fast;
  }
  if (fast > 0 && slow > 0) {
    if (!text.empty()) text += ", ";
    text += std::to_string(fast) + " fast and " + std::to_string(slow) + " slow cores";
  }
  return text;
}

int count_processors() {
  return count_processors(
      [](size_t bytes, cpu_set_t* set) { return sched_getaffinity(0, bytes, set); });
}

}  // namespace stet

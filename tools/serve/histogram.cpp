#include "tools/serve/histogram.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace stet::serve {

void Histogram::add(double seconds) {
  const std::lock_guard lock(mutex_);
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts_[static_cast<size_t>(bound - kBounds.begin())];
  sum_ += seconds;
}

std::string Histogram::text(const char* name, const char* help) const {
  const std::lock_guard lock(mutex_);
  std::string text = fmt::format("# HELP stet_{0} {1}\n# TYPE stet_{0} histogram\n", name, help);
  uint64_t count = 0;
  for (size_t i = 0; i < kBounds.size(); ++i)
    text += fmt::format("stet_{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], count += counts_[i]);
  count += counts_.back();
  return text +
         fmt::format("stet_{0}_bucket{{le=\"+Inf\"}} {1}\nstet_{0}_sum {2}\nstet_{0}_count {1}\n",
                     name, count, sum_);
}

}  // namespace stet::serve

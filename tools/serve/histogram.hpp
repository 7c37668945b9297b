// Histograms of times, for metrics.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>

namespace stet::serve {

// A histogram of durations in Prometheus' format. Any thread may add to it.
class Histogram {
 public:
  static constexpr std::array<double, 14> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                     0.25,  0.5,    1,     2.5,  5,     10,   60};
  void add(double seconds);
  std::string text(const char* name, const char* help) const;

 private:
  mutable std::mutex mutex_;
  std::array<uint64_t, kBounds.size() + 1> counts_{};  // the last one counts longer times
  double sum_ = 0;
};

}  // namespace stet::serve

// Measures drawing one token from 262,144 logits, for each way of truncating.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "stet/sampling/philox.hpp"
#include "stet/sampling/sampler.hpp"

namespace {

constexpr int kVocab = 262144;

// Returns logits close to normal, with standard deviation 3.
std::vector<float> noise() {
  std::vector<float> x(kVocab);
  for (size_t i = 0; i < x.size(); ++i) {
    double sum = -6;
    for (uint64_t j = 0; j < 12; ++j) sum += stet::philox_uniform(1, i * 12 + j);
    x[i] = static_cast<float>(3 * sum);
  }
  return x;
}

void sample(benchmark::State& state, const stet::SamplingSettings& settings) {
  const std::vector<float> logits = noise();
  stet::Sampler sampler(kVocab);
  uint64_t position = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(sampler.sample(settings, logits, {}, position++));
  }
}

const stet::SamplingSettings kRandom = {.greedy = false};
const stet::SamplingSettings kTopK = {.greedy = false, .top_k = 64};
const stet::SamplingSettings kTopKTopP = {.greedy = false, .top_k = 64, .top_p = 0.95};
const stet::SamplingSettings kTopP = {.greedy = false, .top_p = 0.95};
const stet::SamplingSettings kMinP = {.greedy = false, .min_p = 0.05};
const stet::SamplingSettings kTypical = {.greedy = false, .typical_p = 0.9};

BENCHMARK_CAPTURE(sample, greedy, stet::SamplingSettings())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sample, temperature, kRandom)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sample, top_k_64, kTopK)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sample, top_k_64_top_p_0_95, kTopKTopP)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sample, top_p_0_95, kTopP)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sample, min_p_0_05, kMinP)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sample, typical_0_9, kTypical)->Unit(benchmark::kMillisecond);

}  // namespace

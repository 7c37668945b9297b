// Samples a token from logits: penalties, temperature, filters and the draw.
#include "stet/sampling/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/kernels/math.hpp"
#include "stet/sampling/log_probabilities.hpp"

namespace stet {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kGroups = 2048;
constexpr size_t kBins = 2048;

void require(bool holds, const std::string& source, const char* field, const char* expected,
             double found) {
  if (!holds) throw Error(ErrorKind::argument, source, field, expected, fmt::format("{}", found));
}

// Returns order-preserving bits: a < b exactly if key_of(a) < key_of(b). Scores contain neither nan
// nor -0.
uint32_t key_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

// Saturates on overflow, so that no finite logit becomes infinite. Turns -0 into 0.
float saturate(float x) { return (x > kLargest ? kLargest : x < -kLargest ? -kLargest : x) + 0.0f; }

float nearest_float(double x) { return saturate(static_cast<float>(x)); }

float penalised(float x, float penalty) { return saturate(x < 0 ? x * penalty : x / penalty); }

auto scale_by(const SamplingSettings& settings) {
  const float temperature = settings.greedy ? 1.0f : static_cast<float>(settings.temperature);
  return [=](float x) { return x == kMinusInfinity ? x : saturate(x / temperature); };
}

struct Crossing {
  uint32_t key;  // first key in ascending order whose cumulative mass is enough
  double below;  // mass of all smaller keys
};

// Finds the first key, in ascending order, at which the cumulative mass is enough. If rounding
// prevents that, returns the last key with mass. This is a radix search by the upper 11 bits of the
// key, then the middle 11, then the lower 10. The sums run in a fixed order.
template <typename Key, typename Mass, typename Enough>
Crossing find_crossing(size_t count, Key key, Mass mass, double* bins, Enough enough) {
  uint64_t prefix = 0;
  double below = 0;
  int shift = 32;
  for (const int bits : {11, 11, 10}) {
    const int parent = shift;
    shift -= bits;
    const size_t bin_count = size_t{1} << bits;
    std::fill_n(bins, bin_count, 0.0);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t k = key(i);
      if (k >> parent == prefix) bins[(k >> shift) & (bin_count - 1)] += mass(i);
    }
    size_t chosen = 0;
    double sum = below;
    for (size_t b = 0; b < bin_count; ++b) {
      if (bins[b] == 0) continue;
      chosen = b;
      below = sum;
      sum += bins[b];
      if (enough(sum)) break;
    }
    prefix = prefix << bits | chosen;
  }
  return {static_cast<uint32_t>(prefix), below};
}

}  // namespace

void SamplingSettings::validate(const std::string& source) const {
  // Comparisons are false for nan, so nan is rejected.
  const char* scale = "a number in [1e-30, 1e30]";
  require(temperature >= 1e-30 && temperature <= 1e30, source, "temperature", scale, temperature);
  require(top_k >= 0, source, "top_k", "0 (off) or a positive integer", top_k);
  require(top_p >= 0 && top_p <= 1, source, "top_p", "a number in [0, 1]", top_p);
  require(min_p >= 0 && min_p <= 1, source, "min_p", "a number in [0, 1]", min_p);
  require(typical_p > 0 && typical_p <= 1, source, "typical_p", "a number in (0, 1]", typical_p);
  require(repetition_penalty >= 1e-30 && repetition_penalty <= 1e30, source, "repetition_penalty",
          scale, repetition_penalty);
  const char* penalty = "a number in [-2, 2]";
  require(frequency_penalty >= -2 && frequency_penalty <= 2, source, "frequency_penalty", penalty,
          frequency_penalty);
  require(presence_penalty >= -2 && presence_penalty <= 2, source, "presence_penalty", penalty,
          presence_penalty);
  require(logit_bias.size() <= kMaxLogitBias, source, "logit_bias", "at most 4096 tokens",
          static_cast<double>(logit_bias.size()));
  int32_t before = -1;
  for (const auto& [id, bias] : logit_bias) {
    const bool ascending = id > before;
    if (ascending && bias >= -100 && bias <= 100 && bias != 0) {
      before = id;
      continue;
    }
    throw Error(ErrorKind::argument, source, fmt::format("logit_bias[{}]", id),
                ascending ? "a number in [-100, 100] other than 0" : "ids from 0 on, ascending",
                ascending ? fmt::format("{}", bias) : std::to_string(id));
  }
}

std::vector<TokenBias> logit_bias_of(std::vector<TokenBias> biases) {
  std::ranges::stable_sort(biases, {}, &TokenBias::id);
  const auto twice = std::ranges::adjacent_find(biases, {}, &TokenBias::id);
  if (twice != biases.end())
    throw Error(ErrorKind::argument, "", fmt::format("logit_bias[{}]", twice->id),
                "each token once", "a second bias");
  std::erase_if(biases, [](const TokenBias& b) { return b.bias == 0; });
  return biases;
}

double log_probability(std::span<const float> logits, int32_t id) {
  double result = 0;
  log_probabilities(logits, {&id, 1}, {&result, 1});
  return result;
}

int32_t log_probabilities(std::span<const float> logits, std::span<const int32_t> ids,
                          std::span<double> out) {
  const auto first = std::max_element(logits.begin(), logits.end());
  const double best = *first;
  double sum = 0, some[256];
  for (size_t at = 0; at < logits.size(); at += std::size(some)) {
    const size_t n = std::min(std::size(some), logits.size() - at);
    for (size_t i = 0; i < n; ++i) some[i] = logits[at + i] - best;
    math::exp_all(some, n);
    for (size_t i = 0; i < n; ++i) sum += some[i];
  }
  const double log_sum = math::log(sum);
  for (size_t i = 0; i < ids.size(); ++i)
    out[i] = logits[static_cast<size_t>(ids[i])] - best - log_sum;
  return static_cast<int32_t>(first - logits.begin());
}

Sampler::Sampler(int vocab_size) {
  require(vocab_size >= 1 && vocab_size <= kMaxSize, "", "vocab_size",
          "a positive integer up to 1048576", vocab_size);
  const size_t size = static_cast<size_t>(vocab_size);
  ids_.resize(size);
  scores_.resize(size);
  weights_.resize(size);
  values_.resize(size);
  group_best_.resize(std::min(size, kGroups));
  bins_.resize(kBins);
}

void Sampler::check(std::span<const float> logits) const {
  if (logits.size() != scores_.size()) {
    throw Error(ErrorKind::argument, "", "logits", fmt::format("{} values", scores_.size()),
                std::to_string(logits.size()));
  }
  bool bad = false;
  for (const float x : logits) bad |= !(x <= kLargest);
  if (bad) {
    const auto at =
        std::find_if(logits.begin(), logits.end(), [](float x) { return !(x <= kLargest); });
    throw Error(ErrorKind::argument, "", fmt::format("logits[{}]", at - logits.begin()),
                "a finite number or -inf", fmt::format("{}", *at));
  }
}

void Sampler::check(std::span<const int32_t> ids, const char* field) const {
  for (const int32_t id : ids) {
    if (id >= 0 && static_cast<size_t>(id) < scores_.size()) continue;
    throw Error(ErrorKind::argument, "", field, fmt::format("ids in 0..{}", scores_.size() - 1),
                std::to_string(id));
  }
}

// Computes scores_ from the logits: repetition penalty, then temperature.
void Sampler::score(const SamplingSettings& settings, std::span<const float> logits,
                    std::span<const int32_t> previous_ids) {
  const float penalty = static_cast<float>(settings.repetition_penalty);
  const auto scaled = scale_by(settings);
  for (size_t i = 0; i < logits.size(); ++i) scores_[i] = scaled(logits[i]);
  for (const int32_t id : previous_ids) {
    const float x = logits[id];
    if (x != kMinusInfinity) scores_[id] = scaled(penalised(x, penalty));
  }
}

// Like score(), with biases before the repetition penalty and penalties on drawn tokens after it.
void Sampler::score_tokens(const SamplingSettings& settings, std::span<const float> logits,
                           std::span<const int32_t> previous_ids,
                           std::span<const int32_t> drawn_ids) {
  const float penalty = static_cast<float>(settings.repetition_penalty);
  std::copy(logits.begin(), logits.end(), scores_.begin());
  for (const auto& [id, bias] : settings.logit_bias) {
    check({&id, 1}, "logit_bias");
    if (scores_[id] != kMinusInfinity) scores_[id] = nearest_float(scores_[id] + bias);
  }
  for (const int32_t id : previous_ids) weights_[id] = scores_[id];
  for (const int32_t id : previous_ids) {  // may contain duplicates
    const float x = static_cast<float>(weights_[id]);
    if (x != kMinusInfinity) scores_[id] = penalised(x, penalty);
  }
  std::vector<float>& counts = values_;  // exact: there are fewer than 2^24 positions
  for (const int32_t id : drawn_ids) counts[id] = 0;
  for (const int32_t id : drawn_ids) ++counts[id];
  for (const int32_t id : drawn_ids) {
    const double count = std::exchange(counts[id], 0.0f);
    if (count == 0 || scores_[id] == kMinusInfinity) continue;
    const double less = count * settings.frequency_penalty + settings.presence_penalty;
    scores_[id] = nearest_float(scores_[id] - less);
  }
  const auto scaled = scale_by(settings);
  for (float& x : scores_) x = scaled(x);
}

// Selects all tokens as candidates, and fills best_ and group_best_.
void Sampler::find_best() {
  count_ = scores_.size();
  std::iota(ids_.begin(), ids_.end(), 0);
  const size_t groups = group_best_.size();
  float* best = group_best_.data();
  std::fill_n(best, groups, kMinusInfinity);
  for (size_t start = 0; start < count_; start += groups) {
    const size_t n = std::min(groups, count_ - start);
    const float* row = scores_.data() + start;
    for (size_t g = 0; g < n; ++g) best[g] = row[g] > best[g] ? row[g] : best[g];
  }
  best_ = *std::max_element(best, best + groups);
  if (best_ == kMinusInfinity) {
    throw Error(ErrorKind::argument, "", "logits", "at least one finite value", "-inf alone");
  }
}

template <typename Kept>
void Sampler::keep_if(Kept kept) {
  size_t n = 0;
  for (size_t i = 0; i < count_; ++i) {
    if (!kept(i)) continue;
    ids_[n] = ids_[i];
    scores_[n] = scores_[i];
    weights_[n] = weights_[i];
    ++n;
  }
  count_ = n;
}

void Sampler::keep_best() {
  const auto at = std::find(scores_.begin(), scores_.end(), best_);
  ids_[0] = static_cast<int32_t>(at - scores_.begin());
  weights_[0] = 1;
  count_ = 1;
}

// The k best groups hold k scores at least as good as the best of the k-th group. Any score below
// that cannot be among the k best, which leaves few tokens to select from.
void Sampler::keep_top_k(size_t k) {
  if (k >= count_) return;
  if (k < group_best_.size()) {
    const auto kth = group_best_.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(group_best_.begin(), kth, group_best_.end(), std::greater<float>());
    keep_if([this, bound = *kth](size_t i) { return scores_[i] >= bound; });
  }
  const auto key = [this](size_t i) { return key_of(scores_[i]); };
  const double worse = static_cast<double>(count_ - k);
  const Crossing at = find_crossing(
      count_, key, [](size_t) { return 1.0; }, bins_.data(),
      [=](double sum) { return sum > worse; });
  keep_if([&](size_t i) { return key(i) >= at.key; });
}

// Drops scores for which exp(score - best) < p is certain. The margin of 2 exceeds any rounding
// error, and dropped scores need not be weighed.
void Sampler::keep_near(double p) {
  const double least = static_cast<double>(best_) + math::log(p) - 2;
  keep_if([=, this](size_t i) { return static_cast<double>(scores_[i]) >= least; });
}

void Sampler::weigh() {
  for (size_t i = 0; i < count_; ++i) {
    weights_[i] = static_cast<double>(scores_[i]) - static_cast<double>(best_);
  }
  math::exp_all(weights_.data(), count_);
}

double Sampler::total() const {
  return std::accumulate(weights_.begin(), weights_.begin() + count_, 0.0);
}

void Sampler::keep_top_p(double p) {
  const double dropped = (1 - p) * total();
  const auto key = [this](size_t i) { return key_of(scores_[i]); };
  const auto mass = [this](size_t i) { return weights_[i]; };
  const Crossing at =
      find_crossing(count_, key, mass, bins_.data(), [=](double sum) { return sum > dropped; });
  size_t last = count_ - 1;
  while (key(last) != at.key) --last;
  double sum = at.below;
  keep_if([&](size_t i) {
    if (key(i) != at.key) return key(i) > at.key;
    sum += weights_[i];
    return sum > dropped || i == last;
  });
}

void Sampler::keep_min_p(double p) {
  keep_if([=, this](size_t i) { return weights_[i] >= p; });  // the best has weight 1
}

void Sampler::keep_typical(double p) {
  const double sum = total();
  const double best = *std::max_element(scores_.begin(), scores_.begin() + count_);
  const double log_sum = math::log(sum);
  const auto log_p = [&](size_t i) { return static_cast<double>(scores_[i]) - best - log_sum; };
  double entropy = 0;
  for (size_t i = 0; i < count_; ++i) {
    if (weights_[i] > 0) entropy -= weights_[i] / sum * log_p(i);
  }
  for (size_t i = 0; i < count_; ++i) {
    const double distance = -log_p(i) - entropy;
    values_[i] = static_cast<float>(distance < 0 ? -distance : distance);
  }
  const auto key = [this](size_t i) { return key_of(values_[i] + 0.0f); };
  const auto mass = [this](size_t i) { return weights_[i]; };
  const Crossing at = find_crossing(count_, key, mass, bins_.data(),
                                    [=](double reached) { return reached >= p * sum; });
  keep_if([&](size_t i) { return key(i) <= at.key; });
}

void Sampler::normalize(std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);
  const double sum = total();
  for (size_t i = 0; i < count_; ++i) out[ids_[i]] = static_cast<float>(weights_[i] / sum);
}

// The loop always ends because `sum` exceeds `target`, so it never draws a token of weight zero.
// Since u is at most 1 - 2^-53, u * total() rounds to less than total(). The loop adds the same
// numbers in the same order as total(), so `sum` reaches total().
int32_t Sampler::draw(double u) const {
  const double target = u * total();
  size_t i = 0;
  for (double sum = weights_[0]; sum <= target && i + 1 < count_; sum += weights_[i]) ++i;
  return ids_[i];
}

}  // namespace stet

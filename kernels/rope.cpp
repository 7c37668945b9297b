// Computes RoPE frequencies and angles.
#include "stet/kernels/rope.hpp"

#include "stet/kernels/math.hpp"
#include "stet/model/config.hpp"

#include <algorithm>
#include <cmath>

namespace stet {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// Divides long wavelengths by `factor`, keeps short ones, and interpolates in between (Llama 3.1;
// transformers' _compute_llama3_parameters).
float llama3_scaled(const Rope& rope, float frequency) {
  const float wavelength = static_cast<float>(kTwoPi) / frequency;
  const float low = static_cast<float>(rope.original_positions / rope.low_freq_factor);
  const float high = static_cast<float>(rope.original_positions / rope.high_freq_factor);
  const float factor = static_cast<float>(rope.factor);
  if (wavelength > low) return frequency / factor;
  if (wavelength < high) return frequency;
  const float smooth = (static_cast<float>(rope.original_positions) / wavelength -
                        static_cast<float>(rope.low_freq_factor)) /
                       static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

// The pairs between which YaRN passes from keeping frequencies to dividing them (transformers'
// _compute_yarn_parameters).
struct Ramp {
  float low, high;
};

Ramp yarn_ramp(const Rope& rope, int64_t head_dim) {
  const auto dim = static_cast<double>(head_dim);
  const auto pair_of = [&](double turns) {
    return dim * math::log(rope.original_positions / (turns * kTwoPi)) /
           (2 * math::log(rope.theta));
  };
  double low = pair_of(rope.beta_fast), high = pair_of(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  return {static_cast<float>(low), static_cast<float>(high)};
}

float yarn_scaled(const Rope& rope, const Ramp& ramp, int64_t pair, float frequency) {
  const float part = (static_cast<float>(pair) - ramp.low) / (ramp.high - ramp.low),
              kept = 1.0f - std::clamp(part, 0.0f, 1.0f);
  return frequency / static_cast<float>(rope.factor) * (1.0f - kept) + frequency * kept;
}

}  // namespace

float rope_magnitude(const Rope& rope) {
  if (rope.scaling != Rope::Scaling::yarn && rope.scaling != Rope::Scaling::longrope) return 1.0f;
  if (rope.attention_factor > 0) return static_cast<float>(rope.attention_factor);
  return rope.factor > 1 ? static_cast<float>(0.1 * math::log(rope.factor) + 1) : 1.0f;
}

std::vector<float> inverse_frequencies(const Rope& rope, int64_t head_dim) {
  std::vector<float> result;
  const Ramp ramp = rope.scaling == Rope::Scaling::yarn ? yarn_ramp(rope, head_dim) : Ramp{0, 1};
  for (int64_t i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    const float frequency =
        1.0f / static_cast<float>(math::pow(rope.theta, static_cast<double>(exponent)));
    switch (rope.scaling) {
      case Rope::Scaling::none:
        result.push_back(frequency);
        break;
      case Rope::Scaling::linear:
        result.push_back(frequency / static_cast<float>(rope.factor));
        break;
      case Rope::Scaling::llama3:
        result.push_back(llama3_scaled(rope, frequency));
        break;
      case Rope::Scaling::yarn:
        result.push_back(yarn_scaled(rope, ramp, i / 2, frequency));
        break;
      case Rope::Scaling::proportional: {
        const auto pairs = static_cast<int64_t>(rope.part * static_cast<double>(head_dim) / 2);
        result.push_back(i / 2 < pairs ? frequency / static_cast<float>(rope.factor) : 0.0f);
        break;
      }
      case Rope::Scaling::longrope: {
        const double divisor =
            (rope.is_long ? rope.long_factors : rope.short_factors).at(static_cast<size_t>(i / 2));
        result.push_back(
            1.0f / (static_cast<float>(divisor) *
                    static_cast<float>(math::pow(rope.theta, static_cast<double>(exponent)))));
        break;
      }
    }
  }
  return result;
}

void rope_angles(int64_t position, std::span<const float> frequencies, float* cos, float* sin) {
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double s, c;
    math::sincos(static_cast<double>(static_cast<float>(position) * frequencies[i]), &s, &c);
    cos[i] = static_cast<float>(c);
    sin[i] = static_cast<float>(s);
  }
}

void rope_angles_back(int64_t position, std::span<const float> frequencies, float* cos,
                      float* sin) {
  rope_angles(position, frequencies, cos, sin);
  for (size_t i = 0; i < frequencies.size(); ++i) sin[i] = -sin[i];
}

}  // namespace stet

#include "stet/kernels/rope.hpp"

#include "stet/kernels/math.hpp"
#include "stet/model/config.hpp"

namespace stet {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// Long wavelengths are divided by `factor`, short ones kept, those between interpolated
// (Llama 3.1; transformers' _compute_llama3_parameters).
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

}  // namespace

std::vector<float> inverse_frequencies(const Rope& rope, int64_t head_dim) {
  std::vector<float> result;
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

// Rounds blocks of 32 weights to q8 and q4 (quantize.hpp).
#include "kernels/quantize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stet/kernels/numbers.hpp"
#include "stet/model/matrix.hpp"

namespace stet {
namespace {

// Returns the nearest integer in low .. high, ties to even.
int nearest(float x, int low, int high) {
  const float magic = 12582912.0f;  // 1.5 * 2^23
  return static_cast<int>(std::clamp(x, static_cast<float>(low), static_cast<float>(high)) + magic -
                          magic);
}

// Returns the weight of largest magnitude, with its sign; NaN if a weight is not finite.
float largest(std::span<const float, kQuantBlock> w) {
  float top = 0, zero = 0;
  for (const float x : w) {
    if (std::fabs(x) > std::fabs(top)) top = x;
    zero += x * 0;
  }
  return top + zero;
}

constexpr uint16_t kNotANumber = 0x7E00;

// A block rounded with a given scale to the nearest integers, and its distance from w.
struct Candidate {
  QuantizedBlock block;
  float error;
};
Candidate with_scale(std::span<const float, kQuantBlock> w, float scale) {
  Candidate c;
  c.block.scale = round_f16(scale);
  const float d = widen_f16(c.block.scale), inverse = d == 0 ? 0 : 1 / d;
  c.error = 0;
  for (size_t i = 0; i < kQuantBlock; ++i) {
    const int q = nearest(w[i] * inverse, -8, 7);
    c.block.u[i] = static_cast<uint8_t>(q + 8);
    const float miss = w[i] - static_cast<float>(q) * d;
    c.error += miss * miss;
  }
  return c;
}

}  // namespace

QuantizedBlock round_block_q8(std::span<const float, kQuantBlock> w) {
  const float top = largest(w);
  if (top != top) return {kNotANumber, {}};
  QuantizedBlock block;
  block.scale = round_f16(std::fabs(top) / 127.0f);
  if (std::fabs(top) > 127.5f * widen_f16(block.scale))
    ++block.scale;  // float16 is coarse below 2^-14
  const float d = widen_f16(block.scale), inverse = d == 0 ? 0 : 1 / d;
  for (size_t i = 0; i < kQuantBlock; ++i)
    block.u[i] = static_cast<uint8_t>(128 + nearest(w[i] * inverse, -127, 127));
  return block;
}

// -8 .. 7 has one step more on one side. Least squares, or clipping the largest weight, finds
// scales with less squared error. On the bundled checkpoints, however, they make text less likely.
QuantizedBlock round_block_q4(std::span<const float, kQuantBlock> w) {
  const float top = largest(w);
  if (top != top) return {kNotANumber, {}};
  const Candidate low = with_scale(w, top / -8), high = with_scale(w, top / 7);
  // The error is NaN if the scale is infinite.
  return high.error < low.error ? high.block : low.block;
}

// The largest scale that rounds to a finite float16 is below 65520.
WeightError::WeightError(WeightType to, size_t in_row, size_t in_column, float weight)
    : Error(ErrorKind::unsupported, "", fmt::format("[{}, {}]", in_row, in_column),
            fmt::format("less than {:g} in magnitude for {}",
                        65520.0 * (to == WeightType::q8 ? 127 : 8), weight_type_name(to)),
            fmt::format("{:g}", weight)),
      row(in_row),
      column(in_column) {}

}  // namespace stet

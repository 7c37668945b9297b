// Weights rounded to few bits, 32 at a time.
#pragma once

#include <cstdint>
#include <span>

#include "stet/base/error.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {

// Weight i is (u[i] - 128) d or (u[i] - 8) d, for the d whose float16 bits are `scale`. Of mxfp4
// `scale` is the byte of the exponent, and u[i] a code.
struct QuantizedBlock {
  uint16_t scale;
  uint8_t u[kQuantBlock];
};

// d = max |w| / 127, one step of float16 more where it would cut off over half a step, and the
// nearest integers: an error of at most d / 2. The scale of weights that are not finite, or too
// large, is infinite or not a number.
QuantizedBlock round_block_q8(std::span<const float, kQuantBlock> w);
// The weight of the largest magnitude becomes -8 or 7, whichever leaves the lesser sum of squared
// errors. u is 0 .. 15.
QuantizedBlock round_block_q4(std::span<const float, kQuantBlock> w);

// 256 weights, finite and less than 65520 in magnitude, as a block of ggml's Q4_K (144 bytes), Q5_K
// (176) or Q6_K (210). `importance`, where it is not null: 256 positive numbers that the squares of
// their errors are multiplied with.
void round_super_q4(std::span<const float, kSuperBlock> x, const float* importance, uint8_t* to);
void round_super_q5(std::span<const float, kSuperBlock> x, const float* importance, uint8_t* to);
void round_super_q6(std::span<const float, kSuperBlock> x, const float* importance, uint8_t* to);

// Such a block as integers. Of Q4_K and Q5_K weight i is (d scale[i / 32]) u[i] - m minimum[i /
// 32], of Q6_K (d scale[i / 16]) (u[i] - 32).
struct SuperIntegers {
  uint16_t d = 0, m = 0;  // float16
  int scale[kSuperBlock / 16] = {}, minimum[kSuperBlock / 32] = {}, u[kSuperBlock] = {};
};
void store_super_q4(const SuperIntegers& from, uint8_t* to);
void store_super_q5(const SuperIntegers& from, uint8_t* to);
void store_super_q6(const SuperIntegers& from, uint8_t* to);

// What Matrix::quantized() throws: a weight that has no place in a block.
struct WeightError : Error {
  WeightError(WeightType to, size_t in_row, size_t in_column, float weight);

  size_t row, column;
};

}  // namespace stet

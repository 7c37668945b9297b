// Rounding of weights to few bits, in blocks of 32 or 256.
#pragma once

#include <cstdint>
#include <span>

#include "stet/base/error.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {

// A block of 32 weights. Its form depends on the type:
//   q8     weight i is (u[i] - 128) d; `scale` holds the float16 bits of d
//   q4     weight i is (u[i] - 8) d; `scale` as in q8
//   mxfp4  u[i] is the code of weight i; `scale` is the byte of the exponent
struct QuantizedBlock {
  uint16_t scale;
  uint8_t u[kQuantBlock];
};

// Rounds to the nearest integers with d = max |w| / 127, one float16 step more if it would clip
// more than half a step. The error is at most d / 2. If weights are not finite or too large, the
// scale is infinite or NaN.
QuantizedBlock round_block_q8(std::span<const float, kQuantBlock> w);
// Maps the weight of largest magnitude to -8 or 7, whichever gives the smaller sum of squared
// errors. u is 0 .. 15.
QuantizedBlock round_block_q4(std::span<const float, kQuantBlock> w);

// Rounds 256 weights to a block of ggml's Q4_K (144 bytes), Q5_K (176) or Q6_K (210). Weights must
// be finite and less than 65520 in magnitude. `importance`, if not null, has 256 positive factors
// of the squared errors.
void round_super_q4(std::span<const float, kSuperBlock> x, const float* importance, uint8_t* to);
void round_super_q5(std::span<const float, kSuperBlock> x, const float* importance, uint8_t* to);
void round_super_q6(std::span<const float, kSuperBlock> x, const float* importance, uint8_t* to);

// A block of a K type as integers. In Q4_K and Q5_K, weight i is (d scale[i / 32]) u[i] - m
// minimum[i / 32]; in Q6_K, (d scale[i / 16]) (u[i] - 32).
struct SuperIntegers {
  uint16_t d = 0, m = 0;  // float16
  int scale[kSuperBlock / 16] = {}, minimum[kSuperBlock / 32] = {}, u[kSuperBlock] = {};
};
void store_super_q4(const SuperIntegers& from, uint8_t* to);
void store_super_q5(const SuperIntegers& from, uint8_t* to);
void store_super_q6(const SuperIntegers& from, uint8_t* to);

// Thrown by Matrix::quantized() for a weight that a block cannot represent.
struct WeightError : Error {
  WeightError(WeightType to, size_t in_row, size_t in_column, float weight);

  size_t row, column;
};

}  // namespace stet

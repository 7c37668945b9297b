// Reads single numbers of tensors.
#pragma once

#include <cstring>

#include "stet/files/tensor.hpp"
#include "stet/kernels/numbers.hpp"

namespace stet {

// Returns number i of a tensor of float32, bfloat16 or float16.
inline float number_at(const TensorView& t, size_t i) {
  if (t.dtype == DType::f32) {
    float x;
    std::memcpy(&x, t.bytes.data() + i * sizeof x, sizeof x);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, t.bytes.data() + i * sizeof bits, sizeof bits);
  return t.dtype == DType::bf16 ? widen_bf16(bits) : widen_f16(bits);
}

}  // namespace stet

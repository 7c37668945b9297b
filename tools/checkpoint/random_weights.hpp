// Weights drawn from a counter. Element i of a tensor depends only on seed, tensor name and i, not
// on threads or the order of writing. Uses integer and IEEE-754 arithmetic only, no libm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "stet/files/tensor.hpp"

namespace stet_tools {

struct Distribution {
  float mean = 0;
  float deviation = 0;  // no value differs from the mean by more than 3.47 times this
};

// Random bytes from `least` to `least + values - 1`, all equally likely.
struct Bytes {
  unsigned least = 0, values = 0;
};

uint64_t weight_key(uint64_t seed, const std::string& tensor_name);

// Fills `out` with elements first, first + 1, ... of a tensor, approximately normal, rounded to
// nearest even in `dtype` (f32, bf16 or f16). Splits the work among `threads` threads.
void fill_weights(stet::DType dtype, uint64_t key, Distribution distribution, uint64_t first,
                  unsigned threads, std::span<std::byte> out);
void fill_bytes(uint64_t key, Bytes bytes, uint64_t first, std::span<std::byte> out);

}  // namespace stet_tools

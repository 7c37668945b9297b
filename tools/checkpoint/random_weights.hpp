// Weights drawn from a counter: element i of a tensor is a function of seed, tensor name and i
// alone, so the bytes depend neither on threads nor on the order of writing. Integer and IEEE-754
// arithmetic only, no libm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "stet/files/tensor.hpp"

namespace stet_tools {

struct Distribution {
  float mean = 0;
  float deviation = 0;  // no value is further from the mean than 3.47 times this
};

// Bytes least .. least + values - 1, each as often.
struct Bytes {
  unsigned least = 0, values = 0;
};

uint64_t weight_key(uint64_t seed, const std::string& tensor_name);

// Fills `out` with elements first, first + 1, ... of a tensor, approximately normal, rounded to
// nearest even in `dtype` (f32, bf16 or f16). `threads` share the work.
void fill_weights(stet::DType dtype, uint64_t key, Distribution distribution, uint64_t first,
                  unsigned threads, std::span<std::byte> out);
void fill_bytes(uint64_t key, Bytes bytes, uint64_t first, std::span<std::byte> out);

}  // namespace stet_tools

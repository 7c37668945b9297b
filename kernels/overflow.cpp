// Detects float16 overflow in keys and values (kv/overflow.hpp).
#include "stet/kv/overflow.hpp"

#include <cstring>

#include "stet/kernels/numbers.hpp"

namespace stet {

bool all_finite_f16(const std::byte* from, size_t rows, size_t stride, size_t width) {
  constexpr uint16_t kExponent = 0x7C00;
  bool finite = true;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < width; ++i) {
      uint16_t bits;
      std::memcpy(&bits, from + (row * stride + i) * sizeof bits, sizeof bits);
      finite &= (bits & kExponent) != kExponent;
    }
  }
  return finite;
}

bool fits_f16(std::span<const float> x) {
  for (const float value : x) {
    if ((round_f16(value) & 0x7C00) == 0x7C00) return false;
  }
  return true;
}

}  // namespace stet

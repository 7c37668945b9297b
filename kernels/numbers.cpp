// Conversions of numbers, and rounding of keys and values (numbers.hpp, kv_block.hpp).
#include "stet/kernels/numbers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "stet/kv/kv_block.hpp"

namespace stet {

float widen_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float widen_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, magnitude = bits & 0x7FFFu;
  if (magnitude > 0x7C00u)
    return std::bit_cast<float>(sign | 0x7FC00000u | (magnitude & 0x3FFu) << 13);
  if (magnitude == 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u);
  return std::bit_cast<float>(
      sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
}

uint16_t round_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

uint16_t round_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u)
    return static_cast<uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and above
  if (magnitude < 0x38800000u) {
    // Below the smallest normal, adding 0.5 aligns the value so that the addition itself rounds it.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

float read_element(KvType type, const std::byte* at) {
  if (type == KvType::f32) {
    float x;
    std::memcpy(&x, at, sizeof x);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return type == KvType::bf16 ? widen_bf16(bits) : widen_f16(bits);
}

namespace {

template <class Element, class Convert>
void write_all(std::span<const float> x, std::byte* to, size_t stride, Convert convert) {
  Element* const out = reinterpret_cast<Element*>(to);
  for (size_t i = 0; i < x.size(); ++i) out[i * stride] = convert(x[i]);
}

}  // namespace

void read_elements(KvType type, const std::byte* from, size_t stride, std::span<float> x) {
  const size_t step = stride * (type == KvType::f32 ? 4 : 2);
  for (size_t i = 0; i < x.size(); ++i) x[i] = read_element(type, from + i * step);
}

void write_elements(KvType type, std::span<const float> x, std::byte* to, size_t stride) {
  switch (type) {
    case KvType::f32:
      return write_all<float>(x, to, stride, [](float f) { return f; });
    case KvType::bf16:
      return write_all<uint16_t>(x, to, stride, round_bf16);
    case KvType::f16:
      return write_all<uint16_t>(x, to, stride, round_f16);
    case KvType::q8:
      return;  // handled by write_row
  }
}

namespace {

// `dim` int8 elements, `stride` apart, and their scale.
struct Int8Row {
  int8_t* q;
  size_t stride;
  std::byte* scale;

  Int8Row(const KvShape& shape, size_t dim, bool key, std::byte* part, int64_t slot)
      : q(reinterpret_cast<int8_t*>(part) + static_cast<size_t>(slot) * (key ? 1 : dim)),
        stride(key ? kBlockPositions : 1),
        scale(part + shape.elements_bytes(static_cast<int64_t>(dim)) +
              static_cast<size_t>(slot) * sizeof(float)) {}
};

// Adding and subtracting 1.5 x 2^23 rounds to the nearest integer, ties to even.
int8_t round_int8(float x) {
  constexpr float kOnes = 0x1.8p23f;
  return static_cast<int8_t>(static_cast<int32_t>((x + kOnes) - kOnes));
}

void write_int8(std::span<const float> x, const Int8Row& row) {
  uint32_t top = 0;  // magnitudes order like their bits; infinity and NaN come last
  for (const float f : x) top = std::max(top, std::bit_cast<uint32_t>(f) & 0x7FFFFFFFu);
  const float a = std::bit_cast<float>(top);
  const bool finite = top < 0x7F800000u, zero = !finite || a < 0x1p-100f;
  const float factor = zero ? 0.0f : 127.0f / a;
  const float scale = !finite ? std::bit_cast<float>(0x7FC00000u) : zero ? 0.0f : a / 127.0f;
  for (size_t i = 0; i < x.size(); ++i)
    row.q[i * row.stride] = zero ? int8_t{0} : round_int8(x[i] * factor);
  std::memcpy(row.scale, &scale, sizeof scale);
}

void read_int8(const Int8Row& row, std::span<float> x) {
  float scale;
  std::memcpy(&scale, row.scale, sizeof scale);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(row.q[i * row.stride]) * scale;
}

// Returns the offset in bytes of a row of a floating-point type.
size_t first_byte(const KvShape& shape, size_t dim, bool key, int64_t slot) {
  return static_cast<size_t>(slot) * (key ? 1 : dim) * shape.element_size();
}

}  // namespace

void read_row(const KvShape& shape, bool key, const std::byte* part, int64_t slot,
              std::span<float> x) {
  if (shape.type == KvType::q8)
    return read_int8({shape, x.size(), key, const_cast<std::byte*>(part), slot}, x);
  read_elements(shape.type, part + first_byte(shape, x.size(), key, slot),
                key ? kBlockPositions : 1, x);
}

void write_row(const KvShape& shape, bool key, std::span<const float> x, std::byte* part,
               int64_t slot) {
  if (shape.type == KvType::q8) return write_int8(x, {shape, x.size(), key, part, slot});
  write_elements(shape.type, x, part + first_byte(shape, x.size(), key, slot),
                 key ? kBlockPositions : 1);
}

void multiply(std::span<float> x, std::span<const float> by) {
  for (size_t i = 0; i < x.size(); ++i) x[i] *= by[i];
}

std::optional<size_t> find_not_finite(std::span<const float> x) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) return i;
  }
  return std::nullopt;
}

double inverse_square_root(double x) { return 1.0 / __builtin_sqrt(x); }
float square_root(float x) { return __builtin_sqrtf(x); }

int64_t multiplied(int64_t n, double factor) {
  return static_cast<int64_t>(factor * static_cast<double>(n));
}

void limit(std::span<float> x, float least, float most) {
  for (float& v : x) {
    if (v < least) v = least;
    if (v > most) v = most;
  }
}

void add_offset(std::span<float> x, float offset) {
  for (float& f : x) f += offset;
}

}  // namespace stet

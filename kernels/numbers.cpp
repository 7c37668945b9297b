#include "stet/kernels/numbers.hpp"

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
    // Below the smallest normal: adding 0.5 aligns the value so that the addition itself rounds it.
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
  }
}

std::optional<size_t> find_not_finite(std::span<const float> x) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) return i;
  }
  return std::nullopt;
}

double inverse_square_root(double x) { return 1.0 / __builtin_sqrt(x); }
float square_root(float x) { return __builtin_sqrtf(x); }

void add_offset(std::span<float> x, float offset) {
  for (float& f : x) f += offset;
}

}  // namespace stet

#include "tools/checkpoint/random_weights.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <vector>

namespace stet_tools {
namespace {

// Mixes bits by the finalizer of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom
// number generators", 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Deviation of the sum of four centred uniform 16-bit numbers: sqrt(4 (2^32 - 1) / 12).
constexpr float kDeviation = 37837.227f;

float draw(uint64_t key, uint64_t i) {
  const uint64_t bits = mix(key + (i + 1) * 0x9e3779b97f4a7c15);
  const uint64_t sum =
      (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return static_cast<float>(static_cast<int32_t>(sum) - 131070);
}

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Rounds |value| < 65504 to nearest even; no weight is larger.
uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  // Below 2^-14, adding 0.5 rounds to multiples of 2^-24, the unit of denormals.
  if (magnitude < 0x38800000) {
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

template <typename Element, typename Convert>
void fill(uint64_t key, Distribution distribution, uint64_t first, std::span<std::byte> out,
          Convert convert) {
  const float scale = distribution.deviation / kDeviation;
  for (size_t at = 0; at < out.size(); at += sizeof(Element)) {
    const float value = distribution.mean + scale * draw(key, first++);
    const Element element = convert(value);
    std::memcpy(out.data() + at, &element, sizeof element);
  }
}

void fill_part(stet::DType dtype, uint64_t key, Distribution distribution, uint64_t first,
               std::span<std::byte> out) {
  if (dtype == stet::DType::bf16) return fill<uint16_t>(key, distribution, first, out, to_bf16);
  if (dtype == stet::DType::f16) return fill<uint16_t>(key, distribution, first, out, to_f16);
  fill<float>(key, distribution, first, out, [](float value) { return value; });
}

}  // namespace

uint64_t weight_key(uint64_t seed, const std::string& tensor_name) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : tensor_name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return mix(hash ^ mix(seed + 0x9e3779b97f4a7c15));
}

void fill_bytes(uint64_t key, Bytes bytes, uint64_t first, std::span<std::byte> out) {
  for (std::byte& b : out) {
    const uint64_t bits = mix(key + ++first * 0x9e3779b97f4a7c15);
    b = static_cast<std::byte>(bytes.least + (bits >> 32) % bytes.values);
  }
}

void fill_weights(stet::DType dtype, uint64_t key, Distribution distribution, uint64_t first,
                  unsigned threads, std::span<std::byte> out) {
  const size_t size = stet::dtype_size(dtype), count = out.size() / size;
  const size_t share = threads > 1 && count > 65536 ? (count + threads - 1) / threads : count;
  std::vector<std::jthread> workers;
  for (size_t begin = share; begin < count; begin += share) {
    const auto part = out.subspan(begin * size, std::min(share, count - begin) * size);
    workers.emplace_back([=] { fill_part(dtype, key, distribution, first + begin, part); });
  }
  fill_part(dtype, key, distribution, first, out.subspan(0, std::min(share, count) * size));
}

}  // namespace stet_tools

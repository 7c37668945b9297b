// Reads and writes the quantized blocks of GGUF files.
#include "stet/kernels/ggml.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/quantize.hpp"
#include "stet/kernels/kernels.hpp"
#include "stet/kernels/numbers.hpp"

namespace stet {
namespace {

constexpr size_t kSuper = 256;  // elements per block of the K types
constexpr uint32_t kFirstSuper = 12, kMxfp4 = 39;

float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return widen_f16(bits);
}

void f32(const uint8_t* b, float* y) { std::memcpy(y, b, sizeof *y); }
void f16(const uint8_t* b, float* y) { *y = half_at(b); }
void bf16(const uint8_t* b, float* y) {
  const uint32_t bits = static_cast<uint32_t>(b[0]) << 16 | static_cast<uint32_t>(b[1]) << 24;
  std::memcpy(y, &bits, sizeof *y);
}

void q4_0(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int i = 0; i < 16; ++i) {
    y[i] = static_cast<float>((b[2 + i] & 15) - 8) * d;
    y[i + 16] = static_cast<float>((b[2 + i] >> 4) - 8) * d;
  }
}

void q4_1(const uint8_t* b, float* y) {
  const float d = half_at(b), m = half_at(b + 2);
  for (int i = 0; i < 16; ++i) {
    y[i] = static_cast<float>(b[4 + i] & 15) * d + m;
    y[i + 16] = static_cast<float>(b[4 + i] >> 4) * d + m;
  }
}

// Combines 32 integers of five bits; `high` holds their fifth bits.
void five_bits(const uint8_t* high, const uint8_t* low, uint8_t* q) {
  uint32_t fifths;
  std::memcpy(&fifths, high, sizeof fifths);
  for (size_t i = 0; i < 32; i += 4) {  // the product spreads four bits over four bytes
    const uint32_t four = ((fifths >> i & 15) * 0x204081u & 0x01010101u) << 4;
    std::memcpy(q + i, &four, sizeof four);
  }
  for (int i = 0; i < 16; ++i) {
    q[i] |= low[i] & 15;
    q[i + 16] |= low[i] >> 4;
  }
}

void q5_0(const uint8_t* b, float* y) {
  const float d = half_at(b);
  uint8_t q[32];
  five_bits(b + 2, b + 6, q);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(q[i] - 16) * d;
}

void q5_1(const uint8_t* b, float* y) {
  const float d = half_at(b), m = half_at(b + 2);
  uint8_t q[32];
  five_bits(b + 4, b + 8, q);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(q[i]) * d + m;
}

void q8_0(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(static_cast<int8_t>(b[2 + i])) * d;
}

void q2_k(const uint8_t* b, float* y) {
  const uint8_t *scales = b, *q = b + 16;
  const float d = half_at(b + 80), least = half_at(b + 82);
  for (int half = 0; half < 2; ++half, q += 32) {
    for (int shift = 0; shift < 8; shift += 2) {
      for (int part = 0; part < 32; part += 16, ++scales) {
        const float scale = d * static_cast<float>(*scales & 15),
                    minimum = least * static_cast<float>(*scales >> 4);
        for (int i = 0; i < 16; ++i)
          *y++ = scale * static_cast<float>(q[part + i] >> shift & 3) - minimum;
      }
    }
  }
}

// Returns the 6-bit scale of sub-block i, from 12 bytes.
int scale_q3(const uint8_t* s, int i) {
  const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
  const int high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
  return (low | high << 4) - 32;
}

void q3_k(const uint8_t* b, float* y) {
  const uint8_t *mask = b, *q = b + 32, *scales = b + 96;
  const float d = half_at(b + 108);
  int sub = 0, bit = 0;
  for (int half = 0; half < 2; ++half, q += 32) {
    for (int shift = 0; shift < 8; shift += 2, ++bit) {
      for (int part = 0; part < 32; part += 16, ++sub) {
        const float scale = d * static_cast<float>(scale_q3(scales, sub));
        for (int i = 0; i < 16; ++i) {
          const int high = mask[part + i] >> bit & 1;
          *y++ = scale * static_cast<float>((q[part + i] >> shift & 3) - (high != 0 ? 0 : 4));
        }
      }
    }
  }
}

constexpr int kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};

void iq4_nl(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(kNonLinear[b[2 + i] & 15]);
    y[i + 16] = d * static_cast<float>(kNonLinear[b[2 + i] >> 4]);
  }
}

constexpr int kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The integers are twice the codes' values, and d is half the scale.
void mxfp4(const uint8_t* b, float* y) {
  const float d = std::ldexp(1.0f, b[0] - 128);
  for (int i = 0; i < 16; ++i) {
    y[i] = static_cast<float>(kDoubled[b[1 + i] & 15]) * d;
    y[i + 16] = static_cast<float>(kDoubled[b[1 + i] >> 4]) * d;
  }
}

void iq4_xs(const uint8_t* b, float* y) {
  const float d = half_at(b);
  const int high = b[2] | b[3] << 8;
  const uint8_t *low = b + 4, *q = b + 8;
  for (int sub = 0; sub < 8; ++sub, q += 16, y += 32) {
    const int scale = (low[sub / 2] >> (4 * (sub % 2)) & 15) | (high >> (2 * sub) & 3) << 4;
    const float s = d * static_cast<float>(scale - 32);
    for (int i = 0; i < 16; ++i) {
      y[i] = s * static_cast<float>(kNonLinear[q[i] & 15]);
      y[i + 16] = s * static_cast<float>(kNonLinear[q[i] >> 4]);
    }
  }
}

float inverse(float d) { return d == 0 ? 0 : 1 / d; }

void to_f32(const float* x, uint8_t* b) { std::memcpy(b, x, 4); }
void to_f16(const float* x, uint8_t* b) {
  const uint16_t bits = round_f16(*x);
  std::memcpy(b, &bits, sizeof bits);
}
void to_bf16(const float* x, uint8_t* b) {
  const uint16_t bits = round_bf16(*x);
  std::memcpy(b, &bits, sizeof bits);
}

void to_q8_0(const float* x, uint8_t* b) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127, id = inverse(d);
  to_f16(&d, b);
  for (int i = 0; i < 32; ++i)
    b[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * id)));
}

void to_q4_0(const float* x, uint8_t* b) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::fabs(x[i]) > std::fabs(largest) ? x[i] : largest;
  const float d = largest / -8, id = inverse(d);
  const auto nibble = [&](int i) {
    return static_cast<unsigned>(std::min(15.0f, std::floor(x[i] * id + 8.5f)));
  };
  to_f16(&d, b);
  for (int i = 0; i < 16; ++i) b[2 + i] = static_cast<uint8_t>(nibble(i) | nibble(i + 16) << 4);
}

// Returns floor(log2(x)) of the logarithm rounded to float32, which is greater by 1 just below some
// powers of two.
int floor_log2(float x) {
  int above = 0;
  const double below = 1 - static_cast<double>(std::frexp(x, &above));  // x = (1 - below) 2^above
  constexpr double kInverseLn2 = 1.4426950408889634;
  return static_cast<int>(std::floor(static_cast<float>(above - below * kInverseLn2)));
}

// Rounds to the nearest code, of two equally near ones to that nearer to zero. Unlike ggml's
// reference, keeps the sign of -0, so that every number of a block is rounded to itself.
void to_mxfp4(const float* x, uint8_t* b) {
  constexpr int kMostExponent = 252;  // from 253 on, a weight may be infinite
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
  const int exponent = largest > 0 ? std::clamp(floor_log2(largest) + 125, 0, kMostExponent) : 0;
  const float d = std::ldexp(1.0f, exponent - 128);
  uint8_t codes[32];
  for (int i = 0; i < 32; ++i) {
    int magnitude = 0;
    for (const float middle : {0.5f, 1.5f, 2.5f, 3.5f, 5.0f, 7.0f, 10.0f})
      magnitude += std::fabs(x[i]) > middle * d ? 1 : 0;
    const bool negative = std::signbit(x[i]) && (magnitude > 0 || x[i] == 0);
    codes[i] = static_cast<uint8_t>(magnitude + (negative ? 8 : 0));
  }
  store_ggml_block(kMxfp4, static_cast<uint16_t>(exponent), codes, b);
}

struct Entry {
  uint32_t type;
  GgmlType stored;
  void (*dequantize)(const uint8_t*, float*);  // null: use the kernels, indexed from kFirstSuper on
  void (*quantize)(const float*, uint8_t*) = nullptr;
  void (*quantize_by)(std::span<const float, kSuper>, const float* importance, uint8_t*) = nullptr;
};
constexpr Entry kTypes[] = {{0, {"F32", 1, 4}, f32, to_f32},
                            {1, {"F16", 1, 2}, f16, to_f16},
                            {2, {"Q4_0", 32, 18}, q4_0, to_q4_0},
                            {3, {"Q4_1", 32, 20}, q4_1},
                            {6, {"Q5_0", 32, 22}, q5_0},
                            {7, {"Q5_1", 32, 24}, q5_1},
                            {8, {"Q8_0", 32, 34}, q8_0, to_q8_0},
                            {10, {"Q2_K", kSuper, 84}, q2_k},
                            {11, {"Q3_K", kSuper, 110}, q3_k},
                            {12, {"Q4_K", kSuper, 144}, nullptr, nullptr, round_super_q4},
                            {13, {"Q5_K", kSuper, 176}, nullptr, nullptr, round_super_q5},
                            {14, {"Q6_K", kSuper, 210}, nullptr, nullptr, round_super_q6},
                            {20, {"IQ4_NL", 32, 18}, iq4_nl},
                            {23, {"IQ4_XS", kSuper, 136}, iq4_xs},
                            {30, {"BF16", 1, 2}, bf16, to_bf16},
                            {39, {"MXFP4", 32, 17}, mxfp4, to_mxfp4}};

const Entry* entry_of(uint32_t type) {
  for (const Entry& e : kTypes) {
    if (e.type == type) return &e;
  }
  return nullptr;
}

}  // namespace

std::optional<GgmlType> ggml_type(uint32_t type) {
  const Entry* const e = entry_of(type);
  return e == nullptr ? std::nullopt : std::optional(e->stored);
}

void dequantize_ggml(uint32_t type, const void* from, size_t blocks, float* to) {
  const Entry& e = *entry_of(type);
  if (e.dequantize == nullptr)
    return best_kernels().dequantize_super[type - kFirstSuper](from, blocks, to);
  const auto* bytes = static_cast<const uint8_t*>(from);
  for (size_t i = 0; i < blocks; ++i)
    e.dequantize(bytes + i * e.stored.bytes, to + i * e.stored.elements);
}

void quantize_ggml(uint32_t type, const float* from, size_t blocks, void* to,
                   const float* importance) {
  const Entry& e = *entry_of(type);
  auto* bytes = static_cast<uint8_t*>(to);
  for (size_t i = 0; i < blocks; ++i) {
    const size_t first = i * e.stored.elements;
    if (e.quantize_by == nullptr)
      e.quantize(from + first, bytes + i * e.stored.bytes);
    else
      e.quantize_by(std::span<const float, kSuper>(from + first, kSuper),
                    importance == nullptr ? nullptr : importance + first,
                    bytes + i * e.stored.bytes);
  }
}

float ggml_limit(uint32_t type) {
  constexpr float kHalf = 65520, kBf16 = 0x1.FFp127f;  // from here on, values round to infinity
  const bool super = type >= 12 && type <= 14;
  return type == 1 || super ? kHalf
         : type == 8        ? kHalf * 127
         : type == 2        ? kHalf * 8
         : type == 30       ? kBf16
                            : std::numeric_limits<float>::infinity();
}

void store_ggml_block(uint32_t type, uint16_t scale, const uint8_t* u, void* to) {
  auto* b = static_cast<uint8_t*>(to);
  if (type != kMxfp4) std::memcpy(b, &scale, sizeof scale);
  for (int i = 0; type == 8 && i < 32; ++i) b[2 + i] = static_cast<uint8_t>(u[i] - 128);
  for (int i = 0; type == 2 && i < 16; ++i) b[2 + i] = static_cast<uint8_t>(u[i] | u[i + 16] << 4);
  if (type == kMxfp4) {
    b[0] = static_cast<uint8_t>(scale);
    for (int i = 0; i < 16; ++i) b[1 + i] = static_cast<uint8_t>(u[i] | u[i + 16] << 4);
  }
  if (type != 6) return;
  std::memset(b + 2, 0, 4);
  for (int i = 0; i < 32; ++i) b[2 + i / 8] |= static_cast<uint8_t>(u[i] >> 4 << (i % 8));
  for (int i = 0; i < 16; ++i) b[6 + i] = static_cast<uint8_t>((u[i] & 15) | (u[i + 16] & 15) << 4);
}

}  // namespace stet

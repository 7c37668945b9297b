#include "src/checkpoint/blocks.hpp"

#include <cstdint>
#include <cstring>

#include "stet/kernels/ggml.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {
namespace {

constexpr size_t kLine = 64;
constexpr uint32_t kLow = 0x0F0F0F0F;

uint32_t word(const uint8_t* p) {
  uint32_t w;
  std::memcpy(&w, p, sizeof w);
  return w;
}
// Four inputs of one lane.
void put(uint8_t* line, size_t lane, uint32_t w) { std::memcpy(line + 4 * lane, &w, sizeof w); }

// 32 weights of Q8_0: float16 d, int8 each.
void q8_0(const uint8_t* from, size_t lane, size_t half, uint8_t* strip) {
  std::memcpy(strip + (half * kLanes + lane) * 2, from, 2);
  uint8_t* const lines = strip + kLine + half * 8 * kLine;
  for (size_t i = 0; i < 8; ++i) put(lines + i * kLine, lane, word(from + 2 + 4 * i) ^ 0x80808080u);
}

// Of Q4_0: float16 d; byte i has weights i and 16 + i.
void q4_0(const uint8_t* from, size_t lane, size_t half, uint8_t* strip) {
  std::memcpy(strip + (half * kLanes + lane) * 2, from, 2);
  uint8_t* const lines = strip + kLine + half * 4 * kLine;
  for (size_t i = 0; i < 4; ++i) put(lines + i * kLine, lane, word(from + 2 + 4 * i));
}

// 12 bytes of Q4_K and Q5_K: eight scales and eight minimums of 6 bits.
void put_scales(const uint8_t* s, size_t lane, uint8_t* lines) {
  uint8_t v[16];
  for (size_t i = 0; i < 4; ++i) {
    v[i] = s[i] & 63;
    v[8 + i] = s[4 + i] & 63;
    v[4 + i] = static_cast<uint8_t>((s[8 + i] & 15) | (s[i] >> 6) << 4);
    v[12 + i] = static_cast<uint8_t>(s[8 + i] >> 4 | (s[4 + i] >> 6) << 4);
  }
  for (size_t line = 0; line < 3; ++line) {
    for (size_t i = 0; i < 4; ++i)
      lines[line * kLine + i * kLanes + lane] =
          static_cast<uint8_t>(v[4 * line + i] | (v[12 + i] >> (2 * line) & 3) << 6);
  }
}

// The low four bits of 32 weights that stand in the low or high halves of 32 bytes.
void put_nibbles(const uint8_t* q, bool high, size_t lane, uint8_t* lines) {
  for (size_t i = 0; i < 4; ++i) {
    const uint32_t a = word(q + 4 * i), b = word(q + 16 + 4 * i);
    put(lines + i * kLine, lane,
        high ? (a >> 4 & kLow) | (b & ~kLow) : (a & kLow) | (b & kLow) << 4);
  }
}

// Q4_K: d, the minimums' d, scales; 32 bytes for each two sub-blocks.
void q4_k(const uint8_t* from, size_t lane, uint8_t* super) {
  std::memcpy(super + 2 * lane, from, 2);
  std::memcpy(super + 2 * (kLanes + lane), from + 2, 2);
  put_scales(from + 4, lane, super + kLine);
  for (size_t b = 0; b < 8; ++b)
    put_nibbles(from + 16 + b / 2 * 32, b % 2 != 0, lane, super + (4 + 4 * b) * kLine);
}

// Q5_K: bit b of byte i between scales and nibbles is the fifth one of weight i of sub-block b.
void q5_k(const uint8_t* from, size_t lane, uint8_t* super) {
  std::memcpy(super + 2 * lane, from, 2);
  std::memcpy(super + 2 * (kLanes + lane), from + 2, 2);
  put_scales(from + 4, lane, super + kLine);
  for (size_t b = 0; b < 8; ++b) {
    uint8_t* const block = super + (4 + 5 * b) * kLine;
    uint32_t fifth = 0;
    for (size_t i = 0; i < 8; ++i) fifth |= (word(from + 16 + 4 * i) >> b & 0x01010101u) << i;
    put(block, lane, fifth);
    put_nibbles(from + 48 + b / 2 * 32, b % 2 != 0, lane, block + kLine);
  }
}

// Q6_K, for each 128 weights: 64 bytes of low halves, of parts 0 and 2, 1 and 3 of 32; 32 of two
// bits for each part. Then 16 scales and d.
void q6_k(const uint8_t* from, size_t lane, uint8_t* super) {
  std::memcpy(super + 2 * lane, from + 208, 2);
  for (size_t i = 0; i < 16; ++i) super[kLine + i * kLanes + lane] = from[192 + i];
  for (size_t b = 0; b < 8; ++b) {
    const size_t half = b / 4, part = b % 4;
    uint8_t* const block = super + (5 + 6 * b) * kLine;
    put_nibbles(from + half * 64 + part % 2 * 32, part >= 2, lane, block);
    const uint8_t* const high = from + 128 + half * 32;
    for (size_t line = 0; line < 2; ++line) {
      uint32_t two = 0;
      for (size_t i = 0; i < 4; ++i)
        two |= (word(high + 16 * line + 4 * i) >> (2 * part) & 0x03030303u) << (2 * i);
      put(block + (4 + line) * kLine, lane, two);
    }
  }
}

struct Layout {
  size_t in;   // bytes of a block of the file
  size_t out;  // of 16 packed ones, or of a strip
};

void pack_supers(const Layout& layout, void (*pack)(const uint8_t*, size_t, uint8_t*),
                 const std::byte* const rows[], size_t supers, uint8_t* out) {
  for (size_t s = 0; s < supers; ++s, out += layout.out) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (rows[lane] == nullptr) continue;  // the memory is zero already
      pack(reinterpret_cast<const uint8_t*>(rows[lane]) + s * layout.in, lane, out);
    }
  }
}

// Blocks that are not there are zeros: as the kernels have them, 128 or 8 times a scale of 0.
void pack_strips(const Layout& layout, void (*pack)(const uint8_t*, size_t, size_t, uint8_t*),
                 const uint8_t* zeros, const std::byte* const rows[], size_t blocks, uint8_t* out) {
  for (size_t b = 0; b < (blocks + 1) / 2 * 2; ++b) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const bool there = rows[lane] != nullptr && b < blocks;
      pack(there ? reinterpret_cast<const uint8_t*>(rows[lane]) + b * layout.in : zeros, lane,
           b % 2, out + b / 2 * layout.out);
    }
  }
}

}  // namespace

void pack_blocks(DType dtype, const std::byte* const rows[], size_t columns, std::byte* out) {
  static constexpr uint8_t kZeros8[34] = {};
  static constexpr uint8_t kZeros4[18] = {0,    0,    0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88,
                                          0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88};
  auto* const to = reinterpret_cast<uint8_t*>(out);
  const GgmlType type = *ggml_type(ggml_number(dtype));
  const size_t blocks = columns / type.elements;
  if (dtype == DType::q8_0)
    pack_strips({type.bytes, kStripBytesQ8}, q8_0, kZeros8, rows, blocks, to);
  else if (dtype == DType::q4_0)
    pack_strips({type.bytes, kStripBytesQ4}, q4_0, kZeros4, rows, blocks, to);
  else if (dtype == DType::q4_k)
    pack_supers({type.bytes, kSuperBytesQ4K}, q4_k, rows, blocks, to);
  else if (dtype == DType::q5_k)
    pack_supers({type.bytes, kSuperBytesQ5K}, q5_k, rows, blocks, to);
  else
    pack_supers({type.bytes, kSuperBytesQ6K}, q6_k, rows, blocks, to);
}

}  // namespace stet

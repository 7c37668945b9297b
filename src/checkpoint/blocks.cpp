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

// Of Q4_K and Q5_K, all lanes of a block: 12 bytes that hold eight scales and eight minimums of 6
// bits. Rows that are not there have zeros.
void put_scales(const uint8_t* const from[], uint8_t* lines) {
  using Line = uint8_t[kLanes];
  Line s[12] = {}, v[16];
  for (size_t lane = 0; lane < kLanes; ++lane) {
    for (size_t i = 0; from[lane] != nullptr && i < 12; ++i) s[i][lane] = from[lane][4 + i];
  }
  for (size_t i = 0; i < 4; ++i) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint8_t a = s[i][lane], b = s[4 + i][lane], c = s[8 + i][lane];
      v[i][lane] = a & 63;
      v[8 + i][lane] = b & 63;
      v[4 + i][lane] = static_cast<uint8_t>((c & 15) | (a >> 6) << 4);
      v[12 + i][lane] = static_cast<uint8_t>(c >> 4 | (b >> 6) << 4);
    }
  }
  for (size_t line = 0; line < 3; ++line) {
    for (size_t i = 0; i < 4; ++i, lines += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane)
        lines[lane] =
            static_cast<uint8_t>(v[4 * line + i][lane] | (v[12 + i][lane] >> (2 * line) & 3) << 6);
    }
  }
}

// The low four bits of 64 weights, 32 in the low and 32 in the high halves of 32 bytes: their lines
// are `low` and `high`.
void put_nibbles(const uint8_t* q, size_t lane, uint8_t* low, uint8_t* high) {
  uint32_t a[4], b[4], l[4], h[4];
  std::memcpy(a, q, sizeof a);
  std::memcpy(b, q + sizeof a, sizeof b);
  for (size_t i = 0; i < 4; ++i) {
    l[i] = (a[i] & kLow) | (b[i] & kLow) << 4;
    h[i] = (a[i] >> 4 & kLow) | (b[i] & ~kLow);
  }
  for (size_t i = 0; i < 4; ++i) {
    put(low + i * kLine, lane, l[i]);
    put(high + i * kLine, lane, h[i]);
  }
}

// In each byte of n words, field i of word j and field j of word i change places; a byte has n
// fields.
template <size_t n>
void transpose_fields(uint32_t (&w)[n]) {
  constexpr size_t kBits = 8 / n;
  for (size_t step = 1; step < n; step *= 2) {
    uint32_t stay = 0;  // the fields of a pair's first word that stay
    for (size_t f = 0; f < n; ++f)
      if ((f & step) == 0) stay |= ((1u << kBits) - 1) << f * kBits;
    stay *= 0x01010101u;
    for (size_t i = 0; i < n; ++i) {
      if ((i & step) != 0) continue;
      const uint32_t differ = (w[i] >> step * kBits ^ w[i + step]) & stay;
      w[i + step] ^= differ;
      w[i] ^= differ << step * kBits;
    }
  }
}

// Of Q5_0: float16 d; bit i of four bytes is the fifth one of weight i; byte i has weights i and
// 16 + i.
void q5_0(const uint8_t* from, size_t lane, size_t half, uint8_t* strip) {
  std::memcpy(strip + (half * kLanes + lane) * 2, from, 2);
  uint8_t* const block = strip + kLine + half * 5 * kLine;
  const uint32_t fifths = word(from + 2);
  uint32_t bits = 0;
  for (size_t i = 0; i < 8; ++i)  // the product puts four bits into a byte each
    bits |= ((fifths >> 4 * i & 15) * 0x204081u & 0x01010101u) << i;
  put(block, lane, bits);
  for (size_t i = 0; i < 4; ++i) put(block + (1 + i) * kLine, lane, word(from + 6 + 4 * i));
}

// Q4_K: d, the minimums' d, scales (put_scales); 32 bytes for each two sub-blocks.
void q4_k(const uint8_t* from, size_t lane, uint8_t* super) {
  std::memcpy(super + 2 * lane, from, 2);
  std::memcpy(super + 2 * (kLanes + lane), from + 2, 2);
  for (size_t pair = 0; pair < 4; ++pair) {
    uint8_t* const lines = super + (4 + 8 * pair) * kLine;
    put_nibbles(from + 16 + 32 * pair, lane, lines, lines + 4 * kLine);
  }
}

// Q5_K: bit b of byte i between scales and nibbles is the fifth one of weight i of sub-block b.
void q5_k(const uint8_t* from, size_t lane, uint8_t* super) {
  std::memcpy(super + 2 * lane, from, 2);
  std::memcpy(super + 2 * (kLanes + lane), from + 2, 2);
  uint8_t* const blocks = super + 4 * kLine;
  uint32_t fifth[8];
  std::memcpy(fifth, from + 16, sizeof fifth);
  transpose_fields(fifth);
  for (size_t b = 0; b < 8; ++b) put(blocks + 5 * b * kLine, lane, fifth[b]);
  for (size_t pair = 0; pair < 4; ++pair) {
    uint8_t* const lines = blocks + (10 * pair + 1) * kLine;
    put_nibbles(from + 48 + 32 * pair, lane, lines, lines + 5 * kLine);
  }
}

// Q6_K, for each 128 weights: 64 bytes of low halves, of parts 0 and 2, 1 and 3 of 32; 32 of two
// bits for each part. Then 16 scales and d.
void q6_k(const uint8_t* from, size_t lane, uint8_t* super) {
  std::memcpy(super + 2 * lane, from + 208, 2);
  for (size_t i = 0; i < 16; ++i) super[kLine + i * kLanes + lane] = from[192 + i];
  constexpr size_t kPart = 6 * kLine;
  for (size_t half = 0; half < 2; ++half) {
    uint8_t* const parts = super + 5 * kLine + half * 4 * kPart;
    for (size_t i = 0; i < 2; ++i)
      put_nibbles(from + half * 64 + i * 32, lane, parts + i * kPart, parts + (2 + i) * kPart);
    for (size_t line = 0; line < 2; ++line) {
      uint32_t two[4];
      std::memcpy(two, from + 128 + half * 32 + line * sizeof two, sizeof two);
      transpose_fields(two);
      for (size_t part = 0; part < 4; ++part)
        put(parts + part * kPart + (4 + line) * kLine, lane, two[part]);
    }
  }
}

struct Layout {
  size_t in;   // bytes of a block of the file
  size_t out;  // of 16 packed ones, or of a strip
};

template <void pack(const uint8_t*, size_t, uint8_t*)>
void pack_supers(const Layout& layout, const std::byte* const rows[], size_t supers, uint8_t* out) {
  const uint8_t* from[kLanes];
  for (size_t s = 0; s < supers; ++s, out += layout.out) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const auto* const row = reinterpret_cast<const uint8_t*>(rows[lane]);
      from[lane] = row == nullptr ? nullptr : row + s * layout.in;
      if (row != nullptr) pack(from[lane], lane, out);  // otherwise the memory is zero already
    }
    if constexpr (pack != q6_k) put_scales(from, out + kLine);
  }
}

// Blocks that are not there are zeros: as the kernels have them, 128, 8 or 16 times a scale of 0.
template <void pack(const uint8_t*, size_t, size_t, uint8_t*)>
void pack_strips(const Layout& layout, const uint8_t* zeros, const std::byte* const rows[],
                 size_t blocks, uint8_t* out) {
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
  static constexpr uint8_t kZeros5[22] = {0, 0, 0xFF, 0xFF, 0xFF, 0xFF};  // 0 .. 15 below them
  auto* const to = reinterpret_cast<uint8_t*>(out);
  const GgmlType type = *ggml_type(ggml_number(dtype));
  const size_t blocks = columns / type.elements;
  if (dtype == DType::q8_0)
    pack_strips<q8_0>({type.bytes, kStripBytesQ8}, kZeros8, rows, blocks, to);
  else if (dtype == DType::q4_0)
    pack_strips<q4_0>({type.bytes, kStripBytesQ4}, kZeros4, rows, blocks, to);
  else if (dtype == DType::q5_0)
    pack_strips<q5_0>({type.bytes, kStripBytesQ5}, kZeros5, rows, blocks, to);
  else if (dtype == DType::q4_k)
    pack_supers<q4_k>({type.bytes, kSuperBytesQ4K}, rows, blocks, to);
  else if (dtype == DType::q5_k)
    pack_supers<q5_k>({type.bytes, kSuperBytesQ5K}, rows, blocks, to);
  else
    pack_supers<q6_k>({type.bytes, kSuperBytesQ6K}, rows, blocks, to);
}

}  // namespace stet

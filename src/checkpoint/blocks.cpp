#include "src/checkpoint/blocks.hpp"

#include <array>
#include <cstdint>
#include <cstring>

#include "stet/kernels/ggml.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {
namespace {

constexpr size_t kLine = 64;
constexpr uint32_t kLow = 0x0F0F0F0F;
constexpr size_t kFour = 4;  // lanes that are packed together

// Pointers to the ggml blocks of the lanes, one each.
using Lanes = const uint8_t* const*;
// One 32-bit word (four inputs) from each of four lanes, side by side as in a packed line.
using Words = uint32_t __attribute__((vector_size(4 * kFour)));

// Returns the words `at` bytes into from[0], from[stride], from[2 * stride] and from[3 * stride].
Words words(Lanes from, size_t at, size_t stride = 1) {
  uint32_t w[kFour];
  for (size_t i = 0; i < kFour; ++i) std::memcpy(w + i, from[i * stride] + at, sizeof *w);
  return Words{w[0], w[1], w[2], w[3]};
}

// Writes four words to a line, beginning at lane `first`.
void put(uint8_t* line, size_t first, Words w) { std::memcpy(line + 4 * first, &w, sizeof w); }

// Copies one 16-bit number from each of four lanes.
void put_halves(uint8_t* to, size_t first, Lanes from, size_t at) {
  for (size_t i = 0; i < kFour; ++i) std::memcpy(to + 2 * (first + i), from[i] + at, 2);
}

// Transposes fields of kBits bits in n words. In each group of n fields, field i of word j changes
// places with field j of word i.
template <size_t kBits, size_t n>
void transpose_fields(Words (&w)[n]) {
  for (uint32_t step = 1; step < n; step *= 2) {
    uint32_t stay = 0;  // mask of the fields that the pair's first word keeps
    for (size_t f = 0; f < 32 / kBits; ++f)
      if ((f & step) == 0) stay |= ((1u << kBits) - 1) << f * kBits;
    constexpr uint32_t kShift = kBits;
    for (size_t i = 0; i < n; ++i) {
      if ((i & step) != 0) continue;
      const Words differ = (w[i] >> step * kShift ^ w[i + step]) & stay;
      w[i + step] ^= differ;
      w[i] ^= differ << step * kShift;
    }
  }
}

// Writes four bytes of each of the 16 lanes, the first byte of every lane first. w[j] holds the
// bytes of lanes j, 4 + j, 8 + j and 12 + j.
void put_bytes(uint8_t* line, Words (&w)[kFour]) {
  transpose_fields<8>(w);
  std::memcpy(line, w, sizeof w);
}

// Packs Q8_0: float16 d, then 32 weights of int8.
void q8_0(Lanes from, size_t first, size_t half, uint8_t* strip) {
  put_halves(strip + half * kLine / 2, first, from, 0);
  uint8_t* const lines = strip + kLine + half * 8 * kLine;
  for (size_t i = 0; i < 8; ++i)
    put(lines + i * kLine, first, words(from, 2 + 4 * i) ^ 0x80808080u);
}

// Packs Q4_0: float16 d, then 16 bytes of which byte i holds weights i and 16 + i.
void q4_0(Lanes from, size_t first, size_t half, uint8_t* strip) {
  put_halves(strip + half * kLine / 2, first, from, 0);
  uint8_t* const lines = strip + kLine + half * 4 * kLine;
  for (size_t i = 0; i < 4; ++i) put(lines + i * kLine, first, words(from, 2 + 4 * i));
}

// Packs the scales of Q4_K or Q5_K for all lanes: 12 bytes with eight scales and eight minimums of
// 6 bits. The last four minimums are split: each of the three parts holds two bits of each.
void put_scales(Lanes from, uint8_t* lines) {
  constexpr uint32_t kSix = 0x3F3F3F3F, kTwo = 0x03030303;
  Words out[3][kFour];
  for (size_t j = 0; j < kFour; ++j) {
    const Words a = words(from + j, 4, kFour), b = words(from + j, 8, kFour),
                c = words(from + j, 12, kFour);
    const Words last = (c >> 4 & kLow) | (b >> 6 & kTwo) << 4;
    out[0][j] = (a & kSix) | (last & kTwo) << 6;
    out[1][j] = (c & kLow) | (a >> 6 & kTwo) << 4 | (last >> 2 & kTwo) << 6;
    out[2][j] = (b & kSix) | (last >> 4 & kTwo) << 6;
  }
  for (size_t line = 0; line < 3; ++line) put_bytes(lines + line * kLine, out[line]);
}

// Packs the 16 bytes of scales of Q6_K.
void put_scales_q6(Lanes from, uint8_t* lines) {
  for (size_t i = 0; i < 4; ++i) {
    Words four[kFour];
    for (size_t j = 0; j < kFour; ++j) four[j] = words(from + j, 192 + 4 * i, kFour);
    put_bytes(lines + i * kLine, four);
  }
}

// Packs the low four bits of 64 weights: 32 in the low halves of 32 bytes and 32 in the high
// halves. Writes their lines to `low` and `high`.
void put_nibbles(Lanes from, size_t at, size_t first, uint8_t* low, uint8_t* high) {
  for (size_t i = 0; i < 4; ++i) {
    const Words a = words(from, at + 4 * i), b = words(from, at + 16 + 4 * i);
    put(low + i * kLine, first, (a & kLow) | (b & kLow) << 4);
    put(high + i * kLine, first, (a >> 4 & kLow) | (b & ~kLow));
  }
}

// Packs Q5_0: float16 d, then four bytes of which bit i is the fifth bit of weight i, then 16
// bytes. Byte i of these holds weights i and 16 + i.
void q5_0(Lanes from, size_t first, size_t half, uint8_t* strip) {
  put_halves(strip + half * kLine / 2, first, from, 0);
  uint8_t* const block = strip + kLine + half * 5 * kLine;
  const Words fifths = words(from, 2);
  Words bits = {};
  for (uint32_t i = 0; i < 8; ++i) {  // spread four bits over four bytes
    const Words four = fifths >> 4 * i & 15;
    bits |= ((four | four << 7 | four << 14 | four << 21) & 0x01010101u) << i;
  }
  put(block, first, bits);
  for (size_t i = 0; i < 4; ++i) put(block + (1 + i) * kLine, first, words(from, 6 + 4 * i));
}

// Packs MXFP4 blocks as block `block` of a strip. An MXFP4 block is a byte with the exponent, then
// 16 bytes of which byte i holds weights i and 16 + i.
void mxfp4(Lanes from, size_t first, size_t block, uint8_t* strip) {
  for (size_t i = 0; i < kFour; ++i) strip[block * kLanes + first + i] = from[i][0];
  uint8_t* const lines = strip + kLine + block * 4 * kLine;
  for (size_t i = 0; i < 4; ++i) put(lines + i * kLine, first, words(from, 1 + 4 * i));
}

// Packs Q4_K: d, d of the minimums, scales (see put_scales), then 32 bytes for each pair of
// sub-blocks.
void q4_k(Lanes from, size_t first, uint8_t* super) {
  put_halves(super, first, from, 0);
  put_halves(super + kLine / 2, first, from, 2);
  for (size_t pair = 0; pair < 4; ++pair) {
    uint8_t* const lines = super + (4 + 8 * pair) * kLine;
    put_nibbles(from, 16 + 32 * pair, first, lines, lines + 4 * kLine);
  }
}

// Packs Q5_K, which is Q4_K with 32 more bytes between scales and nibbles. Bit b of byte i of these
// is the fifth bit of weight i of sub-block b.
void q5_k(Lanes from, size_t first, uint8_t* super) {
  put_halves(super, first, from, 0);
  put_halves(super + kLine / 2, first, from, 2);
  uint8_t* const blocks = super + 4 * kLine;
  Words fifth[8];
  for (size_t i = 0; i < 8; ++i) fifth[i] = words(from, 16 + 4 * i);
  transpose_fields<1>(fifth);
  for (size_t b = 0; b < 8; ++b) put(blocks + 5 * b * kLine, first, fifth[b]);
  for (size_t pair = 0; pair < 4; ++pair) {
    uint8_t* const lines = blocks + (10 * pair + 1) * kLine;
    put_nibbles(from, 48 + 32 * pair, first, lines, lines + 5 * kLine);
  }
}

// Packs Q6_K. Each 128 weights, in four parts of 32, have 64 bytes of low nibbles, parts 0 and 2
// before 1 and 3. Then come 32 bytes with two high bits for each part. The scales (16 bytes) and d
// end the block.
void q6_k(Lanes from, size_t first, uint8_t* super) {
  put_halves(super, first, from, 208);
  constexpr size_t kPart = 6 * kLine;
  for (size_t half = 0; half < 2; ++half) {
    uint8_t* const parts = super + 5 * kLine + half * 4 * kPart;
    for (size_t i = 0; i < 2; ++i)
      put_nibbles(from, half * 64 + i * 32, first, parts + i * kPart, parts + (2 + i) * kPart);
    for (size_t line = 0; line < 2; ++line) {
      Words two[4];
      for (size_t i = 0; i < 4; ++i) two[i] = words(from, 128 + half * 32 + line * 16 + 4 * i);
      transpose_fields<2>(two);
      for (size_t part = 0; part < 4; ++part)
        put(parts + part * kPart + (4 + line) * kLine, first, two[part]);
    }
  }
}

struct Layout {
  size_t in;   // bytes of a block in the file
  size_t out;  // bytes of 16 packed blocks, or of a strip
};

constexpr uint8_t kZeros[256] = {};  // used for a missing block of a K type

// Returns pointers to the rows' blocks at `at` bytes, or `zeros` for each null row.
std::array<const uint8_t*, kLanes> lanes_at(const std::byte* const rows[], size_t at,
                                            const uint8_t* zeros) {
  std::array<const uint8_t*, kLanes> lanes;
  for (size_t i = 0; i < kLanes; ++i)
    lanes[i] = rows[i] == nullptr ? zeros : reinterpret_cast<const uint8_t*>(rows[i]) + at;
  return lanes;
}

template <void pack(Lanes, size_t, uint8_t*), void scales(Lanes, uint8_t*)>
void pack_supers(const Layout& layout, const std::byte* const rows[], size_t supers, uint8_t* out) {
  for (size_t s = 0; s < supers; ++s, out += layout.out) {
    const auto lanes = lanes_at(rows, s * layout.in, kZeros);
    for (size_t i = 0; i < kLanes; i += kFour) pack(lanes.data() + i, i, out);
    scales(lanes.data(), out + kLine);
  }
}

// Pads an odd number of blocks with a block of zeros. The quants of zero are the kernels' offsets
// (128, 8 or 16), and the scale is 0.
template <void pack(Lanes, size_t, size_t, uint8_t*)>
void pack_strips(const Layout& layout, const uint8_t* zeros, const std::byte* const rows[],
                 size_t blocks, uint8_t* out) {
  constexpr const std::byte* kNone[kLanes] = {};
  for (size_t b = 0; b < (blocks + 1) / 2 * 2; ++b) {
    const auto lanes = lanes_at(b < blocks ? rows : kNone, b * layout.in, zeros);
    for (size_t i = 0; i < kLanes; i += kFour)
      pack(lanes.data() + i, i, b % 2, out + b / 2 * layout.out);
  }
}

// Strips of 128 inputs, except that the last one may have 64. The bytes after its scales are zero
// already.
void pack_mxfp4(size_t block_bytes, const std::byte* const rows[], size_t blocks, uint8_t* out) {
  static constexpr uint8_t kZerosMxfp4[17] = {};
  constexpr size_t kBlocks = size_t{kStripMxfp4} / kQuantBlock;
  constexpr const std::byte* kNone[kLanes] = {};
  for (size_t b = 0; b < (blocks + 1) / 2 * 2; ++b) {
    const auto lanes = lanes_at(b < blocks ? rows : kNone, b * block_bytes, kZerosMxfp4);
    for (size_t i = 0; i < kLanes; i += kFour)
      mxfp4(lanes.data() + i, i, b % kBlocks, out + b / kBlocks * kStripBytesMxfp4);
  }
}

}  // namespace

void pack_blocks(DType dtype, const std::byte* const rows[], size_t columns, std::byte* out) {
  static constexpr uint8_t kZeros8[34] = {};
  static constexpr uint8_t kZeros4[18] = {0,    0,    0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88,
                                          0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88};
  static constexpr uint8_t kZeros5[22] = {0, 0, 0xFF, 0xFF, 0xFF, 0xFF};  // 16 is the zero of Q5_0
  auto* const to = reinterpret_cast<uint8_t*>(out);
  const GgmlType type = *ggml_type(ggml_number(dtype));
  const size_t blocks = columns / type.elements;
  if (dtype == DType::q8_0)
    pack_strips<q8_0>({type.bytes, kStripBytesQ8}, kZeros8, rows, blocks, to);
  else if (dtype == DType::q4_0)
    pack_strips<q4_0>({type.bytes, kStripBytesQ4}, kZeros4, rows, blocks, to);
  else if (dtype == DType::q5_0)
    pack_strips<q5_0>({type.bytes, kStripBytesQ5}, kZeros5, rows, blocks, to);
  else if (dtype == DType::mxfp4)
    pack_mxfp4(type.bytes, rows, blocks, to);
  else if (dtype == DType::q4_k)
    pack_supers<q4_k, put_scales>({type.bytes, kSuperBytesQ4K}, rows, blocks, to);
  else if (dtype == DType::q5_k)
    pack_supers<q5_k, put_scales>({type.bytes, kSuperBytesQ5K}, rows, blocks, to);
  else
    pack_supers<q6_k, put_scales_q6>({type.bytes, kSuperBytesQ6K}, rows, blocks, to);
}

}  // namespace stet

// Arithmetic on packed weights: widening rows, and rounding weights to few bits.
#include "stet/model/matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/quantize.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

// Locates the scales and bytes of one of the 16 rows of a packed strip (kernels.hpp).
constexpr size_t kScaleBytes = 2 * kLanes * sizeof(uint16_t), kLine = kLanes * 4,
                 kBlockQuads = kQuantBlock / 4, kSuperParts = size_t{kSuperBlock} / kQuantBlock;

struct StripRow {
  WeightType type;
  size_t lane;

  bool in_mxfp4() const { return type == WeightType::mxfp4; }
  size_t block_bytes() const {
    return in_mxfp4() ? 4 * kLine : (strip_bytes(type) - kScaleBytes) / 2;
  }
  size_t scale_at(size_t block) const {
    constexpr size_t kBlocks = size_t{kStripMxfp4} / kQuantBlock;
    if (in_mxfp4()) return block / kBlocks * kStripBytesMxfp4 + block % kBlocks * kLanes + lane;
    return block / 2 * strip_bytes(type) + (block % 2 * kLanes + lane) * sizeof(uint16_t);
  }
  size_t quads_at(size_t block) const {
    constexpr size_t kBlocks = size_t{kStripMxfp4} / kQuantBlock;
    if (in_mxfp4())
      return block / kBlocks * kStripBytesMxfp4 + kLine + block % kBlocks * block_bytes() +
             lane * 4;
    return block / 2 * strip_bytes(type) + kScaleBytes + block % 2 * block_bytes() + lane * 4;
  }

  void write(const QuantizedBlock& from, size_t block, std::byte* packed) const {
    std::memcpy(packed + scale_at(block), &from.scale, sizeof from.scale);
    std::byte* to = packed + quads_at(block);
    for (size_t quad = 0; type == WeightType::q8 && quad < kBlockQuads; ++quad)
      std::memcpy(to + quad * kLine, from.u + 4 * quad, 4);
    for (size_t i = 0; type == WeightType::q4 && i < kQuantBlock / 2; ++i) {
      to[i / 4 * kLine + i % 4] =
          static_cast<std::byte>(from.u[i] | from.u[i + kQuantBlock / 2] << 4);
    }
  }
  QuantizedBlock read(size_t block, const std::byte* packed) const {
    QuantizedBlock to = {};
    std::memcpy(&to.scale, packed + scale_at(block), in_mxfp4() ? 1 : sizeof to.scale);
    const std::byte* from = packed + quads_at(block);
    const std::byte* const fifths = from;
    if (type == WeightType::q5) from += kLine;
    for (size_t quad = 0; type == WeightType::q8 && quad < kBlockQuads; ++quad)
      std::memcpy(to.u + 4 * quad, from + quad * kLine, 4);
    for (size_t i = 0; type != WeightType::q8 && i < kQuantBlock / 2; ++i) {
      const std::byte both = from[i / 4 * kLine + i % 4];
      to.u[i] = static_cast<uint8_t>(both & std::byte{15});
      to.u[i + kQuantBlock / 2] = static_cast<uint8_t>(both >> 4);
    }
    for (size_t i = 0; type == WeightType::q5 && i < kQuantBlock; ++i)
      to.u[i] |= (static_cast<uint8_t>(fifths[i % 4]) >> (i / 4) & 1) << 4;
    return to;
  }
};

// Reads one of the 16 rows of a packed super-block: its integers, and its weights exactly as ggml's
// reference widens them. Products are exact, and the difference is rounded once.
struct SuperRow {
  WeightType type;
  size_t lane;

  static uint8_t at(const std::byte* p, size_t i) { return static_cast<uint8_t>(p[i]); }
  static uint16_t half_at(const std::byte* p) {
    uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return bits;
  }
  uint16_t d(const std::byte* super) const { return half_at(super + 2 * lane); }
  uint16_t m(const std::byte* super) const { return half_at(super + 2 * (kLanes + lane)); }
  // Returns value v of the eight scales and eight minimums.
  int six(const std::byte* super, size_t v) const {
    const std::byte* const lines = super + kLine;
    if (v < 12) return at(lines, v / 4 * kLine + v % 4 * kLanes + lane) & 63;
    int value = 0;
    for (size_t line = 0; line < 3; ++line)
      value |= (at(lines, line * kLine + (v - 12) * kLanes + lane) >> 6) << (2 * line);
    return value;
  }
  // Returns scale s of q6_k's sixteen.
  int eight(const std::byte* super, size_t s) const {
    return static_cast<int8_t>(at(super, kLine + s * kLanes + lane));
  }
  int nibble(const std::byte* lines, size_t i) const {
    const int both = at(lines, i % 16 / 4 * kLine + 4 * lane + i % 4);
    return i < 16 ? both & 15 : both >> 4;
  }
  // Reads the 32 integers of block b.
  void integers(const std::byte* super, size_t b, int* to) const {
    const size_t first = type == WeightType::q6_k ? 5 : 4, lines = type == WeightType::q4_k   ? 4
                                                                   : type == WeightType::q5_k ? 5
                                                                                              : 6;
    const std::byte* const block = super + (first + lines * b) * kLine;
    for (size_t i = 0; i < kQuantBlock; ++i) {
      if (type == WeightType::q4_k) {
        to[i] = nibble(block, i);
      } else if (type == WeightType::q5_k) {
        const int fifth = at(block, 4 * lane + i % 4) >> (i / 4) & 1;
        to[i] = nibble(block + kLine, i) | fifth << 4;
      } else {
        const int high = at(block, (4 + i / 16) * kLine + 4 * lane + i % 4) >> (2 * (i / 4 % 4));
        to[i] = nibble(block, i) | (high & 3) << 4;
      }
    }
  }
  // Reads the 32 weights of block b.
  void read(const std::byte* super, size_t b, float* to) const {
    int u[kQuantBlock];
    integers(super, b, u);
    const float d_of_all = widen_f16(d(super));
    if (type == WeightType::q6_k) {
      for (size_t i = 0; i < kQuantBlock; ++i) {
        const float scale = d_of_all * static_cast<float>(eight(super, 2 * b + i / 16));
        to[i] = scale * static_cast<float>(u[i] - 32);
      }
      return;
    }
    const float scale = d_of_all * static_cast<float>(six(super, b)),
                minimum = widen_f16(m(super)) * static_cast<float>(six(super, 8 + b));
    for (size_t i = 0; i < kQuantBlock; ++i) to[i] = scale * static_cast<float>(u[i]) - minimum;
  }
  // Writes all 256 weights as a ggml block.
  void store(const std::byte* super, uint8_t* to) const {
    SuperIntegers all;
    all.d = d(super);
    for (size_t b = 0; b < kSuperParts; ++b) integers(super, b, all.u + b * kQuantBlock);
    if (type == WeightType::q6_k) {
      for (size_t s = 0; s < kSuperBlock / 16; ++s) all.scale[s] = eight(super, s);
      return store_super_q6(all, to);
    }
    all.m = m(super);
    for (size_t b = 0; b < kSuperParts; ++b) {
      all.scale[b] = six(super, b);
      all.minimum[b] = six(super, 8 + b);
    }
    return type == WeightType::q4_k ? store_super_q4(all, to) : store_super_q5(all, to);
  }
};

// Compares magnitudes; NaN is the largest.
bool less_fit(float a, float b) {
  return !std::isnan(a) && (std::isnan(b) || std::fabs(a) < std::fabs(b));
}

}  // namespace

Matrix Matrix::quantized(WeightType to, int threads) const {
  Matrix m(to, rows_, columns_);
  const auto round = to == WeightType::q8 ? round_block_q8 : round_block_q4;
  run_each(threads, blocks(), [&](size_t b) {
    std::vector<float> row(m.depth());
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const size_t n = b * kLanes + lane;
      if (n < rows_)
        gather(n, row.data());
      else
        std::fill(row.begin(), row.end(), 0.0f);
      for (size_t block = 0; block < m.depth() / kQuantBlock; ++block) {
        const QuantizedBlock rounded = round(
            std::span<const float, kQuantBlock>(row.data() + block * kQuantBlock, kQuantBlock));
        if ((rounded.scale & 0x7C00u) == 0x7C00u) {
          const float* const w = row.data() + block * kQuantBlock;
          const float* const bad = std::max_element(w, w + kQuantBlock, less_fit);
          throw WeightError(to, n, static_cast<size_t>(bad - row.data()), *bad);
        }
        StripRow{to, lane}.write(rounded, block, m.memory_.data() + b * m.block_bytes());
      }
    }
  });
  return m;
}

namespace {

// Widens a row from the type that it is stored in. Its address may be any.
void widen_stored(DType dtype, const std::byte* from, size_t columns, float* out) {
  if (is_block_dtype(dtype)) {
    const uint32_t type = ggml_number(dtype);
    return dequantize_ggml(type, from, columns / ggml_type(type)->elements, out);
  }
  if (dtype == DType::f32) {
    std::memcpy(out, from, columns * sizeof(float));
    return;
  }
  for (size_t k = 0; k < columns; ++k) {
    uint16_t bits;
    std::memcpy(&bits, from + k * sizeof bits, sizeof bits);
    out[k] = dtype == DType::bf16 ? widen_bf16(bits) : widen_f16(bits);
  }
}

}  // namespace

void Matrix::gather(size_t row, float* out) const {
  if (stored_rows_)
    return widen_stored(*stored_rows_, data_ + row * (bytes() / rows_), columns_, out);
  for (const Matrix& part : parts_) {
    if (row < part.rows()) return part.gather(row, out);
    row -= part.rows();
  }
  const std::byte* base = data_ + row / kLanes * block_bytes();
  const size_t lane = row % kLanes;
  if (type_ == WeightType::f32) {
    const float* w = reinterpret_cast<const float*>(base);
    for (size_t k = 0; k < columns_; ++k) out[k] = w[k * kLanes + lane];
    return;
  }
  if (is_super(type_)) {
    const size_t super_bytes = block_bytes() / (depth() / kSuperBlock);
    for (size_t k = 0; k < columns_; k += kQuantBlock) {
      SuperRow{type_, lane}.read(base + k / kSuperBlock * super_bytes,
                                 k % kSuperBlock / kQuantBlock, out + k);
    }
    return;
  }
  if (type_ == WeightType::mxfp4) {
    uint8_t stored[17];
    for (size_t k = 0; k < columns_; k += kQuantBlock) {
      const QuantizedBlock block = StripRow{type_, lane}.read(k / kQuantBlock, base);
      store_ggml_block(ggml_number(DType::mxfp4), block.scale, block.u, stored);
      dequantize_ggml(ggml_number(DType::mxfp4), stored, 1, out + k);
    }
    return;
  }
  if (is_quantized(type_)) {
    const int zero = type_ == WeightType::q8 ? 128 : type_ == WeightType::q4 ? 8 : 16;
    for (size_t k = 0; k < columns_; k += kQuantBlock) {
      const QuantizedBlock block = StripRow{type_, lane}.read(k / kQuantBlock, base);
      const float scale = widen_f16(block.scale);
      const size_t end = std::min(columns_ - k, size_t{kQuantBlock});
      for (size_t i = 0; i < end; ++i) out[k + i] = static_cast<float>(block.u[i] - zero) * scale;
    }
    return;
  }
  const uint16_t* w = reinterpret_cast<const uint16_t*>(base);
  for (size_t k = 0; k < columns_; ++k) {
    const uint16_t bits = w[k / 2 * 2 * kLanes + lane * 2 + k % 2];
    out[k] = type_ == WeightType::bf16 ? widen_bf16(bits) : widen_f16(bits);
  }
}

void Matrix::store_ggml(size_t row, std::byte* out) const {
  if (stored_rows_) {
    const size_t bytes_of_row = bytes() / rows_;
    std::memcpy(out, data_ + row * bytes_of_row, bytes_of_row);
    return;
  }
  const std::byte* const base = data_ + row / kLanes * block_bytes();
  const uint32_t type = ggml_number(stored_dtype(type_));
  const GgmlType block = *ggml_type(type);
  for (size_t b = 0; b < columns_ / block.elements; ++b) {
    std::byte* const to = out + b * block.bytes;
    if (is_super(type_)) {
      const size_t super_bytes = block_bytes() / (depth() / kSuperBlock);
      SuperRow{type_, row % kLanes}.store(base + b * super_bytes, reinterpret_cast<uint8_t*>(to));
    } else {
      const QuantizedBlock quants = StripRow{type_, row % kLanes}.read(b, base);
      store_ggml_block(type, quants.scale, quants.u, to);
    }
  }
}

}  // namespace stet

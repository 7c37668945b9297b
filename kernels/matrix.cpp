// What of packed weights is arithmetic: rows widened again, and weights rounded to few bits.
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

// One row of a block of 16 in packed strips: where its scales and bytes stand (kernels.hpp).
constexpr size_t kScaleBytes = 2 * kLanes * sizeof(uint16_t), kLine = kLanes * 4,
                 kBlockQuads = kQuantBlock / 4;

struct StripRow {
  WeightType type;
  size_t lane;

  size_t strip_bytes() const { return type == WeightType::q8 ? kStripBytesQ8 : kStripBytesQ4; }
  size_t block_bytes() const { return (strip_bytes() - kScaleBytes) / 2; }
  size_t scale_at(size_t block) const {
    return block / 2 * strip_bytes() + (block % 2 * kLanes + lane) * sizeof(uint16_t);
  }
  size_t quads_at(size_t block) const {
    return block / 2 * strip_bytes() + kScaleBytes + block % 2 * block_bytes() + lane * 4;
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
    QuantizedBlock to;
    std::memcpy(&to.scale, packed + scale_at(block), sizeof to.scale);
    const std::byte* from = packed + quads_at(block);
    for (size_t quad = 0; type == WeightType::q8 && quad < kBlockQuads; ++quad)
      std::memcpy(to.u + 4 * quad, from + quad * kLine, 4);
    for (size_t i = 0; type == WeightType::q4 && i < kQuantBlock / 2; ++i) {
      const std::byte both = from[i / 4 * kLine + i % 4];
      to.u[i] = static_cast<uint8_t>(both & std::byte{15});
      to.u[i + kQuantBlock / 2] = static_cast<uint8_t>(both >> 4);
    }
    return to;
  }
};

// One weight of a lane in a super-block, exactly as ggml's reference widens it: products are exact,
// and the difference is rounded once.
struct SuperRow {
  WeightType type;
  size_t lane;

  static uint8_t at(const std::byte* p, size_t i) { return static_cast<uint8_t>(p[i]); }
  static float half_at(const std::byte* p) {
    uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return widen_f16(bits);
  }
  // Value v of eight scales and eight minimums.
  int six(const std::byte* lines, size_t v) const {
    if (v < 12) return at(lines, v / 4 * kLine + v % 4 * kLanes + lane) & 63;
    int value = 0;
    for (size_t line = 0; line < 3; ++line)
      value |= (at(lines, line * kLine + (v - 12) * kLanes + lane) >> 6) << (2 * line);
    return value;
  }
  int nibble(const std::byte* lines, size_t i) const {
    const int both = at(lines, i % 16 / 4 * kLine + 4 * lane + i % 4);
    return i < 16 ? both & 15 : both >> 4;
  }
  // The 32 weights of block b.
  void read(const std::byte* super, size_t b, float* to) const {
    const float d = half_at(super + 2 * lane);
    if (type == WeightType::q6_k) return read_q6(super, b, d, to);
    const std::byte* block = super + (4 + (type == WeightType::q5_k ? 5 : 4) * b) * kLine;
    const float scale = d * static_cast<float>(six(super + kLine, b)),
                minimum = half_at(super + 2 * (kLanes + lane)) *
                          static_cast<float>(six(super + kLine, 8 + b));
    const std::byte* const fifths = block;
    if (type == WeightType::q5_k) block += kLine;
    for (size_t i = 0; i < kQuantBlock; ++i) {
      int u = nibble(block, i);
      if (type == WeightType::q5_k) u |= (at(fifths, 4 * lane + i % 4) >> (i / 4) & 1) << 4;
      to[i] = scale * static_cast<float>(u) - minimum;
    }
  }
  void read_q6(const std::byte* super, size_t b, float d, float* to) const {
    const std::byte* const block = super + (5 + 6 * b) * kLine;
    for (size_t i = 0; i < kQuantBlock; ++i) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(
                                  at(super, kLine + (2 * b + i / 16) * kLanes + lane)));
      const int high = at(block, (4 + i / 16) * kLine + 4 * lane + i % 4) >> (2 * (i / 4 % 4)) & 3;
      to[i] = scale * static_cast<float>((nibble(block, i) | high << 4) - 32);
    }
  }
};

}  // namespace

namespace {

// By magnitude, and NaN above all.
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

void Matrix::gather(size_t row, float* out) const {
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
  if (is_quantized(type_)) {
    const int zero = type_ == WeightType::q8 ? 128 : 8;
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
  const std::byte* const base = data_ + row / kLanes * block_bytes();
  const uint32_t type = type_ == WeightType::q8 ? 8 : 2;
  const size_t each = ggml_type(type)->bytes;
  for (size_t b = 0; b < columns_ / kQuantBlock; ++b) {
    const QuantizedBlock block = StripRow{type_, row % kLanes}.read(b, base);
    store_ggml_block(type, block.scale, block.u, out + b * each);
  }
}

}  // namespace stet

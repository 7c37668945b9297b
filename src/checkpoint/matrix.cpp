#include "stet/model/matrix.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/quantize.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

// One block of 16 rows, given as pointers to rows of `words` 32-bit words (a float32, or a pair of
// 16-bit weights): out[words][16]. A null row is zeros.
void transpose_words(const std::byte* const rows[kLanes], size_t words, uint32_t* out) {
  constexpr size_t kStrip =
      128;  // 8 KB of output: it stays in the first-level cache while 16 rows fill it
  for (size_t begin = 0; begin < words; begin += kStrip) {
    const size_t end = std::min(words, begin + kStrip);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (rows[lane] == nullptr) continue;  // the memory is zero already
      for (size_t w = begin; w < end; ++w)
        std::memcpy(out + w * kLanes + lane, rows[lane] + w * 4, 4);
    }
  }
}

// The last column of a 16-bit matrix with an odd number of columns has no partner.
void last_half_word(const std::byte* const rows[kLanes], size_t columns, uint32_t* out) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (rows[lane] != nullptr)
      std::memcpy(out + columns / 2 * kLanes + lane, rows[lane] + (columns - 1) * 2, 2);
  }
}

WeightType weight_type(DType dtype) {
  return dtype == DType::bf16  ? WeightType::bf16
         : dtype == DType::f16 ? WeightType::f16
                               : WeightType::f32;
}

// One block of `lanes` <= 16 outputs that stand side by side in each of the `columns` rows of a
// transposed tensor: out[columns][16] of 32-bit elements, out[columns/2][16][2] of 16-bit ones.
template <class Element>
void pack_transposed(const std::byte* first, size_t row_bytes, size_t lanes, size_t columns,
                     Element* out) {
  constexpr size_t kGroup = sizeof(uint32_t) / sizeof(Element);  // consecutive inputs of one output
  for (size_t k = 0; k < columns; ++k) {
    const std::byte* from = first + k * row_bytes;
    Element* to = out + k / kGroup * kGroup * kLanes + k % kGroup;
    for (size_t lane = 0; lane < lanes; ++lane)
      std::memcpy(to + lane * kGroup, from + lane * sizeof(Element), sizeof(Element));
  }
}

size_t rows_of(const std::vector<const TensorView*>& parts) {
  size_t rows = 0;
  for (const TensorView* part : parts) rows += static_cast<size_t>(part->shape.at(0));
  return rows;
}

}  // namespace

Matrix::Matrix(WeightType type, size_t rows, size_t columns)
    : rows_(rows), columns_(columns), type_(type) {
  memory_ = Memory(bytes());
  data_ = memory_.data();
}

size_t Matrix::depth() const {
  const size_t unit = is_quantized(type_) ? kQuantStrip : 2;
  return (columns_ + unit - 1) / unit * unit;
}

size_t Matrix::block_bytes() const {
  if (type_ == WeightType::q8) return depth() / kQuantStrip * kStripBytesQ8;
  if (type_ == WeightType::q4) return depth() / kQuantStrip * kStripBytesQ4;
  return depth() * kLanes * element_size();
}

Matrix::Matrix(const std::vector<const TensorView*>& parts, size_t columns, int threads)
    : Matrix(weight_type(parts.at(0)->dtype), rows_of(parts), columns) {
  const size_t row_bytes = columns * element_size();
  std::vector<const std::byte*> source;  // one per row
  for (const TensorView* part : parts) {
    for (size_t offset = 0; offset < part->bytes.size(); offset += row_bytes) {
      source.push_back(part->bytes.data() + offset);
    }
  }
  source.resize(blocks() * kLanes, nullptr);
  const size_t words = row_bytes / 4;
  run_team(threads, [&](Team team) {
    const Range mine = team.share(blocks());
    for (size_t b = mine.begin; b < mine.end; ++b) {
      const std::byte* const* rows = source.data() + b * kLanes;
      uint32_t* out = reinterpret_cast<uint32_t*>(memory_.data() + b * block_bytes());
      transpose_words(rows, words, out);
      if (row_bytes % 4 != 0) last_half_word(rows, columns, out);
    }
  });
}

Matrix Matrix::transposed(const TensorView& tensor, int threads) {
  Matrix m(weight_type(tensor.dtype), static_cast<size_t>(tensor.shape.at(1)),
           static_cast<size_t>(tensor.shape.at(0)));
  const size_t row_bytes = m.rows_ * m.element_size();
  run_team(threads, [&](Team team) {
    const Range mine = team.share(m.blocks());
    for (size_t b = mine.begin; b < mine.end; ++b) {
      const std::byte* first = tensor.bytes.data() + b * kLanes * m.element_size();
      const size_t lanes = std::min(size_t{kLanes}, m.rows_ - b * kLanes);
      std::byte* out = m.memory_.data() + b * m.block_bytes();
      if (m.type_ == WeightType::f32) {
        pack_transposed(first, row_bytes, lanes, m.columns_, reinterpret_cast<uint32_t*>(out));
      } else {
        pack_transposed(first, row_bytes, lanes, m.columns_, reinterpret_cast<uint16_t*>(out));
      }
    }
  });
  return m;
}

Matrix Matrix::packed(WeightType type, size_t rows, size_t columns, const std::byte* bytes,
                      std::shared_ptr<const void> owner) {
  Matrix m;
  m.type_ = type;
  m.rows_ = rows;
  m.columns_ = columns;
  m.data_ = bytes;
  m.owner_ = std::move(owner);
  return m;
}

size_t Matrix::packed_bytes(WeightType type, size_t rows, size_t columns) {
  return packed(type, rows, columns, nullptr, nullptr).bytes();
}

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
  const std::byte* base = data_ + row / kLanes * block_bytes();
  const size_t lane = row % kLanes;
  if (type_ == WeightType::f32) {
    const float* w = reinterpret_cast<const float*>(base);
    for (size_t k = 0; k < columns_; ++k) out[k] = w[k * kLanes + lane];
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

bool is_quantized(WeightType type) { return type == WeightType::q8 || type == WeightType::q4; }

const char* weight_type_name(WeightType type) {
  static constexpr const char* kNames[] = {"f32", "bf16", "f16", "q8", "q4"};
  return kNames[static_cast<int>(type)];
}

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

}  // namespace stet

#include "stet/model/matrix.hpp"

#include <algorithm>
#include <cstring>

#include "src/checkpoint/blocks.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

// Packs one block of 16 rows, each of `words` 32-bit words (a float32, or a pair of 16-bit
// weights), as out[words][16]. A null row leaves zeros.
void transpose_words(const std::byte* const rows[kLanes], size_t words, uint32_t* out) {
  // 8 KB of output, which stay in the first-level cache while 16 rows fill them.
  constexpr size_t kStrip = 128;
  for (size_t begin = 0; begin < words; begin += kStrip) {
    const size_t end = std::min(words, begin + kStrip);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (rows[lane] == nullptr) continue;  // out is zeroed memory
      const std::byte* from = rows[lane] + begin * 4;
      uint32_t* to = out + begin * kLanes + lane;
#pragma GCC unroll 8
      for (size_t w = begin; w < end; ++w, from += 4, to += kLanes) {
        uint32_t word;
        std::memcpy(&word, from, 4);
        *to = word;
      }
    }
  }
}

// Packs the last column of a 16-bit matrix with an odd number of columns, which has no partner.
void last_half_word(const std::byte* const rows[kLanes], size_t columns, uint32_t* out) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (rows[lane] != nullptr)
      std::memcpy(out + columns / 2 * kLanes + lane, rows[lane] + (columns - 1) * 2, 2);
  }
}

// Packs one block of `lanes` <= 16 outputs, which stand side by side in each of the `columns` rows
// of a transposed tensor. 32-bit elements go to out[columns][16], 16-bit ones to
// out[columns/2][16][2].
template <class Element>
void pack_transposed(const std::byte* first, size_t row_bytes, size_t lanes, size_t columns,
                     Element* out) {
  constexpr size_t kGroup = sizeof(uint32_t) / sizeof(Element);  // inputs side by side
  for (size_t k = 0; k < columns; ++k) {
    const std::byte* from = first + k * row_bytes;
    Element* to = out + k / kGroup * kGroup * kLanes + k % kGroup;
    for (size_t lane = 0; lane < lanes; ++lane)
      std::memcpy(to + lane * kGroup, from + lane * sizeof(Element), sizeof(Element));
  }
}

// Bytes that a thread packs at a time. The system provides memory in large pages, and at this size
// two threads rarely fault on the same page.
constexpr size_t kPackedAtOnce = size_t{4} << 20;

size_t rows_of(const std::vector<const TensorView*>& parts) {
  size_t rows = 0;
  for (const TensorView* part : parts) rows += static_cast<size_t>(part->shape.at(0));
  return rows;
}

}  // namespace

Matrix::Matrix(WeightType type, size_t rows, size_t columns, std::byte* place)
    : rows_(rows), columns_(columns), type_(type) {
  if (place == nullptr) memory_ = Memory(bytes());
  data_ = place == nullptr ? memory_.data() : place;
}

void Matrix::fill(int threads, const std::function<void(size_t)>& pack, const Before& before) {
  const size_t pieces = std::max<size_t>(1, bytes() / kPackedAtOnce);
  run_each(threads, pieces, [&](size_t piece) {
    const Range mine = part_of(blocks(), pieces, piece);
    for (size_t b = mine.begin; b < mine.end; ++b) {
      if (before) before(b, blocks());
      pack(b);
    }
  });
}

WeightType weight_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return WeightType::bf16;
    case DType::f16:
      return WeightType::f16;
    case DType::q8_0:
      return WeightType::q8;
    case DType::q4_0:
      return WeightType::q4;
    case DType::q5_0:
      return WeightType::q5;
    case DType::mxfp4:
      return WeightType::mxfp4;
    case DType::q4_k:
      return WeightType::q4_k;
    case DType::q5_k:
      return WeightType::q5_k;
    case DType::q6_k:
      return WeightType::q6_k;
    default:
      return WeightType::f32;
  }
}

DType stored_dtype(WeightType type) {
  static constexpr DType kTypes[] = {DType::f32,  DType::bf16, DType::f16,   DType::q8_0,
                                     DType::q4_0, DType::q5_0, DType::mxfp4, DType::q4_k,
                                     DType::q5_k, DType::q6_k};
  return kTypes[static_cast<int>(type)];
}

size_t Matrix::bytes() const {
  if (stored_rows_)
    return static_cast<size_t>(*tensor_bytes(
        *stored_rows_, {static_cast<int64_t>(rows_), static_cast<int64_t>(columns_)}));
  size_t bytes = parts_.empty() ? blocks() * block_bytes() : 0;
  for (const Matrix& part : parts_) bytes += part.bytes();
  return bytes;
}

Matrix Matrix::stacked(std::vector<Matrix> parts) {
  Matrix m;
  m.columns_ = parts.at(0).columns();
  for (const Matrix& part : parts) m.rows_ += part.rows();
  m.parts_ = std::move(parts);
  return m;
}

// Makes the first expert elsewhere and copies it, because only a finished expert shows how many
// bytes each one takes.
Matrix Matrix::of_experts(size_t count, int threads, const MakeExpert& make) {
  const Matrix first = make(0, nullptr);
  const size_t each = first.bytes();
  Matrix m(first.type(), count * first.blocks() * kLanes, first.columns());
  std::memcpy(m.memory_.data(), first.data_, each);
  run_each(threads, count - 1, [&](size_t i) {
    std::byte* const place = m.memory_.data() + (i + 1) * each;
    const Matrix one = make(i + 1, place);
    if (one.data_ != place) std::memcpy(place, one.data_, each);
  });
  return m;
}

Matrix::Matrix(const std::vector<const TensorView*>& parts, size_t columns, int threads,
               size_t heads, const Before& before, std::byte* place)
    : Matrix(weight_type(parts.at(0)->dtype), rows_of(parts), columns, place) {
  const DType dtype = parts[0]->dtype;
  const size_t row_bytes =
      is_block_dtype(dtype)
          ? static_cast<size_t>(tensor_bytes(dtype, {static_cast<int64_t>(columns)}).value())
          : columns * element_size();
  std::vector<const std::byte*> source;  // pointers to rows
  for (const TensorView* part : parts) {
    for (size_t row = 0; row < static_cast<size_t>(part->shape.at(0)); ++row)
      source.push_back(row_of(*part, row).data());
  }
  if (heads > 0) {
    const std::vector<const std::byte*> stored = source;
    for (size_t row = 0; row < source.size(); ++row)
      source[row] = stored[interleaved_row(row, source.size(), heads)];
  }
  source.resize(blocks() * kLanes, nullptr);
  std::byte* const packed = place == nullptr ? memory_.data() : place;
  const auto pack = [&](size_t b) {
    const std::byte* const* rows = source.data() + b * kLanes;
    std::byte* const out = packed + b * block_bytes();
    if (is_block_dtype(dtype)) return pack_blocks(dtype, rows, columns, out);
    auto* const words = reinterpret_cast<uint32_t*>(out);
    transpose_words(rows, row_bytes / 4, words);
    if (row_bytes % 4 != 0) last_half_word(rows, columns, words);
  };
  fill(threads, pack, before);
}

Matrix Matrix::transposed(const TensorView& tensor, int threads, const Before& before) {
  Matrix m(weight_type(tensor.dtype), static_cast<size_t>(tensor.shape.at(1)),
           static_cast<size_t>(tensor.shape.at(0)));
  const size_t row_bytes = m.rows_ * m.element_size();
  const auto pack = [&](size_t b) {
    const std::byte* first = tensor.bytes.data() + b * kLanes * m.element_size();
    const size_t lanes = std::min(size_t{kLanes}, m.rows_ - b * kLanes);
    std::byte* out = m.memory_.data() + b * m.block_bytes();
    if (m.type_ == WeightType::f32) {
      pack_transposed(first, row_bytes, lanes, m.columns_, reinterpret_cast<uint32_t*>(out));
    } else {
      pack_transposed(first, row_bytes, lanes, m.columns_, reinterpret_cast<uint16_t*>(out));
    }
  };
  m.fill(threads, pack, before);
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

Matrix Matrix::in_place(DType dtype, size_t rows, size_t columns, const std::byte* bytes,
                        std::shared_ptr<const void> owner) {
  Matrix m = packed(weight_type(dtype), rows, columns, bytes, std::move(owner));
  m.stored_rows_ = dtype;
  return m;
}

size_t Matrix::packed_bytes(WeightType type, size_t rows, size_t columns) {
  return packed(type, rows, columns, nullptr, nullptr).bytes();
}

const char* weight_type_name(WeightType type) {
  static constexpr const char* kNames[] = {"f32", "bf16",  "f16",  "q8",   "q4",
                                           "q5",  "mxfp4", "q4_k", "q5_k", "q6_k"};
  return kNames[static_cast<int>(type)];
}

}  // namespace stet

// The weights of a linear layer, packed for the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/memory.hpp"
#include "stet/files/tensor.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {

// A packed matrix [rows][columns] for y = W x. The kernels define the layout (kernels.hpp): 16
// outputs side by side, inputs in pairs. All instruction sets use the same bytes.
//   16-bit     [rows/16][columns/2][16][2]
//   float32    [rows/16][columns][16]
//   quantized  strips of 64 inputs, or super-blocks of 256 (kernels.hpp)
// Rows are zero-padded to a multiple of 16, columns to depth().
class STET_API Matrix {
 public:
  // Called before each block of 16 rows is packed, with its index `i` of `n`, on the packing
  // thread. A callback that reads the same rows leaves them in that thread's caches.
  using Before = std::function<void(size_t i, size_t n)>;

  Matrix() = default;
  // Stacks tensors [n_i][columns] of one dtype (the caller checks that). ggml blocks keep their
  // numbers: q8_0, q4_0 and q5_0 become q8, q4 and q5. If `heads` is not 0, there is one tensor
  // that stores q, k and v of each head in turn; packing separates them. If `place` is not null, the
  // packed bytes are written there: to memory that holds zeros and that the caller keeps alive.
  Matrix(const std::vector<const TensorView*>& parts, size_t columns, int threads, size_t heads = 0,
         const Before& before = {}, std::byte* place = nullptr);
  // Packs the transpose of a stored tensor [columns][rows].
  static Matrix transposed(const TensorView& tensor, int threads, const Before& before = {});
  // Wraps packed bytes that `owner` keeps alive: packed_bytes(type, rows, columns) of them, 64-byte
  // aligned.
  static Matrix packed(WeightType type, size_t rows, size_t columns, const std::byte* bytes,
                       std::shared_ptr<const void> owner);
  static size_t packed_bytes(WeightType type, size_t rows, size_t columns);
  // Wraps rows that are looked up where they are stored and never multiplied: f32, bf16, f16 or
  // blocks of ggml, one row after another. The caller owns the bytes.
  static Matrix in_place(DType dtype, size_t rows, size_t columns, const std::byte* bytes,
                         std::shared_ptr<const void> owner);
  // Returns the type of such rows; nothing for a packed matrix.
  std::optional<DType> stored_rows() const { return stored_rows_; }
  // Stacks matrices with the same number of columns, one below the other. Each keeps its own type.
  // All but the last must have a multiple of 16 rows.
  static Matrix stacked(std::vector<Matrix> parts);
  // Returns `count` matrices of one shape and type, one after another in one block of memory. Block
  // i of matrix j is block j * blocks() / count + i. make(j, place) returns matrix j, either in that
  // place or in memory of its own. Several threads call it at once.
  using MakeExpert = std::function<Matrix(size_t j, std::byte* place)>;
  static Matrix of_experts(size_t count, int threads, const MakeExpert& make);
  // Returns the weights rounded to q8 or q4 (kernels/quantize.hpp). Throws an unsupported Error for
  // weights that are not finite or too large for a float16 scale.
  Matrix quantized(WeightType to, int threads) const;

  // Returns the stacked matrices, which then hold the blocks and bytes. Empty for a matrix of one
  // type.
  const std::vector<Matrix>& parts() const { return parts_; }

  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  inline size_t depth() const;  // padded columns: to pairs, strips or super-blocks
  size_t blocks() const { return (rows_ + kLanes - 1) / kLanes; }
  WeightType type() const { return type_; }
  const void* block(size_t index) const { return data_ + index * block_bytes(); }
  inline size_t block_bytes() const;
  // Bytes of a block before those of input `inputs`, which begins a strip or super-block, or is
  // depth().
  inline size_t offset(size_t inputs) const;
  size_t bytes() const;
  std::span<const std::byte> all() const { return {data_, data_ == nullptr ? 0 : bytes()}; }
  // Widens row `row` to float32: out[columns].
  void gather(size_t row, float* out) const;
  // Writes row `row` of a quantized matrix exactly, as blocks of stored_dtype(type()). The columns
  // must be whole blocks: of 32, or of 256 for super-blocks.
  void store_ggml(size_t row, std::byte* out) const;

 private:
  Matrix(WeightType type, size_t rows, size_t columns, std::byte* place = nullptr);
  void fill(int threads, const std::function<void(size_t block)>& pack, const Before& before);
  size_t element_size() const {
    return type_ == WeightType::f32 ? 4 : 2;
  }  // not for quantized types

  size_t rows_ = 0, columns_ = 0;
  WeightType type_ = WeightType::f32;
  Memory memory_;  // empty if `owner_` or a caller owns the bytes
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  std::vector<Matrix> parts_;
  std::optional<DType> stored_rows_;
};

// A tensor as loaded: rows from `first_row` on of one of the model's matrices, or a vector, which
// has one row.
struct LoadedWeight {
  std::string name;  // in the checkpoint, without the family's prefix
  int64_t rows, columns;
  Matrix matrix;  // a view of the model's bytes; empty for a vector
  size_t first_row = 0;
  std::vector<float> vector;
};

// Maps a row of [all queries, all keys, all values] to its row in a tensor that stores q, k and v
// head by head. `rows` is the total.
inline size_t interleaved_row(size_t row, size_t rows, size_t heads) {
  const size_t all = rows / 3, each = all / heads, within = row % all;
  return within / each * 3 * each + row / all * each + within % each;
}

// Returns "f32", "bf16", "f16", "q8", "q4", "q5", "mxfp4", "q4_k", "q5_k" or "q6_k".
STET_API const char* weight_type_name(WeightType type);
// Returns the packed type of tensors of this dtype.
STET_API WeightType weight_type(DType dtype);
// Returns the dtype that stores the same weights: ggml's Q8_0, Q4_0, Q5_0 and MXFP4 for q8, q4, q5
// and mxfp4.
STET_API DType stored_dtype(WeightType type);

// is_quantized: the type stores blocks of integers with a scale. is_super: these are super-blocks.
// super_index: their index in the kernels' arrays.
inline bool is_quantized(WeightType type) { return type >= WeightType::q8; }
inline bool is_super(WeightType type) { return type >= WeightType::q4_k; }
inline int super_index(WeightType type) { return static_cast<int>(type) - kFirstSuperType; }

// Returns the bytes of a packed strip of 64 inputs and 16 outputs, for quantized types other than
// super-blocks and mxfp4.
inline size_t strip_bytes(WeightType type) {
  return type == WeightType::q8   ? kStripBytesQ8
         : type == WeightType::q4 ? kStripBytesQ4
                                  : kStripBytesQ5;
}

// Bytes of the first `inputs` of 16 packed rows of mxfp4: a multiple of kStripMxfp4, or all that a
// row has.
inline size_t mxfp4_bytes(size_t inputs) {
  return inputs / kStripMxfp4 * kStripBytesMxfp4 +
         (inputs % kStripMxfp4 == 0 ? 0 : kHalfStripBytesMxfp4);
}

inline size_t Matrix::depth() const {
  const size_t unit = is_super(type_) ? kSuperBlock : is_quantized(type_) ? kQuantStrip : 2;
  return (columns_ + unit - 1) / unit * unit;
}

inline size_t Matrix::block_bytes() const {
  constexpr size_t kSuperBytes[] = {kSuperBytesQ4K, kSuperBytesQ5K, kSuperBytesQ6K};
  if (is_super(type_)) return depth() / kSuperBlock * kSuperBytes[super_index(type_)];
  if (type_ == WeightType::mxfp4) return mxfp4_bytes(depth());
  if (is_quantized(type_)) return depth() / kQuantStrip * strip_bytes(type_);
  return depth() * kLanes * element_size();
}

inline size_t Matrix::offset(size_t inputs) const {
  return type_ == WeightType::mxfp4 ? mxfp4_bytes(inputs) : inputs * block_bytes() / depth();
}

}  // namespace stet

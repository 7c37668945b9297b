// Weights of a linear layer, packed for the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/memory.hpp"
#include "stet/files/tensor.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {

// [rows][columns], y = W x. Packed as DESIGN's numeric contract says: 16 outputs side by side,
// inputs in pairs (16-bit weights: [rows/16][columns/2][16][2]; float32: [rows/16][columns][16]);
// quantized ones in strips of 64 inputs, or super-blocks of 256, as kernels.hpp says. Rows are
// padded to 16 and columns to depth() with zeros. The same bytes serve every instruction set.
class STET_API Matrix {
 public:
  // Is called for each block of 16 rows, the one at `i` of `n`, by the thread that packs it then:
  // what reads the same rows leaves them in its caches.
  using Before = std::function<void(size_t i, size_t n)>;

  Matrix() = default;
  // Stacks tensors of shape [n_i][columns], all of one dtype (checked by the caller). Blocks of
  // ggml keep their numbers: q8_0, q4_0 and q5_0 become q8, q4 and q5. `heads`: not 0 where there
  // is one tensor, which has the q, k and v of so many heads in turn; they go apart.
  Matrix(const std::vector<const TensorView*>& parts, size_t columns, int threads, size_t heads = 0,
         const Before& before = {});
  // The matrix whose transpose, [columns][rows], is stored.
  static Matrix transposed(const TensorView& tensor, int threads, const Before& before = {});
  // Packed bytes that someone else owns, at an address that is a multiple of 64: packed_bytes(type,
  // rows, columns) of them.
  static Matrix packed(WeightType type, size_t rows, size_t columns, const std::byte* bytes,
                       std::shared_ptr<const void> owner);
  static size_t packed_bytes(WeightType type, size_t rows, size_t columns);
  // Matrices of equal columns, one below the other, each of a type of its own. All but the last
  // have a multiple of 16 rows.
  static Matrix stacked(std::vector<Matrix> parts);
  // `count` matrices of one shape and type, one behind the other in one memory, each from a block
  // on: block i of the j-th is block j * blocks() / count + i. make(j) gives them; it is called by
  // any number of threads.
  static Matrix of_experts(size_t count, int threads, const std::function<Matrix(size_t)>& make);
  // The same weights rounded to `to`, q8 or q4 (kernels/quantize.hpp). Throws an unsupported Error
  // for weights that are not finite, or too large for a scale in float16.
  Matrix quantized(WeightType to, int threads) const;

  // What it is stacked of; empty for one that is of a single type. The parts have the blocks and
  // bytes.
  const std::vector<Matrix>& parts() const { return parts_; }

  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  inline size_t depth() const;  // columns, padded: to pairs, to strips or to super-blocks
  size_t blocks() const { return (rows_ + kLanes - 1) / kLanes; }
  WeightType type() const { return type_; }
  const void* block(size_t index) const { return data_ + index * block_bytes(); }
  inline size_t block_bytes() const;
  // Bytes of a block before those of input `inputs`, which begins a strip or super-block, or is
  // depth().
  inline size_t offset(size_t inputs) const;
  size_t bytes() const;
  std::span<const std::byte> all() const { return {data_, data_ == nullptr ? 0 : bytes()}; }
  // Row `row` widened to float32: out[columns].
  void gather(size_t row, float* out) const;
  // Row `row` of a quantized type as the blocks of stored_dtype(type()), exactly. The columns must
  // be whole blocks: of 32, or of 256 in super-blocks.
  void store_ggml(size_t row, std::byte* out) const;

 private:
  Matrix(WeightType type, size_t rows, size_t columns);
  void fill(int threads, const std::function<void(size_t block)>& pack, const Before& before);
  size_t element_size() const {
    return type_ == WeightType::f32 ? 4 : 2;
  }  // of those that are not quantized

  size_t rows_ = 0, columns_ = 0;
  WeightType type_ = WeightType::f32;
  Memory memory_;  // empty when others own the bytes
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  std::vector<Matrix> parts_;
};

// A tensor as it was loaded: rows `first_row` .. of a matrix, which is the model's; or a vector,
// which has one row.
struct LoadedWeight {
  std::string name;  // in the checkpoint, without what differs between those of a family
  int64_t rows, columns;
  Matrix matrix;  // shows the model's bytes; empty for a vector
  size_t first_row = 0;
  std::vector<float> vector;
};

// Of `rows` rows that stand as the queries, keys and values of `heads` heads in turn: which is row
// `row` of all queries, then all keys, then all values.
inline size_t interleaved_row(size_t row, size_t rows, size_t heads) {
  const size_t all = rows / 3, each = all / heads, within = row % all;
  return within / each * 3 * each + row / all * each + within % each;
}

// "f32", "bf16", "f16", "q8", "q4", "q5", "mxfp4", "q4_k", "q5_k", "q6_k"
STET_API const char* weight_type_name(WeightType type);
// What tensors of a type that weights may be stored in are packed as.
STET_API WeightType weight_type(DType dtype);
// The inverse: what holds the same weights, q8, q4, q5 and mxfp4 in ggml's Q8_0, Q4_0, Q5_0 and
// MXFP4.
STET_API DType stored_dtype(WeightType type);

// Whether weights of this type stand in blocks of integers with a scale; and whether those are
// super-blocks, and where in the kernels' arrays.
inline bool is_quantized(WeightType type) { return type >= WeightType::q8; }
inline bool is_super(WeightType type) { return type >= WeightType::q4_k; }
inline int super_index(WeightType type) { return static_cast<int>(type) - kFirstSuperType; }

// Of the others but mxfp4: a packed strip of 64 inputs of 16 outputs.
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

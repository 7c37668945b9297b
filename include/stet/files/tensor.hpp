// What a tensor in a file is: a name, an element type, a shape, and bytes owned by someone else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/memory.hpp"

namespace stet {

// `other` is a type that the file names and stet does not know. Those before it are ggml's blocks
// of consecutive elements of a row (stet/kernels/ggml.hpp), which safetensors does not have: GGUF
// files are read as if it did.
enum class DType {
  f64,
  f32,
  bf16,
  f16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  q8_0,
  q4_0,
  q5_0,
  mxfp4,
  q4_k,
  q5_k,
  q6_k,
  other
};

STET_API size_t dtype_size(DType dtype);       // bytes per element; 0 for blocks and other
STET_API const char* dtype_name(DType dtype);  // as safetensors writes it: "F32", "BF16", ...
STET_API std::optional<DType> parse_dtype(const std::string& name);  // the inverse
STET_API bool is_weight_dtype(DType dtype);  // f32, bf16 or f16: what weights may be stored in

STET_API bool is_block_dtype(DType dtype);   // one of ggml's
STET_API uint32_t ggml_number(DType dtype);  // what ggml_type() calls one that weights may have

// Bytes of a tensor of a known type. Nothing when they do not fit an int64_t, or where rows are no
// multiple of a block.
STET_API std::optional<int64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape);

// "[2, 3]"; "[]" for a scalar.
STET_API std::string shape_text(const std::vector<int64_t>& shape);

// The product of the dimensions. Nothing when one is negative or the product does not fit.
STET_API std::optional<int64_t> element_count(const std::vector<int64_t>& shape);

// Elements in row-major order, little-endian. `bytes` may start at any address: use memcpy.
struct TensorView {
  std::string name;
  DType dtype = DType::other;
  std::string dtype_text;  // as the file has it
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // tensor_bytes(dtype, shape), checked; any length for other
  // 0 where rows stand in their order. Otherwise they are those of so many heads in the order of
  // GGUF: paired_row().
  size_t paired_heads = 0;
  std::string stack = {};  // the tensor of the file that this is one expert's part of; or nothing
};

// A tensor, and the memory of its bytes where those do not lie in a file.
struct OwnedTensor {
  TensorView view;
  Memory memory;
};

// Where GGUF has row `row` of Llama's q and k: what RoPE turns together stands side by side there,
// and half a head apart in what was published.
STET_API size_t paired_row(size_t row, size_t rows, size_t heads);

// One row of a matrix, wherever it stands.
STET_API std::span<const std::byte> row_of(const TensorView& matrix, size_t row);

}  // namespace stet

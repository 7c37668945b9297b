// A tensor in a file: name, element type, shape, and bytes owned by another object.
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

// The element type of a tensor. The block types are ggml's blocks of consecutive elements of a row
// (stet/kernels/ggml.hpp); safetensors has none, but GGUF files are read as if it had. `other` is a
// type that stet does not know.
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
STET_API const char* dtype_name(DType dtype);  // as in safetensors: "F32", "BF16", ...
STET_API std::optional<DType> parse_dtype(const std::string& name);  // inverse of dtype_name()
STET_API bool is_weight_dtype(DType dtype);  // f32, bf16 or f16, as weights may be stored

STET_API bool is_block_dtype(DType dtype);   // one of ggml's blocks
STET_API uint32_t ggml_number(DType dtype);  // ggml's number for a weight type; see ggml_type()

// Returns the bytes of a tensor of a known type. Returns nothing if they do not fit an int64_t or
// if rows are not whole blocks.
STET_API std::optional<int64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape);

// Returns "[2, 3]"; "[]" for a scalar.
STET_API std::string shape_text(const std::vector<int64_t>& shape);

// Returns the product of the dimensions, or nothing if one is negative or the product does not fit.
STET_API std::optional<int64_t> element_count(const std::vector<int64_t>& shape);

// A view of a tensor: elements in row-major order, little-endian. `bytes` may be unaligned: use
// memcpy.
struct TensorView {
  std::string name;
  DType dtype = DType::other;
  std::string dtype_text;  // as in the file
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // tensor_bytes(dtype, shape), checked; any length for other
  // 0 if rows are in the order of published checkpoints. Otherwise the rows of this many heads are
  // in GGUF's order: see paired_row().
  size_t paired_heads = 0;
  std::string stack = {};  // if this is one expert's part of a tensor in the file: its name
};

// A tensor, with the memory of its bytes if they are not in a file.
struct OwnedTensor {
  TensorView view;
  Memory memory;
};

// Maps row `row` of Llama's q and k to its row in GGUF. RoPE rotates pairs of rows. They are
// adjacent in GGUF and half a head apart in published checkpoints.
STET_API size_t paired_row(size_t row, size_t rows, size_t heads);

// Returns the bytes of one row of a matrix.
STET_API std::span<const std::byte> row_of(const TensorView& matrix, size_t row);

}  // namespace stet

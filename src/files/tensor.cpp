#include "stet/files/tensor.hpp"

#include <iterator>

#include "stet/kernels/ggml.hpp"

namespace stet {
namespace {

struct DTypeInfo {
  const char* name;
  size_t size;
};

constexpr DTypeInfo kDTypes[] = {
    // in the order of the enumeration
    {"F64", 8},  {"F32", 4},  {"BF16", 2},  {"F16", 2},  {"I64", 8},  {"I32", 4},  {"I16", 2},
    {"I8", 1},   {"U64", 8},  {"U32", 4},   {"U16", 2},  {"U8", 1},   {"BOOL", 1}, {"Q8_0", 0},
    {"Q4_0", 0}, {"Q5_0", 0}, {"MXFP4", 0}, {"Q4_K", 0}, {"Q5_K", 0}, {"Q6_K", 0}, {"other", 0},
};
static_assert(std::size(kDTypes) == static_cast<size_t>(DType::other) + 1);

}  // namespace

size_t dtype_size(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].size; }

const char* dtype_name(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

std::optional<DType> parse_dtype(const std::string& name) {
  for (size_t i = 0; i < static_cast<size_t>(DType::other); ++i) {
    if (name == kDTypes[i].name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bool is_weight_dtype(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

bool is_block_dtype(DType dtype) { return dtype >= DType::q8_0 && dtype < DType::other; }

uint32_t ggml_number(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 1;
    case DType::q4_0:
      return 2;
    case DType::q5_0:
      return 6;
    case DType::q8_0:
      return 8;
    case DType::q4_k:
      return 12;
    case DType::q5_k:
      return 13;
    case DType::q6_k:
      return 14;
    case DType::bf16:
      return 30;
    case DType::mxfp4:
      return 39;
    default:
      return 0;  // F32
  }
}

std::optional<int64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape) {
  std::vector<int64_t> factors = shape;
  if (!is_block_dtype(dtype)) {
    factors.push_back(static_cast<int64_t>(dtype_size(dtype)));
    return element_count(factors);
  }
  const GgmlType type = *ggml_type(ggml_number(dtype));
  const auto elements = static_cast<int64_t>(type.elements);
  if (shape.empty() || shape.back() % elements != 0) return std::nullopt;
  factors.back() /= elements;
  factors.push_back(static_cast<int64_t>(type.bytes));
  return element_count(factors);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::optional<int64_t> element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(count, dimension, &count)) return std::nullopt;
  }
  return count;
}

size_t paired_row(size_t row, size_t rows, size_t heads) {
  const size_t each = rows / heads, half = each / 2, within = row % each;
  return row - within + 2 * (within % half) + within / half;
}

std::span<const std::byte> row_of(const TensorView& matrix, size_t row) {
  const auto rows = static_cast<size_t>(matrix.shape.at(0));
  const size_t bytes = matrix.bytes.size() / rows;
  if (matrix.paired_heads > 0) row = paired_row(row, rows, matrix.paired_heads);
  return matrix.bytes.subspan(row * bytes, bytes);
}

}  // namespace stet

#include "src/gguf/tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/files/open_file.hpp"
#include "src/gguf/gguf.hpp"
#include "src/gguf/names.hpp"
#include "src/gguf/transcode.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/kernels.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

constexpr size_t kMadeAtOnce = size_t{256} << 10;  // bytes that a thread converts at a time

// A tensor of the file, with its published name and form.
struct StoredTensor {
  GgufTensor from;
  GgufNames::Published to;
};

// A ggml type whose blocks are kept, unchanged or as blocks of another type with the same numbers.
// Types not listed are widened to float32.
struct Kept {
  uint32_t type;  // ggml's number
  DType as;
  void (*transcode)(const std::byte* from, std::byte* to);  // converts a block; null: unchanged
};
constexpr Kept kKept[] = {{2, DType::q4_0, nullptr},  {6, DType::q5_0, nullptr},
                          {8, DType::q8_0, nullptr},  {11, DType::q6_k, q3_k_as_q6_k},
                          {12, DType::q4_k, nullptr}, {13, DType::q5_k, nullptr},
                          {14, DType::q6_k, nullptr}, {20, DType::q8_0, iq4_nl_as_q8_0},
                          {39, DType::mxfp4, nullptr}};

// Q5_0 whose rows do not fill packed blocks becomes Q8_0, since it may share a matrix with Q8_0.
constexpr Kept kQ5InBytes = {6, DType::q8_0, q5_0_as_q8_0};

const Kept* kept(const StoredTensor& t) {
  if (t.to.less_one || t.to.transposed || t.from.shape.size() != 2) return nullptr;
  if (t.from.type == kQ5InBytes.type && t.from.shape[0] % kLanes != 0) return &kQ5InBytes;
  // Columns of heads can change places if each head is whole blocks.
  if (t.to.tiled_columns &&
      t.to.head_width % static_cast<int64_t>(ggml_type(t.from.type)->elements) != 0)
    return nullptr;
  const auto found = std::ranges::find(kKept, t.from.type, &Kept::type);
  return found == std::end(kKept) ? nullptr : found;
}

DType dtype_of(const StoredTensor& t) {
  if (const Kept* k = kept(t)) return k->as;
  if (t.to.less_one) return DType::f32;
  return t.from.type == 1 ? DType::f16 : t.from.type == 30 ? DType::bf16 : DType::f32;
}

// Returns whether the file stores the published rows unchanged, though perhaps in another order.
bool rows_as_published(const StoredTensor& t) {
  const Kept* const as = kept(t);
  const bool whole_rows = !t.to.transposed && t.to.fused_heads == 0 && t.to.tiled_groups == 0 &&
                          (t.to.rotated_heads == 0 || t.from.shape.size() == 2),
             same_type = as != nullptr ? as->transcode == nullptr
                                       : dtype_of(t) != DType::f32 || t.from.type == 0;
  return whole_rows && same_type && !t.to.less_one;
}

std::vector<int64_t> shape_of(const StoredTensor& t) {
  std::vector<int64_t> shape = t.from.shape;
  if (t.to.transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

// Returns where the file has row or column `i` of `n`, of which those from `first` on belong to heads
// of values.
size_t place_in_tiles(const GgufNames::Published& p, size_t i, size_t n) {
  const auto first = static_cast<size_t>(p.first), width = static_cast<size_t>(p.head_width),
             groups = static_cast<size_t>(p.tiled_groups);
  if (i < first) return i;
  const size_t each = (n - first) / width / groups, head = (i - first) / width;
  return first + (head % each * groups + head / each) * width + (i - first) % width;
}

// Returns the row of the file that holds published row `row`. In q and k of Llama, neighbouring
// rows go back to the halves of a head. GPT-NeoX interleaves q, k and v by head.
size_t row_in_file(const StoredTensor& t, size_t row, size_t rows) {
  if (t.to.tiled_groups > 0 && !t.to.tiled_columns) return place_in_tiles(t.to, row, rows);
  if (t.to.rotated_heads > 0) return paired_row(row, rows, static_cast<size_t>(t.to.rotated_heads));
  if (t.to.fused_heads > 0) {
    const size_t each = rows / 3 / static_cast<size_t>(t.to.fused_heads), head = row / (3 * each),
                 within = row % (3 * each);
    return within / each * (rows / 3) + head * each + within % each;
  }
  return row;
}

// Transposes [rows][columns] to [columns][rows] in place.
void transpose(std::span<std::byte> data, size_t rows, size_t element) {
  const std::vector<std::byte> from(data.begin(), data.end());
  const size_t columns = data.size() / rows / element;
  run_each(default_threads(), columns, [&](size_t c) {
    for (size_t r = 0; r < rows; ++r)
      std::memcpy(&data[(c * rows + r) * element], &from[(r * columns + c) * element], element);
  });
}

// Puts the columns of a row of heads in the published order. `unit` is a block's size in bytes, or
// an element's, and `elements` the columns that it has.
void untile_columns(const StoredTensor& t, size_t elements, size_t unit, std::span<std::byte> row) {
  const std::vector<std::byte> from(row.begin(), row.end());
  const size_t units = row.size() / unit;
  for (size_t i = 0; i < units; ++i) {
    const size_t at = place_in_tiles(t.to, i * elements, units * elements) / elements;
    std::memcpy(&row[i * unit], &from[at * unit], unit);
  }
}

// Writes the data of a tensor in its published form.
void fill(const StoredTensor& t, std::span<std::byte> data) {
  const GgufTensor& stored = t.from;
  const DType dtype = dtype_of(t);
  const GgmlType type = *ggml_type(stored.type);
  const bool matrix = stored.shape.size() > 1 || t.to.rotated_heads > 0 || t.to.fused_heads > 0 ||
                      t.to.tiled_groups > 0;
  const auto rows = static_cast<size_t>(matrix ? stored.shape.front() : 1);
  const size_t from_bytes = stored.bytes.size() / rows, to_bytes = data.size() / rows,
               blocks = from_bytes / type.bytes,
               at_once = std::max<size_t>(1, kMadeAtOnce / to_bytes);
  const Kept* const as = kept(t);
  const auto make_plain_row = [&](size_t row) {
    const std::byte* const from = stored.bytes.data() + row_in_file(t, row, rows) * from_bytes;
    std::byte* const to = data.data() + row * to_bytes;
    if (as != nullptr && as->transcode != nullptr) {
      for (size_t i = 0; i < blocks; ++i)
        as->transcode(from + i * type.bytes, to + i * (to_bytes / blocks));
      return;
    }
    if (dtype != DType::f32) {
      std::memcpy(to, from, to_bytes);
      return;
    }
    float* const numbers = reinterpret_cast<float*>(to);
    dequantize_ggml(stored.type, from, blocks, numbers);
    if (t.to.less_one) add_offset({numbers, to_bytes / sizeof(float)}, -1.0f);
  };
  const auto make_row = [&](size_t row) {
    make_plain_row(row);
    if (!t.to.tiled_columns) return;
    const size_t elements = is_block_dtype(dtype) ? ggml_type(ggml_number(dtype))->elements : 1;
    untile_columns(t, elements, to_bytes * elements / static_cast<size_t>(stored.shape.back()),
                   data.subspan(row * to_bytes, to_bytes));
  };
  run_each(default_threads(), (rows + at_once - 1) / at_once, [&](size_t piece) {
    for (size_t row = piece * at_once; row < std::min(rows, (piece + 1) * at_once); ++row)
      make_row(row);
  });
  if (t.to.transposed) transpose(data, rows, dtype_size(dtype));
}

// Returns views into the file for tensors stored as published, and converts the others when they
// are read.
class GgufTensors : public TensorSource {
 public:
  GgufTensors(std::shared_ptr<const FileBytes> file, std::vector<StoredTensor> entries)
      : TensorSource(std::move(file), views_of(entries)), entries_(std::move(entries)) {}

  OwnedTensor read(size_t index) const override {
    const StoredTensor& t = entries_[index];
    OwnedTensor tensor;
    tensor.view = tensors()[index];
    if (rows_as_published(t)) {
      tensor.view.bytes = t.from.bytes;
      tensor.view.paired_heads = static_cast<size_t>(t.to.rotated_heads);
      return tensor;
    }
    const auto size =
        static_cast<size_t>(tensor_bytes(tensor.view.dtype, tensor.view.shape).value());
    tensor.memory = Memory(size);
    fill(t, {tensor.memory.data(), size});
    tensor.view.bytes = {tensor.memory.data(), size};
    return tensor;
  }

 private:
  static std::vector<TensorView> views_of(const std::vector<StoredTensor>& entries) {
    std::vector<TensorView> views;
    for (const StoredTensor& t : entries) {
      const DType dtype = dtype_of(t);
      const bool in_order = rows_as_published(t) && t.to.rotated_heads == 0;
      views.push_back({t.to.name, dtype, dtype_name(dtype), shape_of(t),
                       in_order ? t.from.bytes : std::span<const std::byte>()});
      views.back().stack = t.from.name;
    }
    return views;
  }

  std::vector<StoredTensor> entries_;
};

}  // namespace

std::string gguf_part_name(size_t part) {
  return part == 0 ? kGgufName : fmt::format("model-{:05}.gguf", part + 1);
}

std::vector<std::string> gguf_part_names(const FileSource& source) {
  std::vector<std::string> names;
  while (source.has(gguf_part_name(names.size()))) names.push_back(gguf_part_name(names.size()));
  return names;
}

std::vector<std::unique_ptr<const TensorSource>> gguf_tensors(const FileSource& source) {
  std::vector<Gguf> parts;
  for (const std::string& name : gguf_part_names(source))
    parts.push_back(Gguf::parse(open_file(source, name)));
  const GgufNames names(parts);
  std::vector<std::unique_ptr<const TensorSource>> files;
  for (const Gguf& part : parts) {
    std::vector<StoredTensor> entries;
    for (const GgufTensor& tensor : part.tensors()) {
      if (!names.in_model(tensor)) continue;
      auto several = names.parts_of(tensor);
      for (auto& [from, to] : several) entries.push_back({std::move(from), std::move(to)});
      if (!several.empty()) continue;
      if (auto published = names.published(tensor))
        entries.push_back({tensor, std::move(*published)});
    }
    files.push_back(std::make_unique<const GgufTensors>(part.file(), std::move(entries)));
  }
  return files;
}

}  // namespace stet

// A GGUF file as the checkpoint directory that it was made from.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "src/gguf/gguf.hpp"
#include "src/gguf/names.hpp"
#include "src/gguf/transcode.hpp"
#include "src/gguf/vocabulary.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/checkpoint/tensor.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/numbers.hpp"

namespace stet {
namespace {

using Json = nlohmann::ordered_json;

// One tensor as a safetensors file of its own, made when it is opened.
struct Shard {
  const GgufTensor* from;
  std::string name;           // as it was published
  int64_t rotated_heads = 0;  // Llama's q and k: pairs of neighbours go back to halves of a head
  bool less_one = false;      // Gemma's norms, which the file has with the one that is added
  bool transposed = false;    // GPT-2's matrices, which were published as [inputs][outputs]
};

// How stet has the blocks of a matrix whose inputs stand side by side: as they are, or as those of
// another type that holds the same numbers. Others are widened to float32.
struct Kept {
  uint32_t type;  // ggml's
  DType as;
  void (*transcode)(const std::byte* from, std::byte* to);  // a block; null: as it is
};
constexpr Kept kKept[] = {{2, DType::q4_0, nullptr},  {6, DType::q8_0, q5_0_as_q8_0},
                          {8, DType::q8_0, nullptr},  {11, DType::q6_k, q3_k_as_q6_k},
                          {12, DType::q4_k, nullptr}, {13, DType::q5_k, nullptr},
                          {14, DType::q6_k, nullptr}, {20, DType::q8_0, iq4_nl_as_q8_0}};

const Kept* kept(const Shard& s) {
  if (s.less_one || s.transposed || s.from->shape.size() != 2) return nullptr;
  const auto found = std::ranges::find(kKept, s.from->type, &Kept::type);
  return found == std::end(kKept) ? nullptr : found;
}

DType dtype_of(const Shard& s) {
  if (const Kept* k = kept(s)) return k->as;
  if (s.less_one) return DType::f32;
  return s.from->type == 1 ? DType::f16 : s.from->type == 30 ? DType::bf16 : DType::f32;
}

// Row r of a head's rows in the file is row 2 (r mod half) + r / half there.
void unrotate(std::byte* data, size_t rows, size_t row_bytes, int64_t heads) {
  const size_t each = rows / static_cast<size_t>(heads), half = each / 2;
  std::vector<std::byte> head(each * row_bytes);
  for (size_t h = 0; h < static_cast<size_t>(heads); ++h) {
    std::byte* const at = data + h * each * row_bytes;
    for (size_t r = 0; r < each; ++r) {
      const size_t from = 2 * (r % half) + r / half;
      std::copy_n(at + from * row_bytes, row_bytes, head.data() + r * row_bytes);
    }
    std::copy(head.begin(), head.end(), at);
  }
}

// [rows][columns] -> [columns][rows]
void transpose(std::span<std::byte> data, size_t rows, size_t element) {
  const std::vector<std::byte> from(data.begin(), data.end());
  const size_t columns = data.size() / rows / element;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c)
      std::copy_n(&from[(r * columns + c) * element], element, &data[(c * rows + r) * element]);
  }
}

std::vector<int64_t> shape_of(const Shard& s) {
  std::vector<int64_t> shape = s.from->shape;
  if (s.transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

std::shared_ptr<const std::vector<std::byte>> file_of(const Shard& s) {
  const DType dtype = dtype_of(s);
  const GgmlType type = *ggml_type(s.from->type);
  const auto elements = static_cast<size_t>(*element_count(s.from->shape));
  const auto size = static_cast<size_t>(tensor_bytes(dtype, shape_of(s)).value());
  std::string header =
      Json{{s.name,
            {{"dtype", dtype_name(dtype)}, {"shape", shape_of(s)}, {"data_offsets", {0, size}}}}}
          .dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  auto file = std::make_shared<std::vector<std::byte>>(8 + header.size() + size);
  const uint64_t length = header.size();
  std::memcpy(file->data(), &length, sizeof length);
  std::memcpy(file->data() + 8, header.data(), header.size());
  std::byte* const data = file->data() + 8 + header.size();
  if (dtype == DType::f32) {
    dequantize_ggml(s.from->type, s.from->bytes.data(), elements / type.elements,
                    reinterpret_cast<float*>(data));
    if (s.less_one) add_offset({reinterpret_cast<float*>(data), elements}, -1.0f);
  } else if (const Kept* k = kept(s); k != nullptr && k->transcode != nullptr) {
    const size_t blocks = elements / type.elements, bytes = size / blocks;
    for (size_t i = 0; i < blocks; ++i)
      k->transcode(s.from->bytes.data() + i * type.bytes, data + i * bytes);
  } else {
    std::copy(s.from->bytes.begin(), s.from->bytes.end(), data);
  }
  if (s.rotated_heads > 0) {
    const auto rows = static_cast<size_t>(s.from->shape.front());
    unrotate(data, rows, size / rows, s.rotated_heads);
  }
  if (s.transposed)
    transpose({data, size}, static_cast<size_t>(s.from->shape.front()), dtype_size(dtype));
  return file;
}

class GgufSource : public FileSource {
 public:
  GgufSource(const std::string& path, std::vector<Gguf> parts)
      : FileSource(path, path + ": "), parts_(std::move(parts)) {
    const GgufNames names(parts_);
    texts_["config.json"] = names.config();
    texts_["generation_config.json"] = names.generation_config();
    for (auto& [name, text] : vocabulary_files(parts_.front(), names.vocab_size()))
      texts_[name] = std::move(text);
    Json map = Json::object();
    for (const Gguf& part : parts_) {
      for (const GgufTensor& t : part.tensors()) {
        const auto published = names.published(t);
        if (!published) continue;
        const std::string file = fmt::format("model-{:05}.safetensors", shards_.size());
        map[published->name] = file;
        shards_[file] = {&t, published->name, published->rotated_heads, published->less_one,
                         published->transposed};
      }
    }
    const bool blocks = std::ranges::any_of(
        shards_, [](const auto& s) { return is_block_dtype(dtype_of(s.second)); });
    texts_["model.safetensors.index.json"] =
        Json{{"metadata", {{"blocks", blocks ? "ggml" : "none"}}}, {"weight_map", map}}.dump();
  }

  bool makes_files() const override { return true; }
  bool has(const std::string& name) const override {
    return texts_.contains(name) || shards_.contains(name);
  }
  std::shared_ptr<const FileBytes> open(const std::string& name) const override {
    if (const auto text = texts_.find(name); text != texts_.end())
      return std::make_shared<const FileBytes>(
          path_of(name), std::as_bytes(std::span(text->second)),
          std::make_shared<std::string>());  // the source outlives what is opened
    const auto shard = shards_.find(name);
    if (shard == shards_.end())
      throw Error(ErrorKind::io, path_of(name), "", "a part of the checkpoint", "none");
    const auto bytes = file_of(shard->second);
    return std::make_shared<const FileBytes>(path_of(name), *bytes, bytes);
  }
  std::string read(const std::string& name, size_t limit) const override {
    const auto file = open(name);
    const std::span<const std::byte> bytes = file->bytes();
    if (bytes.size() > limit)
      throw Error(ErrorKind::format, path_of(name), "",
                  "at most " + std::to_string(limit) + " bytes", std::to_string(bytes.size()));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::vector<Gguf> parts_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, Shard> shards_;
};

// "model-00001-of-00003.gguf": the other parts lie beside it.
std::vector<std::string> parts_of(const std::string& path, const Gguf& first) {
  const int64_t count = first.integer("split.count", 0, 9999).value_or(0);
  if (count <= 1) return {path};
  const std::string end = fmt::format("-of-{:05}.gguf", count);
  const size_t digits = 5;
  if (!path.ends_with(end) || path.size() < end.size() + digits)
    first.fail("split.count", "a name that ends with NNNNN" + end, path);
  const std::string stem = path.substr(0, path.size() - end.size() - digits);
  std::vector<std::string> all;
  for (int64_t i = 1; i <= count; ++i) all.push_back(fmt::format("{}{:05}{}", stem, i, end));
  return all;
}

}  // namespace

std::shared_ptr<const FileSource> gguf_source(const std::string& path, bool map) {
  const std::filesystem::path whole(path);
  const auto source = directory_source(whole.parent_path().string(), map);
  const auto open = [&](const std::string& name) {
    return Gguf::parse(source->open(std::filesystem::path(name).filename().string()));
  };
  std::vector<Gguf> parts;
  parts.push_back(open(path));
  for (const std::string& part : parts_of(path, parts.front())) {
    if (part != path) parts.push_back(open(part));
  }
  return std::make_shared<const GgufSource>(path, std::move(parts));
}

std::shared_ptr<const FileSource> checkpoint_source(const std::string& path, bool map) {
  std::error_code unknown;
  const bool file = path.ends_with(".gguf") && !std::filesystem::is_directory(path, unknown);
  return file ? gguf_source(path, map) : directory_source(path, map);
}

}  // namespace stet

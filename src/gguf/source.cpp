// A GGUF file as the checkpoint directory that it was made from.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "src/gguf/gguf.hpp"
#include "src/gguf/names.hpp"
#include "src/gguf/transcode.hpp"
#include "src/gguf/vocabulary.hpp"
#include "src/text/tokenizer_files.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/base/memory.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/checkpoint/tensor.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/kernels.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMadeAtOnce = size_t{256} << 10;  // bytes that a thread makes at a time

// One tensor as a safetensors file of its own, whose data is made when it is asked for.
struct Shard {
  const Gguf* part;
  const GgufTensor* from;
  GgufNames::Published to;
};

// How stet has the blocks of a matrix whose inputs stand side by side: as they are, or as those of
// another type that holds the same numbers. Others are widened to float32.
struct Kept {
  uint32_t type;  // ggml's
  DType as;
  void (*transcode)(const std::byte* from, std::byte* to);  // a block; null: as it is
};
constexpr Kept kKept[] = {{2, DType::q4_0, nullptr},  {6, DType::q5_0, nullptr},
                          {8, DType::q8_0, nullptr},  {11, DType::q6_k, q3_k_as_q6_k},
                          {12, DType::q4_k, nullptr}, {13, DType::q5_k, nullptr},
                          {14, DType::q6_k, nullptr}, {20, DType::q8_0, iq4_nl_as_q8_0}};

// Q5_0 whose rows fill no packed blocks: it may stand in one matrix with Q8_0.
constexpr Kept kQ5InBytes = {6, DType::q8_0, q5_0_as_q8_0};

const Kept* kept(const Shard& s) {
  if (s.to.less_one || s.to.transposed || s.from->shape.size() != 2) return nullptr;
  if (s.from->type == kQ5InBytes.type && s.from->shape[0] % kLanes != 0) return &kQ5InBytes;
  const auto found = std::ranges::find(kKept, s.from->type, &Kept::type);
  return found == std::end(kKept) ? nullptr : found;
}

DType dtype_of(const Shard& s) {
  if (const Kept* k = kept(s)) return k->as;
  if (s.to.less_one) return DType::f32;
  return s.from->type == 1 ? DType::f16 : s.from->type == 30 ? DType::bf16 : DType::f32;
}

// Whether the file has the very rows that were published, if not in their order.
bool rows_as_published(const Shard& s) {
  const Kept* const as = kept(s);
  const bool whole_rows = !s.to.transposed && s.to.fused_heads == 0 &&
                          (s.to.rotated_heads == 0 || s.from->shape.size() == 2),
             same_type = as != nullptr ? as->transcode == nullptr
                                       : dtype_of(s) != DType::f32 || s.from->type == 0;
  return whole_rows && same_type && !s.to.less_one;
}

std::vector<int64_t> shape_of(const Shard& s) {
  std::vector<int64_t> shape = s.from->shape;
  if (s.to.transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

// Which row of the file is row `row` as it was published. Of Llama's q and k, neighbours go back to
// halves of a head; GPT-NeoX has the q, k and v of each head together.
size_t row_in_file(const Shard& s, size_t row, size_t rows) {
  if (s.to.rotated_heads > 0) return paired_row(row, rows, static_cast<size_t>(s.to.rotated_heads));
  if (s.to.fused_heads > 0) {
    const size_t each = rows / 3 / static_cast<size_t>(s.to.fused_heads), head = row / (3 * each),
                 within = row % (3 * each);
    return within / each * (rows / 3) + head * each + within % each;
  }
  return row;
}

// [rows][columns] -> [columns][rows]
void transpose(std::span<std::byte> data, size_t rows, size_t element) {
  const std::vector<std::byte> from(data.begin(), data.end());
  const size_t columns = data.size() / rows / element;
  run_each(default_threads(), columns, [&](size_t c) {
    for (size_t r = 0; r < rows; ++r)
      std::memcpy(&data[(c * rows + r) * element], &from[(r * columns + c) * element], element);
  });
}

// The data of a shard as it was published.
void fill(const Shard& s, std::span<std::byte> data) {
  const GgufTensor& t = *s.from;
  const DType dtype = dtype_of(s);
  const GgmlType type = *ggml_type(t.type);
  const bool matrix = t.shape.size() > 1 || s.to.rotated_heads > 0 || s.to.fused_heads > 0;
  const auto rows = static_cast<size_t>(matrix ? t.shape.front() : 1);
  const size_t from_bytes = t.bytes.size() / rows, to_bytes = data.size() / rows,
               blocks = from_bytes / type.bytes,
               at_once = std::max<size_t>(1, kMadeAtOnce / to_bytes);
  const Kept* const as = kept(s);
  const auto make_row = [&](size_t row) {
    const std::byte* const from = t.bytes.data() + row_in_file(s, row, rows) * from_bytes;
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
    dequantize_ggml(t.type, from, blocks, numbers);
    if (s.to.less_one) add_offset({numbers, to_bytes / sizeof(float)}, -1.0f);
  };
  run_each(default_threads(), (rows + at_once - 1) / at_once, [&](size_t piece) {
    for (size_t row = piece * at_once; row < std::min(rows, (piece + 1) * at_once); ++row)
      make_row(row);
  });
  if (s.to.transposed) transpose(data, rows, dtype_size(dtype));
}

// The header fills whole pages, so that the data behind it can go back to the system.
class ShardContent : public MadeContent {
 public:
  explicit ShardContent(Shard shard) : shard_(std::move(shard)) {
    const DType dtype = dtype_of(shard_);
    const auto size = static_cast<size_t>(tensor_bytes(dtype, shape_of(shard_)).value());
    std::string text = Json{{shard_.to.name,
                             {{"dtype", dtype_name(dtype)},
                              {"shape", shape_of(shard_)},
                              {"data_offsets", {0, size}}}}}
                           .dump();
    text.resize((text.size() + 8 + kPage - 1) / kPage * kPage - 8, ' ');
    header_ = 8 + text.size();
    memory_ = Memory(header_ + size);
    const uint64_t length = text.size();
    std::memcpy(memory_.data(), &length, sizeof length);
    std::memcpy(memory_.data() + 8, text.data(), text.size());
    extent_ = {memory_.data(), header_ + size};
  }

  std::span<const std::byte> extent() const override { return extent_; }
  size_t header() const override { return header_; }
  void make() const override {
    const std::lock_guard lock(mutex_);
    if (!made_) fill(shard_, {memory_.data() + header_, extent_.size() - header_});
    made_ = true;
  }
  void drop() const override {
    const std::lock_guard lock(mutex_);
    memory_.release(header_, memory_.size() - header_);
    made_ = false;
  }
  const FileBytes& origin() const override { return *shard_.part->file(); }
  FilePart in_place() const override {
    if (!rows_as_published(shard_)) return {};
    const std::span<const std::byte> bytes = shard_.from->bytes;
    const auto& file = shard_.part->file();
    return {file, static_cast<size_t>(bytes.data() - file->bytes().data()), bytes.size(),
            static_cast<size_t>(shard_.to.rotated_heads)};
  }

 private:
  static constexpr size_t kPage = 4096;

  Shard shard_;
  Memory memory_;
  size_t header_ = 0;
  std::span<const std::byte> extent_;
  mutable std::mutex mutex_;
  mutable bool made_ = false;
};

class GgufSource : public FileSource {
 public:
  GgufSource(const std::string& path, std::vector<Gguf> parts, const std::string& pre)
      : FileSource(path, path + ": "), parts_(std::move(parts)) {
    const GgufNames names(parts_);
    texts_["config.json"] = names.config();
    texts_["generation_config.json"] = names.generation_config();
    add_vocabulary(names.vocab_size(), pre);
    Json map = Json::object();
    for (const Gguf& part : parts_) {
      for (const GgufTensor& t : part.tensors()) {
        const auto published = names.published(t);
        if (!published) continue;
        const std::string file = fmt::format("model-{:05}.safetensors", shards_.size());
        map[published->name] = file;
        shards_[file] = {&part, &t, *published};
      }
    }
    const bool blocks = std::ranges::any_of(
        shards_, [](const auto& s) { return is_block_dtype(dtype_of(s.second)); });
    texts_["model.safetensors.index.json"] =
        Json{{"metadata", {{"blocks", blocks ? "ggml" : "none"}}}, {"weight_map", map}}.dump();
  }

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
    return std::make_shared<const FileBytes>(path_of(name),
                                             std::make_shared<const ShardContent>(shard->second));
  }
  std::shared_ptr<const FileBytes> origin(const std::string& name) const override {
    const auto shard = shards_.find(name);
    return (shard == shards_.end() ? parts_.front() : *shard->second.part).file();
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
  // Weights need no vocabulary: one that cannot be used leaves a file that says why.
  void add_vocabulary(int64_t vocab_size, const std::string& pre) {
    try {
      for (auto& [name, text] : vocabulary_files(parts_.front(), vocab_size, pre))
        texts_[name] = std::move(text);
    } catch (const Error& e) {
      if (!pre.empty()) throw;
      texts_[kTokenizerFault] = tokenizer_fault_text(e);
    }
  }

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

std::shared_ptr<const FileSource> gguf_source(const std::string& path, bool map,
                                              const std::string& pre) {
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
  return std::make_shared<const GgufSource>(path, std::move(parts), pre);
}

}  // namespace stet

#include "stet/checkpoint/safetensors.hpp"
#include "stet/base/limits.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "src/base/json_value.hpp"
#include "src/base/known_content.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

constexpr uint64_t kHeaderLimit = 100'000'000;  // the reference's limit
constexpr size_t kIndexLimit = 100'000'000;
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
const std::string kMetadata = "__metadata__";
const std::string kWeightsName = "model.safetensors", kIndexName = "model.safetensors.index.json";

std::string range_text(uint64_t begin, uint64_t end) { return fmt::format("[{}, {}]", begin, end); }

std::string_view header_text(ByteReader* reader) {
  const uint64_t length = reader->u64("header length");
  if (length > kHeaderLimit) {
    throw Error(ErrorKind::format, reader->file(), "header length",
                fmt::format("at most {} bytes", kHeaderLimit), std::to_string(length));
  }
  const auto bytes = reader->bytes(length, "header");
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Where the data of a header ends whose tensors follow each other from 0 on, as they do in every
// file that was written whole; 0 for another.
uint64_t promised_data(const JsonReader& header) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const std::string& name : header.keys()) {
    if (name == kMetadata || !header.has_object(name)) continue;
    const auto offsets = header.required_object(name).integers("data_offsets", 0, kMaxInt64);
    if (offsets.size() == 2) ranges.emplace_back(offsets[0], offsets[1]);
  }
  std::ranges::sort(ranges);
  int64_t end = 0;
  for (const auto& [from, to] : ranges) {
    if (from != end || to < from) return 0;
    end = to;
  }
  return static_cast<uint64_t>(end);
}

// Throws the Error for a file whose tensors end behind it, if that is all that is wrong with it.
void refuse_cut_off(std::span<const std::byte> bytes, const std::string& path) {
  ByteReader reader(bytes, path);
  const JsonReader header = parse_json(header_text(&reader), path);
  const uint64_t promised = promised_data(header);
  if (promised > reader.remaining()) fail_cut_off(path, reader.position() + promised, bytes.size());
}

std::map<std::string, std::string> parse_metadata(const JsonReader& object) {
  std::map<std::string, std::string> metadata;
  for (const std::string& key : object.keys()) metadata[key] = object.string(key);
  return metadata;
}

// One tensor's entry: checked by itself, against the data's length, and its size against its shape.
TensorView parse_tensor(const JsonReader& entry, const std::string& name,
                        std::span<const std::byte> data) {
  TensorView tensor;
  tensor.name = name;
  tensor.dtype_text = entry.string("dtype");
  tensor.dtype = parse_dtype(tensor.dtype_text).value_or(DType::other);
  if (!entry.has("shape")) entry.fail("shape", "an array of integers");
  tensor.shape = entry.integers("shape", 0, kMaxInt64);
  const std::vector<int64_t> offsets = entry.integers("data_offsets", 0, kMaxInt64);
  if (offsets.size() != 2) entry.fail("data_offsets", "two integers");

  const auto begin = static_cast<uint64_t>(offsets[0]), end = static_cast<uint64_t>(offsets[1]);
  const std::string found = range_text(begin, end);
  const std::string field = entry.path_of("data_offsets");
  if (begin > end || end > data.size()) {
    throw Error(ErrorKind::format, entry.file(), field,
                fmt::format("a range within {} bytes of data", data.size()), found);
  }
  tensor.bytes = data.subspan(begin, end - begin);

  const std::optional<int64_t> size = tensor.dtype == DType::other
                                          ? element_count(tensor.shape)
                                          : tensor_bytes(tensor.dtype, tensor.shape);
  if (!size) {
    throw Error(ErrorKind::format, entry.file(), entry.path_of("shape"),
                is_block_dtype(tensor.dtype) ? "rows of whole blocks, and less than 2^63 bytes"
                                             : "less than 2^63 bytes",
                shape_text(tensor.shape));
  }
  if (tensor.dtype != DType::other && static_cast<uint64_t>(*size) != end - begin) {
    throw Error(
        ErrorKind::format, entry.file(), field,
        fmt::format("{} bytes for {} {}", *size, tensor.dtype_text, shape_text(tensor.shape)),
        fmt::format("{} bytes", end - begin));
  }
  return tensor;
}

// Sorts by position and checks that the tensors cover the data without overlap or hole.
void order_tensors(std::vector<TensorView>* tensors, std::span<const std::byte> data,
                   const std::string& file) {
  const auto begin = [&](const TensorView& t) {
    return static_cast<uint64_t>(t.bytes.data() - data.data());
  };
  const auto end = [&](const TensorView& t) { return begin(t) + t.bytes.size(); };
  std::sort(tensors->begin(), tensors->end(), [&](const TensorView& a, const TensorView& b) {
    return std::pair(begin(a), end(a)) < std::pair(begin(b), end(b));
  });
  uint64_t covered = 0;
  for (const TensorView& tensor : *tensors) {
    if (begin(tensor) != covered) {
      throw Error(ErrorKind::format, file, tensor.name + ".data_offsets",
                  fmt::format("to begin at {}, where the tensor before it ends", covered),
                  range_text(begin(tensor), end(tensor)));
    }
    covered = end(tensor);
  }
  if (covered != data.size()) {
    throw Error(ErrorKind::format, file, "data",
                fmt::format("{} bytes, as the header says", covered), std::to_string(data.size()));
  }
}

// Throws a format Error for a file that is something else, or whose header is not there whole.
void check_is_safetensors(const FileBytes& file) {
  const std::span<const std::byte> bytes = file.extent();
  const std::string found = known_content(file.header());
  if (!found.empty() && found != "a safetensors file")
    throw Error(ErrorKind::format, file.path(), "", "a safetensors file", found);
  if (found.empty() || bytes.size() < sizeof(uint64_t)) return;
  const uint64_t header = ByteReader(file.header(), file.path()).u64("header length");
  if (header <= kHeaderLimit && header > bytes.size() - sizeof header)
    fail_cut_off(file.path(), sizeof header + header, bytes.size());
}

// The one file of weights, or the index of several.
std::string weights_name(const FileSource& source) {
  for (const std::string& name : {std::string(kPackedName), kWeightsName, kIndexName}) {
    if (source.has(name)) return name;
  }
  std::string found = "neither";
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json",
                            "consolidated.00.pth", "consolidated.safetensors", "tf_model.h5",
                            "flax_model.msgpack", "model.safetensors.incomplete"}) {
    if (source.has(other)) found = other + std::string(", which stet does not read");
  }
  if (source.has("pytorch_model.bin") || source.has("pytorch_model.bin.index.json"))
    found += " (transformers' save_pretrained writes it as safetensors)";
  throw Error(ErrorKind::io, source.path(), "", kWeightsName + " or " + kIndexName + " in it",
              found);
}

// The file of each tensor, as the index lists them.
std::map<std::string, std::string> read_weight_map(const FileSource& source) {
  const JsonReader index =
      parse_python_json(source.read(kIndexName, kIndexLimit), source.path_of(kIndexName));
  const JsonReader weight_map = index.required_object("weight_map");
  std::map<std::string, std::string> files;
  std::set<std::string> shards;
  for (const std::string& name : weight_map.keys()) {
    const std::string file = weight_map.string(name);
    if (shards.insert(file).second && shards.size() > kMaxShards) {
      weight_map.fail(name, "one of at most " + std::to_string(kMaxShards) + " files");
    }
    if (!is_plain_name(file)) weight_map.fail(name, "the plain name of a file beside the index");
    files.emplace(name, file);
  }
  return files;
}

}  // namespace

SafeTensors SafeTensors::parse(std::span<const std::byte> bytes, const std::string& file) {
  ByteReader reader(bytes, file);
  header_text(&reader);
  return parse(bytes.first(reader.position()), bytes.subspan(reader.position()), file);
}

SafeTensors SafeTensors::parse(std::span<const std::byte> head, std::span<const std::byte> data,
                               const std::string& file) {
  ByteReader reader(head, file);
  const JsonReader header = parse_json(header_text(&reader), file);

  SafeTensors result;
  for (const std::string& name : header.keys()) {
    if (name == kMetadata) {
      if (const auto metadata = header.object(name)) result.metadata_ = parse_metadata(*metadata);
    } else {
      result.tensors_.push_back(parse_tensor(header.required_object(name), name, data));
    }
  }
  order_tensors(&result.tensors_, data, file);
  for (const TensorView& tensor : result.tensors_) {
    result.index_.emplace(tensor.name, result.index_.size());
  }
  return result;
}

const TensorView* SafeTensors::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

Checkpoint Checkpoint::open(const std::string& directory) {
  struct stat info = {};
  if (::stat(directory.c_str(), &info) != 0)
    throw Error(ErrorKind::io, directory, "", "a checkpoint directory", "nothing");
  if (!S_ISDIR(info.st_mode))
    throw Error(ErrorKind::io, directory, "", "a checkpoint directory", "a file");
  return open(*directory_source(directory));
}

Checkpoint Checkpoint::open(const FileSource& source) {
  const std::string name = weights_name(source);
  Checkpoint checkpoint;
  checkpoint.source_ = source.path_of(name);
  checkpoint.packed_ = name == kPackedName;
  if (name == kIndexName) {
    checkpoint.add_shards(source);
    return checkpoint;
  }
  const Shard& shard = checkpoint.add_shard(source, name);
  for (const TensorView& tensor : shard.tensors.tensors()) {
    checkpoint.locations_.emplace(tensor.name, TensorLocation{&shard, &tensor});
  }
  return checkpoint;
}

std::vector<std::string> Checkpoint::files_of(const FileSource& source) {
  const std::string name = weights_name(source);
  std::vector<std::string> names = {name};
  if (name != kIndexName) return names;
  std::set<std::string> shards;
  for (const auto& location : read_weight_map(source)) shards.insert(location.second);
  names.insert(names.end(), shards.begin(), shards.end());
  return names;
}

const Checkpoint::Shard& Checkpoint::add_shard(const FileSource& source, const std::string& name) {
  auto file = source.open(name);
  if (file->extent().empty())
    throw Error(ErrorKind::format, file->path(), "", "a file with content", "0 bytes");
  check_is_safetensors(*file);
  FilePart data = file->in_place();
  auto shard = std::make_unique<Shard>(Shard{std::move(file), std::move(data), {}});
  const std::string& path = shard->file->path();
  try {
    shard->tensors = shard->in_order()
                         ? SafeTensors::parse(shard->file->header(), shard->bytes_in_file(), path)
                         : SafeTensors::parse(shard->file->extent(), path);
  } catch (const Error&) {
    refuse_cut_off(shard->file->extent(), path);
    throw;
  }
  shards_.push_back(std::move(shard));
  return *shards_.back();
}

void Checkpoint::add_shards(const FileSource& source) {
  std::map<std::string, const Shard*> opened;
  for (const auto& [name, file] : read_weight_map(source)) {
    auto [it, is_new] = opened.try_emplace(file, nullptr);
    if (is_new) it->second = &add_shard(source, file);
    const TensorView* view = it->second->tensors.find(name);
    if (view == nullptr) {
      throw Error(ErrorKind::format, it->second->file->path(), name,
                  "a tensor, as model.safetensors.index.json says", "nothing");
    }
    locations_.emplace(name, TensorLocation{it->second, view});
  }
}

const TensorView* Checkpoint::find(const std::string& name) const {
  const auto it = locations_.find(name);
  return it == locations_.end() ? nullptr : it->second.view;
}

const std::string& Checkpoint::file_of(const std::string& name) const {
  const auto it = locations_.find(name);
  return it == locations_.end() ? source_ : it->second.shard->file->path();
}

std::shared_ptr<const void> Checkpoint::owner_of(const std::string& name) const {
  return locations_.at(name).shard->file;
}

std::vector<std::shared_ptr<const FileBytes>> Checkpoint::files() const {
  std::vector<std::shared_ptr<const FileBytes>> files;
  for (const auto& shard : shards_) files.push_back(shard->file);
  return files;
}

const TensorView& Checkpoint::require(const std::string& name, const std::vector<int64_t>& shape,
                                      bool blocks) const {
  const TensorView* tensor = find(name);
  const std::string expected = fmt::format("F32, BF16 or F16 {}", shape_text(shape));
  if (tensor == nullptr) throw Error(ErrorKind::format, source_, name, expected, "nothing");
  const std::string found = tensor->dtype_text + " " + shape_text(tensor->shape);
  if (!is_weight_dtype(tensor->dtype) && !(blocks && is_block_dtype(tensor->dtype))) {
    throw Error(ErrorKind::unsupported, file_of(name), name, expected, found);
  }
  if (tensor->shape != shape)
    throw Error(ErrorKind::mismatch, file_of(name), name, expected, found);
  return *tensor;
}

const Checkpoint::Shard* Checkpoint::shard_with(const TensorView& tensor) const {
  const auto it = locations_.find(tensor.name);
  if (it == locations_.end()) return nullptr;
  const auto* const bytes = tensor.bytes.data();
  const bool ours =
      it->second.view->bytes.data() == bytes || it->second.shard->bytes_in_file().data() == bytes;
  return ours ? it->second.shard : nullptr;
}

void Checkpoint::fill(const TensorView& tensor) const {
  const Shard* const shard = shard_with(tensor);
  if (shard != nullptr && !shard->in_order()) shard->file->bytes();
}

TensorView Checkpoint::read(const TensorView& tensor) const {
  const Shard* const shard = shard_with(tensor);
  TensorView found = tensor;
  if (shard == nullptr || shard->data.paired_heads == 0) {
    fill(tensor);
  } else {
    found.bytes = shard->bytes_in_file();
    found.paired_heads = shard->data.paired_heads;
  }
  return found;
}

void Checkpoint::drop(const TensorView& tensor) const {
  const Shard* const shard = shard_with(tensor);
  if (shard == nullptr) return;
  const bool in_file = tensor.bytes.data() == shard->bytes_in_file().data();
  const FileBytes& file = in_file ? *shard->data.file : *shard->file;
  file.drop(static_cast<size_t>(tensor.bytes.data() - file.extent().data()), tensor.bytes.size());
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& location : locations_) names.push_back(location.first);
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& field,
                         const std::string& expected, const std::string& found) {
  throw Error(ErrorKind::argument, path, field, expected, found);
}

std::string json_string(const std::string& path, const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    refuse(path, text, "UTF-8", "other bytes");
  }
}

// The header's JSON. Adds up the data's length in `size`.
std::string compose_header(const std::string& path, const std::vector<TensorSpec>& tensors,
                           const std::map<std::string, std::string>& metadata, uint64_t* size) {
  std::string entries;
  if (!metadata.empty()) {
    for (const auto& [key, value] : metadata) {
      entries += fmt::format("{}{}:{}", entries.empty() ? "\"__metadata__\":{" : ",",
                             json_string(path, key), json_string(path, value));
    }
    entries += "}";
  }
  std::set<std::string> names = {kMetadata};
  int64_t begin = 0;
  for (const TensorSpec& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      refuse(path, tensor.name, "each name once", "a second tensor");
    if (tensor.dtype == DType::other) refuse(path, tensor.name, "a known dtype", "another");
    const std::optional<int64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    int64_t end = 0;
    if (!bytes || __builtin_add_overflow(begin, *bytes, &end)) {
      refuse(path, tensor.name, "less than 2^63 bytes", shape_text(tensor.shape));
    }
    entries += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                           entries.empty() ? "" : ",", json_string(path, tensor.name),
                           dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), begin, end);
    begin = end;
  }
  *size = static_cast<uint64_t>(begin);
  std::string header = fmt::format("{{{}}}", entries);
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the data begins at a multiple of 8
  return header;
}

}  // namespace

SafeTensorsWriter::SafeTensorsWriter(const std::string& path,
                                     const std::vector<TensorSpec>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  ByteWriter header;
  const std::string json = compose_header(path, tensors, metadata, &expected_);
  if (json.size() > kHeaderLimit) {
    refuse(path, "header", fmt::format("at most {} bytes", kHeaderLimit),
           std::to_string(json.size()));
  }
  header.u64(json.size());
  header.text(json);
  file_.write(header.data());
}

void SafeTensorsWriter::write(std::span<const std::byte> bytes) {
  if (bytes.size() > expected_) {
    refuse(file_.path(), "data", fmt::format("at most {} more bytes, as declared", expected_),
           std::to_string(bytes.size()));
  }
  file_.write(bytes);
  expected_ -= bytes.size();
}

void SafeTensorsWriter::commit() {
  if (expected_ != 0) {
    refuse(file_.path(), "data", fmt::format("{} more bytes, as declared", expected_), "the end");
  }
  file_.commit();
}

}  // namespace stet

#include "stet/checkpoint/safetensors.hpp"
#include "src/checkpoint/expert_slices.hpp"
#include "stet/base/limits.hpp"

#include <fmt/format.h>
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

constexpr uint64_t kHeaderLimit = 100'000'000;  // the limit of the reference implementation
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
const std::string kMetadata = "__metadata__";

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

// Returns where the data should end if the tensors follow each other from 0 on, as in every file
// that was written completely. Returns 0 if they do not.
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

// Throws an Error for a truncated file, if truncation is all that is wrong with it.
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

// Parses one tensor's entry. Checks its fields, its range against the data's length, and its size
// against its shape.
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

// Throws a format Error if the file is something else, or if its header is truncated.
void check_is_safetensors(const FileBytes& file) {
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.empty())
    throw Error(ErrorKind::format, file.path(), "", "a file with content", "0 bytes");
  const std::string found = known_content(bytes);
  if (!found.empty() && found != "a safetensors file")
    throw Error(ErrorKind::format, file.path(), "", "a safetensors file", found);
  if (found.empty() || bytes.size() < sizeof(uint64_t)) return;
  const uint64_t header = ByteReader(bytes, file.path()).u64("header length");
  if (header <= kHeaderLimit && header > bytes.size() - sizeof header)
    fail_cut_off(file.path(), sizeof header + header, bytes.size());
}

struct Parsed {
  std::vector<TensorView> tensors;
  std::map<std::string, std::string> metadata;
};

Parsed parse_all(std::span<const std::byte> bytes, const std::string& file) {
  ByteReader reader(bytes, file);
  const JsonReader header = parse_json(header_text(&reader), file);
  const std::span<const std::byte> data = bytes.subspan(reader.position());
  Parsed result;
  for (const std::string& name : header.keys()) {
    if (name == kMetadata) {
      if (const auto metadata = header.object(name)) result.metadata = parse_metadata(*metadata);
    } else {
      result.tensors.push_back(parse_tensor(header.required_object(name), name, data));
    }
  }
  order_tensors(&result.tensors, data, file);
  return result;
}

}  // namespace

SafeTensors SafeTensors::parse(std::span<const std::byte> bytes, const std::string& file) {
  Parsed parsed = parse_all(bytes, file);
  SafeTensors result;
  result.tensors_ = std::move(parsed.tensors);
  result.metadata_ = std::move(parsed.metadata);
  for (const TensorView& tensor : result.tensors_)
    result.index_.emplace(tensor.name, result.index_.size());
  return result;
}

const TensorView* SafeTensors::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

std::unique_ptr<const TensorSource> safetensors_source(std::shared_ptr<const FileBytes> file,
                                                       bool whole_stacks) {
  check_is_safetensors(*file);
  try {
    Parsed parsed = parse_all(file->bytes(), file->path());
    if (!whole_stacks) parsed.tensors = split_experts(std::move(parsed.tensors));
    return std::make_unique<const TensorSource>(file, std::move(parsed.tensors),
                                                std::move(parsed.metadata));
  } catch (const Error&) {
    refuse_cut_off(file->bytes(), file->path());
    throw;
  }
}

// ---------------------------------------------------------------- writing

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

// Returns the header's JSON, and adds the data's length to `size`.
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

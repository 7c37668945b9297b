#include "src/checkpoint/packed.hpp"

#include <atomic>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "src/files/open_file.hpp"
#include "src/gguf/tensors.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/digest.hpp"
#include "stet/base/error.hpp"
#include "stet/base/sha256.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/session/session.hpp"
#include "stet/text/tokenizer.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

constexpr size_t kPackedPage = 4096;
constexpr const char *kMatrix = "matrix:", *kVector = "vector:", *kFingerprint = "fingerprint:";

size_t whole_pages(size_t n) { return (n + kPackedPage - 1) / kPackedPage * kPackedPage; }

const std::string* find_metadata(const Checkpoint& checkpoint, const std::string& key) {
  const auto it = checkpoint.metadata().find(key);
  return it == checkpoint.metadata().end() ? nullptr : &it->second;
}

std::string found_text(const std::string* found) {
  return found == nullptr || found->empty() ? "nothing" : *found;
}

struct MatrixEntry {
  WeightType type;
  size_t rows, columns;
  std::string digest;
  // Set for a table that is looked up in place (Matrix::in_place).
  std::optional<DType> stored_rows = std::nullopt;

  size_t bytes() const {
    return stored_rows ? Matrix::in_place(*stored_rows, rows, columns, nullptr, nullptr).bytes()
                       : Matrix::packed_bytes(type, rows, columns);
  }
};

constexpr const char* kStoredRows = "rows:";

// Parses an entry such as "q8 8192 2048 xxh3:...", or "rows:BF16 262144 8960 xxh3:..." for a table
// that is looked up in place.
std::optional<MatrixEntry> parse_entry(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (words.size() != 4) return std::nullopt;
  MatrixEntry entry{WeightType::f32, 0, 0, words[3]};
  const auto number = [](const std::string& s, size_t* n) {
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), *n);
    return error == std::errc() && end == s.data() + s.size() && *n > 0 &&
           *n <= size_t{1} << 28;  // so that no product overflows
  };
  if (!number(words[1], &entry.rows) || !number(words[2], &entry.columns)) return std::nullopt;
  if (words[0].starts_with(kStoredRows)) {
    const std::string name = words[0].substr(std::string_view(kStoredRows).size());
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::q8_0, DType::q4_0,
                              DType::q5_0, DType::q4_k, DType::q5_k, DType::q6_k}) {
      if (name != dtype_name(dtype) || !tensor_bytes(dtype, {static_cast<int64_t>(entry.rows),
                                                             static_cast<int64_t>(entry.columns)}))
        continue;
      entry.type = weight_type(dtype);
      entry.stored_rows = dtype;
      return entry;
    }
    return std::nullopt;
  }
  for (const WeightType type :
       {WeightType::f32, WeightType::bf16, WeightType::f16, WeightType::q8, WeightType::q4,
        WeightType::q5, WeightType::mxfp4, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k}) {
    entry.type = type;
    const bool whole = !is_super(type) || entry.columns % kSuperBlock == 0;
    if (words[0] == weight_type_name(type) && whole) return entry;
  }
  return std::nullopt;
}

MatrixEntry entry_of(const Checkpoint& checkpoint, const std::string& name) {
  const std::string* text = find_metadata(checkpoint, kMatrix + name);
  const auto entry = text == nullptr ? std::nullopt : parse_entry(*text);
  if (entry) return *entry;
  throw Error(ErrorKind::format, checkpoint.source(), kMatrix + name, "TYPE ROWS COLUMNS DIGEST",
              found_text(text));
}

// Returns the bytes of a matrix, without the padding.
std::span<const std::byte> bytes_of(const Checkpoint& checkpoint, const std::string& name,
                                    const MatrixEntry& entry) {
  const size_t bytes = entry.bytes();
  const TensorView* view = checkpoint.find(name);
  const std::string expected = "U8 [" + std::to_string(whole_pages(bytes)) + "]";
  if (view == nullptr)
    throw Error(ErrorKind::format, checkpoint.source(), name, expected, "nothing");
  if (view->dtype != DType::u8 || view->shape.size() != 1 ||
      view->bytes.size() != whole_pages(bytes)) {
    throw Error(ErrorKind::format, checkpoint.source(), name, expected,
                view->dtype_text + " " + shape_text(view->shape));
  }
  return view->bytes.first(bytes);
}

}  // namespace

Contract packed_contract(const Checkpoint& checkpoint) {
  for (const auto& [key, value] :
       {std::pair<const char*, const char*>("format", kPackedFormat), {"version", "1"}}) {
    const std::string* found = find_metadata(checkpoint, key);
    if (found != nullptr && *found == value) continue;
    throw Error(ErrorKind::unsupported, checkpoint.source(), key, value, found_text(found));
  }
  const std::string* name = find_metadata(checkpoint, "contract");
  for (const Contract contract : {Contract::f32, Contract::q8, Contract::q4, Contract::ggml}) {
    if (name != nullptr && *name == contract_name(contract)) return contract;
  }
  throw Error(ErrorKind::unsupported, checkpoint.source(), "contract", "f32, q8, q4 or ggml",
              found_text(name));
}

WeightType packed_type(const Checkpoint& checkpoint, const std::string& name) {
  return entry_of(checkpoint, name).type;
}

bool has_packed_matrix(const Checkpoint& checkpoint, const std::string& name) {
  return find_metadata(checkpoint, kMatrix + name) != nullptr;
}

Matrix packed_matrix(const Checkpoint& checkpoint, const std::string& name,
                     std::optional<WeightType> type, bool any, size_t rows, size_t columns) {
  const MatrixEntry entry = entry_of(checkpoint, name);
  const bool wide = !is_quantized(entry.type) || entry.type == WeightType::mxfp4;
  const bool fits = entry.stored_rows || (type ? entry.type == *type : wide || any);
  if (!fits) {
    throw Error(ErrorKind::format, checkpoint.source(), kMatrix + name,
                (type ? weight_type_name(*type) : "f32, bf16, f16 or mxfp4") +
                    std::string(" for the contract ") + *find_metadata(checkpoint, "contract"),
                weight_type_name(entry.type));
  }
  return packed_matrix(checkpoint, name, rows, columns);
}

Matrix packed_matrix(const Checkpoint& checkpoint, const std::string& name, size_t rows,
                     size_t columns) {
  const MatrixEntry entry = entry_of(checkpoint, name);
  if (entry.rows != rows || entry.columns != columns) {
    throw Error(ErrorKind::mismatch, checkpoint.source(), name,
                "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]",
                "[" + std::to_string(entry.rows) + ", " + std::to_string(entry.columns) + "]");
  }
  const std::span<const std::byte> bytes = bytes_of(checkpoint, name, entry);
  if (entry.stored_rows)
    return Matrix::in_place(*entry.stored_rows, rows, columns, bytes.data(),
                            checkpoint.owner_of(name));
  if (reinterpret_cast<uintptr_t>(bytes.data()) % 64 == 0) {
    return Matrix::packed(entry.type, rows, columns, bytes.data(), checkpoint.owner_of(name));
  }
  const auto copy = std::make_shared<Memory>(bytes.size());  // not 64-byte aligned in the file
  std::memcpy(copy->data(), bytes.data(), bytes.size());
  return Matrix::packed(entry.type, rows, columns, copy->data(), copy);
}

std::string packed_fingerprint(const Checkpoint& checkpoint, const std::string& group) {
  const std::string* text = find_metadata(checkpoint, kFingerprint + group);
  if (text != nullptr && parse_sha256(*text)) return *text;
  throw Error(ErrorKind::format, checkpoint.source(), kFingerprint + group, "a SHA-256",
              found_text(text));
}

namespace {

// Returns the bytes of a tensor that its digest covers, and the digest that the file states.
std::pair<std::span<const std::byte>, std::string> digested(const Checkpoint& checkpoint,
                                                            const TensorView& tensor) {
  if (tensor.dtype == DType::u8) {
    const MatrixEntry entry = entry_of(checkpoint, tensor.name);
    return {bytes_of(checkpoint, tensor.name, entry), entry.digest};
  }
  const std::string* digest = find_metadata(checkpoint, kVector + tensor.name);
  if (digest == nullptr)
    throw Error(ErrorKind::format, checkpoint.source(), kVector + tensor.name, "a digest",
                "nothing");
  return {tensor.bytes, *digest};
}

}  // namespace

// ---------------------------------------------------------------- writing

namespace {

// Room in the header for each tensor, in bytes, in addition to twice the length of its name. Fields
// that belong to the whole file have two more pages.
constexpr size_t kHeaderEntryBytes = 512;

size_t header_room(const Checkpoint& checkpoint) {
  size_t bytes = 2 * kPackedPage;
  for (const std::string& name : checkpoint.names()) {
    constexpr std::string_view kExperts = ".experts.";
    const size_t at = name.find(kExperts);  // one matrix holds all experts
    const bool of_all = at != std::string::npos && name.ends_with(".weight");
    if (of_all && !name.substr(at + kExperts.size()).starts_with("0.")) continue;
    bytes += 2 * nlohmann::json(name).dump().size() + kHeaderEntryBytes;
  }
  return whole_pages(bytes);
}

}  // namespace

PackedWriter::PackedWriter(const std::string& path, const Checkpoint& checkpoint,
                           std::atomic<uint64_t>* written)
    : file_(path), header_bytes_(header_room(checkpoint)), written_(written) {
  const std::vector<std::byte> room(header_bytes_, std::byte{' '});
  file_.write(room);
  metadata_ = {{"format", kPackedFormat}, {"version", "1"}};
}

void PackedWriter::note_fingerprint(const std::string& group, const std::string& name) {
  metadata_[kFingerprint + group] = name;
}
void PackedWriter::note_contract(Contract contract) {
  metadata_["contract"] = contract_name(contract);
}

void PackedWriter::pad() {
  static const std::byte zeros[kPackedPage] = {};
  file_.write({zeros, (kPackedPage - file_.written() % kPackedPage) % kPackedPage});
}

namespace {

std::string header_entry(const std::string& name, const std::string& dtype,
                         const std::vector<int64_t>& shape, uint64_t begin, uint64_t end) {
  return nlohmann::json(name).dump() + ":" +
         nlohmann::json({{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}})
             .dump() +
         ",";
}

}  // namespace

void PackedWriter::add(const std::string& name, const Matrix& matrix) {
  const uint64_t size = whole_pages(matrix.bytes()), begin = file_.written() - header_bytes_;
  entries_ += header_entry(name, "U8", {static_cast<int64_t>(size)}, begin, begin + size);
  metadata_[kMatrix + name] =
      (matrix.stored_rows() ? kStoredRows + std::string(dtype_name(*matrix.stored_rows()))
                            : weight_type_name(matrix.type())) +
      " " + std::to_string(matrix.rows()) + " " + std::to_string(matrix.columns()) + " " +
      digest_text(digest_of(matrix.all()));
  file_.write(matrix.all());
  pad();
  if (written_ != nullptr) *written_ = file_.written();
}

// Keeps the vector until commit(). Vectors are few and small and follow all matrices. Each matrix
// fills whole pages, so that every one begins at a page and the file has no gaps.
void PackedWriter::add(const TensorView& tensor) {
  vectors_.push_back({tensor, {tensor.bytes.begin(), tensor.bytes.end()}});
}

void PackedWriter::commit() {
  for (const auto& [v, bytes] : vectors_) {
    const uint64_t begin = file_.written() - header_bytes_;
    entries_ += header_entry(v.name, v.dtype_text, v.shape, begin, begin + bytes.size());
    file_.write(bytes);
    metadata_[kVector + v.name] = digest_text(digest_of(bytes));
  }
  std::string header =
      "{" + entries_ + "\"__metadata__\":" + nlohmann::json(metadata_).dump() + "}";
  if (header.size() + sizeof(uint64_t) > header_bytes_) {
    throw Error(ErrorKind::unsupported, file_.path(), "header",
                "at most " + std::to_string(header_bytes_) + " bytes",
                std::to_string(header.size()));
  }
  header.resize(header_bytes_ - sizeof(uint64_t), ' ');
  ByteWriter front;
  front.u64(header.size());
  front.text(header);
  file_.write_at(0, front.data());
  file_.commit();
}

// ---------------------------------------------------------------- whole checkpoints

namespace {

namespace fs = std::filesystem;

// Returns whether the directory is new; an existing one must be empty.
bool make_empty_directory(const std::string& directory) {
  std::error_code error;
  const bool made = fs::create_directory(directory, error);
  const bool is_file = error == std::errc::file_exists || error == std::errc::not_a_directory;
  const bool empty = !error && fs::is_empty(directory, error);
  if (empty && !error) return made;
  throw Error(ErrorKind::io, directory, "", "",
              is_file ? "a file has this name; name a new or an empty directory"
              : error ? "the directory cannot be made: " + error.message()
                      : "the directory is not empty; name a new one");
}

}  // namespace

void check_pack_directory(const std::string& directory) {
  std::error_code ignored;
  if (make_empty_directory(directory)) fs::remove(directory, ignored);
}

void pack_checkpoint(const FileSource& source, Contract contract, const std::string& directory,
                     int threads, std::atomic<uint64_t>* written_bytes,
                     std::optional<BlockRounding> blocks) {
  const bool made = make_empty_directory(directory);
  std::vector<std::string> written;
  const auto path_of = [&](const std::string& name) { return directory + "/" + name; };
  try {
    written.push_back(path_of(kPackedName));
    Model::pack(source, contract, written.back(), threads, written_bytes, blocks);
    std::vector<std::string> names = Tokenizer::files_of(source);
    names.insert(names.end(), {"generation_config.json", "config.json"});
    for (const std::string& name : names) {
      if (!source.has(name)) continue;
      written.push_back(path_of(name));
      AtomicFile file(written.back());
      open_file(source, name)->stream([&](std::span<const std::byte> bytes) { file.write(bytes); });
      file.commit();
    }
  } catch (...) {
    std::error_code ignored;
    for (const std::string& path : written) fs::remove(path, ignored);
    if (made) fs::remove(directory, ignored);
    throw;
  }
}

namespace {

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr size_t kMostIndex = 100'000'000;

// Returns whether the index says that tensors are in blocks of ggml. A snapshot may hold the
// weights of a GGUF file in that form.
bool says_blocks(const FileSource& source) {
  if (!source.has(kIndex) || source.has("model.safetensors")) return false;
  const nlohmann::json index =
      nlohmann::json::parse(source.read(kIndex, kMostIndex), nullptr, false);
  const auto metadata = index.is_object() ? index.find("metadata") : index.end();
  return metadata != index.end() && metadata->is_object() && metadata->contains("blocks") &&
         metadata->at("blocks") == "ggml";
}

// Returns true if config.json says that weights may be in MXFP4.
bool says_mxfp4(const FileSource& source) {
  if (!source.has("config.json")) return false;
  const nlohmann::json config =
      nlohmann::json::parse(source.read("config.json", kMostIndex), nullptr, false);
  return config.is_object() && config.value("model_type", nlohmann::json()) == "gpt_oss";
}

}  // namespace

Contract contract_of_weights(const FileSource& source) {
  if (source.has(kPackedName)) return packed_contract(Checkpoint::open(source));
  const bool blocks = source.has(kGgufName) || says_mxfp4(source)
                          ? Checkpoint::open(source).has_blocks()
                          : says_blocks(source);
  return blocks ? Contract::ggml : Contract::f32;
}

size_t check_packed(const FileSource& source, int threads) {
  const Checkpoint checkpoint = Checkpoint::open(source);
  if (!checkpoint.packed())
    throw Error(ErrorKind::unsupported, source.path(), kPackedName, "",
                "the checkpoint has no packed weights");
  packed_contract(checkpoint);
  return check_packed(checkpoint, threads);
}

size_t check_packed(const Checkpoint& checkpoint, int threads) {
  const std::vector<std::string> names = checkpoint.names();
  std::atomic<size_t> total{0};
  run_each(threads > 0 ? threads : default_threads(), names.size(), [&](size_t i) {
    const auto [bytes, digest] = digested(checkpoint, *checkpoint.find(names[i]));
    const std::string found = digest_text(digest_of(bytes));
    if (found != digest)
      throw Error(ErrorKind::format, checkpoint.source(), names[i], digest, found);
    total += bytes.size();
  });
  return total;
}

}  // namespace stet

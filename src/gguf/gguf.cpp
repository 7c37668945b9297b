#include "src/gguf/gguf.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "src/base/known_content.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/files/tensor.hpp"
#include "stet/kernels/ggml.hpp"

namespace stet {
namespace {

constexpr uint64_t kMostKeys = 1 << 16, kMostTensors = 1 << 16, kMostText = uint64_t{1} << 24,
                   kMostElements = uint64_t{1} << 24;
constexpr int kMostDepth = 16;

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64
};

// Returns the bytes of a value of the type; 0 for texts, arrays and unknown types.
size_t size_of(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    case kU64:
    case kI64:
    case kF64:
      return 8;
    default:
      return 0;
  }
}

class Reader {
 public:
  Reader(std::span<const std::byte> data, const std::string& file) : in_(data, file) {}

  uint64_t count(const char* field, uint64_t most) {
    const uint64_t n = in_.u64(field);
    if (n > most)
      throw Error(ErrorKind::format, in_.file(), field, "at most " + std::to_string(most),
                  std::to_string(n));
    return n;
  }
  std::string text(const char* field) { return in_.text(count(field, kMostText), field); }

  Gguf::Value value(uint32_t type, const std::string& key) {
    switch (type) {
      case kU8:
        return uint64_t{in_.u8(key)};
      case kI8:
        return int64_t{static_cast<int8_t>(in_.u8(key))};
      case kU16:
        return uint64_t{in_.u16(key)};
      case kI16:
        return int64_t{static_cast<int16_t>(in_.u16(key))};
      case kU32:
        return uint64_t{in_.u32(key)};
      case kI32:
        return int64_t{static_cast<int32_t>(in_.u32(key))};
      case kF32:
        return double{in_.f32(key)};
      case kBool:
        return in_.u8(key) != 0;
      case kText:
        return in_.bytes(in_.u64(key), key);
      case kArray:
        return array(key, 0);
      case kU64:
        return in_.u64(key);
      case kI64:
        return static_cast<int64_t>(in_.u64(key));
      case kF64:
        return std::bit_cast<double>(in_.u64(key));
      default:
        fail_type(type, key);
    }
  }
  ByteReader& in() { return in_; }

 private:
  // Skips the elements of an array, and returns its type, count and bytes.
  Gguf::Array array(const std::string& key, int depth) {
    Gguf::Array a;
    a.type = in_.u32(key);
    a.count = in_.u64(key);
    ByteReader begin = in_;
    const size_t from = in_.position(), size = size_of(a.type);
    if (size > 0) {
      if (a.count > in_.remaining() / size)
        throw Error(ErrorKind::format, in_.file(), key,
                    std::to_string(a.count) + " elements of " + std::to_string(size) + " bytes",
                    std::to_string(in_.remaining()) + " bytes before the end");
      in_.bytes(a.count * size, key);
    } else {
      if (a.type != kText && a.type != kArray) fail_type(a.type, key);
      if (depth == kMostDepth)
        throw Error(ErrorKind::format, in_.file(), key,
                    "arrays of at most " + std::to_string(kMostDepth) + " levels", "more");
      for (uint64_t i = 0; i < a.count; ++i) {
        if (a.type == kText)
          in_.bytes(in_.u64(key), key);
        else
          array(key, depth + 1);
      }
    }
    a.elements = begin.bytes(in_.position() - from, key);
    return a;
  }

  [[noreturn]] void fail_type(uint32_t type, const std::string& key) const {
    throw Error(ErrorKind::format, in_.file(), key, "a type of value in 0..12",
                std::to_string(type));
  }

  ByteReader in_;
};

// The shape and place of a tensor. Its bytes are found once the start of the data is known.
struct Declared {
  GgufTensor tensor;
  uint64_t offset = 0, size = 0;
};

Declared read_tensor(Reader& r, const std::string& file) {
  Declared d;
  d.tensor.name = r.text("tensor name");
  const std::string& name = d.tensor.name;
  const uint32_t dimensions = r.in().u32(name);
  if (dimensions < 1 || dimensions > 4)
    throw Error(ErrorKind::format, file, name, "1 to 4 dimensions", std::to_string(dimensions));
  for (uint32_t i = 0; i < dimensions; ++i)
    d.tensor.shape.push_back(static_cast<int64_t>(r.in().u64(name)));
  std::reverse(d.tensor.shape.begin(), d.tensor.shape.end());
  d.tensor.type = r.in().u32(name);
  d.offset = r.in().u64(name);
  const std::optional<int64_t> elements = element_count(d.tensor.shape);
  if (!elements || *elements <= 0)
    throw Error(ErrorKind::format, file, name, "a shape", shape_text(d.tensor.shape));
  const std::optional<GgmlType> type = ggml_type(d.tensor.type);
  if (!type)
    throw Error(ErrorKind::unsupported, file, name, "a type that stet reads (docs/models.md)",
                "type " + std::to_string(d.tensor.type));
  const auto row = static_cast<uint64_t>(d.tensor.shape.back());
  if (row % type->elements != 0)
    throw Error(ErrorKind::format, file, name,
                "rows of a multiple of " + std::to_string(type->elements), std::to_string(row));
  const uint64_t blocks = static_cast<uint64_t>(*elements) / type->elements;
  if (blocks > UINT64_MAX / type->bytes)
    throw Error(ErrorKind::format, file, name, "a smaller tensor", shape_text(d.tensor.shape));
  d.size = blocks * type->bytes;
  return d;
}

}  // namespace

void Gguf::fail(const std::string& field, const std::string& expected,
                const std::string& found) const {
  throw Error(ErrorKind::format, path(), field, expected, found);
}

namespace {

// Throws an Error if the file is not GGUF of a known version, and says what it is instead.
void check_kind(Reader& r, std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < 4 || r.in().text(4, "magic") != "GGUF") {
    const std::string found = known_content(bytes);
    throw Error(ErrorKind::format, file, "magic", "GGUF",
                bytes.empty()   ? "an empty file"
                : found.empty() ? "other bytes"
                                : found);
  }
  const uint32_t version = r.in().u32("version");
  if (version == 2 || version == 3) return;
  const bool swapped = (version & 0xffff) == 0 && version != 0;
  if (swapped)
    throw Error(ErrorKind::unsupported, file, "version",
                "a little-endian file (gguf_convert_endian.py of llama.cpp makes one)",
                "a big-endian one");
  throw Error(ErrorKind::unsupported, file, "version", "2 or 3", std::to_string(version));
}

// Returns where the data should end by the header. Returns 0 if offsets are misaligned or overflow,
// or leave gaps.
uint64_t promised_end(const std::vector<Declared>& declared, uint64_t data, uint64_t alignment) {
  uint64_t end = data;
  for (const Declared& d : declared) {
    uint64_t tensor_end = 0;
    if (d.offset % alignment != 0 || __builtin_add_overflow(d.offset, d.size, &tensor_end) ||
        __builtin_add_overflow(tensor_end, data, &tensor_end))
      return 0;
    end = std::max(end, tensor_end);
  }
  uint64_t all = 0;  // no writer leaves larger gaps than the alignment requires
  for (const Declared& d : declared) {
    if (__builtin_add_overflow(all, d.size + alignment, &all)) return 0;
  }
  return !declared.empty() && end - data <= all ? end : 0;
}

std::vector<Declared> read_header(Reader& r, const std::string& file,
                                  std::map<std::string, Gguf::Value>& values) {
  const uint64_t tensors = r.count("number of tensors", kMostTensors),
                 keys = r.count("number of keys", kMostKeys);
  for (uint64_t i = 0; i < keys; ++i) {
    const std::string key = r.text("key");
    const uint32_t type = r.in().u32(key);
    if (!values.emplace(key, r.value(type, key)).second)
      throw Error(ErrorKind::format, file, key, "each key once", "it twice");
  }
  std::vector<Declared> declared;
  std::set<std::string> names;
  for (uint64_t i = 0; i < tensors; ++i) {
    declared.push_back(read_tensor(r, file));
    const std::string& name = declared.back().tensor.name;
    if (!names.insert(name).second)
      throw Error(ErrorKind::format, file, name, "each tensor once", "it twice");
  }
  return declared;
}

}  // namespace

Gguf Gguf::parse(std::shared_ptr<const FileBytes> file) {
  Gguf g;
  g.file_ = std::move(file);
  const std::span<const std::byte> bytes = g.file_->bytes();
  Reader r(bytes, g.path());
  check_kind(r, bytes, g.path());
  std::vector<Declared> declared;
  try {
    declared = read_header(r, g.path(), g.values_);
  } catch (const Error& e) {
    if (!e.found.ends_with(" before the end")) throw;
    throw Error(e.kind, e.file, e.field, e.expected + " (the file is truncated: download it again)",
                e.found);
  }
  const auto alignment =
      static_cast<uint64_t>(g.integer("general.alignment", 1, 1 << 20).value_or(32));
  if (!std::has_single_bit(alignment))
    g.fail("general.alignment", "a power of two", std::to_string(alignment));
  const uint64_t data = (r.in().position() + alignment - 1) / alignment * alignment;
  if (const uint64_t end = promised_end(declared, data, alignment); end > bytes.size())
    fail_cut_off(g.path(), end, bytes.size());
  for (Declared& d : declared) {
    const uint64_t room = data < bytes.size() ? bytes.size() - data : 0;
    if (d.offset % alignment != 0 || d.offset > room || d.size > room - d.offset)
      g.fail(d.tensor.name, "data within " + std::to_string(room) + " bytes, aligned",
             std::to_string(d.size) + " bytes at " + std::to_string(d.offset));
    d.tensor.bytes = bytes.subspan(data + d.offset, d.size);
    g.tensors_.push_back(std::move(d.tensor));
  }
  return g;
}

std::optional<std::string> Gguf::text(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  if (const auto* text = std::get_if<std::span<const std::byte>>(&found->second)) {
    if (text->size() > kMostText)
      fail(key, "at most " + std::to_string(kMostText) + " bytes", std::to_string(text->size()));
    return std::string(reinterpret_cast<const char*>(text->data()), text->size());
  }
  fail(key, "a text", "another value");
}

std::optional<int64_t> Gguf::integer(const std::string& key, int64_t min, int64_t max) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  int64_t value = 0;
  if (const auto* u = std::get_if<uint64_t>(&found->second)) {
    if (*u > static_cast<uint64_t>(INT64_MAX)) fail(key, "a smaller integer", std::to_string(*u));
    value = static_cast<int64_t>(*u);
  } else if (const auto* s = std::get_if<int64_t>(&found->second)) {
    value = *s;
  } else if (const Array* const a = std::get_if<Array>(&found->second);
             a != nullptr && size_of(a->type) > 0) {  // the same value in all layers
    const std::vector<double>& list = *numbers(key);
    if (list.empty() || !(std::abs(list.front()) < 1e15) ||
        !std::equal(list.begin() + 1, list.end(), list.begin()))
      fail(key, "an integer", "other values");
    value = static_cast<int64_t>(list.front());
  } else {
    fail(key, "an integer", "another value");
  }
  if (value < min || value > max)
    fail(key, std::to_string(min) + ".." + std::to_string(max), std::to_string(value));
  return value;
}

std::vector<std::string> Gguf::keys(const std::string& prefix) const {
  std::vector<std::string> found;
  for (auto at = values_.lower_bound(prefix); at != values_.end() && at->first.starts_with(prefix);
       ++at)
    found.push_back(at->first);
  return found;
}

std::optional<double> Gguf::number(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  if (const auto* d = std::get_if<double>(&found->second)) return *d;
  return static_cast<double>(*integer(key, INT64_MIN, INT64_MAX));
}

std::optional<bool> Gguf::boolean(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  if (const auto* b = std::get_if<bool>(&found->second)) return *b;
  fail(key, "true or false", "another value");
}

const Gguf::Array* Gguf::array(const std::string& key, const char* expected) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return nullptr;
  const Array* const a = std::get_if<Array>(&found->second);
  if (a == nullptr) fail(key, expected, "another value");
  if (a->count > kMostElements)
    fail(key, "at most " + std::to_string(kMostElements) + " elements", std::to_string(a->count));
  return a;
}

const std::vector<double>* Gguf::numbers(const std::string& key) const {
  const Array* const a = array(key, "an array of numbers");
  if (a == nullptr) return nullptr;
  if (size_of(a->type) == 0) fail(key, "an array of numbers", "one of other values");
  const auto [at, is_new] = numbers_.try_emplace(key);
  std::vector<double>& all = at->second;
  if (!is_new) return &all;
  Reader r(a->elements, path());
  all.reserve(a->count);
  for (uint64_t i = 0; i < a->count; ++i) {
    const Value v = r.value(a->type, key);
    if (const auto* u = std::get_if<uint64_t>(&v)) all.push_back(static_cast<double>(*u));
    if (const auto* s = std::get_if<int64_t>(&v)) all.push_back(static_cast<double>(*s));
    if (const auto* d = std::get_if<double>(&v)) all.push_back(*d);
    if (const auto* b = std::get_if<bool>(&v)) all.push_back(*b ? 1 : 0);
  }
  return &all;
}

const std::vector<std::string>* Gguf::texts(const std::string& key) const {
  const Array* const a = array(key, "an array of texts");
  if (a == nullptr) return nullptr;
  if (a->type != kText) fail(key, "an array of texts", "one of other values");
  const auto [at, is_new] = texts_.try_emplace(key);
  std::vector<std::string>& all = at->second;
  if (!is_new) return &all;
  Reader r(a->elements, path());
  all.reserve(a->count);
  for (uint64_t i = 0; i < a->count; ++i) all.push_back(r.text(key.c_str()));
  return &all;
}

}  // namespace stet

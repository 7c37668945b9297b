#include "src/gguf/gguf.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/checkpoint/tensor.hpp"
#include "stet/kernels/ggml.hpp"

namespace stet {
namespace {

constexpr uint64_t kMostKeys = 1 << 16, kMostTensors = 1 << 16, kMostText = uint64_t{1} << 24,
                   kMostElements = uint64_t{1} << 24;

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
        return in_.text(count(key.c_str(), kMostText), key);
      case kArray:
        return array(key);
      case kU64:
        return in_.u64(key);
      case kI64:
        return static_cast<int64_t>(in_.u64(key));
      case kF64:
        return std::bit_cast<double>(in_.u64(key));
      default:
        throw Error(ErrorKind::format, in_.file(), key, "a type of value in 0..12",
                    std::to_string(type));
    }
  }
  ByteReader& in() { return in_; }

 private:
  Gguf::Value array(const std::string& key) {
    const uint32_t type = in_.u32(key);
    const uint64_t n = count(key.c_str(), std::min(kMostElements, uint64_t{in_.remaining()}));
    if (type == kText) {
      std::vector<std::string> all;
      for (uint64_t i = 0; i < n; ++i) all.push_back(in_.text(count(key.c_str(), kMostText), key));
      return all;
    }
    if (type == kArray)
      throw Error(ErrorKind::unsupported, in_.file(), key, "an array of numbers or texts",
                  "one of arrays");
    std::vector<double> all;
    for (uint64_t i = 0; i < n; ++i) {
      const Gguf::Value v = value(type, key);
      if (const auto* u = std::get_if<uint64_t>(&v)) all.push_back(static_cast<double>(*u));
      if (const auto* s = std::get_if<int64_t>(&v)) all.push_back(static_cast<double>(*s));
      if (const auto* d = std::get_if<double>(&v)) all.push_back(*d);
      if (const auto* b = std::get_if<bool>(&v)) all.push_back(*b ? 1 : 0);
    }
    return all;
  }

  ByteReader in_;
};

// Its shape and place; the bytes are found once it is known where the data begins.
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
    throw Error(ErrorKind::unsupported, file, name, "a type that stet reads (docs/gguf.md)",
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

Gguf Gguf::parse(std::shared_ptr<const FileBytes> file) {
  Gguf g;
  g.file_ = std::move(file);
  const std::span<const std::byte> bytes = g.file_->bytes();
  Reader r(bytes, g.path());
  if (r.in().remaining() < 4 || r.in().text(4, "magic") != "GGUF")
    g.fail("magic", "GGUF", "other bytes");
  const uint32_t version = r.in().u32("version");
  if (version != 2 && version != 3)
    throw Error(ErrorKind::unsupported, g.path(), "version", "2 or 3", std::to_string(version));
  const uint64_t tensors = r.count("number of tensors", kMostTensors),
                 keys = r.count("number of keys", kMostKeys);
  for (uint64_t i = 0; i < keys; ++i) {
    const std::string key = r.text("key");
    const uint32_t type = r.in().u32(key);
    if (!g.values_.emplace(key, r.value(type, key)).second)
      g.fail(key, "each key once", "it twice");
  }
  std::vector<Declared> declared;
  std::set<std::string> names;
  for (uint64_t i = 0; i < tensors; ++i) {
    declared.push_back(read_tensor(r, g.path()));
    if (!names.insert(declared.back().tensor.name).second)
      g.fail(declared.back().tensor.name, "each tensor once", "it twice");
  }
  const auto alignment =
      static_cast<uint64_t>(g.integer("general.alignment", 1, 1 << 20).value_or(32));
  if (!std::has_single_bit(alignment))
    g.fail("general.alignment", "a power of two", std::to_string(alignment));
  const uint64_t data = (r.in().position() + alignment - 1) / alignment * alignment;
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
  if (const auto* text = std::get_if<std::string>(&found->second)) return *text;
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
  } else if (const auto* list = std::get_if<std::vector<double>>(&found->second);
             list != nullptr && !list->empty() && std::abs(list->front()) < 1e15 &&
             std::equal(list->begin() + 1, list->end(), list->begin())) {
    value = static_cast<int64_t>(list->front());  // the same for every layer
  } else {
    fail(key, "an integer", "another value");
  }
  if (value < min || value > max)
    fail(key, std::to_string(min) + ".." + std::to_string(max), std::to_string(value));
  return value;
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

const std::vector<double>* Gguf::numbers(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return nullptr;
  if (const auto* list = std::get_if<std::vector<double>>(&found->second)) return list;
  fail(key, "an array of numbers", "another value");
}

const std::vector<std::string>* Gguf::texts(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return nullptr;
  if (const auto* list = std::get_if<std::vector<std::string>>(&found->second)) return list;
  fail(key, "an array of texts", "another value");
}

}  // namespace stet

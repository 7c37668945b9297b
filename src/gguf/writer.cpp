#include "src/gguf/writer.hpp"

#include <limits>

#include "stet/base/error.hpp"
#include "stet/kernels/ggml.hpp"

namespace stet {
namespace {

enum WrittenType : uint32_t {
  kWrittenU32 = 4,
  kWrittenI32 = 5,
  kWrittenF32 = 6,
  kWrittenBoolean = 7,
  kWrittenText = 8,
  kWrittenArray = 9
};

constexpr uint64_t kAlignment = 32;

uint64_t padding(uint64_t size) { return (kAlignment - size % kAlignment) % kAlignment; }

void put_text(ByteWriter& out, std::string_view text) {
  out.u64(text.size());
  out.text(text);
}

}  // namespace

void GgufKeys::key(std::string_view key, uint32_t type) {
  put_text(bytes_, key);
  bytes_.u32(type);
  ++count_;
}

void GgufKeys::u32(std::string_view name, uint64_t value) {
  if (value > std::numeric_limits<uint32_t>::max()) {
    throw Error(ErrorKind::argument, "", std::string(name), "at most 32 bits",
                std::to_string(value));
  }
  key(name, kWrittenU32);
  bytes_.u32(static_cast<uint32_t>(value));
}

void GgufKeys::i32(std::string_view name, int64_t value) {
  if (value != static_cast<int32_t>(value)) {
    throw Error(ErrorKind::argument, "", std::string(name), "at most 32 bits",
                std::to_string(value));
  }
  key(name, kWrittenI32);
  bytes_.u32(static_cast<uint32_t>(static_cast<int32_t>(value)));
}

void GgufKeys::f32(std::string_view name, double value) {
  key(name, kWrittenF32);
  bytes_.f32(static_cast<float>(value));
}

void GgufKeys::boolean(std::string_view name, bool value) {
  key(name, kWrittenBoolean);
  bytes_.u8(value ? 1 : 0);
}

void GgufKeys::text(std::string_view name, std::string_view value) {
  key(name, kWrittenText);
  put_text(bytes_, value);
}

void GgufKeys::array(std::string_view name, uint32_t type, size_t length) {
  key(name, kWrittenArray);
  bytes_.u32(type);
  bytes_.u64(length);
}

void GgufKeys::texts(std::string_view name, const std::vector<std::string>& values) {
  array(name, kWrittenText, values.size());
  for (const std::string& value : values) put_text(bytes_, value);
}

void GgufKeys::booleans(std::string_view name, const std::vector<bool>& values) {
  array(name, kWrittenBoolean, values.size());
  for (const bool value : values) bytes_.u8(value ? 1 : 0);
}

void GgufKeys::i32s(std::string_view name, const std::vector<int32_t>& values) {
  array(name, kWrittenI32, values.size());
  for (const int32_t value : values) bytes_.u32(static_cast<uint32_t>(value));
}

void GgufKeys::f32s(std::string_view name, const std::vector<float>& values) {
  array(name, kWrittenF32, values.size());
  for (const float value : values) bytes_.f32(value);
}

uint64_t GgufDeclared::elements() const {
  uint64_t n = 1;
  for (const int64_t dimension : shape) n *= static_cast<uint64_t>(dimension);
  return n;
}

uint64_t GgufDeclared::bytes() const {
  const GgmlType stored = *ggml_type(type);
  return elements() / stored.elements * stored.bytes;
}

GgufWriter::GgufWriter(const std::string& path, const GgufKeys& keys,
                       const std::vector<GgufDeclared>& tensors)
    : file_(path), tensors_(tensors) {
  ByteWriter head;
  head.text("GGUF");
  head.u32(3);
  head.u64(tensors.size());
  head.u64(keys.count());
  head.bytes(keys.bytes());
  uint64_t offset = 0;
  for (const GgufDeclared& t : tensors) {
    const size_t unit = ggml_type(t.type)->elements;
    if (t.shape.empty() || static_cast<uint64_t>(t.shape.back()) % unit != 0) {
      throw Error(ErrorKind::unsupported, path, t.name,
                  "rows of a multiple of " + std::to_string(unit) + " elements",
                  t.shape.empty() ? "none" : std::to_string(t.shape.back()));
    }
    put_text(head, t.name);
    head.u32(static_cast<uint32_t>(t.shape.size()));
    for (size_t i = t.shape.size(); i-- > 0;) head.u64(static_cast<uint64_t>(t.shape[i]));
    head.u32(t.type);
    head.u64(offset);
    offset += t.bytes() + padding(t.bytes());
  }
  head.zeros(padding(head.size()));
  file_.write(head.data());
}

void GgufWriter::write(std::span<const std::byte> blocks) {
  if (at_ == tensors_.size() || blocks.size() > tensors_[at_].bytes() - written_) {
    throw Error(ErrorKind::argument, file_.path(), at_ == tensors_.size() ? "" : tensors_[at_].name,
                "no more elements than were declared", std::to_string(blocks.size()) + " bytes");
  }
  file_.write(blocks);
  written_ += blocks.size();
  if (written_ < tensors_[at_].bytes()) return;
  static constexpr std::byte kZeros[kAlignment] = {};
  file_.write({kZeros, padding(written_)});
  ++at_;
  written_ = 0;
}

void GgufWriter::commit() {
  if (at_ != tensors_.size()) {
    throw Error(ErrorKind::argument, file_.path(), tensors_[at_].name, "all of its elements",
                std::to_string(written_) + " bytes");
  }
  file_.commit();
}

}  // namespace stet

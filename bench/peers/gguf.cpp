#include "bench/peers/gguf.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "stet/base/error.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/matrix.hpp"

namespace stet_peers {
namespace {

enum ValueType : uint32_t { kU32 = 4, kF32 = 6, kBoolean = 7, kText = 8, kArray = 9 };

constexpr uint64_t kAlignment = 32;

uint64_t padding(uint64_t size) { return (kAlignment - size % kAlignment) % kAlignment; }

void put_text(stet::ByteWriter& out, std::string_view text) {
  out.u64(text.size());
  out.text(text);
}

float inverse(float d) { return d == 0 ? 0 : 1 / d; }

void put_u16(std::byte* out, uint16_t value) { std::memcpy(out, &value, sizeof value); }

void encode_q8_0(const float* x, std::byte* out) {
  float largest = 0;
  for (size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127, id = inverse(d);
  put_u16(out, stet::round_f16(d));
  for (size_t i = 0; i < kBlock; ++i)
    out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(x[i] * id)));
}

void encode_q4_0(const float* x, std::byte* out) {
  float largest = 0;
  for (size_t i = 0; i < kBlock; ++i)
    largest = std::fabs(x[i]) > std::fabs(largest) ? x[i] : largest;
  const float d = largest / -8, id = inverse(d);
  const auto nibble = [&](size_t i) {
    return static_cast<unsigned>(std::min(15.0f, std::floor(x[i] * id + 8.5f)));
  };
  put_u16(out, stet::round_f16(d));
  for (size_t i = 0; i < kBlock / 2; ++i)
    out[2 + i] = static_cast<std::byte>(nibble(i) | nibble(i + kBlock / 2) << 4);
}

}  // namespace

size_t block_elements(Type type) { return type == Type::q8_0 || type == Type::q4_0 ? kBlock : 1; }

uint64_t stored_bytes(Type type, uint64_t elements) {
  switch (type) {
    case Type::f32:
      return elements * 4;
    case Type::bf16:
      return elements * 2;
    case Type::q8_0:
      return elements / kBlock * (2 + kBlock);
    case Type::q4_0:
      return elements / kBlock * (2 + kBlock / 2);
  }
  return 0;
}

std::vector<std::byte> encode(Type type, std::span<const float> values) {
  const size_t unit = block_elements(type), unit_bytes = stored_bytes(type, unit);
  std::vector<std::byte> out(stored_bytes(type, values.size()));
  for (size_t i = 0; i < values.size() / unit; ++i) {
    const float* x = &values[i * unit];
    std::byte* to = &out[i * unit_bytes];
    switch (type) {
      case Type::f32:
        std::memcpy(to, x, 4);
        break;
      case Type::bf16:
        put_u16(to, stet::round_bf16(*x));
        break;
      case Type::q8_0:
        encode_q8_0(x, to);
        break;
      case Type::q4_0:
        encode_q4_0(x, to);
        break;
    }
  }
  return out;
}

void Metadata::key(std::string_view key, uint32_t type) {
  put_text(bytes_, key);
  bytes_.u32(type);
  ++count_;
}

void Metadata::u32(std::string_view name, uint64_t value) {
  if (value > std::numeric_limits<uint32_t>::max()) {
    throw stet::Error(stet::ErrorKind::argument, "", std::string(name), "at most 32 bits",
                      std::to_string(value));
  }
  key(name, kU32);
  bytes_.u32(static_cast<uint32_t>(value));
}

void Metadata::f32(std::string_view name, double value) {
  key(name, kF32);
  bytes_.f32(static_cast<float>(value));
}

void Metadata::text(std::string_view name, std::string_view value) {
  key(name, kText);
  put_text(bytes_, value);
}

void Metadata::array(std::string_view name, uint32_t type, size_t length) {
  key(name, kArray);
  bytes_.u32(type);
  bytes_.u64(length);
}

void Metadata::texts(std::string_view name, const std::vector<std::string>& values) {
  array(name, kText, values.size());
  for (const std::string& value : values) put_text(bytes_, value);
}

void Metadata::booleans(std::string_view name, const std::vector<bool>& values) {
  array(name, kBoolean, values.size());
  for (const bool value : values) bytes_.u8(value ? 1 : 0);
}

uint64_t Declared::elements() const {
  uint64_t n = 1;
  for (const uint64_t dimension : shape) n *= dimension;
  return n;
}

Writer::Writer(const std::string& path, const Metadata& metadata,
               const std::vector<Declared>& tensors)
    : file_(path), tensors_(tensors) {
  stet::ByteWriter head;
  head.text("GGUF");
  head.u32(3);
  head.u64(tensors.size());
  head.u64(metadata.count());
  head.bytes(metadata.bytes());
  uint64_t offset = 0;
  for (const Declared& t : tensors) {
    if (t.shape.empty() || t.shape.back() % block_elements(t.type) != 0) {
      throw stet::Error(stet::ErrorKind::unsupported, path, t.name,
                        "rows of a multiple of 32 elements",
                        t.shape.empty() ? "none" : std::to_string(t.shape.back()));
    }
    put_text(head, t.name);
    head.u32(static_cast<uint32_t>(t.shape.size()));
    for (size_t i = t.shape.size(); i-- > 0;) head.u64(t.shape[i]);
    head.u32(static_cast<uint32_t>(t.type));
    head.u64(offset);
    const uint64_t size = stored_bytes(t.type, t.elements());
    offset += size + padding(size);
  }
  head.zeros(padding(head.size()));
  file_.write(head.data());
}

void Writer::write(std::span<const float> values) {
  if (at_ == tensors_.size() || values.size() > tensors_[at_].elements() - written_) {
    throw stet::Error(stet::ErrorKind::argument, file_.path(),
                      at_ == tensors_.size() ? "" : tensors_[at_].name,
                      "no more elements than were declared", std::to_string(values.size()));
  }
  const Declared& t = tensors_[at_];
  std::vector<std::byte> bytes = encode(t.type, values);
  written_ += values.size();
  if (written_ == t.elements()) {
    bytes.resize(bytes.size() + padding(stored_bytes(t.type, written_)));
    ++at_;
    written_ = 0;
  }
  file_.write(bytes);
}

void Writer::commit() {
  if (at_ != tensors_.size()) {
    throw stet::Error(stet::ErrorKind::argument, file_.path(), tensors_[at_].name,
                      "all of its elements", std::to_string(written_));
  }
  file_.commit();
}

}  // namespace stet_peers

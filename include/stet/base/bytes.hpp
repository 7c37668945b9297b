// Writing and reading little-endian bytes, one field at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/api.h"

namespace stet {

// Copies and compares many bytes at once. std::ranges::copy and equal take them one by one in code
// that is not inlined.
inline void copy_bytes(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}
inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// Appends fields to its own buffer.
class STET_API ByteWriter {
 public:
  void u8(uint8_t value);
  void u16(uint16_t value);
  void u32(uint32_t value);
  void u64(uint64_t value);
  void f32(float value);  // the IEEE 754 bits, unchanged
  void bytes(std::span<const std::byte> value);
  void text(std::string_view value);  // the bytes, without length or terminator
  void zeros(size_t count);

  size_t size() const { return data_.size(); }
  const std::vector<std::byte>& data() const { return data_; }
  std::vector<std::byte> take() { return std::move(data_); }

 private:
  void integer(uint64_t value, size_t width);

  std::vector<std::byte> data_;
};

// Reads fields from the front of `data`, which must outlive it. Throws a format Error, naming
// `file` and the field, for a read past the end, and then consumes nothing.
class STET_API ByteReader {
 public:
  ByteReader(std::span<const std::byte> data, std::string file);

  uint8_t u8(std::string_view field);
  uint16_t u16(std::string_view field);
  uint32_t u32(std::string_view field);
  uint64_t u64(std::string_view field);
  float f32(std::string_view field);
  std::span<const std::byte> bytes(uint64_t count, std::string_view field);  // a view into `data`
  std::string text(uint64_t count, std::string_view field);
  void end(std::string_view field);  // throws unless everything was read

  size_t position() const { return position_; }
  size_t remaining() const { return data_.size() - position_; }
  const std::string& file() const { return file_; }

 private:
  uint64_t integer(size_t width, std::string_view field);

  std::span<const std::byte> data_;
  std::string file_;
  size_t position_ = 0;
};

}  // namespace stet

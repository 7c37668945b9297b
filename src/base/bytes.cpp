#include "stet/base/bytes.hpp"

#include <bit>
#include <utility>

#include "stet/base/error.hpp"

namespace stet {

void ByteWriter::integer(uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) data_.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void ByteWriter::u8(uint8_t value) { integer(value, 1); }
void ByteWriter::u16(uint16_t value) { integer(value, 2); }
void ByteWriter::u32(uint32_t value) { integer(value, 4); }
void ByteWriter::u64(uint64_t value) { integer(value, 8); }
void ByteWriter::f32(float value) { integer(std::bit_cast<uint32_t>(value), 4); }

void ByteWriter::bytes(std::span<const std::byte> value) {
  data_.insert(data_.end(), value.begin(), value.end());
}

void ByteWriter::text(std::string_view value) { bytes(std::as_bytes(std::span(value))); }

void ByteWriter::zeros(size_t count) { data_.resize(data_.size() + count); }

ByteReader::ByteReader(std::span<const std::byte> data, std::string file)
    : data_(data), file_(std::move(file)) {}

std::span<const std::byte> ByteReader::bytes(uint64_t count, std::string_view field) {
  if (count > remaining()) {
    throw Error(ErrorKind::format, file_, std::string(field),
                std::to_string(count) + (count == 1 ? " byte" : " bytes") + " at offset " +
                    std::to_string(position_),
                std::to_string(remaining()) + " before the end");
  }
  const auto view = data_.subspan(position_, static_cast<size_t>(count));
  position_ += view.size();
  return view;
}

uint64_t ByteReader::integer(size_t width, std::string_view field) {
  uint64_t value = 0;
  const auto view = bytes(width, field);
  for (size_t i = 0; i < width; ++i) value |= std::to_integer<uint64_t>(view[i]) << (8 * i);
  return value;
}

uint8_t ByteReader::u8(std::string_view field) { return static_cast<uint8_t>(integer(1, field)); }
uint16_t ByteReader::u16(std::string_view field) {
  return static_cast<uint16_t>(integer(2, field));
}
uint32_t ByteReader::u32(std::string_view field) {
  return static_cast<uint32_t>(integer(4, field));
}
uint64_t ByteReader::u64(std::string_view field) { return integer(8, field); }
float ByteReader::f32(std::string_view field) { return std::bit_cast<float>(u32(field)); }

std::string ByteReader::text(uint64_t count, std::string_view field) {
  const auto view = bytes(count, field);
  return std::string(reinterpret_cast<const char*>(view.data()), view.size());
}

void ByteReader::end(std::string_view field) {
  if (remaining() == 0) return;
  throw Error(ErrorKind::format, file_, std::string(field),
              "the end at offset " + std::to_string(position_),
              std::to_string(remaining()) + (remaining() == 1 ? " more byte" : " more bytes"));
}

}  // namespace stet

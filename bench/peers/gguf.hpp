// Files in the GGUF format, version 3, which llama.cpp reads (ggml/docs/gguf.md):
//
//   "GGUF" | u32 version | u64 tensors | u64 keys
//   keys: text key | u32 type | value;  text: u64 length, bytes;  array: u32 type of its elements,
//                                       u64 length, elements
//   tensors: text name | u32 dimensions | u64 each, innermost first | u32 type | u64 offset from
//   the start of the data data: begins at a multiple of 32, and so does each tensor
//
// All integers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stet/base/bytes.hpp"
#include "stet/files/file.hpp"

namespace stet_peers {

// How the elements of a row are stored, with the numbers that the format has for it.
//   q8_0: blocks of 32, float16 d = max|x| / 127, then 32 int8 round(x / d)
//   q4_0: blocks of 32, float16 d = m / -8 for the x of largest magnitude m, then 32 times min(15,
//   floor(x / d + 8.5))
//         in 4 bits: byte i has element i in its low half and element i + 16 in its high half
enum class Type : uint32_t { f32 = 0, q4_0 = 2, q8_0 = 8, bf16 = 30 };

constexpr size_t kBlock = 32;

size_t block_elements(Type type);                     // 1 or kBlock
uint64_t stored_bytes(Type type, uint64_t elements);  // of whole blocks
// Whole blocks of finite values, as they are stored.
std::vector<std::byte> encode(Type type, std::span<const float> values);

class Metadata {
 public:
  void u32(std::string_view key, uint64_t value);  // an argument Error beyond 32 bits
  void f32(std::string_view key, double value);
  void text(std::string_view key, std::string_view value);
  void texts(std::string_view key, const std::vector<std::string>& values);
  void booleans(std::string_view key, const std::vector<bool>& values);

  uint64_t count() const { return count_; }
  const std::vector<std::byte>& bytes() const { return bytes_.data(); }

 private:
  void key(std::string_view key, uint32_t type);
  void array(std::string_view key, uint32_t type, size_t length);

  stet::ByteWriter bytes_;
  uint64_t count_ = 0;
};

struct Declared {
  std::string name;
  Type type;
  std::vector<uint64_t> shape;  // outermost first, as a checkpoint has it

  uint64_t elements() const;
};

// Streams one file: all tensors are declared, then their rows follow in order.
class Writer {
 public:
  Writer(const std::string& path, const Metadata& metadata, const std::vector<Declared>& tensors);

  // The next elements of the tensor at hand, in whole blocks; the one after it is at hand once it
  // is complete.
  void write(std::span<const float> values);
  void commit();

 private:
  stet::AtomicFile file_;
  std::vector<Declared> tensors_;
  size_t at_ = 0;         // into tensors_
  uint64_t written_ = 0;  // elements of it
};

}  // namespace stet_peers

// Writes files in GGUF, version 3, as gguf.hpp describes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stet/base/bytes.hpp"
#include "stet/files/file.hpp"

namespace stet {

// Keys with their values, in the order in which they are added.
class GgufKeys {
 public:
  void u32(std::string_view key, uint64_t value);  // throws an argument Error beyond 32 bits
  void i32(std::string_view key, int64_t value);   // throws an argument Error, too
  void f32(std::string_view key, double value);
  void boolean(std::string_view key, bool value);
  void text(std::string_view key, std::string_view value);
  void texts(std::string_view key, const std::vector<std::string>& values);
  void booleans(std::string_view key, const std::vector<bool>& values);
  void i32s(std::string_view key, const std::vector<int32_t>& values);
  void f32s(std::string_view key, const std::vector<float>& values);

  uint64_t count() const { return count_; }
  const std::vector<std::byte>& bytes() const { return bytes_.data(); }

 private:
  void key(std::string_view key, uint32_t type);
  void array(std::string_view key, uint32_t type, size_t length);

  ByteWriter bytes_;
  uint64_t count_ = 0;
};

struct GgufDeclared {
  std::string name;
  uint32_t type;               // one of ggml_type()
  std::vector<int64_t> shape;  // outermost first, as in a checkpoint

  uint64_t elements() const;
  uint64_t bytes() const;
};

// Streams one file: declares all tensors, then takes their rows in order.
class GgufWriter {
 public:
  // Throws an unsupported Error if rows are not whole blocks of their type.
  GgufWriter(const std::string& path, const GgufKeys& keys,
             const std::vector<GgufDeclared>& tensors);

  // Appends elements to the current tensor, as its type stores them. A complete tensor makes the
  // next one current. Throws an argument Error for more elements than declared.
  void write(std::span<const std::byte> blocks);
  // Returns the path of the complete file before it is published under its name.
  std::string uncommitted() { return file_.uncommitted(); }
  // Throws an argument Error unless all tensors are complete.
  void commit();

 private:
  AtomicFile file_;
  std::vector<GgufDeclared> tensors_;
  size_t at_ = 0;         // into tensors_
  uint64_t written_ = 0;  // bytes of the current tensor
};

}  // namespace stet

// Parses GGUF files into keys with values, and tensors. Their grammar:
//
//   "GGUF" | u32 version | u64 tensors | u64 keys
//   key:    text | u32 type | value      text: u64 length, bytes
//           array: u32 type of its elements, u64 length, elements
//   tensor: text name | u32 dimensions | u64 each, the innermost first | u32 type | u64 offset
//   data    from the next multiple of general.alignment (32) on; offsets count from there
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "stet/files/file_source.hpp"

namespace stet {

struct GgufTensor {
  std::string name;
  uint32_t type = 0;
  std::vector<int64_t> shape;  // outermost first
  std::span<const std::byte> bytes;
};

class Gguf {
 public:
  // An array in place: arrays that are not read take no memory.
  struct Array {
    uint32_t type = 0;
    uint64_t count = 0;
    std::span<const std::byte> elements;
  };
  using Value = std::variant<uint64_t, int64_t, double, bool, std::span<const std::byte>, Array>;

  // Checks that the header is complete, and that tensors lie within the file without overlap.
  // Values are checked when they are read, since a file may have any values under keys unknown to
  // stet.
  static Gguf parse(std::shared_ptr<const FileBytes> file);

  bool has(const std::string& key) const { return values_.contains(key); }
  bool is_array(const std::string& key) const {
    const auto found = values_.find(key);
    return found != values_.end() && std::holds_alternative<Array>(found->second);
  }
  // Returns the keys that begin with `prefix`, in alphabetical order.
  std::vector<std::string> keys(const std::string& prefix) const;
  std::optional<std::string> text(const std::string& key) const;
  // Returns a value of any integer type. Throws a format Error if it is not in min..max.
  std::optional<int64_t> integer(const std::string& key, int64_t min, int64_t max) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  // Return null if the key is missing. The result lives as long as this object. Only one thread at
  // a time may call them.
  const std::vector<double>* numbers(const std::string& key) const;
  const std::vector<std::string>* texts(const std::string& key) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const std::string& path() const { return file_->path(); }
  const std::shared_ptr<const FileBytes>& file() const { return file_; }
  [[noreturn]] void fail(const std::string& field, const std::string& expected,
                         const std::string& found) const;

 private:
  std::shared_ptr<const FileBytes> file_;
  const Array* array(const std::string& key, const char* expected) const;

  std::map<std::string, Value> values_;
  mutable std::map<std::string, std::vector<double>> numbers_;  // arrays read so far
  mutable std::map<std::string, std::vector<std::string>> texts_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace stet

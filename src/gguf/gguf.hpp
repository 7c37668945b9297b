// What stands in a GGUF file: keys with values, and tensors.
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
  std::vector<int64_t> shape;  // the outermost first
  std::span<const std::byte> bytes;
};

class Gguf {
 public:
  using Value = std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<double>,
                             std::vector<std::string>>;

  // All of the header is checked, and that every tensor lies in the file, alone.
  static Gguf parse(std::shared_ptr<const FileBytes> file);

  bool has(const std::string& key) const { return values_.contains(key); }
  std::optional<std::string> text(const std::string& key) const;
  // Of whichever integer type; throws a format Error for one that is not in min..max.
  std::optional<int64_t> integer(const std::string& key, int64_t min, int64_t max) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  const std::vector<double>* numbers(const std::string& key) const;  // null: none
  const std::vector<std::string>* texts(const std::string& key) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const std::string& path() const { return file_->path(); }
  const std::shared_ptr<const FileBytes>& file() const { return file_; }
  [[noreturn]] void fail(const std::string& field, const std::string& expected,
                         const std::string& found) const;

 private:
  std::shared_ptr<const FileBytes> file_;
  std::map<std::string, Value> values_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace stet

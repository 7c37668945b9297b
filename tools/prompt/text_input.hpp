// Text of files and pipes in the encodings that other programs write.
#pragma once

#include <cstdint>
#include <string>

namespace stet::tool {

// Decodes bytes to UTF-8 as they arrive. Removes a byte order mark, and converts from UTF-16 if
// there is one for it. Other bytes stay unchanged.
class TextDecoder {
 public:
  explicit TextDecoder(std::string where) : where_(std::move(where)) {}

  // Appends to `text`. Throws a format Error that names the input for broken UTF-16 and for UTF-32.
  void add(char byte, std::string* text);
  // Appends the bytes that were held back as a possible byte order mark.
  void end(std::string* text);

 private:
  enum class Encoding { unknown, bytes, little, big };

  void add_unit(uint16_t unit, std::string* text);
  [[noreturn]] void fail(const std::string& found) const;

  std::string where_, held_;
  Encoding encoding_ = Encoding::unknown;
  uint16_t high_ = 0;  // the first half of a surrogate pair, or 0
};

// Returns a whole text, with \r\n converted to \n.
std::string as_text(std::string bytes, const std::string& where);

}  // namespace stet::tool

// Text of files and pipes, whichever program wrote it.
#pragma once

#include <cstdint>
#include <string>

namespace stet::tool {

// Turns bytes into UTF-8 as they come: without a byte order mark, and out of UTF-16 where one says
// so. Other bytes stay as they are.
class TextDecoder {
 public:
  explicit TextDecoder(std::string where) : where_(std::move(where)) {}

  // Throws a format Error, naming the input, for UTF-16 that is broken, and for UTF-32.
  void add(char byte, std::string* text);
  // Appends what was held back at the end of the input, in case it was no mark after all.
  void end(std::string* text);

 private:
  enum class Encoding { unknown, bytes, little, big };

  void add_unit(uint16_t unit, std::string* text);
  [[noreturn]] void fail(const std::string& found) const;

  std::string where_, held_;
  Encoding encoding_ = Encoding::unknown;
  uint16_t high_ = 0;  // the first half of a pair; 0: none
};

// A whole text, with \n at the end of lines that end in \r\n.
std::string as_text(std::string bytes, const std::string& where);

}  // namespace stet::tool

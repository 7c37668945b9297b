// Where tokens begin in the text that they make, counted in characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stet/text/tokenizer.hpp"

namespace stet::serve {

// How many characters a well-formed text has.
size_t characters(std::string_view text);

// Tokens that share a character, or whose bytes form none, wait until their text is certain, so
// that offsets do not depend on how a reply was cut into pieces.
class TextOffsets {
 public:
  explicit TextOffsets(const Tokenizer* tokenizer);  // null: there is no text

  // Takes in the next token. Returns the offsets that are certain by now, in the order of the
  // tokens.
  std::vector<size_t> push(int32_t id);
  // Returns all others. The next token begins a text of its own, which `at` characters precede.
  std::vector<size_t> finish(size_t at = 0);

 private:
  std::vector<size_t> settle();

  const Tokenizer* tokenizer_;
  std::optional<TextStream> stream_;
  size_t at_ = 0;                     // characters before the tokens that wait
  std::string text_;                  // of those
  std::vector<std::string> waiting_;  // their bytes
};

}  // namespace stet::serve

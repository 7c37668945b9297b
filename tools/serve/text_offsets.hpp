// The offsets of tokens in their text, counted in characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stet/text/tokenizer.hpp"

namespace stet::serve {

// Returns the number of characters of a well-formed text.
size_t characters(std::string_view text);

// Computes offsets. Tokens that share a character, or whose bytes form none, wait until their text
// is certain. So offsets do not depend on the pieces in which a reply comes.
class TextOffsets {
 public:
  explicit TextOffsets(const Tokenizer* tokenizer);  // null if there is no text

  // Adds the next token. Returns the offsets that have become certain, in the order of the tokens.
  std::vector<size_t> push(int32_t id);
  // Returns the offsets of all waiting tokens. The next token begins a new text after `at`
  // characters.
  std::vector<size_t> finish(size_t at = 0);

 private:
  std::vector<size_t> settle();

  const Tokenizer* tokenizer_;
  std::optional<TextStream> stream_;
  size_t at_ = 0;                     // characters before the waiting tokens
  std::string text_;                  // text of the waiting tokens
  std::vector<std::string> waiting_;  // the bytes of each
};

}  // namespace stet::serve

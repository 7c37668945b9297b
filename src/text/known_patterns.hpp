// Matches the patterns of byte-level tokenizers without a regular expression engine: those of
// GPT-2, of Llama 3, of Qwen 2 to 3, and one character of a class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "src/text/unicode_classes.hpp"

namespace stet {

struct KnownPattern {
  enum class Kind {
    character,  // one of `members`
    // Radford et al. 2019: a space may precede letters, numbers and others.
    gpt2,
    // tiktoken's pattern of that name, and Llama 3's. Any character except CR and LF may precede
    // letters. Numbers take no space. Line ends join the punctuation before them.
    cl100k
  };
  enum class Case { kept, ascii, unicode };  // for contractions 's 't 're 've 'm 'll 'd

  Kind kind;
  CharClass members = CharClass::other;
  Case contractions = Case::kept;
  size_t most_numbers = SIZE_MAX;  // in one match

  // Returns the pattern with this spelling in Oniguruma's syntax, if it is a known one.
  static std::optional<KnownPattern> of(std::string_view source);

  // Returns the end of the match at `at`, which must begin a character, or `at` if nothing matches.
  // The text must be valid UTF-8. Consecutive matches read every character only a few times.
  size_t match(std::string_view text, size_t at) const;
};

}  // namespace stet

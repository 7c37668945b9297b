// The patterns that byte-level tokenizers split a text by, matched without a regular expression:
// those of GPT-2, of Llama 3, of Qwen 2 to 3, and one character of a class.
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
    gpt2,       // Radford et al. 2019: a space may stand before letters, numbers and the rest
    cl100k      // tiktoken's of that name, and Llama 3's: before letters may stand anything but CR
                // and LF, which end what they follow; no space before numbers
  };
  enum class Case { kept, ascii, unicode };  // of the contractions 's 't 're 've 'm 'll 'd

  Kind kind;
  CharClass members = CharClass::other;
  Case contractions = Case::kept;
  size_t most_numbers = SIZE_MAX;  // in one match

  // The pattern of this spelling in Oniguruma's syntax, if it is one of these.
  static std::optional<KnownPattern> of(std::string_view source);

  // The end of the match that begins at `at`, where a character of the text begins; `at` where
  // none does. The text is valid UTF-8. Matches that follow each other look at every character
  // at most a few times.
  size_t match(std::string_view text, size_t at) const;
};

}  // namespace stet

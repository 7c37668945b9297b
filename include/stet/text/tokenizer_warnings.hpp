// Warnings about tokenizers that probably do not work as intended.
#pragma once

#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/text/tokenizer.hpp"

namespace stet {

// Returns one line per warning. Warns about tokens of the chat templates that the vocabulary has
// only as ordinary pieces, so that they are split into letters. Also warns about a GGUF file that
// does not say how text is split.
STET_API std::vector<std::string> tokenizer_warnings(const Tokenizer& tokenizer);

}  // namespace stet

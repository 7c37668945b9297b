// What a tokenizer does that its makers hardly meant.
#pragma once

#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/text/tokenizer.hpp"

namespace stet {

// A line for each: marks of the chat templates that the vocabulary has as ordinary pieces, so that
// they are split into letters; and a GGUF file that does not say how text is split.
STET_API std::vector<std::string> tokenizer_warnings(const Tokenizer& tokenizer);

}  // namespace stet

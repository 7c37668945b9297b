// Converts the tokenizer in a GGUF file to the files that it was published as.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/gguf/gguf.hpp"

namespace stet {

// Returns tokenizer.json or tokenizer.model, and tokenizer_config.json; nothing if the file has no
// tokenizer. `pre` names rules that override tokenizer.ggml.pre. Throws an unsupported Error for an
// unknown tokenizer model or pre-tokenizer.
std::vector<std::pair<std::string, std::string>> vocabulary_files(const Gguf& keys,
                                                                  int64_t vocab_size,
                                                                  const std::string& pre = "");

}  // namespace stet

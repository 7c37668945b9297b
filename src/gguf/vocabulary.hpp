// The tokenizer in a GGUF file, as the files that it was published in.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/gguf/gguf.hpp"

namespace stet {

// tokenizer.json or tokenizer.model, and tokenizer_config.json; none for a file without a
// tokenizer. `pre` names rules that go before those of tokenizer.ggml.pre. Throws an unsupported
// Error for a model or a pre-tokenizer that stet does not know.
std::vector<std::pair<std::string, std::string>> vocabulary_files(const Gguf& keys,
                                                                  int64_t vocab_size,
                                                                  const std::string& pre = "");

}  // namespace stet

// Adds the keys that write_gguf() writes beside the weights.
#pragma once

#include <string>

#include "src/gguf/names.hpp"
#include "src/gguf/writer.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/files/file_source.hpp"

namespace stet {

// Adds the keys of a config, as llama.cpp reads them.
void add_config_keys(const ModelConfig& config, const GgufArchitecture& architecture,
                     GgufKeys& keys);
// Adds the keys of the tokenizer and of the tokens that end a reply. Without a tokenizer, says that
// there is none.
GgufLeftOut add_tokenizer_keys(const FileSource& source, const GenerationConfig& generation,
                               int64_t vocab_size, GgufTokenizer which, GgufKeys& keys);

}  // namespace stet

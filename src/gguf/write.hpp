// What write_gguf() writes beside the weights.
#pragma once

#include <string>

#include "src/gguf/names.hpp"
#include "src/gguf/writer.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/files/file_source.hpp"

namespace stet {

// The keys of a config, as llama.cpp reads them.
void add_config_keys(const ModelConfig& config, const GgufArchitecture& architecture,
                     GgufKeys& keys);
// Those of the tokenizer, and which tokens end a reply; without one, that there is none.
void add_tokenizer_keys(const FileSource& source, const GenerationConfig& generation,
                        int64_t vocab_size, GgufTokenizer which, GgufKeys& keys);

}  // namespace stet

// Checkpoints in GGUF, the files that llama.cpp reads (ggml's docs/gguf.md), version 2 and 3.
#pragma once

#include <memory>
#include <string>

#include "stet/api.h"
#include "stet/files/file_source.hpp"

namespace stet {

// The file as a checkpoint directory would have it: config.json, generation_config.json, weights as
// safetensors with their published names and order, and the tokenizer's files. Weights of float
// types are passed on, others widened to float32, exactly. A file that is split is read with its
// other parts beside it. Throws Error: io, format for what is not as the format says, unsupported
// for architectures, types, vocabularies and pre-tokenizers that stet does not know.
STET_API std::shared_ptr<const FileSource> gguf_source(const std::string& path, bool map = true);

// A directory, or a file whose name ends with ".gguf".
STET_API std::shared_ptr<const FileSource> checkpoint_source(const std::string& path,
                                                             bool map = true);

}  // namespace stet

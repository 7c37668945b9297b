// Checkpoints in GGUF, the files that llama.cpp reads (ggml's docs/gguf.md), version 2 and 3.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/files/file_source.hpp"
#include "stet/model/importance.hpp"

namespace stet {

// Opens the file as the files of a checkpoint: itself, which Checkpoint reads, and config.json,
// generation_config.json and the tokenizer's files, which say what its keys say. A file that is
// split is read with its other parts beside it. Throws Error: io; format for what is not as the
// format says; unsupported for an architecture that stet does not know. A vocabulary that is not as it should be, or
// of a kind or with a pre-tokenizer that stet does not know, is refused by Tokenizer::load() alone:
// weights need none. `pre` names a pre-tokenizer in place of tokenizer.ggml.pre, one of
// pre_tokenizer_names(); what is wrong with it is an error here.
STET_API std::shared_ptr<const FileSource> gguf_source(const std::string& path, bool map = true,
                                                       const std::string& pre = "");

// A directory, or a GGUF file. Throws an Error for another path that says what is there: a name on
// the Hugging Face Hub, one file of a checkpoint, a pointer, another format. Throws an argument
// Error for a directory with `pre`.
STET_API std::shared_ptr<const FileSource> checkpoint_source(const std::string& path,
                                                             bool map = true,
                                                             const std::string& pre = "");

// The names of tokenizer.ggml.pre that stet knows.
STET_API std::vector<std::string> pre_tokenizer_names();

// The types that write_gguf() writes matrices in. `stored` keeps f32, bf16 and f16 as they are,
// turns packed q8 and q4 weights into Q8_0 and Q4_0 without loss, and widens the quantized types of
// a GGUF file. The others round as ggml's reference does (kernels/ggml.hpp); with q4_0, embeddings
// and head are q8_0, with K types q6_k, and matrices whose columns are no multiple of 256 q8_0.
// Norm weights, biases and learned positions are float32 always.
enum class GgufWeights { stored, f32, f16, bf16, q8_0, q4_0, q4_k, q5_k, q6_k };

// own: the checkpoint's, where it has one. made_up: tokens for bytes and then anything, for
// programs that want a vocabulary and are given ids.
enum class GgufTokenizer { own, none, made_up };

struct GgufWriteOptions {
  GgufWeights weights = GgufWeights::stored;
  GgufTokenizer tokenizer = GgufTokenizer::own;
  int threads = 0;
  const Importance* importance = nullptr;  // not owned; what K types weigh their errors by
};

// Writes a checkpoint as GGUF, version 3, which llama.cpp reads and computes alike: weights, the
// config's keys, the tokenizer with its chat template, and in keys of our own what those leave out.
// The file appears when it is whole (AtomicFile), after it was opened and its config and tokenizer
// were found to be those that were written; it may replace the file that is read. A tensor at a
// time is in memory. Throws Error: io; unsupported for a family, a config or a tokenizer that such
// a file cannot say, and for weights that have no place in the type.
STET_API void write_gguf(const FileSource& source, const std::string& path,
                         const GgufWriteOptions& options = {});

}  // namespace stet

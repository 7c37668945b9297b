// Checkpoints in GGUF, llama.cpp's file format (ggml's docs/gguf.md), versions 2 and 3.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/files/file_source.hpp"
#include "stet/model/importance.hpp"

namespace stet {

// Opens a GGUF file as the files of a checkpoint. These are the file itself, which Checkpoint
// reads, and config.json, generation_config.json and tokenizer files made from its keys. The other
// parts of a split file are expected beside it. `pre`, one of pre_tokenizer_names(), overrides
// tokenizer.ggml.pre.
//
// Throws an io Error, a format Error for a malformed file, and an unsupported Error for an unknown
// architecture. Only Tokenizer::load() rejects an invalid or unknown vocabulary or pre-tokenizer,
// because weights need none; but an invalid `pre` is an error here.
STET_API std::shared_ptr<const FileSource> gguf_source(const std::string& path, bool map = true,
                                                       const std::string& pre = "");

// Opens a directory or a GGUF file. Throws an Error that explains any other path: a name on the
// Hugging Face Hub, one file of a checkpoint, an LFS pointer, another format. Throws an argument
// Error for a directory with `pre`.
STET_API std::shared_ptr<const FileSource> checkpoint_source(const std::string& path,
                                                             bool map = true,
                                                             const std::string& pre = "");

// Returns the supported values of tokenizer.ggml.pre.
STET_API std::vector<std::string> pre_tokenizer_names();

// Matrix types for write_gguf(). `stored` loses nothing: it keeps the type of a matrix. Packed q8 and
// q4 become Q8_0 and Q4_0, and experts of different types become f32. The others round as ggml's
// reference does (kernels/ggml.hpp).
//
// Embeddings and head are q8_0 with q4_0, and q6_k with K types. With K types, matrices whose
// columns are not a multiple of 256 are q8_0. Those whose columns are not a multiple of 32 are f16.
// Norm weights, biases and learned positions are always float32.
//
// mxfp4 is for the matrices of experts; others are as with `stored`. It is refused for a model without
// experts.
enum class GgufWeights { stored, f32, f16, bf16, q8_0, q4_0, q4_k, q5_k, q6_k, mxfp4 };

// The tokenizer to write. own: the checkpoint's, if it has one. placeholder: placeholder tokens, for
// programs that require a vocabulary but are given ids.
enum class GgufTokenizer { own, none, placeholder };

// Options of write_gguf().
struct GgufWriteOptions {
  GgufWeights weights = GgufWeights::stored;
  GgufTokenizer tokenizer = GgufTokenizer::own;
  int threads = 0;
  const Importance* importance = nullptr;  // not owned; weights the errors of K types
};

// The parts of a model that llama.cpp does not know.
struct GgufLeftOut {
  // Tokens for which the model has no embeddings. Gemma 3 models for text alone have one, since they
  // share the tokenizer of those for images.
  std::vector<std::string> tokens;
  int64_t window = 0;  // a query sees so many positions, but all of them in llama.cpp; 0: none
};

// Writes a checkpoint as a GGUF version 3 file of the same model for llama.cpp. It contains the
// weights, the config, the tokenizer with its chat template and, under keys of stet, everything
// that standard GGUF keys cannot express.
//
// The file appears when complete (AtomicFile), after reading it back has given the same config and
// tokenizer. It may replace the source file. Only one tensor at a time is in memory. Throws an io
// Error. Throws an unsupported Error for a family, config or tokenizer that GGUF cannot express. It
// does so for a model that llama.cpp does not load, and for weights that the type cannot represent.
STET_API GgufLeftOut write_gguf(const FileSource& source, const std::string& path,
                                const GgufWriteOptions& options = {});

}  // namespace stet

// Checkpoints whose weights stand in the file as the kernels read them: mapped and used in place,
// ready in milliseconds, shared by all processes that map the same file. docs/packed-format.md
// describes them.
//
// packed.safetensors is a safetensors file beside the usual config.json and tokenizer files:
//   - each matrix is a tensor of U8 that begins at a multiple of 4096 of the file and holds the
//     bytes of Matrix, padded with zeros to a multiple of 4096. Matrices that are multiplied with
//     the same inputs are stacked into one, whose name is theirs, joined by "+".
//   - norm weights and biases are as in the checkpoint that was packed.
//   - metadata: "format" "stet packed weights", "version" "1", "contract" (what it is for: "f32"
//     for weights as they were, "q8", "q4", "ggml" for types of each tensor's own), "matrix:NAME"
//     "TYPE ROWS COLUMNS DIGEST" for each matrix, the digest being that of the packed bytes,
//     "vector:NAME" the digest of each norm weight or bias, and "fingerprint:GROUP" the name of a
//     group of the original weights (Model::fingerprints). Other entries are ignored.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "stet/api.h"
#include "stet/files/file_source.hpp"
#include "stet/model/importance.hpp"
#include "stet/model/ops.hpp"

namespace stet {

// Packs the checkpoint of `source`: for `contract` q8 or q4 its weights are rounded, otherwise they
// stay what they are; blocks of ggml for the contract ggml alone, for others they are widened.
// `directory` is made (its parent must be there), or must be empty; it gets config.json last, so
// that one which has it is complete. Beside the matrix at hand, nothing is held in memory.
// `written` counts the bytes of packed weights meanwhile, where it is not null. `blocks`: see
// Model::pack(). Throws Error, and takes away what it made, when something fails.
STET_API void pack_checkpoint(const FileSource& source, Contract contract,
                              const std::string& directory, int threads = 0,
                              std::atomic<uint64_t>* written = nullptr,
                              std::optional<BlockRounding> blocks = std::nullopt);
// Throws the Error that pack_checkpoint() would throw for a directory that cannot be made and is
// not empty, for those who have something to compute before.
STET_API void check_pack_directory(const std::string& directory);

// The contract that a checkpoint's weights are for: f32, unless they are packed for another, or
// ggml where they are in blocks, as in GGUF files of quantized types. Reads no weights.
STET_API Contract contract_of_weights(const FileSource& source);

// Compares all matrices and vectors of a packed checkpoint with their digests. Throws a format
// Error that names the first that is not what it was. Returns the bytes that were compared.
STET_API size_t check_packed(const FileSource& source, int threads = 0);

}  // namespace stet

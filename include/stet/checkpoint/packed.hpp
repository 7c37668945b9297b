// Packed checkpoints, whose weights are stored as the kernels read them. They are mapped and used
// in place, ready in milliseconds, and shared by all processes. docs/formats.md describes
// them.
//
// packed.safetensors is a safetensors file beside the usual config.json and tokenizer files:
//   - Each matrix is a U8 tensor at a multiple of 4096 of the file. It holds the bytes of Matrix,
//     padded with zeros to a multiple of 4096. Matrices with the same inputs are stacked into one,
//     whose name joins theirs by "+".
//   - Norm weights and biases are as in the source checkpoint.
//
// Metadata, by key (other entries are ignored):
//   format             "stet packed weights"
//   version            "1"
//   contract           "f32" (unchanged weights), "q8", "q4", or "ggml" (a type per tensor)
//   matrix:NAME        "TYPE ROWS COLUMNS DIGEST": the digest is that of the packed bytes
//   vector:NAME        the digest of a norm weight or bias
//   fingerprint:GROUP  the fingerprint of a group of the original weights
//                      (Model::fingerprints)
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

// Packs a checkpoint into `directory`, which must be empty, or is created in an existing parent. q8
// and q4 round the weights; other contracts keep them, except that ggml blocks are widened unless
// `contract` is ggml. `blocks`: see Model::pack().
//
// config.json is written last, so a directory that contains it is complete. Only one matrix at a
// time is in memory. `written`, if not null, counts the bytes of packed weights meanwhile. On
// failure, throws Error and removes its files.
STET_API void pack_checkpoint(const FileSource& source, Contract contract,
                              const std::string& directory, int threads = 0,
                              std::atomic<uint64_t>* written = nullptr,
                              std::optional<BlockRounding> blocks = std::nullopt);
// Throws the Error that pack_checkpoint() would throw for an unsuitable directory. Call it before
// expensive work.
STET_API void check_pack_directory(const std::string& directory);

// Returns the contract that the weights are for: that of a packed checkpoint, ggml for blocks of
// GGUF files, otherwise f32. Reads no weights.
STET_API Contract contract_of_weights(const FileSource& source);

// Compares all matrices and vectors of a packed checkpoint with their digests. Returns the number
// of bytes compared. Throws a format Error that names the first damaged one.
STET_API size_t check_packed(const FileSource& source, int threads = 0);

}  // namespace stet

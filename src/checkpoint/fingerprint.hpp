// What a model's weights are named by, whatever file they came from:
//
//   leaf    of 16 rows of a tensor, as the published checkpoint has it (a vector is one row): u8
//           type and XXH3-128 of the values in that type, the first of bfloat16 (0), float16 (1)
//           and float32 (2) that holds all of them exactly
//   tensor  SHA-256 of its leaves in order
//   group   SHA-256 of "stet tensors 1\n" and of each tensor's line "NAME SHAPE\n" and hash, by
//           name: the name that Hugging Face's checkpoints use, without the prefix that differs
//           between them ("model.", ...)
//   config  SHA-256 of ModelConfig::canonical()
//   model   SHA-256 of "stet model 1\n" and of each group's line "GROUP\n" and hash, in the order
//           of Model::fingerprints(), config
//
// Leaves are not cryptographic, since SHA-256 of all weights would take longer than loading them:
// whoever can forge weights can forge their name (docs/security.md).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/base/digest.hpp"
#include "stet/base/sha256.hpp"
#include "stet/files/tensor.hpp"
#include "stet/threads/team.hpp"

namespace stet {

struct WeightLeaf {
  uint8_t type;  // 0: bfloat16, 1: float16, 2: float32
  Digest digest;
};

// The hashes of matrices, slab by slab of 16 rows, those of one matrix after those of the one
// before. Blocks of ggml count as the float32 that its reference makes of them.
class MatrixDigester {
 public:
  // The views stay what they are until all slabs were added.
  explicit MatrixDigester(const std::vector<const TensorView*>& matrices);
  size_t slabs() const { return leaves_.size(); }
  // By any number of threads, in any order, each slab once.
  void add(Range slabs);
  // Returns the hash of each matrix, once all slabs were added.
  std::vector<Sha256> result() const;

 private:
  std::vector<const TensorView*> matrices_;
  std::vector<size_t> first_;  // slab of each matrix, then their number
  std::vector<WeightLeaf> leaves_;
};

Sha256 digest_matrix(const TensorView& tensor, int threads);
Sha256 digest_vector(const TensorView& tensor);

// The tensors that a model is made of, by group, while it is loaded.
class WeightFingerprints {
 public:
  // Pairs of a group, or "config" or "model", and the text of its hash.
  using Names = std::vector<std::pair<std::string, std::string>>;

  // A group without a tensor has a name, too.
  void add_group(const std::string& group) { groups_[group]; }
  // `name` is the tensor's name without the checkpoint's prefix.
  void add(const std::string& group, const std::string& name, const TensorView& tensor,
           const Sha256& hash);

  // Of each group that was added.
  Names fingerprints() const;

 private:
  struct Entry {
    std::string shape;
    Sha256 hash;
  };
  std::map<std::string, std::map<std::string, Entry>> groups_;
};

// Returns `groups` with the fingerprints of the config and of the model put behind them.
WeightFingerprints::Names with_model_fingerprint(WeightFingerprints::Names groups,
                                                 const std::string& config);

}  // namespace stet

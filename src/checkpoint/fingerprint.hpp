// Fingerprints of a model's weights, which do not depend on the file format they came in:
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
// Leaves are not cryptographic hashes, since SHA-256 of all weights would take longer than loading
// them. An attacker who can forge weights can therefore forge their fingerprint (docs/security.md).
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

// Hashes several matrices in slabs of 16 rows; slabs are numbered through all matrices. Blocks of
// ggml count as the float32 values that ggml's reference decodes them to.
class MatrixDigester {
 public:
  // The views must stay valid and unchanged until all slabs are added.
  explicit MatrixDigester(const std::vector<const TensorView*>& matrices);
  size_t slabs() const { return leaves_.size(); }
  // Digests some slabs. Any number of threads may call it, in any order, each slab once.
  void add(Range slabs);
  // Returns the hash of each matrix. All slabs must have been added.
  std::vector<Sha256> result() const;

 private:
  std::vector<const TensorView*> matrices_;
  std::vector<size_t> first_;  // first slab of each matrix, then the number of slabs
  std::vector<WeightLeaf> leaves_;
};

Sha256 digest_matrix(const TensorView& tensor, int threads);
Sha256 digest_vector(const TensorView& tensor);

// Collects the hashes of a model's tensors by group while the model is loaded.
class WeightFingerprints {
 public:
  // Pairs of a group's name (or "config" or "model") and the text of its hash.
  using Names = std::vector<std::pair<std::string, std::string>>;

  // Adds a group, so that it has a fingerprint even without a tensor.
  void add_group(const std::string& group) { groups_[group]; }
  // Adds a tensor; `name` lacks the checkpoint's prefix.
  void add(const std::string& group, const std::string& name, const TensorView& tensor,
           const Sha256& hash);

  // Returns the fingerprint of each group that was added.
  Names fingerprints() const;

 private:
  struct Entry {
    std::string shape;
    Sha256 hash;
  };
  std::map<std::string, std::map<std::string, Entry>> groups_;
};

// Returns `groups` followed by the fingerprints of the config and of the model.
WeightFingerprints::Names with_model_fingerprint(WeightFingerprints::Names groups,
                                                 const std::string& config);

}  // namespace stet

// Packs tensors of a checkpoint into the matrices that the kernels read.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/quantize.hpp"
#include "src/checkpoint/fingerprint.hpp"
#include "stet/checkpoint/checkpoint.hpp"
#include "stet/model/contract.hpp"
#include "stet/model/importance.hpp"
#include "stet/model/weight_loader.hpp"

namespace stet {

// Checks shapes and types of tensors, packs them, rounds them where the contract asks for it, and
// fingerprints them.
class WeightPacker {
 public:
  // `blocks` is as in ModelWeights. Each tensor's hash is added to `fingerprints`.
  WeightPacker(const Checkpoint& checkpoint, Contract contract, int threads,
               std::optional<BlockRounding> blocks, WeightFingerprints& fingerprints)
      : checkpoint_(checkpoint),
        contract_(contract),
        threads_(threads),
        blocks_(blocks),
        fingerprints_(fingerprints) {}

  // Checks and packs a matrix. Writes it to `place` (see Matrix) unless that is null or weights are
  // rounded. Widens tensors to float32 if their types differ, or if `wide`. Throws a format, mismatch
  // or unsupported Error that names the tensor, or the weight in it.
  Matrix pack(const WeightLoader::MatrixRequest& request, std::byte* place = nullptr,
              bool wide = false) const;

 private:
  using Views = std::vector<const TensorView*>;

  // Returns true if the matrix is rounded to blocks. To mxfp4 only those of experts are.
  bool rounds(const WeightLoader::MatrixRequest& request) const;
  Matrix pack_experts(const WeightLoader::MatrixRequest& request) const;
  Matrix pack_rounded(const WeightLoader::MatrixRequest& request, const Views& views) const;
  // Packs the tensors from `first` to `end` into one matrix.
  Matrix of_one_type(const WeightLoader::MatrixRequest& request, const Views& views, size_t first,
                     size_t end, std::byte* place, bool wide_all) const;
  // Throws an unsupported Error for a block of MXFP4 that holds infinite weights.
  void refuse_infinite(const TensorView& tensor) const;
  // Any number of threads may call it at once.
  void add_fingerprint(const std::string& group, const std::string& name, const TensorView& tensor,
                       const Sha256& hash) const;
  [[noreturn]] void refuse(const WeightError& e, const WeightLoader::MatrixRequest& request) const;

  const Checkpoint& checkpoint_;
  Contract contract_;
  int threads_;
  std::optional<BlockRounding> blocks_;
  WeightFingerprints& fingerprints_;
  mutable std::mutex fingerprints_mutex_;  // guards fingerprints_
};

// Returns the type that the contract rounds a matrix to, or nothing.
std::optional<WeightType> rounded_type(Contract contract,
                                       const WeightLoader::MatrixRequest& request);

// Returns the name of a matrix in a packed file: the names of its tensors from `first` to `end` -
// 1, joined by "+".
std::string joined_names(const WeightLoader::MatrixRequest& request, size_t first, size_t end);

}  // namespace stet

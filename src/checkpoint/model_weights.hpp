// Weights out of the tensors of a checkpoint, for a model or for a packed file; or their names
// alone.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/checkpoint/checkpoint.hpp"
#include "stet/model/contract.hpp"
#include "stet/model/importance.hpp"
#include "stet/model/model.hpp"
#include "stet/model/weight_loader.hpp"

namespace stet {

class PackedWriter;
class WeightFingerprints;
class WeightPacker;

// The weights of a model: packed from tensors, or those of a packed file in place.
class ModelWeights : public WeightLoader {
 public:
  // `blocks`: for the contract ggml, what matrices are rounded to; embeddings and head to q6_k,
  // those whose columns are no multiple of 256 to q8_0.
  ModelWeights(const Checkpoint& checkpoint, std::string prefix, Contract contract, int threads,
               std::optional<BlockRounding> blocks = std::nullopt);
  ~ModelWeights() override;

  void finish(Model& model) override;

 protected:
  bool has(const std::string& tensor) const override;
  Matrix load(const MatrixRequest& request) override;
  Vector load(const VectorRequest& request) override;

  // Both decide what becomes of a weight: a model keeps the bytes and shows them by name.
  virtual Matrix keep(const MatrixRequest& request, Matrix matrix);
  virtual void keep(const VectorRequest& request, const TensorView& stored, const Vector& vector);
  // Returns the names of the weights as they were before they were packed or rounded.
  const WeightFingerprints& fingerprints() const { return *fingerprints_; }

  // The contract of packed weights, whatever was asked for.
  const Contract contract_;

 private:
  Matrix packed(const MatrixRequest& request) const;
  void note_types(const MatrixRequest& request, const Matrix& matrix);
  void note_loaded(const MatrixRequest& request, const Matrix& matrix);
  void name(Model& model) const;

  const Checkpoint& checkpoint_;
  std::unique_ptr<WeightFingerprints> fingerprints_;
  std::unique_ptr<WeightPacker> packer_;
  size_t bytes_ = 0;
  std::vector<std::span<const std::byte>> matrices_;  // of linear layers
  std::vector<std::span<const std::byte>> expert_matrices_;
  std::vector<std::pair<std::string, WeightType>> types_;  // of their tensors, by canonical name
  std::string not_bf16_, its_type_;                        // the first matrix of another type
  std::vector<LoadedWeight> loaded_;
};

// Writes the same weights into a file. The model that asks for them is thrown away.
class WrittenWeights : public ModelWeights {
 public:
  WrittenWeights(const Checkpoint& checkpoint, std::string prefix, Contract contract, int threads,
                 std::optional<BlockRounding> blocks, PackedWriter& writer)
      : ModelWeights(checkpoint, std::move(prefix), contract, threads, blocks), writer_(writer) {}

  void finish(Model& model) override;

 private:
  Matrix keep(const MatrixRequest& request, Matrix matrix) override;
  void keep(const VectorRequest& request, const TensorView& stored, const Vector& vector) override;

  PackedWriter& writer_;
};

// Loads nothing, and notes what a family asks for, in that order. Names and shapes are checked.
class WeightNeeds : public WeightLoader {
 public:
  WeightNeeds(const Checkpoint& checkpoint, std::string prefix)
      : WeightLoader(std::move(prefix)), checkpoint_(checkpoint) {}

  void finish(Model&) override {}
  std::vector<WeightNeed> take() { return std::move(needs_); }

 private:
  bool has(const std::string& tensor) const override;
  Matrix load(const MatrixRequest& request) override;
  Vector load(const VectorRequest& request) override;

  const Checkpoint& checkpoint_;
  std::vector<WeightNeed> needs_;
};

}  // namespace stet

// Loaders of a checkpoint's tensors. They make the weights of a model or of a packed file, or list
// the tensors that are needed.
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

struct MappedTable;
class PackedWriter;
class WeightFingerprints;
class WeightPacker;

// Loads the weights of a model: packs tensors, or uses those of a packed file in place.
class ModelWeights : public WeightLoader {
 public:
  // `blocks` says what the contract ggml rounds matrices to, as for Model::pack.
  ModelWeights(const Checkpoint& checkpoint, std::string prefix, Contract contract, int threads,
               std::optional<BlockRounding> blocks = std::nullopt);
  ~ModelWeights() override;

  void finish(Model& model) override;
  // Returns the table that the model looks up in a mapped file; null if it has none.
  std::unique_ptr<const MappedTable> take_mapped_table();

 protected:
  bool has(const std::string& tensor) const override;
  Matrix load(const MatrixRequest& request) override;
  Vector load(const VectorRequest& request) override;

  // The two keep() functions decide what happens to a loaded weight. Here they keep its bytes for
  // the model and record its name.
  virtual Matrix keep(const MatrixRequest& request, Matrix matrix);
  virtual void keep(const VectorRequest& request, const TensorView& stored, const Vector& vector);
  // Returns the fingerprints of the weights before packing or rounding.
  const WeightFingerprints& fingerprints() const { return *fingerprints_; }

  // The contract in force. For packed weights it is the file's, whichever was requested.
  const Contract contract_;

 private:
  Matrix packed(const MatrixRequest& request) const;
  Matrix in_place(const MatrixRequest& request);
  void note_types(const MatrixRequest& request, const Matrix& matrix);
  void note_loaded(const MatrixRequest& request, const Matrix& matrix);
  void name(Model& model) const;

  const Checkpoint& checkpoint_;
  const int threads_;
  std::unique_ptr<WeightFingerprints> fingerprints_;
  std::unique_ptr<WeightPacker> packer_;
  size_t bytes_ = 0;
  std::vector<std::span<const std::byte>> matrices_;  // matrices of linear layers
  std::vector<std::span<const std::byte>> expert_matrices_;
  std::vector<std::pair<std::string, WeightType>> types_;  // (canonical tensor name, type)
  std::unique_ptr<const MappedTable> mapped_table_;
  std::string not_bf16_, its_type_;  // name and type of the first matrix that is not bf16
  std::vector<LoadedWeight> loaded_;
};

// Writes the weights to a packed file. The model that is built meanwhile is discarded.
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

// Records which tensors a family asks for, in order, and loads nothing. Checks names and shapes.
class WeightNeeds : public WeightLoader {
 public:
  WeightNeeds(const Checkpoint& checkpoint, std::string prefix)
      : WeightLoader(std::move(prefix)), checkpoint_(checkpoint) {}

  void finish(Model&) override {}
  std::vector<WeightSpec> take() { return std::move(needs_); }

 private:
  bool has(const std::string& tensor) const override;
  Matrix load(const MatrixRequest& request) override;
  Vector load(const VectorRequest& request) override;

  const Checkpoint& checkpoint_;
  std::vector<WeightSpec> needs_;
};

}  // namespace stet

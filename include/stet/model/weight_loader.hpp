// How a family gets its weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/checkpoint/safetensors.hpp"
#include "stet/model/contract.hpp"
#include "stet/model/rows.hpp"

namespace stet {

class Model;
class PackedWriter;
class WeightFingerprints;
struct WeightError;

// Takes tensors out of a checkpoint by name, checks their shapes, packs them, and digests them on
// the way; or finds them packed. Matrices are rounded where the contract asks for it.
class STET_API WeightLoader {
 public:
  // With a writer, what is loaded goes there instead of into the model, which can then only be
  // thrown away.
  WeightLoader(const Checkpoint& checkpoint, std::string prefix, Contract contract, int threads,
               PackedWriter* writer = nullptr);

  ~WeightLoader();

  // For the contract ggml: matrices are rounded to these blocks, q4_k, q5_k or q6_k; embeddings and
  // head to q6_k; those whose columns are no multiple of 256 to q8_0.
  void round_to(DType type) { round_to_ = type; }

  struct Part {
    std::string name;
    int64_t rows;
  };
  // Tensors [rows][columns] stacked into one matrix. All must share a dtype.
  Matrix matrix(const std::string& group, const std::vector<Part>& parts, int64_t columns);
  // The same for one that is looked up and never multiplied: it keeps its numbers.
  Matrix table(const std::string& group, const Part& part, int64_t columns);
  // lm_head.weight, which stands outside the prefix's last "model.": [vocab][hidden].
  Matrix head(int64_t vocab, int64_t hidden);
  // [n], widened to float32; `offset` is added to every element.
  Vector vector(const std::string& group, const std::string& name, int64_t n, float offset = 0);
  // Layers NAME.weight [rows][columns] stacked into one, with their NAME.bias [rows] where `bias`
  // says they have one.
  Linear linear(const std::string& group, const std::vector<Part>& layers, int64_t columns,
                bool bias);
  // One that is stored transposed, as GPT-2's Conv1D is: NAME.weight [columns][rows], NAME.bias
  // [rows].
  Linear transposed(const std::string& group, const Part& layer, int64_t columns);

  // Fills in what Model reports of its weights. Call once, after everything was loaded.
  void finish(Model& model) const;

 private:
  // One matrix, of tensors with these full names. `rounded`: the contract may round it.
  Matrix load(const std::string& group, const std::vector<Part>& parts, int64_t columns,
              bool transposed, bool rounded);
  Matrix pack(const std::string& group, const std::vector<Part>& parts, int64_t columns,
              bool transposed, bool rounded);
  Matrix pack_rounded(const std::string& group, const std::vector<Part>& parts,
                      const std::vector<const TensorView*>& views, int64_t columns,
                      bool transposed);
  Matrix of_one_type(const std::vector<Part>& parts, const std::vector<const TensorView*>& views,
                     int64_t columns, bool transposed) const;
  Matrix of_packed(const std::vector<Part>& parts, size_t columns,
                   std::optional<WeightType> type) const;
  void write(const std::vector<Part>& parts, Matrix* matrix);
  void note_types(const std::vector<Part>& parts, const Matrix& matrix);
  [[noreturn]] void refuse(const WeightError& e, const std::vector<Part>& parts,
                           bool transposed) const;
  std::vector<Part> prefixed(const std::vector<Part>& parts) const;
  std::string canonical(const std::string& name) const;
  void name(Model& model) const;

  const Checkpoint& checkpoint_;
  std::string prefix_;
  Contract contract_;  // that of packed weights, whatever was asked for
  int threads_;
  PackedWriter* writer_;
  std::optional<DType> round_to_;
  size_t bytes_ = 0;
  std::vector<std::span<const std::byte>> matrices_;       // of linear layers
  std::vector<std::pair<std::string, WeightType>> types_;  // of their tensors, by canonical name
  std::string not_bf16_, its_type_;                        // the first matrix of another type
  std::unique_ptr<WeightFingerprints> names_;
};

}  // namespace stet

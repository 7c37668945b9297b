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
#include "stet/checkpoint/importance.hpp"
#include "stet/checkpoint/safetensors.hpp"
#include "stet/model/contract.hpp"
#include "stet/model/rows.hpp"

namespace stet {

class Model;
class PackedWriter;
class WeightFingerprints;
struct WeightError;

// A tensor that a model is made of, as it is multiplied: what GPT-2 stores transposed is turned,
// and rows that a family stores in an order of its own are in that of the model.
struct WeightNeed {
  std::string name;       // in the checkpoint
  std::string canonical;  // without what differs between checkpoints of a family
  int64_t rows, columns;  // a vector: one row
  bool is_vector = false, transposed = false, looked_up = false;
  int64_t heads = 0;  // not 0: the checkpoint has the q, k and v of each head together
  // In a packed checkpoint: the matrix that it is a part of, from that row on.
  std::string matrix;
  int64_t first_row = 0, matrix_rows = 0;
};

// Takes tensors out of a checkpoint by name, checks their shapes, packs them, and digests them on
// the way; or finds them packed. Matrices are rounded where the contract asks for it.
class STET_API WeightLoader {
 public:
  // With a writer, what is loaded goes there instead of into the model, which can then only be
  // thrown away.
  WeightLoader(const Checkpoint& checkpoint, std::string prefix, Contract contract, int threads,
               PackedWriter* writer = nullptr);
  // Loads nothing, and notes what a family asks for, in that order. Names and shapes are checked.
  WeightLoader(const Checkpoint& checkpoint, std::string prefix, std::vector<WeightNeed>* needs);

  ~WeightLoader();

  // For the contract ggml: matrices are rounded to these blocks; embeddings and head to q6_k; those
  // whose columns are no multiple of 256 to q8_0.
  void round_to(BlockRounding to) { round_to_ = to; }

  struct Part {
    std::string name;
    int64_t rows;
  };
  // Tensors [rows][columns] stacked into one matrix. All must share a dtype.
  Matrix matrix(const std::string& group, const std::vector<Part>& parts, int64_t columns);
  // The same for one that is looked up and never multiplied: it keeps its numbers.
  Matrix table(const std::string& group, const Part& part, int64_t columns);
  // lm_head.weight, or what a family calls it, which stands outside the prefix's last "model.":
  // [vocab][hidden].
  Matrix head(int64_t vocab, int64_t hidden, const char* name = "lm_head.weight");
  // [n], widened to float32; `offset` is added to every element.
  Vector vector(const std::string& group, const std::string& name, int64_t n, float offset = 0);
  // Layers NAME.weight [rows][columns] stacked into one, with their NAME.bias [rows] where `bias`
  // says they have one.
  Linear linear(const std::string& group, const std::vector<Part>& layers, int64_t columns,
                bool bias);
  // One that is stored transposed, as GPT-2's Conv1D is: NAME.weight [columns][rows], NAME.bias
  // [rows].
  Linear transposed(const std::string& group, const Part& layer, int64_t columns);
  // Queries, keys and values in one tensor that has those of each head together, as GPT-NeoX does,
  // with their bias where `bias` says so: all queries, then all keys, then all values.
  Linear interleaved(const std::string& group, const Part& layer, int64_t columns, int64_t heads,
                     bool bias);

  // Fills in what Model reports of its weights. Call once, after everything was loaded.
  void finish(Model& model);

 private:
  // How the rows of a matrix stand in the checkpoint.
  struct Stored {
    bool transposed = false;
    int64_t heads = 0;  // as WeightNeed has it
  };
  // One matrix, of tensors with these full names. `rounded`: the contract may round it.
  Matrix load(const std::string& group, const std::vector<Part>& parts, int64_t columns,
              Stored stored, bool rounded);
  Matrix pack(const std::string& group, const std::vector<Part>& parts, int64_t columns,
              Stored stored, bool rounded);
  Matrix pack_rounded(const std::string& group, const std::vector<Part>& parts,
                      const std::vector<const TensorView*>& views, int64_t columns, Stored stored);
  Matrix of_one_type(const std::string& group, const std::vector<Part>& parts,
                     const std::vector<const TensorView*>& views, int64_t columns, Stored stored);
  Matrix of_packed(const std::vector<Part>& parts, size_t columns,
                   std::optional<WeightType> type) const;
  void write(const std::vector<Part>& parts, Matrix* matrix);
  void note_types(const std::vector<Part>& parts, const Matrix& matrix);
  void note_loaded(const std::vector<Part>& parts, const Matrix& matrix);
  void note(const std::vector<Part>& parts, int64_t columns, Stored stored, bool rounded) const;
  [[noreturn]] void refuse(const WeightError& e, const std::vector<Part>& parts,
                           Stored stored) const;
  std::vector<Part> prefixed(const std::vector<Part>& parts) const;
  std::string canonical(const std::string& name) const;
  void name(Model& model) const;

  const Checkpoint& checkpoint_;
  std::string prefix_;
  Contract contract_;  // that of packed weights, whatever was asked for
  int threads_;
  PackedWriter* writer_;
  std::vector<WeightNeed>* needs_ = nullptr;
  std::optional<BlockRounding> round_to_;
  size_t bytes_ = 0;
  std::vector<std::span<const std::byte>> matrices_;       // of linear layers
  std::vector<std::pair<std::string, WeightType>> types_;  // of their tensors, by canonical name
  std::string not_bf16_, its_type_;                        // the first matrix of another type
  std::vector<LoadedWeight> loaded_;
  std::unique_ptr<WeightFingerprints> names_;
};

}  // namespace stet

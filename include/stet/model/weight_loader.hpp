// How a family asks for its weights.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/model/rows.hpp"

namespace stet {

class Model;

// A tensor that a model is made of, as it is multiplied: what GPT-2 stores transposed is turned,
// and rows that a family stores in an order of its own are in that of the model.
struct WeightNeed {
  std::string name;       // in the checkpoint
  std::string canonical;  // without what differs between checkpoints of a family
  int64_t rows, columns;  // a vector: one row
  bool is_vector = false, transposed = false, looked_up = false;
  int64_t heads = 0;   // not 0: the checkpoint has the q, k and v of each head together
  bool exact = false;  // multiplied in float32 whatever the contract
  // In a packed checkpoint: the matrix that it is a part of, from that row on.
  std::string matrix;
  int64_t first_row = 0, matrix_rows = 0;
};

// Resolves what a family calls its weights to tensors of a checkpoint, and says how they stand
// there. Who derives from it gives them (src/checkpoint): to a model, to a packed file, or not at
// all, where only the names are wanted. `group` is that of Model::fingerprints(). All throw Error
// for a tensor that is missing, or of another type or shape.
class STET_API WeightLoader {
 public:
  // What a family's names are preceded by in this checkpoint.
  explicit WeightLoader(std::string prefix) : prefix_(std::move(prefix)) {}
  virtual ~WeightLoader() = default;
  WeightLoader(const WeightLoader&) = delete;
  WeightLoader& operator=(const WeightLoader&) = delete;

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
  // Of each of `count` experts the tensor EXPERTS.N.NAME.weight [rows][columns]: one matrix, in
  // which each expert begins at a block of rows.
  Matrix experts(const std::string& group, const std::string& experts, int64_t count,
                 const Part& part, int64_t columns);
  // Of each expert the vector EXPERTS.N.NAME.bias [rows]: [count][rows].
  Vector expert_biases(const std::string& group, const std::string& experts, int64_t count,
                       const Part& part);
  // A matrix NAME.weight that is multiplied in float32 whatever the contract, with its bias.
  Linear exact(const std::string& group, const Part& layer, int64_t columns, bool bias);
  // Queries, keys and values in one tensor that has those of each head together, as GPT-NeoX does,
  // with their bias where `bias` says so: all queries, then all keys, then all values.
  Linear interleaved(const std::string& group, const Part& layer, int64_t columns, int64_t heads,
                     bool bias);

  // Gives the model what it reports of its weights. Called once, after everything was loaded.
  virtual void finish(Model& model) = 0;

  // A tensor of the checkpoint: its name there, and that without what differs between checkpoints
  // of a family.
  struct Stored {
    std::string name, canonical;
    int64_t rows;
  };
  // One matrix of tensors that follow each other.
  struct MatrixRequest {
    std::string group;
    std::vector<Stored> tensors;
    int64_t columns;
    bool looked_up = false;   // not multiplied: no contract rounds it
    bool transposed = false;  // the one tensor is [columns][rows]
    int64_t heads = 0;        // as WeightNeed has it
    bool exact = false;       // no contract rounds it, or what it is multiplied with
    // Not empty: each tensor is an expert's and begins at a block of rows; what the matrix of all
    // is called in packed files.
    std::string experts = {};

    // Rows of the matrix.
    int64_t rows() const;
    // Rows from where one tensor begins to where the next one does.
    int64_t step(const Stored& tensor) const;
  };
  struct VectorRequest {
    std::string group;
    Stored tensor;
    float offset = 0;   // added to every element
    int64_t heads = 0;  // as WeightNeed has it
  };

 protected:
  virtual bool has(const std::string& tensor) const = 0;
  virtual Matrix load(const MatrixRequest& request) = 0;
  virtual Vector load(const VectorRequest& request) = 0;

 private:
  std::vector<Stored> stored(const std::vector<Part>& parts, const char* ending = "") const;
  Stored stored(const std::string& full_name, int64_t rows) const;

  std::string prefix_;
};

}  // namespace stet

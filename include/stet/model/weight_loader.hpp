// The interface through which a family requests its weights.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/model/rows.hpp"

namespace stet {

class Model;

// A tensor of a model in the form that is multiplied. Transposed tensors (GPT-2's) are transposed
// back, and rows in another order are put in the model's order.
struct WeightSpec {
  std::string name;       // in the checkpoint
  std::string canonical;  // without the family's prefix
  int64_t rows, columns;  // a vector has one row
  bool is_vector = false, transposed = false, looked_up = false, in_place = false;
  int64_t heads = 0;   // not 0: the checkpoint stores q, k and v of each head together
  bool exact = false;  // multiplied in float32 under every contract
  // A packed checkpoint has the tensor in this matrix of matrix_rows rows, from first_row on.
  std::string matrix;
  int64_t first_row = 0, matrix_rows = 0;
};

// Maps a family's weight names to the tensors of a checkpoint. Derived classes (src/checkpoint)
// load them into a model, write them to a packed file, or only list their names. `group` is a group
// of Model::fingerprints(). All functions throw Error if a tensor is missing or has another type or
// shape.
class STET_API WeightLoader {
 public:
  // `prefix` precedes the family's names in this checkpoint.
  explicit WeightLoader(std::string prefix) : prefix_(std::move(prefix)) {}
  virtual ~WeightLoader() = default;
  WeightLoader(const WeightLoader&) = delete;
  WeightLoader& operator=(const WeightLoader&) = delete;

  struct Part {
    std::string name;
    int64_t rows;
  };
  // Loads tensors [rows][columns] and stacks them into one matrix. If their dtypes differ, all are
  // widened to float32.
  Matrix matrix(const std::string& group, const std::vector<Part>& parts, int64_t columns);
  // Loads a lookup table, which is never multiplied. Its values are not rounded.
  Matrix table(const std::string& group, const Part& part, int64_t columns);
  // Like table(), for a table as large as a model. Rows are read from the checkpoint's file when
  // they are used, unless it stores them in another form.
  Matrix table_in_place(const std::string& group, const Part& part, int64_t columns);
  // Loads the head [vocab][hidden], lm_head.weight by default. Looks for the name after the part of
  // the prefix that precedes its last "model.", then without a prefix.
  Matrix head(int64_t vocab, int64_t hidden, const char* name = "lm_head.weight");
  // Loads [n], widened to float32, and adds `offset` to every element.
  Vector vector(const std::string& group, const std::string& name, int64_t n, float offset = 0);
  // Loads NAME.weight [rows][columns] of several layers and stacks them into one; if `bias`, also
  // NAME.bias [rows].
  Linear linear(const std::string& group, const std::vector<Part>& layers, int64_t columns,
                bool bias);
  // Loads a layer that is stored transposed, as in GPT-2's Conv1D: NAME.weight [columns][rows] and
  // NAME.bias [rows].
  Linear transposed(const std::string& group, const Part& layer, int64_t columns);
  // Loads EXPERTS.N.NAME.weight [rows][columns] of `count` experts into one matrix, in which each
  // expert begins at a packed block.
  Matrix experts(const std::string& group, const std::string& experts, int64_t count,
                 const Part& part, int64_t columns);
  // Loads EXPERTS.N.NAME.bias [rows] of `count` experts: [count][rows].
  Vector expert_biases(const std::string& group, const std::string& experts, int64_t count,
                       const Part& part);
  // Loads a layer that is multiplied in float32 under every contract, such as a router:
  // NAME.weight and, if `bias`, NAME.bias.
  Linear exact(const std::string& group, const Part& layer, int64_t columns, bool bias);
  // Loads queries, keys and values from one tensor that stores them head by head, as in GPT-NeoX;
  // if `bias`, also their bias. Returns all queries, then all keys, then all values.
  Linear interleaved(const std::string& group, const Part& layer, int64_t columns, int64_t heads,
                     bool bias);

  // Gives the model the metadata of its weights. Called once, after everything was loaded.
  virtual void finish(Model& model) = 0;

  // A tensor of the checkpoint: its name there, and its name without the family's prefix.
  struct Stored {
    std::string name, canonical;
    int64_t rows;
  };
  // A request for one matrix, made of consecutive tensors.
  struct MatrixRequest {
    std::string group;
    std::vector<Stored> tensors;
    int64_t columns;
    bool looked_up = false;   // a lookup table: no contract rounds it
    bool transposed = false;  // the one tensor is [columns][rows]
    int64_t heads = 0;        // see WeightSpec
    bool in_place = false;    // looked up where it is stored
    bool exact = false;       // see WeightSpec
    // If not empty, each tensor belongs to one expert and begins at a packed block. The name of the
    // whole matrix in packed files.
    std::string experts = {};

    // Returns the number of rows of the matrix.
    int64_t rows() const;
    // Returns the distance in rows from the beginning of a tensor to that of the next one.
    int64_t step(const Stored& tensor) const;
  };
  struct VectorRequest {
    std::string group;
    Stored tensor;
    float offset = 0;   // added to every element
    int64_t heads = 0;  // see WeightSpec
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

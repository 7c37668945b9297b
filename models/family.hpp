// What a family of models is made of, and the registry of families. A family is one file: how it reads its
// config.json, the names of its tensors, and its forward pass.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/json_reader.hpp"
#include "stet/model.hpp"
#include "stet/safetensors.hpp"

namespace stet {

// Takes tensors out of a checkpoint by name, checks their shapes, packs them, and digests them on the way.
class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, std::string prefix, int threads)
      : checkpoint_(checkpoint), prefix_(std::move(prefix)), threads_(threads) {}

  struct Part {
    std::string name;
    int64_t rows;
  };
  // Tensors [rows][columns] stacked into one matrix. All must share a dtype.
  Matrix matrix(const std::string& group, const std::vector<Part>& parts, int64_t columns);
  // lm_head.weight, which stands outside the prefix's last "model.": [vocab][hidden].
  Matrix head(int64_t vocab, int64_t hidden);
  // [n], widened to float32; `offset` is added to every element.
  Vector vector(const std::string& group, const std::string& name, int64_t n, float offset = 0);
  // Several [n_i], one after the other; empty when `present` is false.
  Vector biases(const std::string& group, bool present, const std::vector<Part>& parts);

  // Fills in what Model reports of its weights. Call once, after everything was loaded.
  void finish(Model& model) const;
  int threads() const { return threads_; }

 private:
  struct Entry {
    std::string dtype, shape;
    Digest digest;
  };
  Matrix stack(const std::string& group, const std::vector<const TensorView*>& views, int64_t columns);
  void record(const std::string& group, const TensorView& tensor, const Digest& digest);

  const Checkpoint& checkpoint_;
  std::string prefix_;
  int threads_;
  size_t bytes_ = 0;
  std::map<std::string, std::map<std::string, Entry>> groups_;
};

struct Family {
  std::vector<std::string> architectures;  // values of config.json's "architectures"
  std::vector<std::string> model_types;    // values of "model_type", where architectures is absent
  ModelConfig (*read_config)(const JsonReader& json);
  // The name that embeddings bear, without the prefix; and the prefixes under which checkpoints store the family.
  std::string embedding;
  std::vector<std::string> prefixes;
  std::unique_ptr<Model> (*load)(ModelConfig config, WeightLoader& weights);
};

extern const Family gemma3_family;
extern const Family llama_family;
// The family of a config.json; an unsupported Error names what was found.
const Family& family_of(const JsonReader& json);

// Fields that all families share, with the limits that keep absurd values out. Families fill in the rest.
ModelConfig read_common(const JsonReader& json, const char* family);
// config.json's rope_theta and rope_scaling, or the newer rope_parameters; `layer_type` names the entry of
// rope_parameters where it has one per layer type.
Rope read_rope(const JsonReader& json, const std::string& layer_type, double default_theta);
// The windows of all layers: layer_types where given; otherwise every `pattern`-th layer sees everything.
std::vector<int64_t> read_windows(const JsonReader& json, int64_t layers, int64_t window, int64_t pattern);
// A token id or a list of them, each below vocab_size.
std::vector<int32_t> read_ids(const JsonReader& json, const std::string& name, int64_t vocab_size);
void require_activation(const JsonReader& json, const char* field, const char* expected);

}  // namespace stet

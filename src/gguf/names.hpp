// Maps GGUF's names of keys and tensors to the published names, and back.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/gguf/gguf.hpp"
#include "stet/model/config.hpp"

namespace stet {

// Naming schemes for the tensors of a layer. In four_norms, ffn_norm is not the norm after
// attention.
enum class GgufLayout {
  llama,
  four_norms,
  gemma4,
  gemma3n,
  gpt2,
  gpt_neox,
  phi3,
  gpt_oss,
  qwen_hybrid,
  lfm2,
  granite_hybrid
};

struct GgufArchitecture {
  const char* name;                     // general.architecture
  const char *class_name, *model_type;  // in config.json
  GgufLayout layout;
  bool rotated;  // rotary pairs of q and k are neighbours
  bool gemma;    // norm weights include the added 1

  bool adds_one() const { return gemma || layout == GgufLayout::qwen_hybrid; }
};

// Returns the architecture under which a model of that config is written. Throws an unsupported
// Error that names `file` if llama.cpp lacks the family.
const GgufArchitecture& architecture_for(const ModelConfig& config, const std::string& file);

// Returns the Llama 3 scaling that divides the frequencies of all pairs by these numbers, the tensor
// rope_freqs of GGUF. Its factor is the largest divisor, and its other factors are 1 and 4, as in
// all published models. Returns nothing if no such scaling does.
std::optional<Rope> llama3_of(double theta, int64_t head_dim, const std::vector<float>& divisors);

// The name and form of a tensor in a GGUF file.
struct GgufStored {
  std::string name;
  enum class Rows { as_they_are, queries, keys } rows = Rows::as_they_are;
  bool plus_one = false;
  // Two of the model's tensors share one of the file. This is the second: in each head its rows
  // follow the other's.
  bool follows = false;
};
// Returns how the tensor named as WeightSpec::canonical is stored, or nothing if GGUF has no place
// for it.
std::optional<GgufStored> stored_as(const GgufArchitecture& architecture,
                                    const std::string& canonical);

// A place in a tensor that has several matrices or vectors, such as those of all experts of a layer.
// Each expert has `matrices` in it.
struct GgufStoredPart {
  std::string name;
  int64_t number;  // index of the expert
  int64_t matrix = 0, matrices = 1;
};
std::optional<GgufStoredPart> stored_part(const GgufArchitecture& architecture,
                                          const std::string& canonical);

class GgufNames {
 public:
  // Reads the keys of the first part of a file. Throws an unsupported Error for an unknown
  // architecture, and a format Error for missing or inconsistent keys.
  explicit GgufNames(const std::vector<Gguf>& parts);

  nlohmann::ordered_json config() const;  // the object of config.json
  std::string generation_config() const;
  int64_t vocab_size() const { return vocab_size_; }

  struct Published {
    std::string name;
    int64_t rotated_heads = 0;
    bool less_one = false;
    bool transposed = false;
    int64_t fused_heads = 0;  // q, k and v of each of these heads are adjacent
    // If tiled_groups is not 0, rows from `first` on belong to heads of values, `head_width` rows to
    // each; with tiled_columns, all columns do. The file has the first heads of all groups, then the
    // second ones, and so on.
    int64_t tiled_groups = 0, head_width = 0, first = 0;
    bool tiled_columns = false;
  };
  // Returns whether the tensor is part of the model: blocks for multi-token prediction are not.
  // Throws a format Error for a tensor of a block that the file's keys do not count.
  bool in_model(const GgufTensor& tensor) const;
  // Returns the published name. Returns nothing for tensors implied by the config: rope_freqs, and
  // a head equal to the embeddings.
  std::optional<Published> published(const GgufTensor& tensor) const;
  // Returns the parts of a tensor that GgufStoredPart describes, each as a tensor of its own. Empty
  // for another tensor.
  std::vector<std::pair<GgufTensor, Published>> parts_of(const GgufTensor& tensor) const;

 private:
  const GgufTensor* find(const std::string& name) const;
  std::string key(const char* name) const { return std::string(architecture_.name) + "." + name; }
  int64_t need(const char* name, int64_t max) const;
  double need_number(const char* name) const;
  bool tied() const;
  nlohmann::ordered_json published_number(const char* name) const;
  nlohmann::ordered_json ids_config() const;
  nlohmann::ordered_json gpt2_config() const;
  nlohmann::ordered_json common_config() const;
  void require_no_scaling(const nlohmann::ordered_json& config, const std::string& divisors) const;
  void add_scaling(nlohmann::ordered_json& config) const;
  void require_whole_rotation(int64_t head_dim) const;
  void add_long_factors(nlohmann::ordered_json& config) const;
  void add_rotary_part(nlohmann::ordered_json& config, const char* field) const;
  void add_layer_types(nlohmann::ordered_json& config) const;
  void add_experts(nlohmann::ordered_json& config) const;
  void add_own(nlohmann::ordered_json& config) const;
  void add_gemma4(nlohmann::ordered_json& config) const;
  void add_gemma4_experts(nlohmann::ordered_json& config) const;
  void add_delta_net(nlohmann::ordered_json& c) const;
  void add_mamba(nlohmann::ordered_json& c) const;
  void add_qwen_hybrid(nlohmann::ordered_json& config) const;
  void add_lfm2(nlohmann::ordered_json& config) const;
  void add_granite_hybrid(nlohmann::ordered_json& config) const;
  bool has_rope() const;
  void add_granite_without_rope(nlohmann::ordered_json& config) const;
  bool add_recurrent_types(nlohmann::ordered_json& config, const char* recurrent,
                           const char* attention) const;
  const std::vector<int64_t>& shape_of(const std::string& name) const;
  std::optional<int64_t> layer_with(const char* stem) const;
  void tile(const std::string& stem, Published& p) const;
  nlohmann::ordered_json gemma4_ropes(int64_t full_dim) const;
  void add_gemma3n(nlohmann::ordered_json& config) const;
  const std::vector<double>& sliding_layers() const;
  void add_layer_inputs(nlohmann::ordered_json& config) const;
  std::vector<int64_t> of_layers(const char* name, int64_t min, int64_t max) const;
  std::vector<float> pair_divisors(const GgufTensor& tensor, int64_t pairs) const;
  std::optional<Published> of_layer(const std::string& at, const std::string& stem,
                                    const std::string& kind, const GgufTensor& tensor) const;
  std::vector<std::pair<GgufTensor, Published>> experts_of_layer(const GgufTensor& tensor) const;

  const std::vector<Gguf>& parts_;
  const Gguf& keys_;
  const GgufArchitecture& architecture_;
  int64_t vocab_size_ = 0, heads_ = 0, kv_heads_ = 0;
};

// Keys that stet adds for information that llama.cpp's keys cannot express.
inline constexpr const char *kGgufModelType = "stet.model_type",
                            *kGgufGeneration = "stet.generation_config",
                            *kGgufKvHeads = "stet.head_count_kv";  // if no layer has attention

}  // namespace stet

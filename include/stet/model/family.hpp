// The definition of a model family, and the registry of families. A family is one header: it reads
// config.json, names the tensors and runs the forward pass. A program can add its own families
// (register_family).
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/base/json_reader.hpp"
#include "stet/base/limits.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/model.hpp"
#include "stet/model/weight_loader.hpp"

namespace stet {

// A model family.
struct Family {
  std::vector<std::string> architectures;  // accepted values of config.json's "architectures"
  // accepted values of "model_type" if "architectures" is absent
  std::vector<std::string> model_types;
  ModelConfig (*read_config)(const JsonReader& json);
  // The embedding tensor's name without prefix, and the prefixes that checkpoints use for this
  // family.
  std::string embedding;
  std::vector<std::string> prefixes;
  std::unique_ptr<Model> (*load)(ModelConfig config, WeightLoader& weights);
};

// Loads a model class that needs only the config and the weights; for Family::load.
template <class M>
std::unique_ptr<Model> load_model(ModelConfig config, WeightLoader& weights) {
  return std::make_unique<M>(std::move(config), weights);
}

// Returns the family of a config.json. Throws an unsupported Error, which names the architecture,
// if there is none, or if architectures and model_type name two families of this library.
STET_API const Family& family_of(const JsonReader& json);
// Adds a family for the whole process. Throws an argument Error if an architecture or model type is
// already registered. Any thread may call it.
STET_API void register_family(Family family);

// Defaults in transformers for values that a config may leave out. 0 means that the value is
// required, except that kv_heads then equals heads and head_dim equals hidden_size / heads.
struct Defaults {
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, layers = 0, heads = 0,
          kv_heads = 0, head_dim = 0;
  int64_t max_positions = 2048;
  bool tied_head = false;
  bool widths = false;      // intermediate_size may be a list, which the family reads
  bool own_layers = false;  // the family reads per_layer_config
};
// Throws an unsupported Error for a per_layer_config, which gives single layers other sizes.
// read_common calls it for families that do not read the field.
STET_API void require_uniform_layers(const JsonReader& json);
// Reads the fields that all families after GPT-2 share, and rejects absurd values. Sets full
// attention in every layer and scores scaled by 1 / sqrt(head_dim). Families override these and
// fill in the rest.
STET_API ModelConfig read_common(const JsonReader& json, const char* family,
                                 const Defaults& defaults = {});
// Top-level fields of config.json that a family uses for rotary positions.
struct RopeFields {
  // names of theta; the first that is present counts
  std::vector<std::string> theta = {"rope_theta"};
  std::vector<std::string> others = {};  // fields that the family reads itself
  // the settings, as a JSON object, of a config that has neither rope_parameters nor rope_scaling
  const char* otherwise = nullptr;
};
// Reads the rotary position settings of config.json from rope_scaling or, if that is empty, from
// rope_parameters. With a `layer_type`, it looks up each value in rope_scaling, then in
// rope_parameters, whose entry of that type it takes. For theta the top level follows, then the
// default.
//
// Throws an unsupported Error for an unknown field whose name begins with rope_ or rotary_, or that
// is inside those objects. Fields that the family reads, null, and fields without effect are
// accepted.
STET_API Rope read_rope(const JsonReader& json, const std::string& layer_type, double default_theta,
                        const RopeFields& fields = {});
// Sets the number of rotated dimensions from partial_rotary_factor of rope_scaling or, if that is
// empty, of rope_parameters; then of the config itself, otherwise from `part`. A family that calls
// this lists the field in RopeFields.
STET_API void read_rotary_part(const JsonReader& json, double part, ModelConfig* config);
// Returns each layer's window: `window` if layer_types says sliding or, without layer_types, if
// slides(i) is true; otherwise 0.
STET_API std::vector<int64_t> read_windows(const JsonReader& json, int64_t layers, int64_t window,
                                           const std::function<bool(int64_t)>& slides);
// Returns ModelConfig::recurrent_of: 1 for layers whose entry in `field` is in `recurrent` or,
// without the field, for which otherwise(i) is true. Empty if there is none. Throws an unsupported
// Error for a type that is neither in `recurrent` nor in `attention`.
STET_API std::vector<int64_t> read_recurrent(const JsonReader& json, int64_t layers,
                                             const std::vector<std::string>& recurrent,
                                             const std::vector<std::string>& attention,
                                             const std::function<bool(int64_t)>& otherwise,
                                             const char* field = "layer_types");
// Returns a field that is a positive integer up to `max`, or `otherwise` if it is missing or `word`.
STET_API int64_t read_integer_or_word(const JsonReader& json, const char* name, const char* word,
                                      int64_t otherwise, int64_t max);
// Reads the limits of Mamba's time step, the lower and the upper one, which may be infinite.
STET_API void read_step_limits(const JsonReader& json, const char* name, Recurrence* r);
// Returns a number that null disables: 0 for null, `absent` if the field is missing.
STET_API double read_optional(const JsonReader& json, const char* field, double absent, double min,
                              double max);
// Fields of config.json that describe a mixture of experts.
struct ExpertFields {
  const char* width;                    // the field with an expert's intermediate size
  std::optional<RouterRule> rule = {};  // if empty, norm_topk_prob selects one
  bool divided = false;                 // norm_topk_prob if it is missing
  // The rule is sigmoid or sigmoid_divided, and routed_scaling_factor multiplies the weights.
  bool sigmoid = false;
  // transformers' defaults of the number of experts and of those chosen; 0: the field is required
  int64_t count = 0, chosen = 0;
};
// Reads a mixture of experts: num_experts or num_local_experts, num_experts_per_tok, and `fields`.
STET_API ExpertShape read_experts(const JsonReader& json, const ExpertFields& fields);
// Returns sliding_window: 0 for null, 4096 if it is missing.
STET_API int64_t read_sliding_window(const JsonReader& json);
// Returns a token id or a list of them. Numbers that are no token of the vocabulary, as -1, are left
// out, because no token has them.
STET_API std::vector<int32_t> read_ids(const JsonReader& json, const std::string& name,
                                       int64_t vocab_size);
// Throws an unsupported Error if the field is present and is not one of `supported`.
STET_API void require_activation(const JsonReader& json, const char* field,
                                 const std::vector<std::string>& supported);
// Throws an unsupported Error if the field is present and is none of these values, each as JSON.
STET_API void require_one_of(const JsonReader& json, const char* field,
                             std::initializer_list<const char*> values);
STET_API void require_false(const JsonReader& json, std::initializer_list<const char*> fields);

}  // namespace stet

// What a family of models is made of, and the registry of families. A family is one header: how it
// reads its config.json, the names of its tensors, and its forward pass. A program may have
// families of its own (register_family).
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

struct Family {
  std::vector<std::string> architectures;  // values of config.json's "architectures"
  std::vector<std::string> model_types;    // values of "model_type", where architectures is absent
  ModelConfig (*read_config)(const JsonReader& json);
  // The name that embeddings bear, without the prefix; and the prefixes under which checkpoints
  // store the family.
  std::string embedding;
  std::vector<std::string> prefixes;
  std::unique_ptr<Model> (*load)(ModelConfig config, WeightLoader& weights);
};

// `load` of a family whose class needs nothing but the config and the weights.
template <class M>
std::unique_ptr<Model> load_model(ModelConfig config, WeightLoader& weights) {
  return std::make_unique<M>(std::move(config), weights);
}

// The family of a config.json; an unsupported Error names what was found.
STET_API const Family& family_of(const JsonReader& json);
// Makes a family known from now on, for the whole process. Throws an argument Error for an
// architecture or model type that is known already. Any thread may call it.
STET_API void register_family(Family family);

// Values that configs may leave out because transformers has them as the family's defaults. 0: must
// be given, or for kv_heads as many as heads, for head_dim hidden_size / heads.
struct Defaults {
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, layers = 0, heads = 0,
          kv_heads = 0, head_dim = 0;
  int64_t max_positions = 2048;
  bool tied_head = false;
};
// Fields that the families after GPT-2 share, with the limits that keep absurd values out; every
// layer sees everything, and scores are scaled by 1 / sqrt(head_dim). Families change that and fill
// in the rest.
STET_API ModelConfig read_common(const JsonReader& json, const char* family,
                                 const Defaults& defaults = {});
// The fields at the top of config.json that a family has for rotary positions.
struct RopeFields {
  std::vector<std::string> theta = {"rope_theta"};  // what holds theta: the first that is there
  std::vector<std::string> others = {};             // those that the family reads by itself
};
// Rotary positions as config.json gives them. Each value is looked for in rope_scaling, then in
// rope_parameters; theta after that at the top level, and else is the default. `layer_type` names
// the entry of rope_parameters where it has one for each layer type. A field that begins with rope_
// or rotary_, or stands in those objects, and that neither stet nor the family reads is an
// unsupported Error, unless it is null or known to have no effect.
STET_API Rope read_rope(const JsonReader& json, const std::string& layer_type, double default_theta,
                        const RopeFields& fields = {});
// Which part of a head's dimensions turns: partial_rotary_factor of rope_scaling, rope_parameters
// or the config itself, else `part`. A family that calls this names the field in RopeFields.
STET_API void read_rotary_part(const JsonReader& json, double part, ModelConfig* config);
// The windows of all layers: `window` where layer_types says sliding, or where it is absent and
// slides(i) holds.
STET_API std::vector<int64_t> read_windows(const JsonReader& json, int64_t layers, int64_t window,
                                           const std::function<bool(int64_t)>& slides);
// A number that null switches off: 0 for null, `absent` where the field is missing.
STET_API double read_optional(const JsonReader& json, const char* field, double absent, double min,
                              double max);
// A mixture of experts: their number by num_experts or num_local_experts, num_experts_per_tok, and
// `width` or the field of that name; norm_topk_prob, where `rule` is nothing.
struct ExpertFields {
  const char* width;
  std::optional<RouterRule> rule = {};
  bool divided = false;  // norm_topk_prob where it is missing
};
STET_API ExpertShape read_experts(const JsonReader& json, const ExpertFields& fields);
// The value of sliding_window: 0 for null, 4096 where it is missing.
STET_API int64_t read_sliding_window(const JsonReader& json);
// A token id or a list of them, each below vocab_size.
STET_API std::vector<int32_t> read_ids(const JsonReader& json, const std::string& name,
                                       int64_t vocab_size);
// An unsupported Error unless the field is missing or one of `supported`.
STET_API void require_activation(const JsonReader& json, const char* field,
                                 const std::vector<std::string>& supported);
STET_API void require_false(const JsonReader& json, std::initializer_list<const char*> fields);

}  // namespace stet

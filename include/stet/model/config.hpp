// The shape of a model, in one form for all families and config.json dialects.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/json_reader.hpp"
#include "stet/kernels/router.hpp"
#include "stet/kv/recurrent_state.hpp"

namespace stet {

// Rotary position embedding (Su et al., arXiv 2104.09864), with the published ways to extend its
// context.
struct Rope {
  enum class Scaling { none, linear, llama3, yarn, longrope, proportional };

  double theta = 10000;
  Scaling scaling = Scaling::none;
  double factor = 1;              // used by all scalings
  double low_freq_factor = 1;     // llama3
  double high_freq_factor = 4;    // llama3
  double original_positions = 0;  // llama3, yarn, longrope: original_max_position_embeddings
  // yarn counts a pair's rotations within original_positions. Pairs with more than beta_fast keep
  // their frequency; the frequency of pairs with fewer than beta_slow is divided by the factor.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // yarn: round the two bounds above to whole pairs
  // yarn and longrope: factor of cosines and sines. 0 means the default of the paper.
  double attention_factor = 0;
  // longrope: divisor of each pair's frequency, for contexts up to original_positions and for
  // longer ones. is_long selects the second, for models whose max_positions is larger.
  std::vector<double> short_factors = {}, long_factors = {};
  bool is_long = false;
  // `dim` is the number of rotated dimensions of each head; 0: ModelConfig::rotated(). proportional:
  // only the first fraction `part` of their pairs is rotated. Frequencies are those that the pairs
  // have if all are rotated.
  int64_t dim = 0;
  double part = 1;

  bool operator==(const Rope&) const = default;
};

// Returns the angle per position of each pair of `dim` rotated dimensions: dim / 2 values. All
// methods round to float32 at the same places as transformers' modeling_rope_utils.py, so that
// angles agree with the reference.
STET_API std::vector<float> inverse_frequencies(const Rope& rope, int64_t dim);
// Returns the factor of all cosines and sines: that of the config, otherwise 1. Defaults differ for
// two methods:
//   YaRN      0.1 ln(factor) + 1, arXiv 2309.00071, 3.4
//   LongRoPE  sqrt(1 + ln(factor) / ln(original positions)), arXiv 2402.13753
STET_API float rope_magnitude(const Rope& rope);

// A mixture of experts: a router assigns each token to some of many MLPs.
struct ExpertShape {
  int64_t count = 0;   // experts of a layer; 0: no layer has experts
  int64_t chosen = 0;  // experts per token
  int64_t width = 0;   // intermediate size of one expert
  RouterRule rule = RouterRule::softmax_divided;
  std::vector<int64_t> dense;  // ascending: the layers that have a plain MLP instead
  double factor = 1;           // multiplies all weights
  bool biased = false;         // under the sigmoid rules: experts are chosen by a score plus a bias
  // Intermediate size of the expert that every token passes through; 0: none.
  int64_t shared = 0;

  bool operator==(const ExpertShape&) const = default;
};

// Describes what recurrent layers compute in place of attention, and the arrays that they keep in
// place of keys and values. All recurrent layers of a model have one shape.
struct Recurrence {
  enum class Kind { none, delta_net, short_conv, mamba2 };

  Kind kind = Kind::none;
  int64_t heads = 0;      // delta_net: number of value heads; mamba2: number of heads
  int64_t groups = 0;     // delta_net: number of query and key heads; mamba2: groups of B and C
  int64_t key_dim = 0;    // delta_net: per key head; mamba2: the state's size per column
  int64_t value_dim = 0;  // per head
  int64_t taps = 0;       // inputs of the causal convolution, including the current position
  int64_t channels = 0;   // columns of the convolution
  bool conv_bias = false;
  bool projection_bias = false;          // the matrices before and after the recurrence have biases
  double least_step = 0, most_step = 0;  // mamba2: limits of the time step; most 0: none

  // Returns the columns of the recurrence's output.
  int64_t output() const { return kind == Kind::short_conv ? channels : heads * value_dim; }
  bool operator==(const Recurrence&) const = default;
};

// The shape of one layer's attention, and of the keys and values that it stores.
struct LayerShape {
  int64_t heads, kv_heads;
  int64_t key_dim, value_dim;  // per head
  int64_t window;              // a query sees itself and the window - 1 positions before it; 0: all
  int rope;                    // index into ropes; -1: no rotation
  int64_t owner;         // the layer whose keys and values are read: this one or an earlier one
  bool own;              // owner is this layer
  int64_t intermediate;  // width of the MLP, or of the shared expert
  bool values_are_keys;  // no value matrix: values start as the key matrix's outputs
  bool recurrent;        // the layer has a recurrence and no attention; owner is -1

  // Columns of all heads. Keys and values have 0 if the layer has none of its own.
  int64_t queries() const { return heads * key_dim; }
  int64_t keys() const { return own ? kv_heads * key_dim : 0; }
  int64_t values() const { return own ? kv_heads * value_dim : 0; }
  int64_t output() const { return heads * value_dim; }
};

// The shape and constants of a model.
struct STET_API ModelConfig {
  std::string family;        // "gemma3", "llama", ...
  std::string architecture;  // as config.json names it: "Gemma3ForCausalLM"
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  int64_t layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t max_positions = 0;  // max_position_embeddings; GPT-2: n_positions
  double norm_eps = 0;
  double attention_scale = 0;                       // scores are q·k times this
  double attention_softcap = 0, logit_softcap = 0;  // 0: none
  double embedding_scale = 1;
  // Granite: residual_scale multiplies what each layer adds to the residual stream; logits are
  // divided by logit_divisor.
  double residual_scale = 1, logit_divisor = 1;
  int64_t rotary_dim = 0;  // rotated dimensions of each head, from the first on; 0: all
  bool tied_head = false;
  bool parallel_residual = false;  // attention and MLP read the same input
  bool attention_bias = false, mlp_bias = false;
  double qkv_clip = 0;    // OLMoE: queries, keys and values are clamped to +- this; 0: no clamping
  double gate_limit = 0;  // gpt-oss: gates and ups are clamped to this; 0: no clamping
  ExpertShape experts;
  // Per layer: a query sees itself and the window - 1 positions before it; 0 means all.
  std::vector<int64_t> window;
  std::vector<int> rope_of;  // per layer: index into ropes; -1: no rotation
  std::vector<Rope> ropes;   // both empty if positions are learned
  // Per layer, if layers differ. Empty: every layer has kv_heads, head_dim and intermediate_size,
  // and its own keys and values.
  std::vector<int64_t> kv_heads_of, head_dim_of, owner_of, intermediate_of;
  std::vector<int64_t> values_are_keys;  // per layer: 1 for LayerShape::values_are_keys; empty: 0
  Recurrence recurrence;
  std::vector<int64_t> recurrent_of;  // per layer: 1 if it is recurrent; empty: 0
  // Gemma 3n and 4: each layer has an input for a token beside the residual stream. These are its
  // width and the number of tokens with such inputs. 0: none.
  int64_t layer_inputs = 0, layer_input_tokens = 0;
  // Gemma 3n: residual streams (0: one), the one that layers read, and the rank of the layers'
  // linear path. scaled_streams: the corrected stream is scaled before it gates the layer's input.
  int64_t streams = 0, active_stream = 0, laurel_rank = 0;
  bool scaled_streams = false;
  // Gemma 3n, per layer: MLP gates below this many standard deviations above their row's mean are
  // dropped. 0: none.
  std::vector<double> gate_floor;
  std::vector<int32_t> eos_ids;  // from config.json; generation_config.json overrides

  int64_t rotated() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  int64_t rotated(const Rope& rope) const { return rope.dim > 0 ? rope.dim : rotated(); }
  // Returns whether a layer has experts.
  bool has_experts(int64_t index) const {
    return experts.count > 0 && !std::ranges::binary_search(experts.dense, index);
  }
  // Returns the shape of one layer.
  LayerShape layer(int64_t index) const {
    const auto of = [index](const auto& each, auto otherwise) {
      return each.empty() ? otherwise : each[static_cast<size_t>(index)];
    };
    const bool recurrent = of(recurrent_of, int64_t{0}) != 0;
    const int64_t dim = of(head_dim_of, head_dim), owner = recurrent ? -1 : of(owner_of, index);
    return {heads,
            of(kv_heads_of, kv_heads),
            dim,
            dim,
            of(window, int64_t{0}),
            of(rope_of, -1),
            owner,
            owner == index,
            experts.shared > 0 && has_experts(index) ? experts.shared
                                                     : of(intermediate_of, intermediate_size),
            of(values_are_keys, int64_t{0}) != 0,
            recurrent};
  }
  // Returns the largest f(layer) of all layers.
  template <class F>
  int64_t widest(F f) const {
    int64_t most = 0;
    for (int64_t i = 0; i < layers; ++i)
      most = std::max<int64_t>(most, static_cast<int64_t>(f(layer(i))));
    return most;
  }

  // Returns all of the above as one line of JSON with sorted keys. Fingerprints and snapshots
  // contain it.
  std::string canonical() const;
  // Parses canonical(), which leaves out architecture and eos_ids. `file` names the source in
  // errors.
  static ModelConfig from_canonical(const std::string& text, const std::string& file);
};

// The recommended settings of generation_config.json. If the file is missing, the defaults apply.
struct GenerationConfig {
  std::vector<int32_t> eos_ids;  // stop tokens
  bool sample = false;           // do_sample
  double temperature = 1, top_p = 1, min_p = 0, typical_p = 1, repetition_penalty = 1;
  int64_t top_k = 0;  // 0: all
  // Fields or keys with recommended settings that stet does not have.
  std::vector<std::string> ignored;
  std::string source;  // path for errors; empty if there was no file
};

// Returns the arrays that each layer keeps:
//   delta_net   "state" [heads][key_dim][value_dim], "conv" [taps - 1][channels]
//   short_conv  "conv" [taps - 1][channels]
//   mamba2      "state" [heads][key_dim][value_dim], "conv" [taps - 1][channels]
// "conv" holds the last inputs of the convolution, oldest first; zeros precede the first token.
STET_API RecurrentShape recurrent_shape(const ModelConfig& config);

// Returns the capacity of a session in positions; 0 requests the model's maximum. Throws an
// argument Error for a value outside 1 .. the maximum.
STET_API int64_t checked_capacity(const ModelConfig& config, int64_t capacity);

// Reads the object of a config.json.
STET_API ModelConfig read_model_config(const JsonReader& json);
// Parse the text of a file. `file` names it in errors.
STET_API ModelConfig parse_model_config(const std::string& text, const std::string& file);
STET_API GenerationConfig parse_generation_config(const std::string& text, const std::string& file,
                                                  int64_t vocab_size);

}  // namespace stet

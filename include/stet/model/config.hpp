// The shape of a model, in one form whatever its family and whoever wrote its config.json.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/kernels/router.hpp"

namespace stet {

// Rotary position embedding (Su et al., arXiv 2104.09864) and the ways published configs stretch
// it.
struct Rope {
  enum class Scaling { none, linear, llama3, yarn, longrope };

  double theta = 10000;
  Scaling scaling = Scaling::none;
  double factor = 1;              // of all of them
  double low_freq_factor = 1;     // llama3
  double high_freq_factor = 4;    // llama3
  double original_positions = 0;  // all but linear: original_max_position_embeddings
  double beta_fast = 32;          // yarn: pairs that turn more often than that are kept,
  double beta_slow = 1;           // those that turn less often are divided by the factor
  bool truncate = true;           // yarn: the borders between them are rounded to whole pairs
  // yarn and longrope: what cosines and sines are multiplied by; 0: the paper's
  double attention_factor = 0;
  // longrope: what the frequency of each pair is divided by, for up to original_positions and for
  // more. A model is one of both, by how many positions it has.
  std::vector<double> short_factors = {}, long_factors = {};
  bool is_long = false;

  bool operator==(const Rope&) const = default;
};

// Angle per position of each pair of `dim` rotated dimensions: dim / 2 values, rounded to float32
// at the same places as transformers' modeling_rope_utils.py (default, linear, llama3, yarn,
// longrope), so that angles agree with the reference.
STET_API std::vector<float> inverse_frequencies(const Rope& rope, int64_t dim);
// What the cosines and sines of all angles are multiplied by: 1, but for YaRN (arXiv 2309.00071,
// 3.4), where it is 0.1 ln(factor) + 1, and LongRoPE (arXiv 2402.13753), where it is
// sqrt(1 + ln(factor) / ln(original positions)), unless the config gives another.
STET_API float rope_magnitude(const Rope& rope);

// A mixture of experts: a router gives each token to some of many MLPs.
struct ExpertShape {
  int64_t count = 0;   // of experts; 0: no layer has any
  int64_t chosen = 0;  // of them for each token
  int64_t width = 0;   // of an expert: what its last matrix reads
  RouterRule rule = RouterRule::softmax_divided;
  std::vector<int64_t> dense;  // ascending: the layers that have a plain MLP in their place

  bool operator==(const ExpertShape&) const = default;
};

// Attention in one layer, and the keys and values that it keeps.
struct LayerShape {
  int64_t heads, kv_heads;
  int64_t key_dim, value_dim;  // of a head
  int64_t window;              // a query sees itself and window - 1 positions before it; 0: all
  int rope;                    // index into ropes; -1: keys are not rotated
  int64_t owner;  // the layer whose keys and values it reads: itself, or an earlier one
};

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
  // Granite: what a layer adds to the residual stream is multiplied by the first, logits are
  // divided by the second.
  double residual_scale = 1, logit_divisor = 1;
  int64_t rotary_dim = 0;  // how many of a head's dimensions, the first ones, turn; 0: all
  bool tied_head = false;
  bool parallel_residual = false;  // the MLP reads what attention reads, not what that gave
  bool attention_bias = false, mlp_bias = false;
  double qkv_clip = 0;    // OLMoE: queries, keys and values are clamped to +- that; 0: they are not
  double gate_limit = 0;  // gpt-oss: what gates and ups are clamped to; 0: they are not
  ExpertShape experts;
  // Per layer: a query sees itself and window - 1 positions before it, or (0) all.
  std::vector<int64_t> window;
  std::vector<int> rope_of;      // per layer: index into ropes; -1: keys are not rotated
  std::vector<Rope> ropes;       // both empty: learned positions
  std::vector<int32_t> eos_ids;  // from config.json; generation_config.json overrides

  int64_t rotated() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  // Whether a layer has experts.
  bool has_experts(int64_t index) const {
    return experts.count > 0 && !std::ranges::binary_search(experts.dense, index);
  }
  // The layers of these families differ in window and rotation alone.
  LayerShape layer(int64_t index) const {
    const auto i = static_cast<size_t>(index);
    return {heads,
            kv_heads,
            head_dim,
            head_dim,
            window.empty() ? 0 : window[i],
            rope_of.empty() ? -1 : rope_of[i],
            index};
  }

  // All of the above as one line of JSON with sorted keys: what fingerprints and snapshots hold.
  std::string canonical() const;
  // The inverse, but for architecture and eos_ids, which canonical() leaves out. `file` names the
  // source in errors.
  static ModelConfig from_canonical(const std::string& text, const std::string& file);
};

// What generation_config.json recommends. A file that is missing leaves the defaults.
struct GenerationConfig {
  std::vector<int32_t> eos_ids;  // stop tokens
  bool sample = false;           // do_sample
  double temperature = 1, top_p = 1, min_p = 0, typical_p = 1, repetition_penalty = 1;
  int64_t top_k = 0;   // 0: all
  std::string source;  // path, for errors; empty when there was none
};

// `capacity` positions of a session, 0 being all that the model has. An argument Error for more, or
// fewer than one.
STET_API int64_t checked_capacity(const ModelConfig& config, int64_t capacity);

// Both parsers take the text of the file; `file` names it in errors.
STET_API ModelConfig parse_model_config(const std::string& text, const std::string& file);
STET_API GenerationConfig parse_generation_config(const std::string& text, const std::string& file,
                                                  int64_t vocab_size);

}  // namespace stet

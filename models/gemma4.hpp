// Gemma 4, text, also of the multimodal checkpoints: dense (12B, 31B), with experts beside the MLP
// (26B-A4B), and small (E2B, E4B). Layers of the small ones have inputs of their own and share keys
// and values.
// Source: transformers' modeling_gemma4.py.
#pragma once

#include "models/gemma.hpp"
#include "models/layer_inputs.hpp"
#include "stet/model/experts.hpp"

namespace stet {

namespace gemma4 {

class Gemma4 : public Decoder {
 public:
  Gemma4(ModelConfig config, WeightLoader& w);

 private:
  void enter_layers(Team t, const Pass& p) const override;
  void layer(const LayerPass& at) const override;
  std::vector<int64_t> own_widths() const override;
  // Adds the experts' output for the residual stream to the MLP's output in p.out.
  void add_experts(const LayerPass& at) const;

  struct Layer : LinearLayers {
    explicit Layer(LinearLayers linear) : LinearLayers(std::move(linear)) {}

    Norm input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm;  // [hidden]
    Norm q_norm, k_norm, v_norm;                                        // [head_dim]
    LayerInputGate input;
    Vector scalar;  // [1]
    // Models with experts have these beside the MLP.
    Norm router_norm, pre_experts_norm, post_experts_norm, post_dense_norm;  // [hidden]
    ExpertRouter router;
    Experts experts;
  };
  Layer load_layer(WeightLoader& w, const std::string& at, const LayerShape& s) const;

  LayerInputs inputs_;
  std::vector<Layer> layers_;
};

// The defaults of transformers' Gemma4TextConfig.
constexpr Defaults kDefaults = {.vocab_size = 262144,
                                .hidden_size = 2304,
                                .intermediate_size = 9216,
                                .layers = 30,
                                .heads = 8,
                                .kv_heads = 4,
                                .head_dim = 256,
                                .max_positions = 131072,
                                .tied_head = true,
                                .own_layers = true};

// Throws for a field of per_layer_config that read_heads does not read.
inline void refuse_other_exceptions(const JsonReader& exceptions, int64_t layers) {
  for (const std::string& layer : exceptions.keys()) {
    bool known = false;
    for (int64_t i = 0; i < layers && !known; ++i) known = layer == std::to_string(i);
    if (!known) exceptions.fail(layer, "the number of a layer, 0.." + std::to_string(layers - 1));
    const JsonReader own = exceptions.required_object(layer);
    for (const std::string& field : own.keys()) {
      if (field != "head_dim" && field != "num_key_value_heads" && own.has(field))
        throw Error(ErrorKind::unsupported, own.file(), own.path_of(field), "",
                    "the field is not supported for single layers; only head_dim and "
                    "num_key_value_heads are");
    }
  }
}

// Reads the head dimension and the KV heads of every layer. Configs name those of full layers, or
// list exceptions by layer (per_layer_config).
inline void read_heads(const JsonReader& json, ModelConfig& c) {
  const bool values_are_keys = json.boolean_or("attention_k_eq_v", false);
  const std::optional<JsonReader> exceptions = json.object("per_layer_config");
  if (exceptions) refuse_other_exceptions(*exceptions, c.layers);
  for (int64_t i = 0; i < c.layers; ++i) {
    const bool full = c.window[static_cast<size_t>(i)] == 0;
    int64_t dim = c.head_dim, heads = c.kv_heads;
    if (exceptions) {
      if (const auto own = exceptions->object(std::to_string(i))) {
        dim = own->integer_or("head_dim", dim, 2, kMaxHeadDim);
        heads = own->integer_or("num_key_value_heads", heads, 1, c.heads);
      }
    } else if (full) {
      dim = json.integer_or("global_head_dim", json.names("global_head_dim") ? dim : 512, 2,
                            kMaxHeadDim);
      if (values_are_keys) heads = json.integer_or("num_global_key_value_heads", heads, 1, c.heads);
    }
    if (dim % 2 != 0) json.fail("head_dim", "even numbers");
    if (c.heads % heads != 0)
      json.fail("num_key_value_heads",
                "a divisor of num_attention_heads " + std::to_string(c.heads));
    c.head_dim_of.push_back(dim);
    c.kv_heads_of.push_back(heads);
    c.values_are_keys.push_back(full && values_are_keys ? 1 : 0);
  }
}

// The last num_kv_shared_layers layers read the keys and values of the last layer before them that
// has their window. None do if there is no layer before them, as in transformers.
inline void read_owners(const JsonReader& json, int64_t default_shared, ModelConfig& c) {
  const int64_t shared = json.has("num_kv_shared_layers")
                             ? json.integer("num_kv_shared_layers", 0, kMaxLayers)
                             : default_shared,
                first = c.layers - shared;
  for (int64_t i = 0; i < c.layers && shared > 0 && first > 0; ++i) {
    int64_t owner = i;
    if (i >= first) {
      owner = first - 1;
      const auto window = [&](int64_t l) { return c.window[static_cast<size_t>(l)]; };
      while (owner >= 0 && window(owner) != window(i)) --owner;
      if (owner < 0)
        json.fail("num_kv_shared_layers", "layers of every type before those that share");
    }
    c.owner_of.push_back(owner);
  }
}

inline void read_layer_inputs(const JsonReader& json, ModelConfig& c) {
  c.layer_inputs = json.integer_or("hidden_size_per_layer_input", 256, 0, kMaxSize);
  if (c.layer_inputs > 0)
    c.layer_input_tokens =
        json.integer_or("vocab_size_per_layer_input", 262144, 1, int64_t{1} << 31);
}

inline void read_ropes(const JsonReader& json, ModelConfig& c) {
  const char* const published = R"({"rope_type": "proportional", "partial_rotary_factor": 0.25})";
  c.ropes = {read_rope(json, "full_attention", 1e6, {.otherwise = published}),
             read_rope(json, "sliding_attention", 10000)};
  for (size_t i = 0; i < c.window.size(); ++i) {
    c.rope_of[i] = c.window[i] == 0 ? 0 : 1;
    int64_t& dim = c.ropes[static_cast<size_t>(c.rope_of[i])].dim;
    if (dim != 0 && dim != c.head_dim_of[i])
      json.fail("per_layer_config", "one head_dim for all layers of a type");
    dim = c.head_dim_of[i];
  }
}

inline ModelConfig read_config(const JsonReader& top) {
  const std::optional<JsonReader> nested = top.object("text_config");
  const JsonReader& json = nested ? *nested : top;
  ModelConfig c = read_common(json, "gemma4", kDefaults);
  require_false(json, {"attention_bias", "mlp_bias"});
  // "vision" is for the tokens of images alone.
  require_one_of(json, "use_bidirectional_attention", {"null", "false", R"("vision")"});
  if (nested && top.has("eos_token_id")) c.eos_ids = read_ids(top, "eos_token_id", c.vocab_size);
  if (!json.has("tie_word_embeddings")) c.tied_head = top.boolean_or("tie_word_embeddings", true);
  c.embedding_scale = static_cast<double>(square_root(static_cast<float>(c.hidden_size)));
  c.attention_scale = 1;
  c.logit_softcap = read_optional(json, "final_logit_softcapping", 0, 1e-6, 1e6);
  const int64_t window = json.integer_or("sliding_window", 512, 1, int64_t{1} << 32);
  c.window = read_windows(json, c.layers, window, [&](int64_t i) { return (i + 1) % 6 != 0; });
  c.window.back() = 0;  // whatever the config says, as in transformers
  read_heads(json, c);
  read_owners(json, 0, c);
  if (json.boolean_or("use_double_wide_mlp", false) && !c.owner_of.empty()) {
    std::vector<int64_t> widths;
    for (int64_t i = 0; i < c.layers; ++i)
      widths.push_back(c.intermediate_size * (c.layer(i).own ? 1 : 2));
    c.intermediate_of = std::move(widths);
  }
  read_layer_inputs(json, c);
  read_ropes(json, c);
  require_activation(json, "hidden_activation", {"gelu_pytorch_tanh"});
  if (json.boolean_or("enable_moe_block", false)) {
    c.experts.count = json.integer("num_experts", 1, static_cast<int64_t>(kMostExperts));
    c.experts.chosen = json.integer("top_k_experts", 1, c.experts.count);
    c.experts.width = json.integer("moe_intermediate_size", 1, kMaxSize);
    c.experts.rule = RouterRule::softmax_divided;
  }
  return c;
}

inline Gemma4::Gemma4(ModelConfig config, WeightLoader& w) : Decoder(std::move(config), w, 0) {
  if (config_.layer_inputs > 0) inputs_ = LayerInputs(w, config_);
  each_layer([&](const std::string& at) {
    layers_.push_back(load_layer(w, at, config_.layer(static_cast<int64_t>(layers_.size()))));
  });
}

inline Gemma4::Layer Gemma4::load_layer(WeightLoader& w, const std::string& at,
                                        const LayerShape& s) const {
  const int64_t hidden = config_.hidden_size;
  const auto norm = [&](const char* name, int64_t n) { return load_rms_norm(w, at + name, n); };
  Layer l(LinearLayers(w, hidden, s, at));
  l.input_norm = norm("input_layernorm", hidden);
  l.post_attention_norm = norm("post_attention_layernorm", hidden);
  l.pre_mlp_norm = norm("pre_feedforward_layernorm", hidden);
  l.post_mlp_norm = norm("post_feedforward_layernorm", hidden);
  l.q_norm = norm("self_attn.q_norm", s.key_dim);
  if (s.own) l.k_norm = norm("self_attn.k_norm", s.key_dim);
  l.v_norm = {Vector(static_cast<size_t>(s.value_dim), 1.0f), {}, l.q_norm.eps};
  if (config_.layer_inputs > 0) l.input = LayerInputGate(w, config_, at);
  l.scalar = w.vector("norms", at + "layer_scalar", 1);
  if (config_.experts.count == 0) return l;
  const int64_t count = config_.experts.count;
  l.post_dense_norm = norm("post_feedforward_layernorm_1", hidden);
  l.pre_experts_norm = norm("pre_feedforward_layernorm_2", hidden);
  l.post_experts_norm = norm("post_feedforward_layernorm_2", hidden);
  // The norm of the router's input has no weight; a scale takes its place.
  l.router_norm = {w.vector("norms", at + "router.scale", hidden), {}, l.input_norm.eps};
  l.router.linear = w.exact("mlp", {at + "router.proj", count}, hidden, false);
  l.router.scale = w.vector("norms", at + "router.per_expert_scale", count);
  l.experts = load_experts(w, config_, at, {"experts", "gate_proj", "up_proj", "down_proj"});
  return l;
}

inline void Gemma4::enter_layers(Team t, const Pass& p) const {
  if (config_.layer_inputs > 0) inputs_.compute(t, p, config_, embedding_rows(t, p));
}

inline std::vector<int64_t> Gemma4::own_widths() const {
  std::vector<int64_t> widths = LayerInputs::own_widths(config_);
  if (config_.experts.count > 0) widths.push_back(config_.hidden_size);
  return widths;
}

inline void Gemma4::add_experts(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Rows mixture = own_rows(p, p.own.size() - 1);
  norm(at, l.post_dense_norm, p.out, p.out);
  norm(at, l.router_norm, p.x, p.normed);
  scale(at.t, p, inverse_square_root(static_cast<double>(config_.hidden_size)), p.normed);
  route(at, l.router, p.normed);
  norm(at, l.pre_experts_norm, p.x, p.normed);
  point(at.t, p, Point::expert_in, at.index, p.normed);
  mix_experts(at, l.experts, Gate::gelu_tanh, p.normed, mixture);
  norm(at, l.post_experts_norm, mixture, mixture);
  add(at.t, p, p.out, mixture);
}

inline void Gemma4::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.input_norm, l.qkv);
  norm_heads(at, l.q_norm, x.q);
  norm_heads(at, l.k_norm, x.k);
  norm_heads(at, l.v_norm, x.v);
  rotate(at, x);
  attend(at, x);
  attention_output(at, l.o);
  norm(at, l.post_attention_norm, p.out, p.out);
  add_attention(at);

  norm(at, Point::ln2, l.pre_mlp_norm, p.x, p.normed);
  gated_mlp(at, l.gate_up, l.down, Gate::gelu_tanh, p.normed);
  if (config_.experts.count > 0) add_experts(at);
  norm(at, l.post_mlp_norm, p.out, p.out);
  add_mlp_output(at);

  if (config_.layer_inputs > 0) {
    l.input(at, p.x);
    add(at.t, p, p.x, p.out);
  }
  scale(at.t, p, static_cast<double>(l.scalar[0]), p.x);
  leave_layer(at);
}

}  // namespace gemma4

inline Family gemma4_family() {
  return {{"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"},
          {"gemma4_text", "gemma4"},
          gemma4::read_config,
          "embed_tokens.weight",
          {"model.", "model.language_model.", "language_model.model."},
          load_model<gemma4::Gemma4>};
}

}  // namespace stet

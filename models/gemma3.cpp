// Gemma 3, text: 270M to 27B, and the text part of the multimodal checkpoints.
// Source: "Gemma 3 Technical Report", arXiv 2503.19786, and transformers' modeling_gemma3.py.
#include "models/family.hpp"

namespace stet {
namespace {

class Gemma3 : public Model {
 public:
  Gemma3(ModelConfig config, WeightLoader& w);
  void forward(Team t, const Pass& p) const override;

 private:
  struct Layer {
    Vector input_norm;           // [hidden]; stored weights are offsets from 1, here and below
    Matrix qkv;                  // [(heads + 2 kv_heads) head_dim][hidden]
    Vector q_norm, k_norm;       // [head_dim]
    Matrix o;                    // [hidden][heads head_dim]
    Vector post_attention_norm;  // [hidden]
    Vector pre_mlp_norm;         // [hidden]
    Matrix gate_up;              // [2 intermediate][hidden]
    Matrix down;                 // [hidden][intermediate]
    Vector post_mlp_norm;        // [hidden]
  };
  void layer(Team t, const Pass& p, size_t index) const;

  std::vector<Layer> layers_;
  Vector final_norm_;
  std::vector<Vector> frequencies_;
};

ModelConfig read_config(const JsonReader& top) {
  const std::optional<JsonReader> nested = top.object("text_config");
  const JsonReader& json = nested ? *nested : top;
  ModelConfig c = read_common(json, "gemma3");
  if (nested && top.has("eos_token_id")) c.eos_ids = read_ids(top, "eos_token_id", c.vocab_size);
  c.embedding_scale = static_cast<double>(__builtin_sqrtf(static_cast<float>(c.hidden_size)));
  c.attention_scale = 1.0 / __builtin_sqrt(json.number_or("query_pre_attn_scalar", 256, 1e-6, 1e6));
  c.tied_head = json.boolean_or("tie_word_embeddings", top.boolean_or("tie_word_embeddings", true));
  const int64_t pattern = json.integer_or("sliding_window_pattern", json.integer_or("_sliding_window_pattern", 6, 1, 1024), 1, 1024);
  c.window = read_windows(json, c.layers, json.integer_or("sliding_window", 4096, 1, int64_t{1} << 32), pattern);
  Rope local;
  local.theta = json.number_or("rope_local_base_freq", 10000, 1, 1e12);
  const bool per_type = json.has("rope_parameters");
  c.ropes = {read_rope(json, "full_attention", 1e6), per_type ? read_rope(json, "sliding_attention", 10000) : local};
  for (int64_t window : c.window) c.rope_of.push_back(window == 0 ? 0 : 1);
  require_activation(json, "hidden_activation", "gelu_pytorch_tanh");
  if (json.boolean_or("use_bidirectional_attention", false)) json.fail("use_bidirectional_attention", "false");
  if (c.attention_bias) json.fail("attention_bias", "false");
  return c;
}

Gemma3::Gemma3(ModelConfig config, WeightLoader& w) : Model(std::move(config)) {
  const ModelConfig& c = config_;
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  embedding_ = w.matrix("embeddings", {{"embed_tokens.weight", c.vocab_size}}, c.hidden_size);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string at = "layers." + std::to_string(i) + ".", self = at + "self_attn.", mlp = at + "mlp.";
    const auto norm = [&](const std::string& name, int64_t n) { return w.vector("norms", name + ".weight", n, 1.0f); };
    Layer l;
    l.input_norm = norm(at + "input_layernorm", c.hidden_size);
    l.qkv = w.matrix("attention", {{self + "q_proj.weight", q}, {self + "k_proj.weight", kv}, {self + "v_proj.weight", kv}}, c.hidden_size);
    l.q_norm = norm(self + "q_norm", c.head_dim);
    l.k_norm = norm(self + "k_norm", c.head_dim);
    l.o = w.matrix("attention", {{self + "o_proj.weight", c.hidden_size}}, q);
    l.post_attention_norm = norm(at + "post_attention_layernorm", c.hidden_size);
    l.pre_mlp_norm = norm(at + "pre_feedforward_layernorm", c.hidden_size);
    l.gate_up = w.matrix("mlp", {{mlp + "gate_proj.weight", c.intermediate_size}, {mlp + "up_proj.weight", c.intermediate_size}}, c.hidden_size);
    l.down = w.matrix("mlp", {{mlp + "down_proj.weight", c.hidden_size}}, c.intermediate_size);
    l.post_mlp_norm = norm(at + "post_feedforward_layernorm", c.hidden_size);
    layers_.push_back(std::move(l));
  }
  final_norm_ = w.vector("norms", "norm.weight", c.hidden_size, 1.0f);
  if (!c.tied_head) head_ = w.head(c.vocab_size, c.hidden_size);
  for (const Rope& rope : c.ropes) frequencies_.push_back(inverse_frequencies(rope, c.head_dim));
}

void Gemma3::forward(Team t, const Pass& p) const {
  rope_tables(t, p, frequencies_);
  embed(t, p, embedding_, static_cast<float>(config_.embedding_scale), p.x);
  tap(t, p, 0, p.x);
  for (size_t i = 0; i < layers_.size(); ++i) {
    layer(t, p, i);
    if (i + 1 < layers_.size()) tap(t, p, i + 1, p.x);
  }
  rms_norm(t, p, final_norm_, config_.norm_eps, p.x, p.out);
  tap(t, p, layers_.size(), p.out);
}

void Gemma3::layer(Team t, const Pass& p, size_t index) const {
  const Layer& l = layers_[index];
  const ModelConfig& c = config_;
  const size_t heads = static_cast<size_t>(c.heads), kv_heads = static_cast<size_t>(c.kv_heads);
  const size_t head_dim = static_cast<size_t>(c.head_dim), inter = static_cast<size_t>(c.intermediate_size);
  const Rows q = p.qkv.columns(0, heads * head_dim);
  const Rows k = p.qkv.columns(heads * head_dim, kv_heads * head_dim);
  const Rows v = p.qkv.columns((heads + kv_heads) * head_dim, kv_heads * head_dim);

  rms_norm(t, p, l.input_norm, c.norm_eps, p.x, p.normed);
  linear(t, p, l.qkv, p.normed, p.qkv);
  rms_norm_heads(t, p, l.q_norm, c.norm_eps, q, head_dim);
  rms_norm_heads(t, p, l.k_norm, c.norm_eps, k, head_dim);
  rope(t, p, c.rope_of[index], q, head_dim);
  rope(t, p, c.rope_of[index], k, head_dim);
  store_kv(t, p, static_cast<int64_t>(index), k, v);
  attention(t, p, {static_cast<int64_t>(index), heads, kv_heads, head_dim, c.window[index], c.attention_scale, c.attention_softcap}, q, p.attention);
  linear(t, p, l.o, p.attention, p.out);
  rms_norm(t, p, l.post_attention_norm, c.norm_eps, p.out, p.out);
  add(t, p, p.x, p.out);

  rms_norm(t, p, l.pre_mlp_norm, c.norm_eps, p.x, p.normed);
  linear(t, p, l.gate_up, p.normed, p.gate_up);
  gelu_tanh_mul(t, p, p.gate_up.columns(0, inter), p.gate_up.columns(inter, inter), p.mlp);
  linear(t, p, l.down, p.mlp, p.out);
  rms_norm(t, p, l.post_mlp_norm, c.norm_eps, p.out, p.out);
  add(t, p, p.x, p.out);
}

std::unique_ptr<Model> load(ModelConfig config, WeightLoader& weights) {
  return std::make_unique<Gemma3>(std::move(config), weights);
}

}  // namespace

const Family gemma3_family = {
    {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"}, {"gemma3_text", "gemma3"}, read_config,
    "embed_tokens.weight", {"model.", "language_model.model.", "model.language_model."}, load};

}  // namespace stet

// Llama 2, 3, 3.1, 3.2, 3.3, text.
// Source: arXiv 2302.13971, 2307.09288, 2407.21783, and transformers' modeling_llama.py.
#include "models/family.hpp"

namespace stet {
namespace {

class Llama : public Model {
 public:
  Llama(ModelConfig config, WeightLoader& w);
  void forward(Team t, const Pass& p) const override;

 private:
  struct Layer {
    Vector input_norm;                                // [hidden]
    Matrix qkv;                                       // [(heads + 2 kv_heads) head_dim][hidden]
    Matrix o;                                         // [hidden][heads head_dim]
    Vector post_attention_norm;                       // [hidden]
    Matrix gate_up;                                   // [2 intermediate][hidden]
    Matrix down;                                      // [hidden][intermediate]
    Vector qkv_bias, o_bias, gate_up_bias, down_bias; // empty where the checkpoint has none
  };
  void layer(Team t, const Pass& p, size_t index) const;

  std::vector<Layer> layers_;
  Vector final_norm_;
  std::vector<Vector> frequencies_;
};

ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_common(json, "llama");
  c.attention_scale = 1.0 / __builtin_sqrt(static_cast<double>(c.head_dim));
  c.tied_head = json.boolean_or("tie_word_embeddings", false);
  c.window.assign(static_cast<size_t>(c.layers), 0);
  c.rope_of.assign(static_cast<size_t>(c.layers), 0);
  c.ropes = {read_rope(json, "", 10000)};
  require_activation(json, "hidden_act", "silu");
  return c;
}

Llama::Llama(ModelConfig config, WeightLoader& w) : Model(std::move(config)) {
  const ModelConfig& c = config_;
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim, inter = c.intermediate_size;
  embedding_ = w.matrix("embeddings", {{"embed_tokens.weight", c.vocab_size}}, c.hidden_size);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string at = "layers." + std::to_string(i) + ".", self = at + "self_attn.", mlp = at + "mlp.";
    Layer l;
    l.input_norm = w.vector("norms", at + "input_layernorm.weight", c.hidden_size);
    l.qkv = w.matrix("attention", {{self + "q_proj.weight", q}, {self + "k_proj.weight", kv}, {self + "v_proj.weight", kv}}, c.hidden_size);
    l.qkv_bias = w.biases("attention", c.attention_bias, {{self + "q_proj.bias", q}, {self + "k_proj.bias", kv}, {self + "v_proj.bias", kv}});
    l.o = w.matrix("attention", {{self + "o_proj.weight", c.hidden_size}}, q);
    l.o_bias = w.biases("attention", c.attention_bias, {{self + "o_proj.bias", c.hidden_size}});
    l.post_attention_norm = w.vector("norms", at + "post_attention_layernorm.weight", c.hidden_size);
    l.gate_up = w.matrix("mlp", {{mlp + "gate_proj.weight", inter}, {mlp + "up_proj.weight", inter}}, c.hidden_size);
    l.gate_up_bias = w.biases("mlp", c.mlp_bias, {{mlp + "gate_proj.bias", inter}, {mlp + "up_proj.bias", inter}});
    l.down = w.matrix("mlp", {{mlp + "down_proj.weight", c.hidden_size}}, inter);
    l.down_bias = w.biases("mlp", c.mlp_bias, {{mlp + "down_proj.bias", c.hidden_size}});
    layers_.push_back(std::move(l));
  }
  final_norm_ = w.vector("norms", "norm.weight", c.hidden_size);
  if (!c.tied_head) head_ = w.head(c.vocab_size, c.hidden_size);
  for (const Rope& rope : c.ropes) frequencies_.push_back(inverse_frequencies(rope, c.head_dim));
}

void Llama::forward(Team t, const Pass& p) const {
  rope_tables(t, p, frequencies_);
  embed(t, p, embedding_, 1.0f, p.x);
  tap(t, p, 0, p.x);
  for (size_t i = 0; i < layers_.size(); ++i) {
    layer(t, p, i);
    if (i + 1 < layers_.size()) tap(t, p, i + 1, p.x);
  }
  rms_norm(t, p, final_norm_, config_.norm_eps, p.x, p.out);
  tap(t, p, layers_.size(), p.out);
}

void Llama::layer(Team t, const Pass& p, size_t index) const {
  const Layer& l = layers_[index];
  const ModelConfig& c = config_;
  const size_t heads = static_cast<size_t>(c.heads), kv_heads = static_cast<size_t>(c.kv_heads);
  const size_t head_dim = static_cast<size_t>(c.head_dim), inter = static_cast<size_t>(c.intermediate_size);
  const Rows q = p.qkv.columns(0, heads * head_dim);
  const Rows k = p.qkv.columns(heads * head_dim, kv_heads * head_dim);
  const Rows v = p.qkv.columns((heads + kv_heads) * head_dim, kv_heads * head_dim);

  rms_norm(t, p, l.input_norm, c.norm_eps, p.x, p.normed);
  linear(t, p, l.qkv, p.normed, p.qkv);
  add_bias(t, p, p.qkv, l.qkv_bias);
  rope(t, p, 0, q, head_dim);
  rope(t, p, 0, k, head_dim);
  store_kv(t, p, static_cast<int64_t>(index), k, v);
  attention(t, p, {static_cast<int64_t>(index), heads, kv_heads, head_dim, c.window[index], c.attention_scale, 0}, q, p.attention);
  linear(t, p, l.o, p.attention, p.out);
  add_bias(t, p, p.out, l.o_bias);
  add(t, p, p.x, p.out);

  rms_norm(t, p, l.post_attention_norm, c.norm_eps, p.x, p.normed);
  linear(t, p, l.gate_up, p.normed, p.gate_up);
  add_bias(t, p, p.gate_up, l.gate_up_bias);
  silu_mul(t, p, p.gate_up.columns(0, inter), p.gate_up.columns(inter, inter), p.mlp);
  linear(t, p, l.down, p.mlp, p.out);
  add_bias(t, p, p.out, l.down_bias);
  add(t, p, p.x, p.out);
}

std::unique_ptr<Model> load(ModelConfig config, WeightLoader& weights) {
  return std::make_unique<Llama>(std::move(config), weights);
}

}  // namespace

const Family llama_family = {
    {"LlamaForCausalLM"}, {"llama"}, read_config, "embed_tokens.weight", {"model.", "language_model.model."}, load};

}  // namespace stet

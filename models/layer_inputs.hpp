// Per-layer inputs of Gemma 3n and the small Gemma 4: a second input of each layer, beside the
// residual stream. For each token it is a row of a table plus a projection of the token's
// embedding. Source: transformers' modeling_gemma3n.py (get_per_layer_inputs,
// project_per_layer_inputs).
#pragma once

#include "stet/model/decoder.hpp"

namespace stet {

// Computes the inputs of all layers, [layers][p] per token, with p = ModelConfig::layer_inputs. The
// table has gigabytes in published models. Its rows are read from the checkpoint's file when
// needed.
class LayerInputs {
 public:
  // The default is for a model without such inputs (ModelConfig::layer_inputs is 0).
  LayerInputs() = default;
  LayerInputs(WeightLoader& w, const ModelConfig& c, float norm_offset = 0);

  // Returns the widths of the activations that it needs, for Model::own_widths(). They are the
  // first of Pass::own.
  enum { kInputs, kScratch, kGate, kOwn };
  static std::vector<int64_t> own_widths(const ModelConfig& c);

  // Computes own[kInputs] = (norm(projection h / sqrt(hidden)) + row sqrt(p)) / sqrt(2), for the
  // embeddings h of p.ids and their rows of the table.
  void compute(Team t, const Pass& p, const ModelConfig& c, Rows h) const;

 private:
  Matrix table_;       // [tokens][layers p]
  Linear projection_;  // [layers p][hidden]
  Norm norm_;          // [p]
};

// The part of a layer that takes its input: norm(projection(gelu(gate x) * input)).
struct LayerInputGate {
  LayerInputGate() = default;
  LayerInputGate(WeightLoader& w, const ModelConfig& c, const std::string& at);

  // Computes into p.out the sum that the layer adds to the stream x.
  void operator()(const LayerPass& at, Rows x) const;

  Linear gate;        // [p][hidden]
  Linear projection;  // [hidden][p]
  Norm norm;          // [hidden]
};

inline Rows own_rows(const Pass& p, size_t index) { return p.own[index].rows(0, p.x.count); }

inline std::vector<int64_t> LayerInputs::own_widths(const ModelConfig& c) {
  if (c.layer_inputs == 0) return {};
  return {c.layers * c.layer_inputs, c.layers * c.layer_inputs, c.layer_inputs};
}

inline LayerInputs::LayerInputs(WeightLoader& w, const ModelConfig& c, float norm_offset) {
  const int64_t all = c.layers * c.layer_inputs;
  table_ =
      w.table_in_place("embeddings", {"embed_tokens_per_layer.weight", c.layer_input_tokens}, all);
  projection_ = w.linear("embeddings", {{"per_layer_model_projection", all}}, c.hidden_size, false);
  norm_ = {w.vector("norms", "per_layer_projection_norm.weight", c.layer_inputs, norm_offset),
           {},
           static_cast<float>(c.norm_eps)};
}

inline void LayerInputs::compute(Team t, const Pass& p, const ModelConfig& c, Rows h) const {
  const Rows inputs = own_rows(p, kInputs), rows = own_rows(p, kScratch);
  const auto width = static_cast<size_t>(c.layer_inputs);
  linear(t, p, projection_, h, inputs);
  scale(t, p, inverse_square_root(static_cast<double>(c.hidden_size)), inputs);
  rms_norm_heads(t, p, norm_.weight, norm_.eps, inputs, width);
  const float root = square_root(static_cast<float>(c.layer_inputs));
  detail::each_row(t, inputs.count, [&](size_t r) {
    const int64_t id = p.ids[r];  // tokens without a row use that of token 0
    table_.gather(static_cast<size_t>(id < c.layer_input_tokens ? id : 0), rows.row(r));
    p.kernels->scale(rows.row(r), root, rows.width);
    p.kernels->add(inputs.row(r), rows.row(r), rows.width);
  });
  scale(t, p, inverse_square_root(2), inputs);
}

inline LayerInputGate::LayerInputGate(WeightLoader& w, const ModelConfig& c,
                                      const std::string& at) {
  gate = w.linear("mlp", {{at + "per_layer_input_gate", c.layer_inputs}}, c.hidden_size, false);
  projection =
      w.linear("mlp", {{at + "per_layer_projection", c.hidden_size}}, c.layer_inputs, false);
  norm = {w.vector("norms", at + "post_per_layer_input_norm.weight", c.hidden_size),
          {},
          static_cast<float>(c.norm_eps)};
}

inline void LayerInputGate::operator()(const LayerPass& at, Rows x) const {
  const Pass& p = at.p;
  const Rows gates = own_rows(p, LayerInputs::kGate),
             inputs =
                 own_rows(p, LayerInputs::kInputs).columns(at.index * gates.width, gates.width);
  linear(at.t, p, gate, x, gates);
  detail::each_row(at.t, gates.count, [&](size_t r) {
    p.kernels->gelu_tanh_mul(gates.row(r), inputs.row(r), gates.row(r), gates.width);
  });
  linear(at.t, p, projection, gates, p.out);
  stet::norm(at, norm, p.out, p.out);
}

}  // namespace stet

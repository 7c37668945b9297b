#include "tests/support/reference_model.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/support/kernel_testing.hpp"
#include "tests/support/models.hpp"

namespace stet::test {

class ReferenceModel::Weights {
 public:
  explicit Weights(const std::string& directory) {
    config_ = nlohmann::json::parse(std::ifstream(directory + "/config.json"));
    const Golden weights(directory + "/model.safetensors");
    for (const TensorView& t : weights.all()) {
      Vec& w = weights_[plain_name(t.name)];
      for (size_t i = 0; i * dtype_size(t.dtype) < t.bytes.size(); ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, t.bytes.data() + i * dtype_size(t.dtype), dtype_size(t.dtype));
        const uint16_t half = static_cast<uint16_t>(bits);
        w.push_back(t.dtype == DType::f32    ? double{float_of(bits)}
                    : t.dtype == DType::bf16 ? exact_bf16(half)
                                             : exact_f16(half));
      }
    }
  }

  // Maps GPT-NeoX's names of tensors to Llama's.
  static std::string plain_name(std::string name) {
    for (const auto& [from, to] :
         {std::pair("model.", ""), std::pair("gpt_neox.", ""),
          std::pair("embed_in.", "embed_tokens."), std::pair("embed_out.", "lm_head."),
          std::pair("final_layer_norm.", "norm."),
          std::pair("attention.dense.", "self_attn.o_proj."),
          std::pair("attention.query_key_value.", "self_attn.fused."),
          std::pair("mlp.dense_h_to_4h.", "mlp.up_proj."),
          std::pair("mlp.dense_4h_to_h.", "mlp.down_proj.")}) {
      const size_t at = name.find(from);
      if (at != std::string::npos) name.replace(at, std::string(from).size(), to);
    }
    return name;
  }

  Result run(const std::vector<int32_t>& ids, const Hook& hook) const {
    const auto at_point = [&](const std::string& point, size_t t, Vec& x) {
      if (hook) hook(point, t, x);
    };
    const std::string family = config_.at("model_type");
    const bool neox = family == "gpt_neox";
    const bool gemma = family.starts_with("gemma"),
               parallel =
                   family == "parallel" || (neox && config_.value("use_parallel_residual", true)),
               tied = config_.value("tie_word_embeddings", gemma);
    const size_t hidden = config_.at("hidden_size"), heads = config_.at("num_attention_heads");
    const size_t kv_heads = config_.value("num_key_value_heads", heads),
                 dim = config_.value("head_dim", hidden / heads);
    const double scale = config_.value(
        "attention_multiplier",
        1 / std::sqrt(config_.value("query_pre_attn_scalar", static_cast<double>(dim))));
    const double residual = config_.value("residual_multiplier", 1.0);
    Result r;
    std::vector<Vec> x;
    for (int32_t id : ids) {
      const auto row =
          weights_.at("embed_tokens.weight").begin() + static_cast<int64_t>(hidden) * id;
      x.emplace_back(row, row + static_cast<int64_t>(hidden));
      for (double& e : x.back())
        e *= gemma ? std::sqrt(static_cast<double>(hidden))
                   : config_.value("embedding_multiplier", 1.0);
    }
    for (size_t t = 0; t < x.size(); ++t) at_point("hook_embed", t, x[t]);
    const auto record = [&](const std::vector<Vec>& rows) {
      r.hidden.emplace_back();
      for (const Vec& row : rows)
        r.hidden.back().insert(r.hidden.back().end(), row.begin(), row.end());
    };
    record(x);
    const size_t layers = config_.at("num_hidden_layers");
    for (size_t layer = 0; layer < layers; ++layer) {
      const std::string at = "layers." + std::to_string(layer) + ".", self = at + "self_attn.",
                        mlp = at + "mlp.";
      const std::string block = "blocks." + std::to_string(layer) + ".";
      for (size_t t = 0; t < x.size(); ++t) at_point(block + "hook_resid_pre", t, x[t]);
      const bool four_norms = weights_.contains(at + "pre_feedforward_layernorm.weight");
      const bool before_norm = weights_.contains(at + "input_layernorm.weight"),
                 after_norm = weights_.contains(at + "post_feedforward_layernorm.weight");
      std::vector<Vec> q, k, v;
      for (size_t t = 0; t < x.size(); ++t) {
        Vec n = x[t];
        if (before_norm) {
          Vec scale = scale_of(n);
          at_point(block + "ln1.hook_scale", t, scale);
          n = norm(n, at + "input_layernorm");
          at_point(block + "ln1.hook_normalized", t, n);
        }
        std::vector<Vec> parts = queries_keys_values(n, self, heads, kv_heads, dim);
        for (size_t part = 0; part < 3; ++part) {
          const size_t copies = part == 0 ? heads : kv_heads;
          Vec inputs;
          for (size_t h = 0; h < copies; ++h) inputs.insert(inputs.end(), x[t].begin(), x[t].end());
          at_point(block + "hook_" + std::string(1, "qkv"[part]) + "_input", t, inputs);
          for (size_t h = 0; h < copies; ++h) {
            const auto from = inputs.begin() + static_cast<int64_t>(h * hidden);
            Vec own(from, from + static_cast<int64_t>(hidden));
            if (own == x[t]) continue;
            if (before_norm) own = norm(own, at + "input_layernorm");
            const Vec made = queries_keys_values(own, self, heads, kv_heads, dim)[part];
            const auto column = static_cast<int64_t>(h * dim);
            std::copy_n(made.begin() + column, dim, parts[part].begin() + column);
          }
        }
        for (size_t part = 0; part < 3; ++part) {
          const std::string name(1, "qkv"[part]);
          std::vector<Vec>* const to = part == 0 ? &q : part == 1 ? &k : &v;
          Vec y = parts[part];
          at_point(block + "attn.hook_" + name, t, y);
          if (to != &v) {
            y = turned(y, self + name + "_norm", dim, t, layer);
            at_point(block + "attn.hook_rot_" + name, t, y);
          } else {
            clip(y);
          }
          to->push_back(std::move(y));
        }
      }
      for (size_t t = 0; t < x.size(); ++t) {
        Vec mixed(heads * dim), scores(heads * x.size()), pattern(heads * x.size());
        const size_t window = window_of(family, layer),
                     first = window > 0 && t + 1 > window ? t + 1 - window : 0;
        for (size_t h = 0; h < heads; ++h) {
          const size_t kv = h / (heads / kv_heads) * dim;
          for (size_t s = first; s <= t; ++s) {
            const double score =
                std::transform_reduce(&q[t][h * dim], &q[t][h * dim] + dim, &k[s][kv], 0.0);
            scores[h * x.size() + s] = capped(score * scale, "attn_logit_softcapping");
          }
        }
        at_point(block + "attn.hook_attn_scores", t, scores);
        for (size_t h = 0; h < heads; ++h) {
          const auto sinks = weights_.find(self + "sinks");
          double sum = sinks != weights_.end() ? std::exp(sinks->second[h]) : 0;
          for (size_t s = first; s <= t; ++s) sum += std::exp(scores[h * x.size() + s]);
          for (size_t s = first; s <= t; ++s)
            pattern[h * x.size() + s] = std::exp(scores[h * x.size() + s]) / sum;
        }
        at_point(block + "attn.hook_pattern", t, pattern);
        for (size_t h = 0; h < heads; ++h) {
          const size_t kv = h / (heads / kv_heads) * dim;
          for (size_t s = first; s <= t; ++s) {
            for (size_t d = 0; d < dim; ++d)
              mixed[h * dim + d] += pattern[h * x.size() + s] * v[s][kv + d];
          }
        }
        at_point(block + "attn.hook_z", t, mixed);
        Vec results;
        for (size_t h = 0; h < heads; ++h) {
          Vec alone(mixed.size());
          std::copy_n(mixed.begin() + static_cast<int64_t>(h * dim), dim,
                      alone.begin() + static_cast<int64_t>(h * dim));
          const Vec part = times(alone, self + "o_proj.weight");
          results.insert(results.end(), part.begin(), part.end());
        }
        at_point(block + "attn.hook_result", t, results);
        Vec out = linear(mixed, self + "o_proj");
        if (after_norm) out = norm(out, at + "post_attention_layernorm");
        for (double& e : out) e *= residual;
        at_point(block + "hook_attn_out", t, out);
        const Vec before = x[t];
        for (size_t i = 0; i < hidden; ++i) x[t][i] += out[i];

        if (!neox || !parallel) at_point(block + "hook_resid_mid", t, x[t]);
        Vec n = parallel ? before : x[t];
        if (before_norm) {
          Vec scale = scale_of(n);
          at_point(block + "ln2.hook_scale", t, scale);
          n = norm(n, at + (parallel && !neox ? "input_layernorm"
                            : four_norms      ? "pre_feedforward_layernorm"
                                              : "post_attention_layernorm"));
          at_point(block + "ln2.hook_normalized", t, n);
        }
        if (const std::string router = router_of(at); !router.empty()) {
          out = mixture(n, router, [&](const char* name, Vec& values) {
            at_point(block + "mlp." + name, t, values);
          });
        } else {
          auto [gate, up] = gate_and_up(n, mlp);
          at_point(block + "mlp.hook_pre", t, gate);
          if (!neox) at_point(block + "mlp.hook_pre_linear", t, up);
          for (size_t i = 0; i < gate.size(); ++i)
            gate[i] = (neox ? gelu_by_erf(gate[i]) : gemma ? gelu(gate[i]) : silu(gate[i])) * up[i];
          at_point(block + "mlp.hook_post", t, gate);
          out = linear(gate, mlp + "down_proj");
        }
        if (after_norm) out = norm(out, at + "post_feedforward_layernorm");
        for (double& e : out) e *= residual;
        at_point(block + "hook_mlp_out", t, out);
        for (size_t i = 0; i < hidden; ++i) x[t][i] += out[i];
        at_point(block + "hook_resid_post", t, x[t]);
        append(r.k, layer, k[t]);
        append(r.v, layer, v[t]);
      }
      if (layer + 1 < layers) record(x);
    }
    for (size_t t = 0; t < x.size(); ++t) {
      Vec scale = scale_of(x[t]);
      at_point("ln_final.hook_scale", t, scale);
      x[t] = norm(x[t], "norm");
      at_point("ln_final.hook_normalized", t, x[t]);
    }
    record(x);
    for (const Vec& row : x) {
      for (double logit : times(row, tied ? "embed_tokens.weight" : "lm_head.weight")) {
        r.logits.push_back(
            capped(logit / config_.value("logits_scaling", 1.0), "final_logit_softcapping"));
      }
    }
    return r;
  }

 private:
  static void append(std::vector<Vec>& to, size_t layer, const Vec& values) {
    to.resize(std::max(to.size(), layer + 1));
    to[layer].insert(to[layer].end(), values.begin(), values.end());
  }
  static double silu(double g) { return g / (1 + std::exp(-g)); }
  static double gelu(double g) {
    return 0.5 * g * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g)));
  }
  static double gelu_by_erf(double g) { return 0.5 * g * (1 + std::erf(g / std::sqrt(2.0))); }

  static Vec part_of(const Vec& x, size_t first, size_t n) {
    const auto begin = x.begin() + static_cast<int64_t>(first);
    return {begin, begin + static_cast<int64_t>(n)};
  }
  // Splits or computes queries, keys and values. Llama has a tensor for each. Phi-3 has one tensor
  // with all queries first; GPT-NeoX has one with queries, keys and values of each head in turn.
  std::vector<Vec> queries_keys_values(const Vec& n, const std::string& self, size_t heads,
                                       size_t kv_heads, size_t dim) const {
    if (weights_.contains(self + "qkv_proj.weight")) {
      const Vec all = linear(n, self + "qkv_proj");
      const size_t q = heads * dim, kv = kv_heads * dim;
      return {part_of(all, 0, q), part_of(all, q, kv), part_of(all, q + kv, kv)};
    }
    if (!weights_.contains(self + "fused.weight"))
      return {linear(n, self + "q_proj"), linear(n, self + "k_proj"), linear(n, self + "v_proj")};
    const Vec all = linear(n, self + "fused");
    std::vector<Vec> parts(3);
    for (size_t h = 0; h < heads; ++h) {
      for (size_t part = 0; part < 3; ++part) {
        const Vec one = part_of(all, (3 * h + part) * dim, dim);
        parts[part].insert(parts[part].end(), one.begin(), one.end());
      }
    }
    return parts;
  }
  // Returns the gate and the up projection. GPT-NeoX has a single projection, which replaces the
  // gate; its up factor is 1.
  std::pair<Vec, Vec> gate_and_up(const Vec& n, const std::string& mlp) const {
    if (weights_.contains(mlp + "gate_up_proj.weight")) {
      const Vec both = linear(n, mlp + "gate_up_proj");
      return {part_of(both, 0, both.size() / 2), part_of(both, both.size() / 2, both.size() / 2)};
    }
    const Vec up = linear(n, mlp + "up_proj");
    if (!weights_.contains(mlp + "gate_proj.weight")) return {up, Vec(up.size(), 1.0)};
    return {linear(n, mlp + "gate_proj"), up};
  }
  // Returns the name of the router of a layer with experts, or "" for another layer.
  std::string router_of(const std::string& at) const {
    for (const char* name :
         {"mlp.gate", "mlp.router", "block_sparse_moe.gate", "block_sparse_moe.router.layer"}) {
      if (weights_.contains(at + name + ".weight")) return at + name;
    }
    return "";
  }
  // Qwen 3, OLMoE: arXiv 2505.09388, 2409.02060; Mixtral: 2401.04088; Granite:
  // modeling_granitemoe.py.
  template <class AtPoint>
  Vec mixture(const Vec& n, const std::string& router, const AtPoint& at_point) const {
    const std::string family = config_.at("model_type");
    const auto chosen = config_.at("num_experts_per_tok").get<size_t>();
    const bool among_chosen = family == "granitemoe" || family == "gpt_oss",
               divided = family == "mixtral" || config_.value("norm_topk_prob", false);
    Vec logits = linear(n, router);
    at_point("hook_router_logits", logits);
    std::vector<size_t> order(logits.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    double all = 0, some = 0;
    for (const double l : logits) all += std::exp(l);
    for (size_t i = 0; i < chosen; ++i) some += std::exp(logits[order[i]]);
    Vec weights(logits.size()), ids;
    for (size_t i = 0; i < chosen; ++i) {
      weights[order[i]] = std::exp(logits[order[i]]) / (among_chosen || divided ? some : all);
      ids.push_back(static_cast<double>(order[i]));
    }
    at_point("hook_expert_weights", weights);
    at_point("hook_expert_indices", ids);
    const size_t layer = router.find('.') + 1, mlp = router.find('.', layer) + 1;
    const std::string experts = router.substr(0, router.find('.', mlp) + 1);
    Vec out(n.size());
    std::map<size_t, Vec> inner;
    size_t width = 0;
    for (size_t e = 0; e < weights.size(); ++e) {
      if (weights[e] == 0) continue;
      const Vec y = expert(n, experts, e, inner[e]);
      width = inner[e].size();
      for (size_t i = 0; i < out.size(); ++i) out[i] += weights[e] * y[i];
    }
    Vec post;
    for (const double id : ids) {
      Vec& one = inner[static_cast<size_t>(id)];
      one.resize(width);
      post.insert(post.end(), one.begin(), one.end());
    }
    at_point("hook_expert_post", post);
    if (!weights_.contains(experts + "shared_expert.up_proj.weight")) return out;
    const Vec shared = shared_expert(n, experts, at_point);
    for (size_t i = 0; i < out.size(); ++i) out[i] += shared[i];
    return out;
  }
  // Qwen 2 and 3: an expert for all tokens, with a gate of its own or without one.
  template <class AtPoint>
  Vec shared_expert(const Vec& n, const std::string& mlp, const AtPoint& at_point) const {
    Vec inner = linear(n, mlp + "shared_expert.gate_proj");
    Vec up = linear(n, mlp + "shared_expert.up_proj");
    at_point("hook_pre", inner);
    at_point("hook_pre_linear", up);
    for (size_t i = 0; i < inner.size(); ++i) inner[i] = silu(inner[i]) * up[i];
    at_point("hook_post", inner);
    Vec out = linear(inner, mlp + "shared_expert.down_proj");
    if (!weights_.contains(mlp + "shared_expert_gate.weight")) return out;
    const double gate = linear(n, mlp + "shared_expert_gate")[0];
    for (double& e : out) e /= 1 + std::exp(-gate);
    return out;
  }
  // gpt-oss: arXiv 2508.10925. Matrices are stored transposed, and the outputs of gate and up
  // alternate.
  Vec expert_of_gpt_oss(const Vec& n, const std::string& at, size_t e, Vec& inner) const {
    const auto y = [&](const Vec& x, const std::string& name) {
      const Vec &w = weights_.at(at + name), &bias = weights_.at(at + name + "_bias");
      const size_t outputs = bias.size() / config_.at("num_local_experts").get<size_t>();
      Vec sums = part_of(bias, e * outputs, outputs);
      for (size_t k = 0; k < x.size(); ++k) {
        for (size_t i = 0; i < outputs; ++i) sums[i] += x[k] * w[(e * x.size() + k) * outputs + i];
      }
      return sums;
    };
    const Vec both = y(n, "experts.gate_up_proj");
    const double limit = config_.at("swiglu_limit");
    inner.resize(both.size() / 2);
    for (size_t i = 0; i < inner.size(); ++i) {
      const double gate = std::min(both[2 * i], limit),
                   up = std::clamp(both[2 * i + 1], -limit, limit);
      inner[i] = (up + 1) * gate / (1 + std::exp(-1.702 * gate));
    }
    return y(inner, "experts.down_proj");
  }
  // `inner` is set to the input of the expert's last matrix.
  Vec expert(const Vec& n, const std::string& at, size_t e, Vec& inner) const {
    if (config_.at("model_type") == "gpt_oss") return expert_of_gpt_oss(n, at, e, inner);
    Vec gate, up;
    std::string down = at + "experts." + std::to_string(e) + ".";
    if (const auto both = weights_.find(at + "input_linear.weight"); both != weights_.end()) {
      const size_t count = config_.at("num_local_experts"), size = both->second.size() / count;
      const Vec y = product(n, both->second.data() + e * size, size);
      gate = part_of(y, 0, y.size() / 2), up = part_of(y, y.size() / 2, y.size() / 2);
    } else {
      const bool mixtral = weights_.contains(down + "w1.weight");
      gate = linear(n, down + (mixtral ? "w1" : "gate_proj"));
      up = linear(n, down + (mixtral ? "w3" : "up_proj"));
      down += mixtral ? "w2" : "down_proj";
    }
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = silu(gate[i]) * up[i];
    inner = gate;
    if (const auto all = weights_.find(at + "output_linear.weight"); all != weights_.end()) {
      const size_t count = config_.at("num_local_experts"), size = all->second.size() / count;
      return product(gate, all->second.data() + e * size, size);
    }
    return linear(gate, down);
  }
  double capped(double y, const char* field) const {
    if (!config_.contains(field) || config_.at(field).is_null()) return y;
    const double cap = config_.at(field);
    return cap * std::tanh(y / cap);
  }

  // Returns the number of positions that a query of this layer sees; 0 means all.
  size_t window_of(const std::string& family, size_t layer) const {
    if (!config_.contains("sliding_window") || config_.at("sliding_window").is_null()) return 0;
    const size_t window = config_.at("sliding_window");
    if (family == "gemma2") return layer % 2 == 0 ? window : 0;
    if (family == "gemma3_text")
      return (layer + 1) % config_.at("sliding_window_pattern").get<size_t>() != 0 ? window : 0;
    if (family == "mistral" || family == "mixtral" || family == "phi3") return window;
    if (family == "qwen3_moe") return config_.value("use_sliding_window", false) ? window : 0;
    if (family == "olmo3" || family == "gpt_oss")
      return config_.at("layer_types").at(layer) == "sliding_attention" ? window : 0;
    const bool slides = config_.value("use_sliding_window", false) &&
                        layer >= config_.value("max_window_layers", size_t{28});
    return slides ? window : 0;
  }

  static Vec product(const Vec& x, const double* w, size_t size) {
    Vec y(size / x.size());
    for (size_t i = 0; i < y.size(); ++i)
      y[i] = std::transform_reduce(x.begin(), x.end(), w + i * x.size(), 0.0);
    return y;
  }
  Vec times(const Vec& x, const std::string& matrix) const {
    const Vec& w = weights_.at(matrix);
    return product(x, w.data(), w.size());
  }
  Vec linear(const Vec& x, const std::string& name) const {
    Vec y = times(x, name + ".weight");
    const auto bias = weights_.find(name + ".bias");
    for (size_t i = 0; bias != weights_.end() && i < y.size(); ++i) y[i] += bias->second[i];
    return y;
  }
  Vec norm(Vec x, const std::string& name) const {
    const Vec& w = weights_.at(name + ".weight");
    if (const auto bias = weights_.find(name + ".bias"); bias != weights_.end()) {
      double mean = 0;
      for (double e : x) mean += e / static_cast<double>(x.size());
      const double size = scale_of(x)[0];
      for (size_t i = 0; i < x.size(); ++i) x[i] = (x[i] - mean) / size * w[i] + bias->second[i];
      return x;
    }
    const double offset = config_.at("model_type").get<std::string>().starts_with("gemma") ? 1 : 0;
    const double size = scale_of(x)[0];
    for (size_t i = 0; i < x.size(); ++i) x[i] *= (w[i] + offset) / size;
    return x;
  }
  // Returns a norm's divisor: the standard deviation for a layer norm, otherwise the root mean
  // square.
  Vec scale_of(const Vec& x) const {
    const bool layer_norm = config_.contains("layer_norm_eps");
    const auto n = static_cast<double>(x.size());
    double mean = 0, squares = 0;
    for (double e : x) mean += layer_norm ? e / n : 0;
    for (double e : x) squares += (e - mean) * (e - mean) / n;
    return {std::sqrt(squares +
                      config_.at(layer_norm ? "layer_norm_eps" : "rms_norm_eps").get<double>())};
  }
  // Returns the angle by which pair i of a head turns per position, and the factor on its length.
  // YaRN follows the formulas of its paper (arXiv 2309.00071, 3.2 to 3.4), with whole pairs as the
  // ends of the ramp.
  std::pair<double, double> turn(size_t i, size_t dim, size_t layer) const {
    const bool local =
        config_.contains("rope_local_base_freq") && window_of(config_.at("model_type"), layer) > 0;
    const double theta =
                     local ? config_.at("rope_local_base_freq").get<double>()
                           : config_.value("rope_theta", config_.value("rotary_emb_base", 10000.0)),
                 width = static_cast<double>(dim),
                 plain = std::pow(theta, -2 * static_cast<double>(i) / width);
    if (!config_.contains("rope_scaling") || config_.at("rope_scaling").is_null())
      return {plain, 1};
    const nlohmann::json& yarn = config_.at("rope_scaling");
    if (yarn.value("type", yarn.value("rope_type", "")) == "longrope") {
      const double length = config_.at("original_max_position_embeddings"),
                   stretch = config_.at("max_position_embeddings").get<double>() / length;
      const double by = yarn.at(stretch > 1 ? "long_factor" : "short_factor").at(i);
      // transformers computes this in float32 and in this order.
      const auto power = static_cast<float>(std::pow(
          theta, static_cast<double>(2 * static_cast<float>(i) / static_cast<float>(width))));
      return {1 / (static_cast<float>(by) * power),
              stretch > 1 ? std::sqrt(1 + std::log(stretch) / std::log(length)) : 1};
    }
    if (yarn.value("rope_type", "") != "yarn") throw std::runtime_error("another scaling");
    const bool everywhere = config_.at("model_type") == "gpt_oss";
    if (!everywhere && window_of(config_.at("model_type"), layer) > 0) return {plain, 1};
    const double factor = yarn.at("factor"), length = yarn.at("original_max_position_embeddings");
    const auto pair_that_turns = [&](double times) {
      return width * std::log(length / (times * 2 * std::acos(-1.0))) / (2 * std::log(theta));
    };
    double low = pair_that_turns(yarn.value("beta_fast", 32.0)),
           high = pair_that_turns(yarn.value("beta_slow", 1.0));
    if (yarn.value("truncate", true)) low = std::floor(low), high = std::ceil(high);
    low = std::max(0.0, low), high = std::min(width - 1, high);
    const double part = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    return {plain * (1 - part) + plain / factor * part,
            yarn.value("attention_factor", 0.1 * std::log(factor) + 1)};
  }

  // Clamps queries, keys or values, as OLMoE's clip_qkv says.
  void clip(Vec& x) const {
    if (!config_.contains("clip_qkv") || config_.at("clip_qkv").is_null()) return;
    const double most = config_.at("clip_qkv");
    for (double& e : x) e = std::clamp(e, -most, most);
  }
  // Normalizes a vector of heads and rotates each head to position `t`. The size of a q/k norm's
  // weight decides whether it applies to each head or to all at once.
  Vec turned(Vec x, const std::string& qk_norm, size_t dim, size_t t, size_t layer) const {
    const auto weight = weights_.find(qk_norm + ".weight");
    const bool normed = weight != weights_.end(), each = normed && weight->second.size() == dim;
    if (normed && !each) x = norm(x, qk_norm);
    clip(x);
    const bool rotated =
        config_.at("model_type") != "smollm3" || config_.at("no_rope_layers").at(layer) != 0;
    for (size_t at = 0; at < x.size(); at += dim) {
      const auto head = x.begin() + static_cast<int64_t>(at);
      Vec h(head, head + static_cast<int64_t>(dim));
      if (each) h = norm(h, qk_norm);
      const auto turning = static_cast<size_t>(
          static_cast<double>(dim) *
          config_.value("rotary_pct", config_.value("partial_rotary_factor", 1.0)));
      for (size_t i = 0; rotated && i < turning / 2; ++i) {
        const auto [speed, magnitude] = turn(i, turning, layer);
        // modeling_rope_utils.py computes frequencies and angles in float32 for every type of
        // model. At position 66 that changes an angle by up to 8e-6.
        const double angle = static_cast<float>(t) * static_cast<float>(speed);
        const double a = h[i] * magnitude, b = h[turning / 2 + i] * magnitude;
        h[i] = a * std::cos(angle) - b * std::sin(angle);
        h[turning / 2 + i] = b * std::cos(angle) + a * std::sin(angle);
      }
      std::copy(h.begin(), h.end(), head);
    }
    return x;
  }

  nlohmann::json config_;
  std::map<std::string, Vec> weights_;
};

ReferenceModel::ReferenceModel(const std::string& directory)
    : weights_(std::make_shared<Weights>(directory)) {}
ReferenceModel::Result ReferenceModel::run(const std::vector<int32_t>& ids,
                                           const Hook& hook) const {
  return weights_->run(ids, hook);
}

}  // namespace stet::test

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/models.hpp"
#include "tests/support/reference_model.hpp"

namespace stet::test {

class Gpt2Reference::Weights {
 public:
  using Vec = ReferenceModel::Vec;

  explicit Weights(const std::string& directory)
      : config_(nlohmann::json::parse(std::ifstream(directory + "/config.json"))) {
    const Golden weights(directory + "/model.safetensors");
    for (const TensorView& t : weights.all()) {
      const std::string name = t.name.starts_with("transformer.") ? t.name.substr(12) : t.name;
      for (const float x : weights.floats(t.name)) weights_[name].push_back(x);
    }
  }

  // Returns logits, [T][vocab].
  Vec run(const std::vector<int32_t>& ids, const ReferenceModel::Hook& hook) const {
    const auto at_point = [&](const std::string& point, size_t t, Vec x) {
      if (hook) hook(point, t, x);
      return x;
    };
    const size_t hidden = config_.at("n_embd"), heads = config_.at("n_head"), dim = hidden / heads;
    std::vector<Vec> x;
    for (size_t t = 0; t < ids.size(); ++t) {
      const Vec place = at_point("hook_pos_embed", t, row("wpe.weight", t, hidden));
      x.push_back(
          sum(at_point("hook_embed", t, row("wte.weight", static_cast<size_t>(ids[t]), hidden)),
              place));
    }
    for (size_t layer = 0; layer < config_.at("n_layer").get<size_t>(); ++layer) {
      const std::string at = "h." + std::to_string(layer) + ".",
                        block = "blocks." + std::to_string(layer) + ".";
      std::vector<Vec> q, k, v;
      for (size_t t = 0; t < x.size(); ++t) {
        x[t] = at_point(block + "hook_resid_pre", t, x[t]);
        at_point(block + "ln1.hook_scale", t, {scale_of(x[t])});
        const Vec n = at_point(block + "ln1.hook_normalized", t, norm(x[t], at + "ln_1"));
        Vec all = linear(n, at + "attn.c_attn");
        for (size_t i = 0; i < 3; ++i) {
          Vec inputs;
          for (size_t h = 0; h < heads; ++h) inputs.insert(inputs.end(), x[t].begin(), x[t].end());
          inputs = at_point(block + "hook_" + std::string(1, "qkv"[i]) + "_input", t, inputs);
          for (size_t h = 0; h < heads; ++h) {
            const auto from = inputs.begin() + static_cast<int64_t>(h * hidden);
            const Vec own(from, from + static_cast<int64_t>(hidden));
            if (own == x[t]) continue;
            const Vec made = linear(norm(own, at + "ln_1"), at + "attn.c_attn");
            const auto column = static_cast<int64_t>(i * hidden + h * dim);
            std::copy_n(made.begin() + column, dim, all.begin() + column);
          }
        }
        const auto part = [&](size_t i) {
          const auto begin = all.begin() + static_cast<int64_t>(i * hidden);
          return Vec(begin, begin + static_cast<int64_t>(hidden));
        };
        q.push_back(at_point(block + "attn.hook_q", t, part(0)));
        k.push_back(at_point(block + "attn.hook_k", t, part(1)));
        v.push_back(at_point(block + "attn.hook_v", t, part(2)));
      }
      for (size_t t = 0; t < x.size(); ++t) {
        Vec z(hidden), scores(heads * x.size()), pattern(heads * x.size()), results;
        for (size_t h = 0; h < heads; ++h) {
          for (size_t s = 0; s <= t; ++s) {
            double& score = scores[h * x.size() + s];
            for (size_t d = h * dim; d < (h + 1) * dim; ++d) score += q[t][d] * k[s][d];
            score /= std::sqrt(static_cast<double>(dim));
          }
        }
        scores = at_point(block + "attn.hook_attn_scores", t, scores);
        for (size_t h = 0; h < heads; ++h) {
          double total = 0;
          for (size_t s = 0; s <= t; ++s) total += std::exp(scores[h * x.size() + s]);
          for (size_t s = 0; s <= t; ++s)
            pattern[h * x.size() + s] = std::exp(scores[h * x.size() + s]) / total;
        }
        pattern = at_point(block + "attn.hook_pattern", t, pattern);
        for (size_t h = 0; h < heads; ++h) {
          for (size_t s = 0; s <= t; ++s) {
            for (size_t d = h * dim; d < (h + 1) * dim; ++d)
              z[d] += pattern[h * x.size() + s] * v[s][d];
          }
        }
        z = at_point(block + "attn.hook_z", t, z);
        for (size_t h = 0; h < heads; ++h) {
          Vec alone(hidden);
          for (size_t d = h * dim; d < (h + 1) * dim; ++d) alone[d] = z[d];
          const Vec part = times(alone, at + "attn.c_proj.weight");
          results.insert(results.end(), part.begin(), part.end());
        }
        at_point(block + "attn.hook_result", t, results);
        x[t] = sum(x[t], at_point(block + "hook_attn_out", t, linear(z, at + "attn.c_proj")));
        x[t] = at_point(block + "hook_resid_mid", t, x[t]);
        at_point(block + "ln2.hook_scale", t, {scale_of(x[t])});
        const Vec n = at_point(block + "ln2.hook_normalized", t, norm(x[t], at + "ln_2"));
        Vec up = at_point(block + "mlp.hook_pre", t, linear(n, at + "mlp.c_fc"));
        for (double& e : up)
          e = 0.5 * e *
              (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (e + 0.044715 * e * e * e)));
        up = at_point(block + "mlp.hook_post", t, up);
        x[t] = sum(x[t], at_point(block + "hook_mlp_out", t, linear(up, at + "mlp.c_proj")));
        x[t] = at_point(block + "hook_resid_post", t, x[t]);
      }
    }
    Vec logits;
    const Vec& words = weights_.at("wte.weight");
    for (size_t t = 0; t < x.size(); ++t) {
      at_point("ln_final.hook_scale", t, {scale_of(x[t])});
      const Vec n = at_point("ln_final.hook_normalized", t, norm(x[t], "ln_f"));
      for (size_t i = 0; i < words.size(); i += hidden) {
        logits.push_back(0);
        for (size_t d = 0; d < hidden; ++d) logits.back() += words[i + d] * n[d];
      }
    }
    return logits;
  }

 private:
  Vec row(const std::string& table, size_t i, size_t width) const {
    const auto begin = weights_.at(table).begin() + static_cast<int64_t>(i * width);
    return Vec(begin, begin + static_cast<int64_t>(width));
  }
  static Vec sum(Vec a, const Vec& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }
  // Multiplies by a matrix that is stored as [in][out].
  Vec times(const Vec& x, const std::string& matrix) const {
    const Vec& w = weights_.at(matrix);
    const size_t out = w.size() / x.size();
    Vec y(out);
    for (size_t i = 0; i < w.size(); ++i) y[i % out] += w[i] * x[i / out];
    return y;
  }
  Vec linear(const Vec& x, const std::string& name) const {
    return sum(times(x, name + ".weight"), weights_.at(name + ".bias"));
  }
  static double mean_of(const Vec& x) {
    double all = 0;
    for (const double e : x) all += e / static_cast<double>(x.size());
    return all;
  }
  double scale_of(const Vec& x) const {
    const double mean = mean_of(x);
    double variance = 0;
    for (const double e : x) variance += (e - mean) * (e - mean) / static_cast<double>(x.size());
    return std::sqrt(variance + config_.at("layer_norm_epsilon").get<double>());
  }
  Vec norm(Vec x, const std::string& name) const {
    const double mean = mean_of(x), scale = scale_of(x);
    const Vec &w = weights_.at(name + ".weight"), &b = weights_.at(name + ".bias");
    for (size_t i = 0; i < x.size(); ++i) x[i] = (x[i] - mean) / scale * w[i] + b[i];
    return x;
  }

  nlohmann::json config_;
  std::map<std::string, Vec> weights_;
};

Gpt2Reference::Gpt2Reference(const std::string& directory)
    : weights_(std::make_shared<Weights>(directory)) {}
ReferenceModel::Vec Gpt2Reference::run(const std::vector<int32_t>& ids,
                                       const ReferenceModel::Hook& hook) const {
  return weights_->run(ids, hook);
}

}  // namespace stet::test

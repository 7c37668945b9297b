#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stet/model/named_weights.hpp"
#include "tools/lab/measures.hpp"

namespace stet::tool {
namespace {

// The derivative of one token's logit, before a soft cap, by the residual stream x. The norm's
// scale is fixed at its value for x.
struct Direction {
  std::vector<double> of;
  double bias = 0;  // what the final norm's bias adds to the logit
};

Direction direction_of(const Model& model, const std::vector<float>& x, int32_t token) {
  const Norm& norm = model.final_norm();
  const bool centred = !norm.bias.empty();
  const auto n = static_cast<double>(x.size());
  double mean = 0, square = 0;
  for (const float e : x) mean += centred ? e / n : 0;
  for (const float e : x) square += (e - mean) * (e - mean) / n;
  const double divisor = model.config().logit_divisor,
               scale = 1 / std::sqrt(square + model.config().norm_eps) / divisor;
  std::vector<float> row(x.size());
  model.head_row(token, row.data());
  Direction d{std::vector<double>(x.size())};
  double mean_direction = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    d.of[k] = double{row[k]} * norm.weight[k] * scale;
    mean_direction += d.of[k] / n;
    if (centred) d.bias += double{row[k]} * norm.bias[k] / divisor;
  }
  if (centred) {
    for (double& e : d.of) e -= mean_direction;
  }
  return d;
}

using Row = std::vector<float>;

// The activations of the last position that the residual stream consists of.
struct LastRows {
  std::vector<std::pair<std::string, Row>> embeddings;
  std::vector<Row> attention, mlp, after;  // by layer; `after` is the residual stream after it
  Row head;                                // the head's input
};

LastRows process(LabWork& work) {
  const ModelConfig& c = work.session.model().config();
  const auto layers = static_cast<size_t>(c.layers);
  LastRows rows{
      {}, std::vector<Row>(layers), std::vector<Row>(layers), std::vector<Row>(layers), {}};
  Watch watch;
  watch.points.push_back({Point::ln_final, 0});
  for (const Point p : {Point::embed, Point::pos_embed}) {
    if (!has_point(c, p)) continue;
    watch.points.push_back({p, 0});
    rows.embeddings.push_back({point_name({p, 0}), {}});
  }
  for (int64_t l = 0; l < c.layers; ++l) {
    for (const Point p : {Point::attn_out, Point::mlp_out, Point::resid_post})
      watch.points.push_back({p, l});
  }
  watch.sink = [&](const PointAt& at, int64_t, Rows r) {
    const auto layer = static_cast<size_t>(at.layer);
    Row& to = at.point == Point::attn_out     ? rows.attention[layer]
              : at.point == Point::mlp_out    ? rows.mlp[layer]
              : at.point == Point::resid_post ? rows.after[layer]
              : at.point == Point::ln_final   ? rows.head
                                              : rows.embeddings[at.point != Point::embed].second;
    to.assign(r.row(r.count - 1), r.row(r.count - 1) + r.width);
  };
  work.session.append(work.ids, nullptr, nullptr, nullptr, &watch);
  return rows;
}

// A part of the last residual stream, which is the sum of `factor` times `x` of all parts.
struct Part {
  std::string name;
  Row x;
  double factor = 1;
};

// Returns the factor of the residual stream after a layer (Gemma 4).
double scale_after(const Model& model, int64_t layer) {
  if (model.config().family != "gemma4") return 1;
  return load_named_weight(model, fmt::format("layers.{}.layer_scalar", layer), 1)->at(0);
}

// Returns true if an intervention changes the last position at a point of a layer.
bool is_changed(const State& state, Point point, int64_t layer) {
  const int64_t last = state.size() - 1;
  return std::ranges::any_of(state.interventions, [&](const Intervention& w) {
    return w.point == point && w.begin <= last && (w.end < 0 || w.end > last || w.ended >= 0) &&
           (w.layers.empty() || std::ranges::count(w.layers, layer) > 0);
  });
}

// Returns what the layer's own input (Gemma 4) and interventions on the residual stream add: the
// rest of the stream after the layer.
Row rest_of(const LastRows& rows, size_t layer, double scale) {
  Row rest = rows.after[layer];
  for (size_t k = 0; k < rest.size(); ++k) {
    double before = layer == 0 ? 0 : rows.after[layer - 1][k];
    if (layer == 0) {
      for (const auto& [name, x] : rows.embeddings) before += x[k];
    }
    rest[k] = static_cast<float>(rest[k] / scale - before - rows.attention[layer][k] -
                                 rows.mlp[layer][k]);
  }
  return rest;
}

std::vector<Part> parts_of(const State& state, const Model& model, const LastRows& rows) {
  std::vector<Part> parts;
  for (const auto& [name, x] : rows.embeddings) parts.push_back({name, x});
  for (size_t l = 0; l < rows.after.size(); ++l) {
    const auto layer = static_cast<int64_t>(l);
    const double scale = scale_after(model, layer);
    parts.push_back({point_name({Point::attn_out, layer}), rows.attention[l]});
    parts.push_back({point_name({Point::mlp_out, layer}), rows.mlp[l]});
    if (model.config().layer_inputs > 0)
      parts.push_back({fmt::format("blocks.{}.layer_input", l), rest_of(rows, l, scale)});
    else if (is_changed(state, Point::resid_pre, layer) ||
             is_changed(state, Point::resid_mid, layer) ||
             is_changed(state, Point::resid_post, layer))
      parts.push_back({fmt::format("blocks.{}.intervention", l), rest_of(rows, l, scale)});
    for (Part& part : parts) part.factor *= scale;
  }
  return parts;
}

}  // namespace

HeatMap measure_attribution(LabWork& work, std::optional<int32_t> asked, Json& j) {
  const Model& model = work.session.model();
  const ModelConfig& c = model.config();
  require_one_stream(c, "--attribution");
  const LastRows rows = process(work);
  const std::span<const float> logits = work.session.logits();
  const int32_t likeliest = next_of(logits).best, target = asked.value_or(likeliest);
  if (target >= c.vocab_size)
    usage_error("--target", fmt::format("a token id in 0..{}", c.vocab_size - 1),
                std::to_string(target));
  const Direction direction = direction_of(model, rows.after.back(), target);
  HeatMap map{fmt::format("What each part adds to the logit of {}",
                          token_text(work.tokenizer.get(), target)),
              "part",
              "",
              {},
              {"logit"},
              {},
              {},
              -1,
              1,
              "logit"};
  double total = 0, most = 0;
  j = {{"target", target},
       {"target_text", token_text(work.tokenizer.get(), target)},
       {"likeliest", target == likeliest},
       {"logit", logits[static_cast<size_t>(target)]},
       {"parts", Json::array()}};
  const auto add = [&](const std::string& name, double part) {
    total += part;
    most = std::max(most, std::abs(part));
    j["parts"].push_back({{"point", name}, {"logit", part}});
    map.rows.push_back(name);
    map.values.push_back({part});
  };
  for (const Part& part : parts_of(work.session.state(), model, rows)) {
    double sum = 0;
    for (size_t k = 0; k < part.x.size(); ++k) sum += direction.of[k] * part.x[k];
    add(part.name, sum * part.factor);
  }
  if (!model.final_norm().bias.empty()) add("bias", direction.bias);
  if (is_changed(work.session.state(), Point::ln_final, 0)) {
    Row row(rows.head.size());
    model.head_row(target, row.data());
    double logit = 0;
    for (size_t k = 0; k < row.size(); ++k) logit += double{row[k]} * rows.head[k];
    add("ln_final.intervention", logit / c.logit_divisor - total);
  }
  j["sum"] = total;
  if (const double cap = c.logit_softcap; cap > 0)
    j["capped_sum"] = cap * std::tanh(total / cap);  // which compares with the logit
  map.low = -most, map.high = most;
  return map;
}

}  // namespace stet::tool

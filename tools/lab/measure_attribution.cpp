#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/lab/measures.hpp"

namespace stet::tool {
namespace {

// Returns d logit / d x of one token. The final norm's scale is fixed at its value for x. A norm's
// bias adds the same to all tokens and is left out.
std::vector<double> direction_of(const Model& model, const std::vector<float>& x, int32_t token) {
  const Norm& norm = model.final_norm();
  const bool centred = !norm.bias.empty();
  const auto n = static_cast<double>(x.size());
  double mean = 0, square = 0;
  for (const float e : x) mean += centred ? e / n : 0;
  for (const float e : x) square += (e - mean) * (e - mean) / n;
  const double scale =
      1 / std::sqrt(square + model.config().norm_eps) / model.config().logit_divisor;
  std::vector<float> row(x.size());
  model.head_row(token, row.data());
  std::vector<double> direction(x.size());
  double mean_direction = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    direction[k] = double{row[k]} * norm.weight[k] * scale;
    mean_direction += direction[k] / n;
  }
  if (centred) {
    for (double& d : direction) d -= mean_direction;
  }
  return direction;
}

}  // namespace

HeatMap measure_attribution(LabWork& work, std::optional<int32_t> asked, Json& j) {
  const ModelConfig& c = work.session.model().config();
  const auto n = static_cast<size_t>(c.hidden_size);
  std::vector<PointAt> points = {{Point::embed, 0}};
  if (has_point(c, Point::pos_embed)) points.push_back({Point::pos_embed, 0});
  for (int64_t l = 0; l < c.layers; ++l) {
    points.push_back({Point::attn_out, l});
    points.push_back({Point::mlp_out, l});
  }
  points.push_back({Point::resid_post, c.layers - 1});
  std::vector<std::vector<float>> parts(points.size());
  const Watch watch{points, [&](const PointAt& at, int64_t, Rows r) {
                      const auto i = std::find(points.begin(), points.end(), at) - points.begin();
                      const float* const last = r.row(r.count - 1);
                      parts[static_cast<size_t>(i)].assign(last, last + n);
                    }};
  work.session.append(work.ids, nullptr, nullptr, nullptr, &watch);
  const std::span<const float> logits = work.session.logits();
  const int32_t likeliest = next_of(logits).best, target = asked.value_or(likeliest);
  if (target >= c.vocab_size)
    usage_error("--target", fmt::format("a token id in 0..{}", c.vocab_size - 1),
                std::to_string(target));
  const std::vector<double> direction = direction_of(work.session.model(), parts.back(), target);
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
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    double sum = 0;
    for (size_t k = 0; k < n; ++k) sum += direction[k] * parts[i][k];
    total += sum;
    most = std::max(most, std::abs(sum));
    j["parts"].push_back({{"point", point_name(points[i])}, {"logit", sum}});
    map.rows.push_back(point_name(points[i]));
    map.values.push_back({sum});
  }
  j["sum"] = total;
  map.low = -most, map.high = most;
  return map;
}

}  // namespace stet::tool

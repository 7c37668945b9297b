#include <fmt/format.h>

#include <algorithm>

#include "stet/base/error.hpp"
#include "tools/lab/measures.hpp"

namespace stet::tool {

namespace {

// Returns the points of the layers with experts, or of the requested layer alone (-1: all).
std::vector<PointAt> weights_of_experts(const ModelConfig& c, int64_t layer) {
  std::vector<PointAt> points;
  for (int64_t l = 0; l < c.layers; ++l) {
    if ((layer < 0 || l == layer) && c.has_experts(l)) points.push_back({Point::expert_weights, l});
  }
  if (points.empty())
    throw Error(ErrorKind::argument, "", "--experts", "a layer with experts", "none");
  return points;
}

// Returns {"position", "text", "layer", "experts", "weights"} for one row of weights.
Json row_of_experts(std::span<const float> weights) {
  Json j = {{"experts", Json::array()}, {"weights", Json::array()}};
  for (size_t e = 0; e < weights.size(); ++e) {
    if (weights[e] == 0) continue;
    j["experts"].push_back(e);
    j["weights"].push_back(weights[e]);
  }
  return j;
}

}  // namespace

std::vector<HeatMap> measure_experts(LabWork& work, int64_t layer, Json& rows) {
  const ModelConfig& c = work.session.model().config();
  Watch watch;
  watch.points = weights_of_experts(c, layer);
  std::vector<HeatMap> maps;
  const auto experts = static_cast<size_t>(c.experts.count);
  const auto before = static_cast<size_t>(work.session.size());
  for (const PointAt& at : watch.points) {
    HeatMap m{fmt::format("Layer {}: which expert takes which token", at.layer),
              "expert",
              "position",
              {},
              {},
              std::vector<std::vector<double>>(experts),
              {},
              0,
              1,
              "weight"};
    for (size_t e = 0; e < experts; ++e) m.rows.push_back(std::to_string(e));
    for (const int32_t id : work.ids) m.columns.push_back(token_text(work.tokenizer.get(), id));
    maps.push_back(std::move(m));
  }
  rows = Json::array();
  watch.sink = [&](const PointAt& at, int64_t first, Rows r) {
    const auto map = std::ranges::find(watch.points, at) - watch.points.begin();
    HeatMap& m = maps[static_cast<size_t>(map)];
    for (size_t i = 0; i < r.count; ++i) {
      const size_t position = static_cast<size_t>(first) + i;
      Json j = row_of_experts({r.row(i), experts});
      j["position"] = position;
      j["text"] = m.columns[position - before];
      j["layer"] = at.layer;
      rows.push_back(std::move(j));
      for (size_t e = 0; e < experts; ++e) m.values[e].push_back(static_cast<double>(r.row(i)[e]));
    }
  };
  work.session.append(work.ids, nullptr, nullptr, nullptr, &watch);
  order_rows(rows);
  return maps;
}

}  // namespace stet::tool

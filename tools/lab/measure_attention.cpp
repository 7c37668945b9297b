#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stet/base/error.hpp"
#include "stet/session/edit.hpp"
#include "tools/lab/measures.hpp"

namespace stet::tool {

std::vector<HeatMap> measure_attention(LabWork& work, int64_t layer) {
  const ModelConfig& c = work.session.model().config();
  Watch watch;
  for (int64_t l = 0; l < c.layers; ++l) {
    const PointAt at{Point::pattern, l};
    if (layer < 0 ? has_point(c, at) : l == layer) watch.points.push_back(at);
  }
  if (watch.points.empty())
    throw Error(ErrorKind::argument, "", "--attention", "a layer with attention", "none");
  std::vector<HeatMap> maps;
  const auto heads = static_cast<size_t>(c.heads);
  const size_t before = static_cast<size_t>(work.session.size());
  for (const PointAt& at : watch.points) {
    for (size_t h = 0; h < heads; ++h)
      maps.push_back({fmt::format("Layer {}, head {}: who looks where", at.layer, h),
                      "position",
                      "looks at",
                      {},
                      {},
                      {},
                      {},
                      0,
                      1,
                      "weight"});
  }
  std::vector<int32_t> all = work.session.tokens();
  all.insert(all.end(), work.ids.begin(), work.ids.end());
  const size_t positions = all.size();
  for (HeatMap& m : maps) {
    for (size_t i = 0; i < positions; ++i)
      m.columns.push_back(token_text(work.tokenizer.get(), all[i]));
    for (size_t i = before; i < positions; ++i)
      m.rows.push_back(fmt::format("{} {}", i, m.columns[i]));
  }
  watch.sink = [&](const PointAt& at, int64_t, Rows r) {
    const auto i = static_cast<size_t>(std::find(watch.points.begin(), watch.points.end(), at) -
                                       watch.points.begin());
    const size_t width = r.width / heads;
    for (size_t row = 0; row < r.count; ++row) {
      for (size_t h = 0; h < heads; ++h) {
        std::vector<double> values(positions);
        std::copy_n(r.row(row) + h * width, width, values.begin());
        maps[i * heads + h].values.push_back(std::move(values));
      }
    }
  };
  work.session.append(work.ids, nullptr, nullptr, nullptr, &watch);
  return maps;
}

namespace {

// Returns the norm of a layer's keys or values at each position, over all heads.
std::vector<double> norms_of(const State& state, int64_t layer, bool key) {
  const int64_t heads = state.kv.shape().layer(layer).kv_heads;
  std::vector<double> norms;
  for (int64_t p = 0; p < state.size(); ++p) {
    double sum = 0;
    for (int64_t h = 0; h < heads; ++h) {
      for (const float x : key ? read_key(state, layer, h, p) : read_value(state, layer, h, p))
        sum += double{x} * x;
    }
    norms.push_back(std::sqrt(sum));
  }
  return norms;
}

}  // namespace

std::vector<HeatMap> measure_norms(const State& state, const Tokenizer* tokenizer) {
  const KvShape& shape = state.kv.shape();
  if (shape.block_bytes() == 0)
    throw Error(ErrorKind::argument, "", "--norms", "a layer with attention", "none");
  std::vector<HeatMap> maps;
  for (const bool key : {true, false}) {
    HeatMap m{key ? "Norms of keys, over all heads" : "Norms of values, over all heads",
              "layer",
              "position",
              {},
              {},
              {},
              {},
              0,
              0,
              "norm"};
    for (const int32_t id : state.tokens) m.columns.push_back(token_text(tokenizer, id));
    for (int64_t l = 0; l < shape.layers; ++l) {
      const int64_t owner = shape.owner(l);  // the layer whose keys and values this one reads
      m.rows.push_back(owner == l || owner < 0 ? std::to_string(l)
                                               : fmt::format("{} ({})", l, owner));
      m.values.push_back(owner < 0 ? std::vector<double>() : norms_of(state, owner, key));
      for (const double norm : m.values.back()) m.high = std::max(m.high, norm);
    }
    maps.push_back(std::move(m));
  }
  return maps;
}

}  // namespace stet::tool

#include <fmt/format.h>

#include <algorithm>

#include "stet/base/error.hpp"
#include "stet/session/lens.hpp"
#include "tools/lab/measures.hpp"
#include "tools/lab/tensor_file.hpp"

namespace stet::tool {

void require_one_stream(const ModelConfig& config, const char* option) {
  if (config.streams == 0) return;
  throw Error(ErrorKind::argument, "", option, "a model with one residual stream",
              fmt::format("{} streams, of which points show one", config.streams));
}

void order_rows(Json& rows) {
  std::ranges::stable_sort(rows.get_ref<Json::array_t&>(), {},
                           [](const Json& row) { return row["layer"].get<int64_t>(); });
}

HeatMap measure_lens(LabWork& work, const std::string& tuned_path, Json& rows) {
  const Model& model = work.session.model();
  const ModelConfig& c = model.config();
  require_one_stream(c, tuned_path.empty() ? "--lens" : "--tuned-lens");
  std::optional<TensorSource> tuned;
  if (!tuned_path.empty()) tuned.emplace(tuned_path);
  Watch watch;
  for (int64_t l = 0; l < c.layers; ++l) watch.points.push_back({Point::resid_post, l});
  HeatMap map{"Probability of the likeliest token, by the head after each layer",
              "layer",
              "position",
              {},
              {},
              {},
              {},
              0,
              1,
              "probability"};
  map.values.resize(static_cast<size_t>(c.layers));
  map.labels.resize(static_cast<size_t>(c.layers));
  for (const int32_t id : work.ids) map.columns.push_back(token_text(work.tokenizer.get(), id));
  for (int64_t l = 0; l < c.layers; ++l) map.rows.push_back(std::to_string(l));
  std::vector<float> x;
  watch.sink = [&](const PointAt& at, int64_t first, Rows r) {
    const std::string name = "lens." + std::to_string(at.layer);
    if (tuned) {
      const LoadedTensor w = tuned->load(name + ".weight"), b = tuned->load(name + ".bias");
      const auto n = static_cast<size_t>(c.hidden_size);
      const std::vector<int64_t> square(2, c.hidden_size), row(1, c.hidden_size);
      if (w.shape != square || b.shape != row)
        throw Error(ErrorKind::format, tuned_path, name,
                    shape_text(square) + " and " + shape_text(row),
                    shape_text(w.shape) + " and " + shape_text(b.shape));
      for (size_t i = 0; i < r.count; ++i) {
        x.assign(r.row(i), r.row(i) + n);
        for (size_t row = 0; row < n; ++row) {
          double sum = b.values[row];
          for (size_t k = 0; k < n; ++k) sum += double{w.values[row * n + k]} * x[k];
          r.row(i)[row] = static_cast<float>(x[row] + sum);
        }
      }
    }
    const std::vector<float> logits = lens_logits(work.session, r);
    for (size_t i = 0; i < r.count; ++i) {
      const auto width = static_cast<size_t>(c.vocab_size);
      const Next n = next_of(std::span(logits).subspan(i * width, width));
      const auto layer = static_cast<size_t>(at.layer);
      map.values[layer].push_back(n.probability);
      map.labels[layer].push_back(token_text(work.tokenizer.get(), n.best));
      rows.push_back({{"layer", at.layer},
                      {"position", first + static_cast<int64_t>(i)},
                      {"best", n.best},
                      {"text", map.labels[layer].back()},
                      {"probability", n.probability},
                      {"entropy", n.entropy}});
    }
  };
  work.session.append(work.ids, nullptr, nullptr, nullptr, &watch);
  order_rows(rows);
  return map;
}

}  // namespace stet::tool

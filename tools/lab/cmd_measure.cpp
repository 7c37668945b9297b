// stet measure: what a model thinks of each token, layer by layer; and how two states differ in
// what comes next.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "stet/base/error.hpp"
#include "stet/sampling/sampler.hpp"
#include "stet/session/lens.hpp"
#include "tools/lab/lab.hpp"
#include "tools/lab/picture.hpp"
#include "tools/lab/tensor_file.hpp"

namespace stet::tool {
namespace {

struct MeasureCommand {
  LabOptions lab;
  std::string lens, kl, html;
  bool tokens = false, logit_lens = false, attribution = false, attention = false, norms = false,
       json = false;
  int64_t layer = -1;
  std::optional<int32_t> target;
};

// Of one row of logits; sums are float64.
struct Next {
  int32_t best = 0;
  double probability = 0, entropy = 0, log_sum = 0;
};

Next next_of(std::span<const float> logits) {
  Next n;
  n.best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const double top = logits[static_cast<size_t>(n.best)];
  double sum = 0, weighted = 0;
  for (const float x : logits) {
    const double e = std::exp(x - top);
    sum += e;
    weighted += e * (x - top);
  }
  n.log_sum = top + std::log(sum);
  n.probability = 1 / sum;
  n.entropy = std::log(sum) - weighted / sum;
  return n;
}

// ---------------------------------------------------------------- tokens

Json measure_tokens(LabWork& work) {
  Json rows = Json::array();
  const auto sink = [&](int64_t first, Rows logits) {
    for (size_t i = 0; i < logits.count; ++i) {
      const size_t at = static_cast<size_t>(first) + i;
      const std::span<const float> row(logits.row(i), logits.width);
      const Next n = next_of(row);
      Json j = {{"position", at},
                {"entropy", n.entropy},
                {"best", n.best},
                {"best_text", token_text(work.tokenizer.get(), n.best)},
                {"best_probability", n.probability}};
      rows.push_back(j);
      const size_t next = at - static_cast<size_t>(work.session.size()) + 1;
      if (next >= work.ids.size()) continue;
      rows.back()["next"] = work.ids[next];
      rows.back()["next_text"] = token_text(work.tokenizer.get(), work.ids[next]);
      rows.back()["logprob"] = row[static_cast<size_t>(work.ids[next])] - n.log_sum;
    }
  };
  Session copy = work.session.fork();  // so that positions count from where the prompt begins
  copy.append(work.ids, sink);
  return rows;
}

void print_tokens(const Json& rows) {
  out("position  logprob  entropy  token\n");
  for (const Json& r : rows) {
    if (!r.contains("next")) continue;
    out(fmt::format("{:8}  {:7.3f}  {:7.3f}  {}\n", r["position"].get<int64_t>() + 1,
                    r["logprob"].get<double>(), r["entropy"].get<double>(),
                    r["next_text"].get<std::string>()));
  }
}

// ---------------------------------------------------------------- the logit lens

// The head over the residual stream of each layer, as if the layers behind it were not there
// (nostalgebraist, "interpreting GPT: the logit lens", 2020). A tuned lens first adds a map of its
// own: tensors "lens.N.weight" [hidden][hidden] and "lens.N.bias" [hidden], x += W x + b.
HeatMap measure_lens(LabWork& work, const MeasureCommand& o, Json& rows) {
  const Model& model = work.session.model();
  const ModelConfig& c = model.config();
  std::optional<TensorSource> tuned;
  if (!o.lens.empty()) tuned.emplace(o.lens);
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
              1};
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
      if (w.values.size() != n * n || b.values.size() != n)
        throw Error(ErrorKind::format, o.lens, name, fmt::format("[{0}, {0}] and [{0}]", n),
                    shape_text(w.shape));
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
  return map;
}

void print_map(const HeatMap& m) {
  for (size_t r = m.rows.size(); r-- > 0;) {
    out(fmt::format("{:>3} ", m.rows[r]));
    const size_t from = m.columns.size() > 12 ? m.columns.size() - 12 : 0;
    for (size_t c = from; c < m.columns.size(); ++c) {
      out(m.labels.empty() ? fmt::format(" {:9.3f}", m.values[r][c])
                           : fmt::format(" {:>6.6} {:2.0f}", m.labels[r][c], 99 * m.values[r][c]));
    }
    out("\n");
  }
}

// ---------------------------------------------------------------- attribution

// d logit / d x of one token, the final norm's scale held where x has it. (The bias of a norm adds
// the same to all.)
std::vector<double> direction_of(const Model& model, const std::vector<float>& x, int32_t token) {
  const FinalNorm norm = model.final_norm();
  const auto n = static_cast<double>(x.size());
  double mean = 0, square = 0;
  for (const float e : x) mean += norm.bias != nullptr ? e / n : 0;
  for (const float e : x) square += (e - mean) * (e - mean) / n;
  const double scale =
      1 / std::sqrt(square + model.config().norm_eps) / model.config().logit_divisor;
  std::vector<float> row(x.size());
  model.head_row(token, row.data());
  std::vector<double> direction(x.size());
  double mean_direction = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    direction[k] = double{row[k]} * (*norm.weight)[k] * scale;
    mean_direction += direction[k] / n;
  }
  if (norm.bias != nullptr) {
    for (double& d : direction) d -= mean_direction;
  }
  return direction;
}

// What each layer's attention and MLP add to the logit of one token at the last position: through
// the final norm as it was there, so that the parts add up to the logit, but for a final norm's
// bias and a softcap of the logits.
HeatMap measure_attribution(LabWork& work, const MeasureCommand& o, Json& j) {
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
  const int32_t target = o.target.value_or(next_of(logits).best);
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
              1};
  double total = 0, most = 0;
  j = {
      {"target", target}, {"logit", logits[static_cast<size_t>(target)]}, {"parts", Json::array()}};
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

// ---------------------------------------------------------------- attention, norms, KL

std::vector<HeatMap> measure_attention(LabWork& work, const MeasureCommand& o) {
  const ModelConfig& c = work.session.model().config();
  Watch watch;
  for (int64_t l = 0; l < c.layers; ++l) {
    if (o.layer < 0 || l == o.layer) watch.points.push_back({Point::pattern, l});
  }
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
                      1});
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

std::vector<HeatMap> measure_norms(LabWork& work) {
  work.session.append(work.ids);
  const State& state = work.session.state();
  const KvShape& shape = state.kv.shape();
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
              0};
    for (const int32_t id : state.tokens) m.columns.push_back(token_text(work.tokenizer.get(), id));
    for (int64_t l = 0; l < shape.layers; ++l) {
      m.rows.push_back(std::to_string(l));
      std::vector<double> row;
      for (int64_t p = 0; p < state.size(); ++p) {
        double sum = 0;
        for (int64_t h = 0; h < shape.kv_heads; ++h) {
          for (const float x : key ? read_key(state, l, h, p) : read_value(state, l, h, p))
            sum += double{x} * x;
        }
        row.push_back(std::sqrt(sum));
        m.high = std::max(m.high, row.back());
      }
      m.values.push_back(std::move(row));
    }
    maps.push_back(std::move(m));
  }
  return maps;
}

Json measure_kl(LabWork& work, const MeasureCommand& o) {
  work.session.append(work.ids);
  LabOptions other = o.lab;
  other.from = o.kl;
  other.prompt = {};
  other.interventions = {};
  const LabWork theirs = begin(other);
  Session second = theirs.session.fork();
  const std::span<const float> p = work.session.logits(), q = second.logits();
  if (p.size() != q.size() || p.empty())
    throw Error(ErrorKind::argument, o.kl, "logits", fmt::format("{} of them", p.size()),
                std::to_string(q.size()));
  const Next np = next_of(p), nq = next_of(q);
  double forward = 0, backward = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double a = p[i] - np.log_sum, b = q[i] - nq.log_sum;
    forward += std::exp(a) * (a - b);
    backward += std::exp(b) * (b - a);
  }
  return {{"kl", forward},
          {"kl_reversed", backward},
          {"best", np.best},
          {"best_other", nq.best},
          {"same_bits", std::equal(p.begin(), p.end(), q.begin())}};
}

void run(MeasureCommand& o) {
  LabWork work = begin(o.lab);
  if (work.ids.empty() && o.kl.empty() && !o.norms) usage_error("measure", "a prompt", "none");
  if (o.layer >= work.session.model().config().layers)
    usage_error("--layer", fmt::format("0..{}", work.session.model().config().layers - 1),
                std::to_string(o.layer));
  Json j;
  std::vector<HeatMap> maps;
  if (o.tokens) j = measure_tokens(work);
  if (o.logit_lens || !o.lens.empty()) {
    j = Json::array();
    maps.push_back(measure_lens(work, o, j));
  }
  if (o.attribution) maps.push_back(measure_attribution(work, o, j));
  if (o.attention) maps = measure_attention(work, o);
  if (o.norms) maps = measure_norms(work);
  if (!o.kl.empty()) j = measure_kl(work, o);
  if (!o.html.empty()) write_html(o.html, "stet measure", maps);
  if (o.json) {
    if (j.is_null()) {
      for (const HeatMap& m : maps) j.push_back({{"title", m.title}, {"values", m.values}});
    }
    out(dump(j) + "\n");
  } else if (o.tokens) {
    print_tokens(j);
  } else if (!o.kl.empty()) {
    out(fmt::format("KL {:.6g} (reversed {:.6g}); likeliest next: {} and {}\n",
                    j["kl"].get<double>(), j["kl_reversed"].get<double>(),
                    token_text(work.tokenizer.get(), j["best"].get<int32_t>()),
                    token_text(work.tokenizer.get(), j["best_other"].get<int32_t>())));
  } else if (o.attribution) {
    for (const Json& part : j["parts"])
      out(fmt::format("{:9.4f}  {}\n", part["logit"].get<double>(),
                      part["point"].get<std::string>()));
    out(fmt::format("{:9.4f}  together; the logit of {} is {:.4f}\n", j["sum"].get<double>(),
                    token_text(work.tokenizer.get(), j["target"].get<int32_t>()),
                    j["logit"].get<double>()));
  } else if (o.html.empty()) {
    for (const HeatMap& m : maps) {
      out(m.title + "\n");
      print_map(m);
    }
  }
}

}  // namespace

void add_measure(CLI::App& app) {
  const auto o = std::make_shared<MeasureCommand>();
  CLI::App* sub = app.add_subcommand(
      "measure", "What a model thinks of a text, token by token and layer by layer.");
  SourceOptions what;
  what.add(sub->add_flag("--tokens", o->tokens, "log-probability and entropy of each token"));
  what.add(sub->add_flag("--lens", o->logit_lens, "the head over each layer (logit lens)"));
  what.add(sub->add_option("--tuned-lens", o->lens,
                           "the same after maps of this file: lens.N.weight, lens.N.bias")
               ->type_name("FILE"));
  what.add(
      sub->add_flag("--attribution", o->attribution,
                    "what each layer adds to the logit of the likeliest token, or of --target"));
  what.add(sub->add_flag("--attention", o->attention, "attention patterns of all heads"));
  what.add(sub->add_flag("--norms", o->norms, "norms of keys and values"));
  what.add(
      sub->add_option("--kl", o->kl, "how the next token's distribution differs from this state's")
          ->type_name("SNAPSHOT"));
  sub->add_option("--layer", o->layer, "of --attention: one layer (default: all)")
      ->type_name("N")
      ->check(integer(0, 1023));
  sub->add_option("--target", o->target, "of --attribution: a token id")
      ->type_name("ID")
      ->check(integer(0, INT32_MAX));
  sub->add_option("--html", o->html, "a picture: one HTML file")
      ->type_name("FILE")
      ->check(named())
      ->group("Output");
  sub->add_flag("--json", o->json, "JSON for programs")->group("Output");
  o->lab.add_to(*sub);
  sub->callback([o, what] {
    what.require("--tokens, --lens, --tuned-lens, --attribution, --attention, --norms or --kl");
    run(*o);
  });
}

}  // namespace stet::tool

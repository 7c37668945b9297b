// stet measure: measures each token layer by layer, and compares the next token's distributions of
// two states.
#include <fmt/format.h>

#include <algorithm>

#include "stet/base/error.hpp"
#include "tools/lab/measures.hpp"

namespace stet::tool {
namespace {

struct MeasureCommand {
  LabOptions lab;
  PictureOptions pictures;
  std::string lens, kl;
  bool tokens = false, logit_lens = false, attribution = false, attention = false, norms = false,
       experts = false, json = false, jsonl = false;
  int64_t layer = -1;
  std::optional<int32_t> target;
};

void print_tokens(const Json& rows) {
  out("position  logprob  entropy  token\n");
  for (const Json& r : rows) {
    if (!r.contains("next")) continue;
    out(fmt::format("{:8}  {:7.3f}  {:7.3f}  {}\n", r["position"].get<int64_t>() + 1,
                    r["logprob"].get<double>(), r["entropy"].get<double>(),
                    r["next_text"].get<std::string>()));
  }
}

void print_experts(const Json& rows) {
  out("position  layer  experts and their weights; token\n");
  for (const Json& r : rows) {
    std::string experts;
    for (size_t i = 0; i < r["experts"].size(); ++i)
      experts +=
          fmt::format(" {} {:.3f}", r["experts"][i].get<size_t>(), r["weights"][i].get<double>());
    out(fmt::format("{:8}  {:5} {}; {}\n", r["position"].get<int64_t>(), r["layer"].get<int64_t>(),
                    experts, r["text"].get<std::string>()));
  }
}

// Prints the last columns, as many as a terminal has room for, and their number.
void print_map(const HeatMap& m) {
  constexpr size_t kMost = 12;
  const size_t from = m.columns.size() > kMost ? m.columns.size() - kMost : 0;
  if (from > 0)
    out(fmt::format("columns: the last {} of {} positions; --json, --html and --svg have all\n",
                    kMost, m.columns.size()));
  size_t width = 3;
  for (const std::string& row : m.rows) width = std::max(width, row.size());
  out(std::string(width + 1, ' '));
  for (size_t c = from; c < m.columns.size(); ++c) out(fmt::format(" {:>9.9}", m.columns[c]));
  out("\n");
  for (size_t r = m.rows.size(); r-- > 0;) {
    if (m.values[r].empty()) continue;
    out(fmt::format("{:>{}} ", m.rows[r], width));
    for (size_t c = from; c < m.columns.size(); ++c) {
      out(m.labels.empty() ? fmt::format(" {:9.3f}", m.values[r][c])
                           : fmt::format(" {:>6.6} {:2.0f}", m.labels[r][c], 99 * m.values[r][c]));
    }
    out("\n");
  }
}

// Compares the next token's distribution after this state with that after another snapshot.
Json kl_from(LabWork& work, const MeasureCommand& o) {
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
  return measure_kl(p, q);
}

void check(const MeasureCommand& o) {
  if (o.pictures.asked() && (o.tokens || !o.kl.empty()))
    usage_error(fmt::format("there is no picture of {}; leave {} out",
                            o.tokens ? "--tokens" : "--kl", o.pictures.option()));
  if (o.jsonl && o.pictures.asked())
    usage_error(o.pictures.option() + " cannot be used with --jsonl");
  if (o.layer >= 0 && !o.attention && !o.experts)
    usage_error("--layer is for --attention and --experts only");
  if (o.target && !o.attribution) usage_error("--target is for --attribution only");
}

// The results: numbers, pictures, or both.
struct Measured {
  Json numbers;
  std::vector<HeatMap> maps;
};

Measured measure(LabWork& work, const MeasureCommand& o, const std::string& where) {
  Measured m;
  if (o.tokens) m.numbers = measure_tokens(work);
  if (o.logit_lens || !o.lens.empty()) {
    m.numbers = Json::array();
    m.maps.push_back(measure_lens(work, o.lens, m.numbers));
  }
  if (o.attribution) m.maps.push_back(measure_attribution(work, o.target, m.numbers));
  if (o.attention) m.maps = measure_attention(work, o.layer);
  if (o.experts) m.maps = measure_experts(work, o.layer, m.numbers);
  if (o.norms) {
    work.session.append(work.ids);
    m.maps = measure_norms(work.session.state(), work.tokenizer.get());
  }
  if (!o.kl.empty()) m.numbers = kl_from(work, o);
  require_finite(m.numbers, where);
  for (const HeatMap& map : m.maps) require_finite(rows_json(map.values), where);
  return m;
}

void print_kl(const Json& j, const Tokenizer* tokenizer) {
  out(fmt::format("KL {:.6g} (reversed {:.6g}); likeliest next: {} and {}\n", j["kl"].get<double>(),
                  j["kl_reversed"].get<double>(), token_text(tokenizer, j["best"].get<int32_t>()),
                  token_text(tokenizer, j["best_other"].get<int32_t>())));
}

void print_attribution(const Json& j, const Tokenizer* tokenizer) {
  for (const Json& part : j["parts"])
    out(fmt::format("{:9.4f}  {}\n", part["logit"].get<double>(),
                    part["point"].get<std::string>()));
  const auto target = j["target"].get<int32_t>();
  const std::string capped = j.contains("capped_sum") ? fmt::format(", {:.4f} under the soft cap",
                                                                    j["capped_sum"].get<double>())
                                                      : "";
  out(fmt::format("{:9.4f}  sum of the parts{}; the logit of the target, {} ({}; {}), is {:.4f}\n",
                  j["sum"].get<double>(), capped, token_text(tokenizer, target), target,
                  j["likeliest"].get<bool>() ? "the likeliest next token" : "of --target",
                  j["logit"].get<double>()));
}

Json json_of(Measured m) {
  if (m.numbers.is_null()) {
    for (const HeatMap& map : m.maps)
      m.numbers.push_back({{"title", map.title}, {"values", rows_json(map.values)}});
  }
  return std::move(m.numbers);
}

void check_layer(const MeasureCommand& o, const LabWork& work) {
  const ModelConfig& c = work.session.model().config();
  if (o.layer >= c.layers)
    usage_error("--layer", fmt::format("0..{}", c.layers - 1), std::to_string(o.layer));
  if (o.attention && o.layer >= 0 && !has_point(c, PointAt{Point::pattern, o.layer}))
    usage_error("--layer", "a layer with attention", std::to_string(o.layer));
}

void run_lines(MeasureCommand& o) {
  each_lab_line(o.lab, [&](LabLine& line) {
    check_layer(o, line.work);
    Json j = Json::object();
    if (!line.id.is_null()) j["id"] = line.id;
    j["measured"] = json_of(measure(line.work, o, line.where));
    out(dump(j) + "\n");
  });
}

void run(MeasureCommand& o) {
  check(o);
  if (o.jsonl) return run_lines(o);
  if (!o.lab.prompt.given() && !o.lab.prompt.conversation() && !o.lab.interventions.file.empty())
    usage_error("--intervene changes tokens that are processed; give a prompt or leave it out");
  LabWork work = begin(o.lab);
  if (work.ids.empty() && o.kl.empty() && !o.norms) usage_error("measure needs a prompt");
  if (!o.kl.empty() && work.session.size() == 0 && work.ids.empty())
    usage_error("--kl compares with a prompt, or with the snapshot of --from");
  check_layer(o, work);
  const Measured m = measure(work, o, "measure");
  o.pictures.write("stet measure", m.maps);
  if (o.json) {
    out(dump(json_of(m)) + "\n");
    return;
  }
  if (o.tokens) return print_tokens(m.numbers);
  if (o.experts && !o.pictures.asked()) return print_experts(m.numbers);
  if (!o.kl.empty()) return print_kl(m.numbers, work.tokenizer.get());
  if (o.attribution) return print_attribution(m.numbers, work.tokenizer.get());
  if (o.pictures.asked()) return;
  for (const HeatMap& map : m.maps) {
    out(map.title + "\n");
    print_map(map);
  }
}

}  // namespace

void add_measure(Command& app) {
  const auto o = std::make_shared<MeasureCommand>();
  Command* sub = app.add_subcommand("measure",
                                    "Measure a text token by token and layer by layer: "
                                    "log-probabilities, logit lens, attention, norms.");
  SourceOptions what;
  what.add(
      sub->add_flag("--tokens", o->tokens, "print the log-probability and entropy of each token"));
  what.add(sub->add_flag("--lens", o->logit_lens, "apply the head to each layer (logit lens)"));
  what.add(sub->add_option("--tuned-lens", o->lens,
                           "logit lens after the maps of this file: lens.N.weight, lens.N.bias")
               ->type_name("FILE"));
  what.add(
      sub->add_flag("--attribution", o->attribution,
                    "what each layer adds to the logit of the likeliest token, or of --target"));
  what.add(sub->add_flag("--attention", o->attention, "attention patterns of all heads"));
  what.add(sub->add_flag("--experts", o->experts, "which expert takes which token"));
  what.add(sub->add_flag("--norms", o->norms, "norms of keys and values"));
  what.add(sub->add_option("--kl", o->kl,
                           "KL divergence of the next token's distribution from this state's")
               ->type_name("SNAPSHOT"));
  sub->add_option("--layer", o->layer, "with --attention or --experts: one layer (default: all)")
      ->type_name("N")
      ->check(integer(0, 1023));
  sub->add_option("--target", o->target, "with --attribution: a token id")
      ->type_name("ID")
      ->check(integer(0, INT32_MAX));
  o->pictures.add_to(*sub);
  sub->add_flag("--json", o->json, "print JSON")->group("Output");
  sub->add_flag("--jsonl", o->jsonl,
                "an object per line of standard input: {\"prompt\"}, {\"ids\"} or {\"say\"}; one "
                "per line out, with what --json prints as \"measured\"")
      ->group("Output");
  o->lab.add_to(*sub);
  sub->callback([o, what] {
    what.require(
        "--tokens, --lens, --tuned-lens, --attribution, --attention, --experts, --norms or --kl");
    run(*o);
  });
}

}  // namespace stet::tool

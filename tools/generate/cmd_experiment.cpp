// stet experiment: many continuations of one state.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "stet/base/error.hpp"
#include "stet/sampling/sampler.hpp"
#include "tools/prompt/exchange.hpp"
#include "tools/prompt/speculate_option.hpp"

namespace stet::tool {
namespace {

// One sampling parameter and the values to try. No values: the state's own.
struct Axis {
  const char* option;
  const char* help;
  bool draws;  // setting a value makes a greedy state sample
  double (*get)(const SamplingSettings&);
  void (*set)(SamplingSettings&, double);
  std::vector<double> values;
};

std::vector<Axis> all_axes() {
  using S = SamplingSettings;
  return {{"temperature",
           "temperatures (0: greedy)",
           true,
           [](const S& s) { return s.greedy ? 0 : s.temperature; },
           [](S& s, double v) {
             s.greedy = v == 0;
             s.temperature = v == 0 ? s.temperature : v;
           },
           {}},
          {"top-k",
           "numbers of candidates (0: all)",
           true,
           [](const S& s) { return static_cast<double>(s.top_k); },
           [](S& s, double v) { s.top_k = static_cast<int>(v); },
           {}},
          {"top-p",
           "probabilities that the best are to hold",
           true,
           [](const S& s) { return s.top_p; },
           [](S& s, double v) { s.top_p = v; },
           {}},
          {"min-p",
           "least probabilities, relative to the best",
           true,
           [](const S& s) { return s.min_p; },
           [](S& s, double v) { s.min_p = v; },
           {}},
          {"typical",
           "probabilities that the most typical are to hold",
           true,
           [](const S& s) { return s.typical_p; },
           [](S& s, double v) { s.typical_p = v; },
           {}},
          {"repetition-penalty",
           "divisors of the scores of tokens already there",
           false,
           [](const S& s) { return s.repetition_penalty; },
           [](S& s, double v) { s.repetition_penalty = v; },
           {}}};
}

struct ExperimentCommand {
  ModelOptions model;
  PromptOptions prompt;
  RestoreFileOptions restore;
  GenerateOptions generate{64, false};
  SpeculateOption speculate;
  SaveFileOptions save_as;
  std::string snapshot, save_dir;
  std::optional<Snapshot> from;    // the opened snapshot, unless --replay makes another state
  std::vector<std::string> seeds;  // each N or N..M
  std::vector<Axis> axes = all_axes();
  bool twice = false, json = false, csv = false;
};

struct Run {
  uint64_t seed;
  std::vector<double> values;  // one for each axis
  Reply reply;
  double log_probability;  // sum over the reply's tokens, from the logits before each
  StateDigests digests;    // identity of the state after the reply
  double seconds;
  std::string file;  // path of the snapshot of that state, or ""
  size_t same_as;    // index of the first run with these tokens, which may be this one
};

// ---------------------------------------------------------------- seeds

constexpr uint64_t kMostSeeds = 1'000'000;

struct SeedRange {
  uint64_t first, last;
};

std::optional<SeedRange> parse_seeds(const std::string& text) {
  const auto number = [](std::string_view digits, uint64_t* value) {
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, *value);
    return error == std::errc() && stop == end;
  };
  const size_t dots = text.find("..");
  SeedRange range{};
  if (!number(std::string_view(text).substr(0, dots), &range.first)) return std::nullopt;
  range.last = range.first;
  if (dots != std::string::npos && !number(std::string_view(text).substr(dots + 2), &range.last))
    return std::nullopt;
  if (range.last < range.first || range.last - range.first >= kMostSeeds) return std::nullopt;
  return range;
}

std::string seeds_fault(std::string& text) {
  if (parse_seeds(text)) return "";
  return fmt::format("expected seeds in 0..2^64-1: 1,2,3 or 1..20 (up to {}), found {}", kMostSeeds,
                     text.empty() ? "nothing" : text);
}

std::vector<uint64_t> seeds_of(const ExperimentCommand& o) {
  std::vector<uint64_t> all;
  for (const std::string& text : o.seeds) {
    const SeedRange range = *parse_seeds(text);
    for (uint64_t i = 0; i <= range.last - range.first; ++i) all.push_back(range.first + i);
  }
  return all.empty() ? std::vector<uint64_t>{1} : all;
}

// ---------------------------------------------------------------- running

// Returns every combination of the axes' values with every seed.
std::vector<std::pair<SamplingSettings, std::vector<double>>> combinations(
    const ExperimentCommand& o, const SamplingSettings& base) {
  std::vector<SamplingSettings> all{base};
  for (const Axis& axis : o.axes) {
    if (axis.draws && !axis.values.empty()) all[0].greedy = false;  // `stet generate` does the same
  }
  for (const Axis& axis : o.axes) {
    if (axis.values.empty()) continue;
    std::vector<SamplingSettings> next;
    for (const SamplingSettings& s : all) {
      for (const double value : axis.values) {
        next.push_back(s);
        axis.set(next.back(), value);
      }
    }
    all = std::move(next);
  }
  std::vector<std::pair<SamplingSettings, std::vector<double>>> result;
  for (const SamplingSettings& s : all) {
    std::vector<double> values;
    for (const Axis& axis : o.axes) values.push_back(axis.get(s));
    for (const uint64_t seed : seeds_of(o)) {
      result.emplace_back(s, values);
      result.back().first.seed = seed;
    }
  }
  return result;
}

// Returns the path for run i of `count`, numbered so that names sort as the runs do.
std::string file_of(const ExperimentCommand& o, size_t i, size_t count) {
  const size_t digits = std::max<size_t>(2, std::to_string(count).size());
  return (std::filesystem::path(o.save_dir) / fmt::format("run-{:0{}}.stet", i + 1, digits))
      .string();
}

// Makes the directory. Throws if a file of a run exists already.
void prepare_files(const ExperimentCommand& o, size_t count) {
  if (o.save_dir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(o.save_dir, error);
  if (error)
    throw Error(ErrorKind::io, o.save_dir, "--save-dir", "a directory that can be made",
                error.message());
  for (size_t i = 0; i < count; ++i) {
    const std::string file = file_of(o, i, count);
    if (std::filesystem::exists(std::filesystem::symlink_status(file, error))) {
      throw std::runtime_error(
          fmt::format("--save-dir: {} exists already; choose an empty directory", printable(file)));
    }
  }
  check_writable(file_of(o, 0, count));
}

Run run_one(const Exchange& state, const SamplingSettings& settings, ExperimentCommand& o,
            const std::string& file) {
  Exchange exchange = state.fork();
  exchange.session().generation().sampling = settings;
  Run run{settings.seed, {}, {}, 0, {}, 0, file, 0};
  GenerateOptions how = o.generate;
  how.observe = [&](int32_t id, std::span<const float> logits) {
    run.log_probability += log_probability(logits, id);
  };
  const double start = seconds();
  run.reply = exchange.reply(how, [](std::string_view) { return Interrupts::signal() == 0; });
  run.seconds = seconds() - start;
  o.speculate.add(exchange.session().tokens());
  run.digests = digests_of(exchange.session());
  report_healed(exchange.session());
  if (!file.empty() && Interrupts::signal() == 0)
    o.save_as.save(exchange.session(), exchange.tokenizer(), file, o.from ? &*o.from : nullptr);
  run.reply.text += exchange.close();
  return run;
}

std::vector<Run> run_all(Exchange& state, ExperimentCommand& o) {
  const auto grid = combinations(o, state.session().generation().sampling);
  std::vector<Run> runs;
  std::map<std::vector<int32_t>, size_t> first;
  const Interrupts noted;
  for (const auto& [settings, values] : grid) {
    Run run =
        run_one(state, settings, o, o.save_dir.empty() ? "" : file_of(o, runs.size(), grid.size()));
    if (Interrupts::signal() != 0) break;  // an interrupted run is no result
    run.values = values;
    run.same_as = first.try_emplace(run.reply.ids, runs.size()).first->second;
    if (o.twice && !(run_one(state, settings, o, "").digests.state == run.digests.state)) {
      throw std::runtime_error(
          fmt::format("run {} gave another state the second time", runs.size() + 1));
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

// ---------------------------------------------------------------- printing

struct Summary {
  size_t runs, distinct;
  int64_t reused, drawn;
  double seconds, prompt_seconds;
  uint64_t drafted = 0, accepted = 0;
};

Summary summary_of(const std::vector<Run>& runs, int64_t prompt, double prompt_seconds) {
  Summary s{runs.size(), 0, 0, 0, 0, prompt_seconds, 0, 0};
  for (size_t i = 0; i < runs.size(); ++i) {
    s.distinct += runs[i].same_as == i ? 1 : 0;
    s.reused += prompt;
    s.drawn += static_cast<int64_t>(runs[i].reply.ids.size());
    s.seconds += runs[i].seconds;
    s.drafted += runs[i].reply.drafted;
    s.accepted += runs[i].reply.accepted;
  }
  return s;
}

void print_json(const std::vector<Run>& runs, const Summary& s, const ExperimentCommand& o) {
  Json list = Json::array();
  for (const Run& run : runs) {
    Json j = {{"run", list.size() + 1}, {"seed", run.seed}};
    for (size_t a = 0; a < o.axes.size(); ++a) j[o.axes[a].option] = run.values[a];
    j.update(Json{{"ids", run.reply.ids},
                  {"text", run.reply.text},
                  {"stop", stop_reason_name(run.reply.stop)},
                  {"same_as", run.same_as + 1},
                  {"log_probability", run.log_probability},
                  {"seconds", run.seconds},
                  {"state", digest_text(run.digests.state)},
                  {"id", sha256_text(run.digests.id)}});
    if (!run.file.empty()) j["file"] = run.file;
    list.push_back(std::move(j));
  }
  Json j = {{"runs", list},
            {"distinct", s.distinct},
            {"tokens_reused", s.reused},
            {"tokens_drawn", s.drawn},
            {"seconds", s.seconds},
            {"prompt_seconds", s.prompt_seconds}};
  if (o.generate.speculator != nullptr) {
    j["drafted_tokens"] = s.drafted;
    j["accepted_tokens"] = s.accepted;
  }
  out(dump(j, 1) + "\n");
}

std::string quoted(const std::string& text) {
  std::string q = "\"";
  for (const char c : text) q += c == '"' ? std::string("\"\"") : std::string(1, c);
  return q + "\"";
}

void print_csv(const std::vector<Run>& runs, const ExperimentCommand& o) {
  std::string header = "run,seed";
  for (const Axis& axis : o.axes) header += std::string(",") + axis.option;
  out_text(header + ",tokens,stop,same_as,log_probability,seconds,state,file,text\r\n");
  for (size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    std::string line = fmt::format("{},{}", i + 1, run.seed);
    for (const double value : run.values) line += fmt::format(",{}", value);
    out_text(line + fmt::format(",{},{},{},{},{:.4f},{},{},{}\r\n", run.reply.ids.size(),
                                stop_reason_name(run.reply.stop), run.same_as + 1,
                                run.log_probability, run.seconds, digest_text(run.digests.state),
                                quoted(run.file), quoted(run.reply.text)));
  }
}

// Prints the axes that vary and the text. A repeated text is replaced by the number of its first
// run.
void print_table(const std::vector<Run>& runs, const Summary& s, const ExperimentCommand& o) {
  std::string header = " run  seed";
  std::vector<size_t> varied;
  for (size_t a = 0; a < o.axes.size(); ++a) {
    if (o.axes[a].values.size() < 2) continue;
    varied.push_back(a);
    header += fmt::format("  {:>{}}", o.axes[a].option,
                          std::max<size_t>(5, std::string(o.axes[a].option).size()));
  }
  out(header + "  tokens  stop      log p  continuation\n");
  for (size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    std::string line = fmt::format("{:>4}  {:>4}", i + 1, run.seed);
    for (const size_t a : varied)
      line += fmt::format("  {:>{}}", run.values[a],
                          std::max<size_t>(5, std::string(o.axes[a].option).size()));
    const std::string text = run.same_as != i ? fmt::format("(as run {})", run.same_as + 1)
                             : run.reply.text.empty()
                                 ? fmt::format("{}", fmt::join(run.reply.ids, ","))
                                 : printable(run.reply.text, 160);
    out(line + fmt::format("  {:>6}  {:<6}  {:>7.2f}  {}\n", run.reply.ids.size(),
                           stop_reason_name(run.reply.stop), run.log_probability, text));
  }
  out(
      fmt::format("{} continuations, {} distinct{}; {} tokens drawn in {:.2f} s; the prompt took "
                  "{:.3f} s once, {} tokens were not processed again\n",
                  s.runs, s.distinct, o.twice ? ", each drawn twice with the same state" : "",
                  s.drawn, s.seconds, s.prompt_seconds, s.reused));
}

// ---------------------------------------------------------------- the state to branch from

Session open_session(ExperimentCommand& o, std::shared_ptr<const Tokenizer>& tokenizer) {
  if (!o.snapshot.empty()) {
    o.restore.take(o.model);
    const Snapshot snapshot = o.restore.open(o.snapshot);
    o.prompt.require_fit(snapshot);
    o.prompt.require_open(snapshot, o.generate.ignore_eos);
    if (!o.restore.how.replay) o.from = snapshot;
    follow(o.model, snapshot, o.restore.how.replay);
    tokenizer = tokenizer_of(snapshot, o.model);
    return restore_session(snapshot, o.model, o.restore.how, tokenizer.get());
  }
  tokenizer = load_tokenizer(o.model.checkpoint);
  const auto model = o.model.load_model();
  Session session(model, o.model.session_options());
  session.generation() = default_generation(*model);
  return session;
}

void report_idle(const Session& session, const ExperimentCommand& o) {
  const auto grid = combinations(o, session.generation().sampling);
  const bool all_greedy =
      std::all_of(grid.begin(), grid.end(), [](const auto& run) { return run.first.greedy; });
  if (!all_greedy || o.seeds.empty()) return;
  say("no effect while greedy, where the best token is taken: --seeds (--temperature T samples)\n");
}

void run_experiment(ExperimentCommand& o) {
  std::shared_ptr<const Tokenizer> tokenizer;
  Session session = open_session(o, tokenizer);
  const double start = seconds();
  const Prompts prompts = o.prompt.read(o.model.source()->path(), tokenizer, session.size() == 0);
  prepare_files(o, combinations(o, session.generation().sampling).size());
  if (!o.save_dir.empty()) o.save_as.check(file_of(o, 0, 1), session, tokenizer.get());
  const Exchange::Kind kind = kind_of(o.prompt, session, tokenizer);
  Exchange state(std::move(session), tokenizer, kind);
  state.begin(o.prompt);
  for (const Prompt& prompt : prompts) state.prompt(prompt);
  state.session().state();  // verifies every block once, before they are shared
  report_healed(state.session());
  const double prompt_seconds = seconds() - start;
  report_idle(state.session(), o);
  report_passed(o.generate, o.model.checkpoint);
  o.speculate.apply(state.session(), o.model, state.tokenizer().get(), o.generate);
  const std::vector<Run> runs = run_all(state, o);
  const Summary s = summary_of(runs, state.session().size(), prompt_seconds);
  if (o.json)
    print_json(runs, s, o);
  else if (o.csv)
    print_csv(runs, o);
  else
    print_table(runs, s, o);
  if (Interrupts::signal() == 0) return;
  finish_output();
  throw ExitStatus{128 + Interrupts::signal()};
}

}  // namespace

void add_experiment(Command& app) {
  const auto o = std::make_shared<ExperimentCommand>();
  Command* sub = app.add_subcommand(
      "experiment",
      "Draw many continuations of one state: every seed with every combination of settings.");
  Option* snapshot =
      sub->add_option("snapshot", o->snapshot, "the state to branch from (or give a prompt)")
          ->type_name("FILE");
  o->prompt.add_to(*sub);
  o->prompt.add_messages_to(*sub);
  sub->add_option("--seeds", o->seeds, "seeds: 1,2,3 or 1..20, or both: 1,2,10..12 (default: 1)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check({seeds_fault, ""})
      ->type_name("LIST")
      ->group("Settings");
  for (Axis& axis : o->axes) {
    const std::string name = std::string("--") + axis.option;
    sub->add_option(name, axis.values, axis.help)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(sampling_range(name))
        ->type_name("LIST")
        ->group("Settings");
  }
  sub->add_option("-n,--max-tokens", o->generate.max_tokens,
                  "maximum tokens of a continuation (default: 64)")
      ->type_name("N")
      ->check(integer(1, INT64_MAX));
  sub->add_flag("--ignore-eos", o->generate.ignore_eos, "continue past stop tokens");
  o->speculate.add_to(*sub);
  sub->add_flag("--twice", o->twice, "draw each twice, and fail unless the states are equal");
  Option* json = sub->add_flag("--json", o->json, "print JSON");
  sub->add_flag("--csv", o->csv, "print CSV")->excludes(json);
  Option* save_dir = sub->add_option("--save-dir", o->save_dir,
                                     "save each continuation in this directory: run-01.stet ...")
                         ->type_name("DIR");
  save_dir->check({[](const std::string& name) {
                     return name.empty() ? "expected a directory, found nothing" : "";
                   },
                   ""});
  o->save_as.add_to(*sub, save_dir);
  o->restore.add_to(*sub, snapshot);
  o->model.add_to(*sub);
  sub->callback([o] {
    if (o->snapshot.empty()) o->prompt.require();
    run_experiment(*o);
  });
}

}  // namespace stet::tool

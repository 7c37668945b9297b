// stet experiment: many continuations of one state.
#include <fmt/format.h>

#include <map>

#include "stet/chat.hpp"
#include "stet/error.hpp"
#include "tools/command.hpp"

namespace stet::tool {
namespace {

// One sampling parameter and the values that are tried; none: as the state has it.
struct Axis {
  const char* option;
  const char* help;
  double (*get)(const SamplingSettings&);
  void (*set)(SamplingSettings&, double);
  std::vector<double> values;
};

std::vector<Axis> all_axes() {
  using S = SamplingSettings;
  return {
      {"temperature", "temperatures (0: greedy)", [](const S& s) { return s.greedy ? 0 : s.temperature; },
       [](S& s, double v) { s.greedy = v == 0; s.temperature = v == 0 ? s.temperature : v; }, {}},
      {"top-k", "numbers of candidates (0: all)", [](const S& s) { return static_cast<double>(s.top_k); },
       [](S& s, double v) { s.top_k = static_cast<int>(v); }, {}},
      {"top-p", "", [](const S& s) { return s.top_p; }, [](S& s, double v) { s.top_p = v; }, {}},
      {"min-p", "", [](const S& s) { return s.min_p; }, [](S& s, double v) { s.min_p = v; }, {}},
      {"typical", "", [](const S& s) { return s.typical_p; }, [](S& s, double v) { s.typical_p = v; }, {}},
      {"repetition-penalty", "", [](const S& s) { return s.repetition_penalty; },
       [](S& s, double v) { s.repetition_penalty = v; }, {}}};
}

struct Options {
  ModelOptions model;
  PromptOptions prompt;
  RestoreFileOptions restore;
  GenerateOptions generate{64, false};
  std::string snapshot, say;
  std::vector<uint64_t> seeds;
  std::vector<Axis> axes = all_axes();
  bool twice = false, json = false, csv = false;
};

struct Run {
  uint64_t seed;
  std::vector<double> values;  // of every axis
  Reply reply;
  StateDigests digests;
  double seconds;
  size_t same_as;              // the first run with these tokens: itself, where they are new
};

// ---------------------------------------------------------------- running

// Every combination of the axes' values, and every seed for each.
std::vector<std::pair<SamplingSettings, std::vector<double>>> combinations(const Options& o, const SamplingSettings& base) {
  std::vector<SamplingSettings> all{base};
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
    for (const uint64_t seed : o.seeds) {
      result.emplace_back(s, values);
      result.back().first.seed = seed;
    }
  }
  return result;
}

Run run_one(const Session& state, const Tokenizer* tokenizer, const SamplingSettings& settings, const Options& o) {
  Session session = state.fork();
  session.generation().sampling = settings;
  Run run{settings.seed, {}, {}, {}, 0, 0};
  const double start = seconds();
  run.reply = generate(session, tokenizer, o.generate, [](std::string_view) { return Interrupts::signal() == 0; });
  run.reply.text += end_reply(session, tokenizer);
  run.seconds = seconds() - start;
  run.digests = digests_of(session);
  return run;
}

std::vector<Run> run_all(const Session& state, const Tokenizer* tokenizer, const Options& o) {
  const auto grid = combinations(o, state.generation().sampling);
  for (const auto& [settings, unused] : grid) settings.validate("");  // all of it before the first run
  std::vector<Run> runs;
  std::map<std::vector<int32_t>, size_t> first;
  const Interrupts noted;
  for (const auto& [settings, values] : grid) {
    Run run = run_one(state, tokenizer, settings, o);
    if (Interrupts::signal() != 0) break;  // what was cut is no result
    run.values = values;
    run.same_as = first.try_emplace(run.reply.ids, runs.size()).first->second;
    if (o.twice && !(run_one(state, tokenizer, settings, o).digests.state == run.digests.state)) {
      throw Error(ErrorKind::mismatch, "", fmt::format("run {}", runs.size() + 1), "the same state from the same seed", "another");
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
};

Summary summary_of(const std::vector<Run>& runs, int64_t prompt, double prompt_seconds) {
  Summary s{runs.size(), 0, 0, 0, 0, prompt_seconds};
  for (size_t i = 0; i < runs.size(); ++i) {
    s.distinct += runs[i].same_as == i ? 1 : 0;
    s.reused += prompt;
    s.drawn += static_cast<int64_t>(runs[i].reply.ids.size());
    s.seconds += runs[i].seconds;
  }
  return s;
}

void print_json(const std::vector<Run>& runs, const Summary& s, const Options& o) {
  Json list = Json::array();
  for (const Run& run : runs) {
    Json j = {{"seed", run.seed}};
    for (size_t a = 0; a < o.axes.size(); ++a) j[o.axes[a].option] = run.values[a];
    j.update(Json{{"ids", run.reply.ids}, {"text", run.reply.text}, {"stop", run.reply.stop}, {"same_as", run.same_as},
                  {"seconds", run.seconds}, {"state", digest_text(run.digests.state)}});
    list.push_back(std::move(j));
  }
  out(dump({{"runs", list}, {"distinct", s.distinct}, {"tokens_reused", s.reused}, {"tokens_drawn", s.drawn}, {"seconds", s.seconds},
            {"prompt_seconds", s.prompt_seconds}}, 1) + "\n");
}

std::string quoted(const std::string& text) {
  std::string q = "\"";
  for (const char c : text) q += c == '"' ? std::string("\"\"") : std::string(1, c);
  return q + "\"";
}

void print_csv(const std::vector<Run>& runs, const Options& o) {
  std::string header = "run,seed";
  for (const Axis& axis : o.axes) header += std::string(",") + axis.option;
  out(header + ",tokens,stop,same_as,seconds,state,text\r\n");
  for (size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    std::string line = fmt::format("{},{}", i + 1, run.seed);
    for (const double value : run.values) line += fmt::format(",{}", value);
    out(line + fmt::format(",{},{},{},{:.4f},{},{}\r\n", run.reply.ids.size(), run.reply.stop, run.same_as + 1, run.seconds,
                           digest_text(run.digests.state), quoted(run.reply.text)));
  }
}

// The axes that vary, then the text; one that came before is named, not repeated.
void print_table(const std::vector<Run>& runs, const Summary& s, const Options& o) {
  std::string header = " run  seed";
  std::vector<size_t> varied;
  for (size_t a = 0; a < o.axes.size(); ++a) {
    if (o.axes[a].values.size() < 2) continue;
    varied.push_back(a);
    header += fmt::format("  {:>{}}", o.axes[a].option, std::max<size_t>(5, std::string(o.axes[a].option).size()));
  }
  out(header + "  tokens  stop    continuation\n");
  for (size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    std::string line = fmt::format("{:>4}  {:>4}", i + 1, run.seed);
    for (const size_t a : varied) line += fmt::format("  {:>{}}", run.values[a], std::max<size_t>(5, std::string(o.axes[a].option).size()));
    const std::string text = run.same_as != i ? fmt::format("(as run {})", run.same_as + 1)
                             : run.reply.text.empty() ? fmt::format("{}", fmt::join(run.reply.ids, ",")) : printable(run.reply.text, 160);
    out(line + fmt::format("  {:>6}  {:<6}  {}\n", run.reply.ids.size(), run.reply.stop, text));
  }
  out(fmt::format("{} continuations, {} distinct{}; {} tokens drawn in {:.2f} s; the prompt took {:.3f} s once, {} tokens were not processed again\n",
                  s.runs, s.distinct, o.twice ? ", each drawn twice with the same state" : "", s.drawn, s.seconds, s.prompt_seconds, s.reused));
}

// ---------------------------------------------------------------- the state to branch from

Session open_state(Options& o, std::shared_ptr<const Tokenizer>& tokenizer) {
  if (!o.snapshot.empty()) {
    o.restore.how.map = !o.restore.read;
    const Snapshot snapshot = Snapshot::open(o.snapshot, o.restore.parent);
    follow(o.model, snapshot, o.restore.how.replay);
    tokenizer = tokenizer_of(snapshot, o.model);
    return restore_session(snapshot, o.model, o.restore.how, nullptr, fingerprint(tokenizer));
  }
  tokenizer = load_tokenizer(o.model.checkpoint.directory);
  const auto model = o.model.load_model();
  Session session(model, o.model.session_options());
  session.generation() = default_generation(*model);
  return session;
}

void run_experiment(Options& o) {
  std::shared_ptr<const Tokenizer> tokenizer;
  Session session = open_state(o, tokenizer);
  const double start = seconds();
  if (!o.say.empty()) {
    if (tokenizer == nullptr) no_tokenizer(o.model.source()->path());
    Conversation conversation(std::move(session), tokenizer);
    conversation.say(o.say);
    session = std::move(conversation.session());
  } else if (o.prompt.given()) {
    for (const auto& turn : o.prompt.turns(o.model.source()->path(), tokenizer, session.size() == 0)) append_prompt(session, turn);
  }
  session.logits();
  const double prompt_seconds = seconds() - start;
  const std::vector<Run> runs = run_all(session, tokenizer.get(), o);
  const Summary s = summary_of(runs, session.size(), prompt_seconds);
  if (o.json) print_json(runs, s, o);
  else if (o.csv) print_csv(runs, o);
  else print_table(runs, s, o);
  if (Interrupts::signal() == 0) return;
  finish_output();
  throw ExitStatus{128 + Interrupts::signal()};
}

}  // namespace

void add_experiment(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("experiment", "Many continuations of one state: every seed with every combination of settings.");
  sub->add_option("snapshot", o->snapshot, "the state to branch from (or give a prompt)")->type_name("FILE");
  o->prompt.add_to(*sub);
  sub->add_option("--say", o->say, "a message of the user, through the chat template")->type_name("TEXT")->group("Prompt");
  sub->add_option("--seeds", o->seeds, "seeds: 1,2,3 (default: 1)")->delimiter(',')->allow_extra_args(false)->check(integer(0, UINT64_MAX))
      ->type_name("LIST")->group("Settings");
  for (Axis& axis : o->axes) {
    sub->add_option(std::string("--") + axis.option, axis.values, axis.help)->delimiter(',')->allow_extra_args(false)->type_name("LIST")->group("Settings");
  }
  sub->add_option("-n,--max-tokens", o->generate.max_tokens, "most tokens of a continuation (default: 64)")->type_name("N")->check(integer(1, INT64_MAX));
  sub->add_flag("--ignore-eos", o->generate.ignore_eos, "go on past stop tokens");
  sub->add_flag("--twice", o->twice, "draw each twice; the states must be equal");
  CLI::Option* json = sub->add_flag("--json", o->json, "print JSON");
  sub->add_flag("--csv", o->csv, "print CSV")->excludes(json);
  o->restore.add_to(*sub);
  o->model.add_to(*sub);
  sub->callback([o] {
    if (o->snapshot.empty() && o->say.empty()) o->prompt.require();
    if (!o->say.empty() && o->prompt.given()) throw CLI::ExcludesError("--say", "--prompt, --prompt-file, --ids, --ids-file");
    if (o->seeds.empty()) o->seeds = {1};
    run_experiment(*o);
  });
}

}  // namespace stet::tool

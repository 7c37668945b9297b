// stet generate, save, resume.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>

#include "stet/base/error.hpp"
#include "tools/lab/interventions.hpp"
#include "tools/prompt/exchange.hpp"
#include "tools/prompt/speculate_option.hpp"

namespace stet::tool {
namespace {

struct GenerateCommand {
  ModelOptions model;
  PromptOptions prompt;
  SamplingOptions sampling;
  GenerateOptions generate;
  SaveFileOptions save_as;
  RestoreFileOptions restore;
  InterventionOption interventions;
  SpeculateOption speculate;
  std::string snapshot, save;
  std::optional<Snapshot>
      from;  // the snapshot that is resumed, unless --replay makes another state
  bool json = false;

  void add_generation_to(Command& app) {
    sampling.add_to(app);
    app.add_option("-n,--max-tokens", generate.max_tokens,
                   "maximum tokens of a reply (default: 256)")
        ->type_name("N")
        ->check(integer(0, INT64_MAX))
        ->group("Stopping");
    app.add_flag("--ignore-eos", generate.ignore_eos, "continue past stop tokens")
        ->group("Stopping");
    save_as.add_to(
        app, app.add_save_output(save, "save the state to this file afterwards, for `stet resume`")
                 ->group("Output"));
    app.add_flag("--json", json, "one JSON object per reply")->group("Output");
    interventions.add_to(app);
    speculate.add_to(app);
    add_raw_output(app);
  }
  // Throws for wrong options before a long computation.
  void validate() const {
    sampling.validate();
    if (!save.empty()) check_writable(save);
  }
};

struct Timing {
  double load = 0, restore = 0, prefill = 0, decode = 0;
  std::optional<RestoreReport> report;  // set for a resumed session
};

// Processes a prompt, with a progress line if it takes over a second on a terminal.
PromptReport prefill(Exchange& exchange, const Prompt& prompt) {
  const Progress line = prefill_progress(static_cast<int64_t>(prompt.ids.size()));
  return exchange.prompt(prompt, [&](int64_t done) {
    if (Interrupts::signal() != 0) throw Interrupted();
    line(done);
  });
}

// Returns the object of --json. `prompt` is the tokens processed before the reply.
Json reply_json(Exchange& exchange, const std::vector<int32_t>& prompt, const PromptReport& report,
                const Reply& reply, const GenerateOptions& options, const Timing& t) {
  Session& session = exchange.session();
  const auto rate = [](size_t n, double s) { return s > 0 ? static_cast<double>(n) / s : 0.0; };
  Json j;
  j["prompt_ids"] = prompt;
  j["ids"] = reply.ids;
  if (exchange.tokenizer() != nullptr) j["text"] = reply.text;
  j["stop"] = stop_reason_name(reply.stop);
  j["seed"] = session.generation().sampling.seed;
  j["positions"] = session.size();
  if (exchange.kind() == Exchange::Kind::conversation) {
    j["tokens"] = {
        {"kept", report.kept}, {"recomputed", report.recomputed}, {"added", report.added}};
  }
  j["timings"] = {{"load_s", t.load},
                  {"restore_s", t.restore},
                  {"prefill_s", t.prefill},
                  {"prefill_tokens", prompt.size()},
                  {"prefill_tokens_per_s", rate(prompt.size(), t.prefill)},
                  {"decode_s", t.decode},
                  {"decode_tokens", reply.ids.size()},
                  {"decode_tokens_per_s", rate(reply.ids.size(), t.decode)}};
  add_drafted(j["timings"], reply, options.speculator != nullptr);
  if (t.report) {
    j["restored"] = {{"tokens_reused", t.report->reused},
                     {"tokens_recomputed", t.report->recomputed},
                     {"blocks_healed", t.report->healed},
                     {"all_digests_checked", t.report->checked}};
  }
  j["digests"] = digests_json(digests_of(session));
  j["healed"] = report_healed(session);
  return j;
}

// Draws the replies of a session and writes them out.
class Replies {
 public:
  // `greeting` goes to stderr with the first token. The blocks that it depends on are verified by
  // then.
  Replies(Exchange& exchange, const GenerateCommand& options, const Timing& timing,
          std::string greeting = "")
      : exchange_(exchange), options_(options), timing_(timing), greeting_(std::move(greeting)) {}

  // Processes one prompt after another, each with its reply. Without prompts it continues the open
  // reply.
  void run(const Prompts& prompts) {
    const size_t count = std::max<size_t>(1, prompts.size());
    for (size_t i = 0; i < count && Interrupts::signal() == 0 && out(""); ++i) {
      turn(prompts.empty() ? nullptr : &prompts[i], i + 1 == count && !options_.save.empty());
      timing_.load = timing_.restore = 0;
    }
  }

 private:
  // Takes one turn. A stopped reply `goes_on` only if the state is saved afterwards; otherwise the
  // text that it held back is printed.
  void turn(const Prompt* prompt, bool goes_on) {
    Session& session = exchange_.session();
    const double start = seconds();
    PromptReport report{session.transcript_size(), 0, 0};
    if (prompt != nullptr) report = prefill(exchange_, *prompt);
    const std::vector<int32_t> transcript = session.transcript();
    const double middle = seconds();
    Reply reply = exchange_.reply(options_.generate, [&](std::string_view text) {
      return show(text) && Interrupts::signal() == 0;
    });
    greet();
    timing_.prefill = middle - start;
    timing_.decode = seconds() - middle;
    Json j;
    if (options_.json)
      j = reply_json(exchange_, {transcript.begin() + report.kept, transcript.end()}, report, reply,
                     options_.generate, timing_);
    if (!goes_on) {
      const std::string rest = exchange_.close();
      show(rest);
      if (options_.json && exchange_.tokenizer() != nullptr) j["text"] = reply.text + rest;
    }
    print(reply, j);
  }

  void print(const Reply& reply, const Json& j) {
    if (!options_.json && exchange_.tokenizer() == nullptr)
      out(fmt::format("{}", fmt::join(reply.ids, ",")));
    out(options_.json ? dump(j) + "\n" : "\n");
    flush_output();
    Session& session = exchange_.session();
    report_healed(session);
    if (!options_.json && session.size() == session.capacity()) {
      const int64_t most = session.model().config().max_positions;
      say("the session is full: {} positions ({})\n", session.capacity(),
          session.capacity() < most ? fmt::format("--ctx N allows up to {}", most)
                                    : "the model's maximum; stet prune makes room in a snapshot");
    }
  }

  void greet() {
    if (!greeting_.empty()) say("{}\n", std::exchange(greeting_, ""));
  }

  bool show(std::string_view text) {
    greet();
    if (options_.json || text.empty()) return true;
    const bool good = out_text(text);
    flush_output();
    return good && out("");
  }

  Exchange& exchange_;
  const GenerateCommand& options_;
  Timing timing_;
  std::string greeting_;
};

void keep(Exchange& exchange, const GenerateCommand& o) {
  Session& session = exchange.session();
  const double start = seconds();
  const StateDigests d =
      o.save_as.save(session, exchange.tokenizer(), o.save, o.from ? &*o.from : nullptr);
  report_healed(session);
  if (o.json) return;
  say("saved {} tokens to {} in {:.1f} ms, state {}\n", session.size(), printable(o.save),
      (seconds() - start) * 1e3, sha256_text(d.id));
}

// Checks settings, ids and room before the first token is processed.
void check(const Session& session, const Prompts& prompts) {
  const int64_t vocab = session.model().config().vocab_size;
  check_generation(session.generation(), vocab, session.size(), "");
  size_t count = 0;
  for (const auto& [ids, message] : prompts) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab) {
        throw Error(ErrorKind::argument, "", "ids[" + std::to_string(i) + "]",
                    "a token id in 0.." + std::to_string(vocab - 1), std::to_string(ids[i]));
      }
    }
    count += ids.size();
  }
  if (count > static_cast<size_t>(session.capacity() - session.size())) {
    throw std::runtime_error(
        does_not_fit(static_cast<int64_t>(count), session.size(), session.capacity()));
  }
}

// Runs `work`, which ends early on Ctrl-C. Saves the state in any case, then ends the process by
// the signal.
template <class Work>
void with_interrupts(Exchange& exchange, const GenerateCommand& o, Work work) {
  {
    const Interrupts noted;
    try {
      work();
    } catch (const Interrupted&) {
    }
  }
  if (!o.save.empty() && exchange.session().size() > 0) keep(exchange, o);
  if (Interrupts::signal() == 0) return;
  finish_output();
  std::raise(Interrupts::signal());
}

void process_prompts(Exchange& exchange, const Prompts& prompts, const GenerateCommand& o) {
  with_interrupts(exchange, o, [&] {
    for (const Prompt& prompt : prompts) prefill(exchange, prompt);
  });
  if (!o.json) return;
  Session& session = exchange.session();
  out(dump({{"prompt_ids", session.tokens()},
            {"positions", session.size()},
            {"digests", digests_json(digests_of(session))}}) +
      "\n");
}

// Applies the settings of the command line to a session and checks them.
Exchange begin(Session session, const std::shared_ptr<const Tokenizer>& tokenizer,
               const Prompts& prompts, const GenerateCommand& o) {
  o.sampling.apply(session.generation(), session.model().config().vocab_size);
  o.interventions.attach_to(session);
  o.sampling.report_idle(session.generation());
  report_passed(o.generate, o.model.checkpoint, o.sampling);
  check(session, prompts);
  if (!o.save.empty()) o.save_as.check(o.save, session, tokenizer.get());
  const Exchange::Kind kind = kind_of(o.prompt, session, tokenizer);
  Exchange exchange(std::move(session), tokenizer, kind);
  exchange.begin(o.prompt);
  return exchange;
}

void run_generate(GenerateCommand& o, bool reply) {
  o.validate();
  Timing timing;
  const auto tokenizer = load_tokenizer(o.model.checkpoint);
  const Prompts prompts = o.prompt.read(o.model.source()->path(), tokenizer, true);
  const double start = seconds();
  const auto model = o.model.load_model();
  timing.load = seconds() - start;
  Session session(model, o.model.session_options());
  session.generation() = default_generation(*model);
  Exchange exchange = begin(std::move(session), tokenizer, prompts, o);
  if (!reply) return process_prompts(exchange, prompts, o);
  o.sampling.report_seed(exchange.session().generation());
  o.speculate.apply(exchange.session(), o.model, exchange.tokenizer().get(), o.generate);
  with_interrupts(exchange, o, [&] { Replies(exchange, o, timing).run(prompts); });
}

// Throws for options that contradict the snapshot, whatever the model.
void check(const Snapshot& snapshot, const GenerateCommand& o) {
  if (!o.save.empty()) snapshot.check_keeps_parents(o.save);
  o.prompt.require_fit(snapshot);
  if (o.generate.max_tokens > 0) o.prompt.require_open(snapshot, o.generate.ignore_eos);
}

void run_resume(GenerateCommand& o) {
  o.validate();
  const Snapshot snapshot = o.restore.open(o.snapshot);
  check(snapshot, o);
  if (!o.restore.how.replay) o.from = snapshot;
  follow(o.model, snapshot, o.restore.how.replay);
  Timing timing;
  const auto tokenizer = tokenizer_of(snapshot, o.model);
  const Prompts prompts =
      o.prompt.read(o.model.source()->path(), tokenizer, snapshot.tokens().empty());
  double start = seconds();
  const auto model = o.model.load_model();
  timing.load = seconds() - start;
  start = seconds();
  RestoreReport report;
  Session session =
      restore_session(snapshot, model, o.model, o.restore.how, tokenizer.get(), &report);
  timing.restore = seconds() - start;
  timing.report = report;
  std::string greeting;
  if (!o.json)
    greeting = restored_text(snapshot, session, o.restore.how.replay, report, timing.restore);
  Exchange exchange = begin(std::move(session), tokenizer, prompts, o);
  o.sampling.report_seed(exchange.session().generation());
  o.speculate.apply(exchange.session(), o.model, exchange.tokenizer().get(), o.generate);
  with_interrupts(exchange, o, [&] { Replies(exchange, o, timing, greeting).run(prompts); });
}

}  // namespace

void add_generate(Command& app) {
  const auto o = std::make_shared<GenerateCommand>();
  Command* sub = app.add_subcommand("generate", "Reply to a prompt, or to several in turn.");
  o->prompt.add_to(*sub);
  o->prompt.add_messages_to(*sub);
  o->add_generation_to(*sub);
  o->model.add_to(*sub);
  sub->callback([o] {
    o->prompt.require();
    run_generate(*o, true);
  });
}

void add_save(Command& app) {
  const auto o = std::make_shared<GenerateCommand>();
  Command* sub = app.add_subcommand("save", "Process a prompt and keep the state in a file.");
  o->prompt.add_to(*sub);
  o->prompt.add_messages_to(*sub);
  o->sampling.add_to(*sub);
  sub->add_output(o->save, "the snapshot")->required()->group("Output");
  o->save_as.add_to(*sub);
  sub->add_flag("--json", o->json, "print a JSON object")->group("Output");
  o->interventions.add_to(*sub);
  o->model.add_to(*sub);
  sub->callback([o] {
    o->prompt.require();
    run_generate(*o, false);
  });
}

void add_resume(Command& app) {
  const auto o = std::make_shared<GenerateCommand>();
  Command* sub = app.add_subcommand(
      "resume", "Continue from a snapshot: with a prompt, or with a reply that was stopped.");
  sub->add_option("snapshot", o->snapshot, "the state to continue")->required()->type_name("FILE");
  o->prompt.add_to(*sub);
  o->prompt.add_messages_to(*sub);
  o->add_generation_to(*sub);
  o->restore.add_to(*sub);
  o->model.add_to(*sub);
  sub->callback([o] {
    o->restore.take(o->model);
    run_resume(*o);
  });
}

}  // namespace stet::tool

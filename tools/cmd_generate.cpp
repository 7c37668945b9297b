// stet generate, save, resume.
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdio>

#include "stet/error.hpp"
#include "tools/command.hpp"

namespace stet::tool {
namespace {

std::atomic<bool> interrupted{false};

// The first Ctrl-C ends the reply after the current token, so that the state can still be saved; the second
// ends the process.
void on_interrupt(int) {
  interrupted = true;
  std::signal(SIGINT, SIG_DFL);
}

struct Options {
  ModelOptions model;
  PromptOptions prompt;
  SamplingOptions sampling;
  GenerateOptions generate;
  std::string snapshot, save;
  bool json = false;

  void add_generation_to(CLI::App& app) {
    app.add_option("-n,--max-tokens", generate.max_tokens, "most tokens of a reply")->capture_default_str();
    app.add_flag("--ignore-eos", generate.ignore_eos, "go on past stop tokens");
    sampling.add_to(app);
    app.add_option("--save", save, "keep the state in this file afterwards");
    app.add_flag("--json", json, "one JSON object per reply");
  }
};

struct Timing {
  double load = 0, restore = 0, prefill = 0, decode = 0;
};

void check(const Options& o) {
  if (o.generate.max_tokens < 0) throw Error(ErrorKind::argument, "", "-n", "0 or more", std::to_string(o.generate.max_tokens));
}

Json reply_json(Session& session, const std::vector<int32_t>& prompt, const Reply& reply, const Timing& t, bool text) {
  Json j;
  j["prompt_ids"] = prompt;
  j["ids"] = reply.ids;
  if (text) j["text"] = reply.text;
  if (!session.generation().held.empty()) j["held"] = session.generation().held;
  j["stop"] = reply.stop;
  j["positions"] = session.size();
  const auto rate = [](size_t n, double s) { return s > 0 ? static_cast<double>(n) / s : 0.0; };
  j["timings"] = {{"load_s", t.load}, {"restore_s", t.restore}, {"prefill_s", t.prefill},
                  {"prefill_tokens", prompt.size()}, {"prefill_tokens_per_s", rate(prompt.size(), t.prefill)},
                  {"decode_s", t.decode}, {"decode_tokens", reply.ids.size()},
                  {"decode_tokens_per_s", rate(reply.ids.size(), t.decode)}};
  j["digests"] = digests_json(digests_of(session));
  return j;
}

// Streams the text; without a tokenizer, prints ids.
Reply print_reply(Session& session, const Tokenizer* tokenizer, const Options& o) {
  const TextSink sink = [&](std::string_view text) {
    if (!o.json) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
    return !interrupted;
  };
  Reply reply = generate(session, tokenizer, o.generate, sink);
  if (o.json) return reply;
  if (tokenizer == nullptr) {
    for (size_t i = 0; i < reply.ids.size(); ++i) fmt::print("{}{}", i == 0 ? "" : ",", reply.ids[i]);
  }
  fmt::print("\n");
  return reply;
}

// One turn after another, each with its reply. No turns: the open reply goes on.
void converse(Session& session, const Tokenizer* tokenizer, const std::vector<std::vector<int32_t>>& turns, Options& o,
              Timing timing) {
  std::signal(SIGINT, on_interrupt);
  const size_t count = std::max<size_t>(1, turns.size());
  for (size_t i = 0; i < count && !interrupted; ++i) {
    static const std::vector<int32_t> none;
    const std::vector<int32_t>& prompt = turns.empty() ? none : turns[i];
    double start = seconds();
    if (!prompt.empty()) prefill(session, prompt);
    timing.prefill = seconds() - start;
    start = seconds();
    const Reply reply = print_reply(session, tokenizer, o);
    timing.decode = seconds() - start;
    if (o.json) fmt::print("{}\n", reply_json(session, prompt, reply, timing, tokenizer != nullptr).dump(-1, ' ', false, Json::error_handler_t::replace));
    timing.load = timing.restore = 0;
  }
  std::signal(SIGINT, SIG_DFL);
}

std::string fingerprint(const std::shared_ptr<const Tokenizer>& tokenizer) {
  return tokenizer == nullptr ? "" : tokenizer->fingerprint();
}

void keep(Session& session, const std::shared_ptr<const Tokenizer>& tokenizer, const Options& o, bool report) {
  const double start = seconds();
  const StateDigests d = Snapshot::save(session, fingerprint(tokenizer), o.save);
  if (report) {
    fmt::print(stderr, "saved {} tokens to {} in {:.1f} ms, state {}\n", session.size(), printable(o.save),
               (seconds() - start) * 1e3, digest_text(d.state));
  }
}

void run_generate(Options& o, bool reply) {
  check(o);
  Timing timing;
  const auto tokenizer = load_tokenizer(o.model.directory);
  const auto turns = o.prompt.turns(tokenizer, true);
  const double start = seconds();
  const auto model = o.model.load_model();
  timing.load = seconds() - start;
  Session session(model, o.model.session_options());
  session.generation() = default_generation(*model);
  o.sampling.apply(session.generation());
  if (reply) {
    converse(session, tokenizer.get(), turns, o, timing);
  } else {
    for (const auto& turn : turns) prefill(session, turn);
    if (o.json) fmt::print("{}\n", Json{{"prompt_ids", session.tokens()}, {"positions", session.size()}, {"digests", digests_json(digests_of(session))}}.dump());
  }
  if (!o.save.empty()) keep(session, tokenizer, o, !o.json);
}

void run_resume(Options& o) {
  check(o);
  Timing timing;
  const Snapshot snapshot = Snapshot::open(o.snapshot);
  if (!o.model.kv.empty() && kv_type_of(o.model.kv) != snapshot.kv_shape().type) {
    throw Error(ErrorKind::mismatch, o.snapshot, "kv type", o.model.kv, kv_type_name(snapshot.kv_shape().type));
  }
  const auto tokenizer = load_tokenizer(o.model.directory);
  double start = seconds();
  const auto model = o.model.load_model();
  timing.load = seconds() - start;
  start = seconds();
  Session session = snapshot.restore(model, fingerprint(tokenizer), o.model.session_options());
  timing.restore = seconds() - start;
  o.sampling.apply(session.generation());
  const auto turns = o.prompt.turns(tokenizer, false);
  if (!o.json) {
    fmt::print(stderr, "resumed {} tokens in {:.1f} ms (0 recomputed), state {}\n", session.size(), timing.restore * 1e3,
               digest_text(snapshot.digests().state));
  }
  converse(session, tokenizer.get(), turns, o, timing);
  if (!o.save.empty()) keep(session, tokenizer, o, !o.json);
}

}  // namespace

void add_generate(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("generate", "reply to a prompt");
  o->model.add_to(*sub);
  o->prompt.add_to(*sub);
  o->add_generation_to(*sub);
  sub->callback([o] {
    if (!o->prompt.given()) throw CLI::RequiredError("--prompt, --prompt-file, --ids or --ids-file");
    run_generate(*o, true);
  });
}

void add_save(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("save", "process a prompt and keep the state in a file");
  o->model.add_to(*sub);
  o->prompt.add_to(*sub);
  o->sampling.add_to(*sub);
  sub->add_option("-o,--output", o->save, "the snapshot")->required();
  sub->add_flag("--json", o->json, "print a JSON object");
  sub->callback([o] {
    if (!o->prompt.given()) throw CLI::RequiredError("--prompt, --prompt-file, --ids or --ids-file");
    run_generate(*o, false);
  });
}

void add_resume(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("resume", "go on from a snapshot");
  sub->add_option("snapshot", o->snapshot, "the snapshot")->required();
  o->model.add_to(*sub);
  o->prompt.add_to(*sub);
  o->add_generation_to(*sub);
  sub->callback([o] { run_resume(*o); });
}

}  // namespace stet::tool

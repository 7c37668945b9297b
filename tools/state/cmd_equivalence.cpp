// stet equivalence: generates one reply in every way that a state can be made.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "stet/base/error.hpp"
#include "stet/snapshot/verify.hpp"
#include "tools/lab/against.hpp"
#include "tools/prompt/exchange.hpp"

namespace stet::tool {
namespace {

struct EquivalenceCommand {
  ModelOptions model;
  PromptOptions prompt;
  SamplingOptions sampling;
  GenerateOptions generate{64, false};
  std::string against;
  bool json = false;
};

// A directory for the files of the run, removed by its destructor.
class Folder {
 public:
  Folder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "stet-equivalence-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw Error(ErrorKind::io, name, "", "a directory that can be made", "none");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

struct Way {
  std::string name;
  std::function<Session(const Session& prompted)> begin;  // makes the state before the reply
};

struct Result {
  std::string name;
  Reply reply;
  StateDigests digests;
  double ready_s, reply_s;
  std::optional<Difference> difference;
};

// Returns the ways. Each closure holds the specifics: file, form, kernels.
std::vector<Way> ways(const EquivalenceCommand& o, const std::shared_ptr<const Model>& model,
                      const Tokenizer* tokenizer, const Folder& folder) {
  const SessionOptions session_options = o.model.session_options();
  const auto restored = [=](const std::string& file, RestoreOptions how) {
    how.session = session_options;
    how.tokenizer = tokenizer;
    return Snapshot::open(file).restore(model, how);
  };
  const auto through_file = [=, &folder](const char* file, SaveOptions save,
                                         const RestoreOptions& how) {
    save.tokenizer = tokenizer;
    return [=, path = folder / file](const Session& s) {
      Session copy = s.fork();
      Snapshot::save(copy, path, save);
      return restored(path, how);
    };
  };
  const auto computed_by = [=](ComputeOptions compute) {
    return [=](const Session& s) {
      SessionOptions other = session_options;
      other.compute = compute;
      Session again(model, other);
      again.generation() = s.generation();
      again.append(s.tokens());
      return again;
    };
  };
  std::vector<Way> all = {
      {"cached state (fork)", [](const Session& s) { return s.fork(); }},
      {"rewound after another reply",
       [](const Session& s) {
         Session other = s.fork();
         const auto size = other.size();
         other.generation().stop_strings.clear();
         generate(other, nullptr, {8, true});
         other.rewind(size);
         other.generation() = s.generation();
         return other;
       }},
      {"exported, loaded (mapped)", through_file("full.stet", {}, {})},
      {"exported, loaded (read)", through_file("read.stet", {}, {.map = false, .check = true})},
      {"exported as a recipe", through_file("recipe.stet", {.form = SnapshotForm::recipe}, {})}};
  if (have_zlib())
    all.push_back({"exported, compressed", through_file("zlib.stet", {.compress = 1}, {})});
  ComputeOptions one = session_options.compute;
  one.threads = 1;
  all.push_back({"one thread", computed_by(one)});
  ComputeOptions pieces = session_options.compute;
  pieces.chunk = 7;
  all.push_back({"prompt in chunks of 7", computed_by(pieces)});
  ComputeOptions portable = session_options.compute;
  portable.isa = "portable";
  all.push_back({"portable kernels", computed_by(portable)});
  return all;
}

Result take(const std::string& name, Session session, const Tokenizer* tokenizer,
            const EquivalenceCommand& o, double start, std::optional<Session>* keep) {
  Result r{name, {}, {}, seconds() - start, 0, std::nullopt};
  const double middle = seconds();
  r.reply = generate(session, tokenizer, o.generate);
  r.reply.text += end_reply(session, tokenizer);
  r.reply_s = seconds() - middle;
  r.digests = digests_of(session);
  report_healed(session);
  keep->emplace(std::move(session));
  return r;
}

void print(const std::vector<Result>& results, const EquivalenceCommand& o) {
  if (o.json) {
    Json rows = Json::array();
    for (const Result& r : results) {
      Json row = {{"way", r.name},        {"equal", !r.difference},
                  {"ids", r.reply.ids},   {"digests", digests_json(r.digests)},
                  {"ready_s", r.ready_s}, {"reply_s", r.reply_s}};
      if (r.difference) row["difference"] = r.difference->text();
      rows.push_back(std::move(row));
    }
    out(dump(rows, 1) + "\n");
    return;
  }
  out(fmt::format("{:<28}  {:>10}  {:>6}  {:<37}  {}\n", "generation from", "ready", "tokens",
                  "state", ""));
  for (const Result& r : results) {
    out(fmt::format("{:<28}  {:>7.1f} ms  {:>6}  {}  {}\n", r.name, r.ready_s * 1e3,
                    r.reply.ids.size(), digest_text(r.digests.state),
                    r.difference ? "DIFFERENT: " + r.difference->text() : "equal"));
  }
  out(fmt::format("{}\n", printable(results[0].reply.text, 400)));
}

// Throws a UsageError for options of a reply or of stet's own computation: the other program draws
// no reply, and computes as it was started.
void refuse_options_of_reply(const Command& command) {
  constexpr std::string_view kTaken =
      " --against --json --model --pre --prompt --prompt-file --ids --ids-file --bos ";
  for (const std::string& name : command.given()) {
    if (kTaken.find(" " + name + " ") == std::string_view::npos)
      usage_error(name + " cannot be used with --against, whose program computes by itself");
  }
}

// Compares the logits of another program with themselves, in many ways.
void compare_with(const EquivalenceCommand& o, const Prompts& prompts, const Model& model) {
  std::vector<int32_t> ids;
  for (const Prompt& p : prompts) ids.insert(ids.end(), p.ids.begin(), p.ids.end());
  if (ids.size() < 4)
    usage_error("--against", "a prompt of at least 4 tokens, as text or ids",
                std::to_string(ids.size()));
  const auto& windows = model.config().window;
  const int64_t window = windows.empty() ? 0 : *std::max_element(windows.begin(), windows.end());
  const size_t changed = run_against(o.against, ids, window, o.json);
  finish_output();
  if (changed > 0) throw ExitStatus{1};
}

void run_equivalence(EquivalenceCommand& o) {
  o.sampling.validate();
  const auto tokenizer = load_tokenizer(o.model.checkpoint);
  const Prompts prompts = o.prompt.read(o.model.source()->path(), tokenizer, true);
  const auto model = o.model.load_model();
  if (!o.against.empty()) return compare_with(o, prompts, *model);
  const Folder folder;
  double start = seconds();
  Session session(model, o.model.session_options());
  session.generation() = default_generation(*model);
  o.sampling.apply(session.generation(), model->config().vocab_size);
  o.sampling.report_idle(session.generation());
  report_passed(o.generate, o.model.checkpoint, o.sampling);
  o.sampling.report_seed(session.generation());
  const Exchange::Kind kind = kind_of(o.prompt, session, tokenizer);
  Exchange exchange(std::move(session), tokenizer, kind);
  exchange.begin(o.prompt);
  for (const Prompt& prompt : prompts) exchange.prompt(prompt);
  Session prompted = std::move(exchange.session());
  prompted.chat() = ChatState();  // compare tokens, not roles
  std::vector<Result> results;
  std::optional<Session> normal, other;
  const auto cases = ways(o, model, tokenizer.get(), folder);
  const Session state = prompted.fork();
  results.push_back(
      take("normal generation", std::move(prompted), tokenizer.get(), o, start, &normal));
  for (const Way& way : cases) {
    start = seconds();
    results.push_back(take(way.name, way.begin(state), tokenizer.get(), o, start, &other));
    results.back().difference = first_difference(
        normal->state(), other->state(),
        o.model.session_options().compute.contract == Contract::f32_blas ? kBlasTolerance : 0);
  }
  print(results, o);
  finish_output();
  for (const Result& r : results) {
    if (r.difference) throw ExitStatus{1};
  }
}

}  // namespace

void add_equivalence(Command& app) {
  const auto o = std::make_shared<EquivalenceCommand>();
  Command* sub = app.add_subcommand("equivalence",
                                    "Generate one reply in every way (cached, saved, loaded, "
                                    "computed again) and compare the bits.");
  o->prompt.add_to(*sub);
  o->prompt.add_messages_to(*sub);
  o->sampling.add_to(*sub);
  sub->add_option("-n,--max-tokens", o->generate.max_tokens,
                  "maximum tokens of the reply (default: 64)")
      ->type_name("N")
      ->check(integer(1, INT64_MAX))
      ->group("Stopping");
  sub->add_flag("--ignore-eos", o->generate.ignore_eos, "continue past stop tokens")
      ->group("Stopping");
  sub->add_flag("--json", o->json, "print JSON")->group("Output");
  sub->add_option("--against", o->against,
                  "ask this program instead, whatever it runs (docs/lab.md)")
      ->type_name("CMD");
  o->model.add_to(*sub);
  sub->callback([o, command = static_cast<const Command*>(sub)] {
    o->prompt.require();
    if (!o->against.empty()) refuse_options_of_reply(*command);
    run_equivalence(*o);
  });
}

}  // namespace stet::tool

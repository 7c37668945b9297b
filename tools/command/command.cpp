#include "tools/command/command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <future>
#include <set>

#include "stet/base/error.hpp"
#include "stet/checkpoint/cache.hpp"
#include "stet/checkpoint/checkpoint.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/files/file.hpp"
#include "stet/kernels/kernels.hpp"
#include "stet/model/weight_loader.hpp"
#include "stet/text/tokenizer_warnings.hpp"
#include "stet/threads/interrupt.hpp"
#include "tools/command/streams.hpp"
#include "tools/command/words.hpp"
#include "tools/prompt/tokenizer_choice.hpp"
#include "tools/store/store.hpp"

namespace stet::tool {
namespace {

constexpr size_t kConfigLimit = size_t{1} << 30;
constexpr char kDefaultCheckpoint[] = "pocket-gemma3";

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

namespace {

constexpr int kInterrupts[] = {SIGINT, SIGTERM, SIGHUP};
std::atomic<int> noted{0};  // the signal that came; a handler writes it, any thread reads it
static_assert(std::atomic<int>::is_always_lock_free);

void remember_signal(int signal) { noted = signal; }

bool is_ignored(int signal) {
  struct sigaction now = {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

// Records the first signal. A second one, of any kind, ends the process.
void remember_signal_once(int signal) {
  noted = signal;
  for (const int other : kInterrupts) {
    if (!is_ignored(other)) std::signal(other, SIG_DFL);
  }
}

}  // namespace

Interrupts::Interrupts(bool patient) {
  noted = 0;
  for (size_t i = 0; i < std::size(kInterrupts); ++i) {
    before_[i] = SIG_IGN;
    if (!is_ignored(kInterrupts[i]))
      before_[i] = std::signal(kInterrupts[i], patient ? remember_signal : remember_signal_once);
  }
}

Interrupts::~Interrupts() {
  for (size_t i = 0; i < std::size(kInterrupts); ++i) std::signal(kInterrupts[i], before_[i]);
}

int Interrupts::signal() { return noted; }

void Interrupts::check() {
  if (noted != 0) throw Interrupted();
}

void end_on_signals(const std::function<void()>& work) {
  {
    const Interrupts recorded;
    const auto ask = [](void*) { return Interrupts::signal() == 0 ? 0 : 1; };
    const Interrupt before = set_interrupt({.ask = ask, .context = nullptr, .between_ms = 0});
    std::exception_ptr fault;
    try {
      work();
    } catch (const Interrupted&) {
    } catch (const stet::Interrupted&) {
    } catch (...) {
      fault = std::current_exception();
    }
    set_interrupt(before);
    if (fault) std::rethrow_exception(fault);
  }
  if (Interrupts::signal() == 0) return;
  flush_output();
  std::raise(Interrupts::signal());
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool watched() { return isatty(STDERR_FILENO) != 0; }

void check_writable(const std::string& path) {
  if (is_in_store(path)) return check_storable(path);
  const AtomicFile probe(path);  // removed by its destructor
}

// Looks beside an installed command, then in the source tree.
std::string bundled_checkpoint(const std::string& name) {
  if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos) return "";
  std::error_code ignored;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path installed =
      self.parent_path().parent_path() / "share/stet/assets" / name;
  const std::filesystem::path source = std::filesystem::path(STET_ASSETS) / name;
  return is_there(installed) ? installed.string() : is_there(source) ? source.string() : "";
}

std::string checkpoint_name(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(path, ignored).filename().string();
}

void CheckpointOption::add_to(Command& app) {
  directory = bundled_checkpoint(kDefaultCheckpoint);
  app.add_option_function(
         "-m,--model",
         [this](const std::string& given) {
           directory = given;
           named = true;
         },
         std::string("checkpoint directory or .gguf file (default: the bundled ") +
             kDefaultCheckpoint + ")")
      ->type_name("DIR")
      ->group("Model");
  add_pre_to(app);
}

void CheckpointOption::add_overrides_to(Command& app) {
  // stet chat has its own option, whose template is kept with the conversation.
  if (!app.has_option("--chat-template")) {
    app.add_option_function(
           "--chat-template",
           [this](const std::string& file) { overrides.chat_template = read_prompt(file); },
           "a chat template to use instead of the checkpoint's")
        ->type_name("FILE")
        ->group("Model");
  }
  app.add_option("--eos", overrides.eos_ids,
                 "the tokens that end a reply, instead of the checkpoint's")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(integer(0, INT32_MAX))
      ->type_name("IDS")
      ->group("Model");
  add_pre_to(app);
}

std::vector<std::string> unused_tensors(const FileSource& source) {
  const Checkpoint checkpoint = Checkpoint::open(source);
  if (checkpoint.packed()) return {};
  const std::vector<std::string> all = checkpoint.names();
  std::set<std::string> names(all.begin(), all.end());
  for (const WeightSpec& need : Model::weights_of(source, checkpoint)) names.erase(need.name);
  return {names.begin(), names.end()};
}

std::shared_ptr<const FileSource> CheckpointOption::source(bool map) const {
  if (directory.empty() && !named)
    throw Error(ErrorKind::io, kDefaultCheckpoint, "", "",
                "the bundled checkpoint is not beside this program; name one with -m DIR");
  return overriding(checkpoint_source(directory, map, chosen_pre()));
}

std::shared_ptr<const FileSource> CheckpointOption::overriding(
    std::shared_ptr<const FileSource> source) const {
  constexpr size_t kMostConfig = size_t{16} << 20;
  if (!overrides.eos_ids.empty() && source->has("config.json")) {
    int64_t vocab = INT64_MAX;
    try {
      vocab = read_model_config(source->json("config.json", kMostConfig)).vocab_size;
    } catch (const Error&) {  // reported when the model is loaded
    }
    for (const int32_t id : overrides.eos_ids) {
      if (id >= vocab)
        usage_error("--eos", fmt::format("token ids in 0..{}", vocab - 1), std::to_string(id));
    }
  }
  return overridden(std::move(source), overrides);
}

namespace {

std::vector<std::string> kernels_here() {
  std::vector<std::string> names;
  for (const char* const* name = kernel_names(); *name != nullptr; ++name) names.push_back(*name);
  return names;
}

}  // namespace

// Adds options that apply to the whole process, including loading and checking.
void add_threads(Command& app, int& threads, const std::string& group) {
  app.add_option("--threads", threads,
                 "number of threads (default: all processors, or OMP_NUM_THREADS)")
      ->type_name("N")
      ->group(group)
      ->check(integer(0, kMaxThreads));
  app.add_option_function(
         "--team", [](const std::string& name) { set_team_backend(*team_backend_of(name)); },
         "thread pool: openmp or own (default: openmp, if built with LLVM's runtime)")
      ->type_name("NAME")
      ->group(group)
      ->check(one_of(team_backends()));
}

void ModelOptions::add_to(Command& app) {
  checkpoint.add_to(app);
  checkpoint.add_overrides_to(app);
  ComputeOptions& c = session.compute;
  const auto grouped = [](Option* option, const char* type) {
    return option->type_name(type)->group("Model");
  };
  grouped(app.add_option("--ctx", session.capacity,
                         "capacity in tokens (default: the model's maximum)"),
          "N")
      ->check(integer(0, 1 << 24));
  grouped(
      app.add_option("--kv", kv, "type of cached keys and values: f32 (default), bf16, f16 or q8"),
      "TYPE")
      ->check(one_of({"f32", "bf16", "f16", "q8"}));
  app.add_flag(
         "--window-only", session.window.only,
         "for layers with a sliding window, keep only the window and a checkpoint now and then")
      ->group("Model");
  grouped(
      app.add_option("--checkpoint-every", session.window.checkpoint_every,
                     "positions between the checkpoints of --window-only (default: 8192; 0: none)"),
      "N")
      ->check(integer(0, 1 << 24))
      ->needs("--window-only");
  grouped(
      app.add_option("--anchors", anchors,
                     "MiB for earlier recurrent states, from which rewinds begin (default: 1024)"),
      "MIB")
      ->check(integer(0, 1 << 24));
  grouped(
      app.add_option(
          "--compute", compute,
          "contract: f32, bf16, q8, q4 or ggml (default: the snapshot's, or that of the weights)"),
      "NAME")
      ->check(one_of({"f32", "bf16", "q8", "q4", "ggml"}));
  grouped(app.add_option("--gemm", gemm,
                         "own (default), or blas: OpenBLAS for prompts, with bits that depend on "
                         "shapes and threads"),
          "NAME")
      ->check(one_of({"own", "blas"}));
  add_threads(app, c.threads, "Model");
  grouped(app.add_option("--isa", c.isa,
                         "portable, avx2, avx512, avx512vnni, avx512bf16, neon, neondot or "
                         "neonbf16 (default: best)"),
          "NAME")
      ->check({one_of(kernels_here()).fault, ""});  // no completion: other CPUs have other names
  grouped(
      app.add_option("--chunk", c.chunk, "tokens of a prompt processed per pass (default: 512)"),
      "N")
      ->check(integer(1, 65536));
  grouped(app.add_option("--cache-dir", cache,
                         "keep packed weights in this directory, for the next start"),
          "DIR")
      ->check(named());
  app.add_flag("--no-mmap", in_memory, "read files into memory instead of mapping them")
      ->group("Model");
  app.add_flag("--check", check,
               "compare all digests at the start, not each part before its first use")
      ->group("Model");
}

SessionOptions ModelOptions::session_options() const {
  SessionOptions o = session;
  if (anchors) o.anchor_bytes = *anchors << 20;
  if (!compute.empty())
    o.compute.contract = parse_contract(compute).value();
  else if (!follows_snapshot)
    o.compute.contract = contract_of_weights(*source());
  if (gemm == "blas") {
    if (o.compute.contract != Contract::f32 && o.compute.contract != Contract::f32_blas) {
      throw Error(ErrorKind::argument, "", "--gemm", "own (blas computes the contract f32 alone)",
                  "blas");
    }
    o.compute.contract = Contract::f32_blas;
  }
  if (!kv.empty()) o.kv_type = parse_kv_type(kv).value();
  o.window.before_recall = [](int64_t tokens) {
    say("{} tokens are processed again: the windows before were not kept (--window-only)\n",
        tokens);
  };
  return o;
}

std::shared_ptr<const FileSource> ModelOptions::source() const {
  if (weights == nullptr) return checkpoint.source(!in_memory);
  return checkpoint.overriding(in_memory ? stet::in_memory(weights) : weights);
}

// Checks packed weights. Those of a snapshot are checked when it is restored.
void ModelOptions::check_digests(const FileSource& from) const {
  if (from.has(kPackedName)) {
    check_packed(from, session.compute.threads);
  } else if (!of_snapshot) {
    usage_error("--check compares digests, and " + printable(from.path()) +
                " has none; stet prepare writes a checkpoint that has them");
  }
}

namespace {

bool computes(const Model& model, Contract contract) {
  try {
    model.check_contract(contract);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Returns true if the chosen kernels process prompts with a dot-product instruction for bfloat16.
bool has_bf16_products(const std::string& isa) {
  const Kernels* const k = isa.empty() ? &best_kernels() : find_kernels(isa.c_str());
  return k != nullptr && k->name == std::string_view("avx512bf16") && k->tile_flushed == nullptr;
}

// Throws an unsupported Error for an option that is not for this model.
void check_options(const Model& model, const ModelOptions& o) {
  const ModelConfig& c = model.config();
  if (o.anchors && c.recurrence.kind == Recurrence::Kind::none)
    throw Error(ErrorKind::unsupported, "", "--anchors", "a model with recurrent layers",
                "family " + c.family);
}

// Returns the model. Prints a hint on stderr if it is large and another contract would be faster
// than the default.
std::shared_ptr<const Model> with_hint(std::shared_ptr<const Model> model, const ModelOptions& o) {
  check_options(*model, o);
  constexpr uint64_t kLarge = 100'000'000;
  const bool chosen = !o.compute.empty() || !o.gemm.empty() || o.follows_snapshot || o.of_snapshot;
  if (chosen || model->weight_bytes() < kLarge || !has_bf16_products(o.session.compute.isa) ||
      !computes(*model, Contract::f32) || !computes(*model, Contract::bf16))
    return model;
  say("{}: bfloat16 weights run as f32, the default contract; --compute bf16 reads prompts about "
      "twice as fast\n",
      printable(checkpoint_name(model->directory())));
  return model;
}

}  // namespace

std::shared_ptr<const Model> ModelOptions::load_model() {
  const auto from = source();
  const std::string name = checkpoint_name(from->path());
  const Contract contract = session_options().compute.contract;
  if (check && cache.empty()) check_digests(*from);
  std::atomic<uint64_t> packed = 0;
  const auto load = [&] {
    const int threads = session.compute.threads;
    if (cache.empty() || weights != nullptr) return Model::load(from, threads, contract);
    const auto out_of_cache = cached(from, cache, {contract, threads, check, &packed});
    return Model::load(in_memory ? stet::in_memory(out_of_cache) : out_of_cache, threads, contract);
  };
  if (!watched()) return with_hint(load(), *this);
  auto loading = std::async(std::launch::async, load);
  const double start = seconds();
  bool shown = false;
  while (loading.wait_for(std::chrono::milliseconds(shown ? 250 : 1000)) !=
         std::future_status::ready) {
    const std::string into = packed == 0
                                 ? ""
                                 : fmt::format(" into the cache, {} packed",
                                               bytes_text(static_cast<double>(packed.load())));
    rewrite_line(fmt::format("loading {}{} … {:.0f} s", printable(name), into, seconds() - start));
    shown = true;
  }
  if (shown) rewrite_line("");
  return with_hint(loading.get(), *this);
}

std::shared_ptr<const Tokenizer> load_tokenizer(const CheckpointOption& checkpoint) {
  const auto source = checkpoint.source();
  if (has_tokenizer(*source)) return load_tokenizer(*source);
  source->read("config.json", kConfigLimit);  // throws if this is no checkpoint
  return nullptr;
}

std::shared_ptr<const Tokenizer> load_tokenizer(const FileSource& source) {
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    tokenizer = Tokenizer::load(source);
  } catch (const Error&) {
    return nullptr;  // not needed for token ids; require_tokenizer() throws the reason
  }
  for (const std::string& warning : tokenizer_warnings(*tokenizer)) say("warning: {}\n", warning);
  return tokenizer;
}

std::shared_ptr<const Tokenizer> require_tokenizer(const CheckpointOption& checkpoint,
                                                   const std::string& hint) {
  if (auto tokenizer = load_tokenizer(checkpoint)) return tokenizer;
  const auto source = checkpoint.source();
  try {
    return Tokenizer::load(*source);
  } catch (const Error& e) {
    if (e.kind != ErrorKind::io || (e.found != "neither" && e.found != "none")) throw;
    throw Error(ErrorKind::io, checkpoint.directory, e.field.empty() ? "tokenizer" : e.field,
                e.expected + hint, e.found);
  }
}

void no_tokenizer(const std::string& from, const std::string& hint) {
  if (is_there(from)) require_tokenizer({.directory = from}, hint);
  throw Error(ErrorKind::io, from, "tokenizer",
              "a snapshot saved --with-tokenizer, or -m with a directory that has one" + hint,
              "none");
}

Option* SourceOptions::add(Option* option) {
  for (Option* other : options_) {
    option->excludes(other);
    other->excludes(option);
  }
  options_.push_back(option);
  return option;
}

const Option* SourceOptions::chosen() const {
  const auto found = std::find_if(options_.begin(), options_.end(),
                                  [](const Option* option) { return option->count() > 0; });
  return found == options_.end() ? nullptr : *found;
}

void SourceOptions::require(const std::string& names) const {
  if (chosen() == nullptr) required_error(names);
}

void each_line(const std::function<std::string(const std::string&, const std::string&)>& f) {
  std::string line;
  for (size_t number = 1; out("") && read_line(line); ++number) {
    out(f(line, "standard input: line " + std::to_string(number)) + "\n");
    flush_output();
  }
}

namespace {

std::string compress_fault(std::string& how) {
  const bool level = how.size() == 6 && how.starts_with("zlib:") && how[5] >= '1' && how[5] <= '9';
  return how == "zlib" || level
             ? ""
             : "expected zlib or zlib:1 .. zlib:9, found " + (how.empty() ? "nothing" : how);
}

std::string mode_fault(std::string& mode) {
  const bool octal =
      !mode.empty() && mode.size() <= 4 && mode.find_first_not_of("01234567") == std::string::npos;
  if (octal && (std::stoul(mode, nullptr, 8) & ~0666ul) == 0) return "";
  return "expected read and write permissions in octal, as 600 or 0640, found " +
         (mode.empty() ? "nothing" : mode);
}

}  // namespace

void SaveFileOptions::add_to(Command& app, Option* target) {
  for (Option* option :
       {app.add_option("--form", form,
                       "full (default); delta: only blocks that --against lacks; recipe: tokens "
                       "and digests")
            ->type_name("FORM")
            ->check(one_of({"full", "delta", "recipe"})),
        app.add_option("--against", against, "the snapshot that a delta is made against")
            ->type_name("FILE"),
        app.add_flag("--with-weights", with_weights,
                     "include the checkpoint, so that the snapshot resumes without one"),
        app.add_flag("--with-tokenizer", with_tokenizer, "include the tokenizer"),
        app.add_option(
               "--compress", compress,
               "zlib, or zlib:1 to zlib:9 (a compressed file is read into memory, not mapped)")
            ->type_name("HOW")
            ->check({compress_fault, ""}),
        app.add_option(
               "--mode", mode,
               "permissions of a new file in octal, less the umask (default: 600, for you only)")
            ->type_name("MODE")
            ->check({mode_fault, ""})}) {
    option->group("Snapshot");
    if (target != nullptr) option->needs(target);
  }
  app.after_parsing([this] {
    if (form == "delta" && against.empty())
      usage_error("--form delta needs --against FILE, the snapshot that it is made against");
    if (form != "delta" && !against.empty()) usage_error("--against is for --form delta only");
    if (form == "recipe" && !compress.empty())
      usage_error("--compress is for keys and values, and a recipe holds none");
  });
}

SaveOptions SaveFileOptions::options(const Snapshot* from,
                                     std::unique_ptr<Snapshot>& parent) const {
  SaveOptions o;
  o.from = from;
  o.form = parse_snapshot_form(form).value();
  if (!mode.empty()) o.mode = static_cast<unsigned>(std::stoul(mode, nullptr, 8));
  if (!compress.empty()) o.compress = compress == "zlib" ? 1 : compress.back() - '0';
  if (o.form == SnapshotForm::delta) {
    // The snapshot that is continued knows its own parents.
    const bool is_from = from != nullptr && from->path() == against;
    parent = std::make_unique<Snapshot>(is_from ? *from : Snapshot::open(against));
    o.parent = parent.get();
  }
  return o;
}

// Refuses options of files: a store has one form of a state, and sets its own permissions.
void SaveFileOptions::require_plain(const std::string& path) const {
  for (const auto& [option, given] : {std::pair{"--form", form != "full"},
                                      {"--compress", !compress.empty()},
                                      {"--mode", !mode.empty()},
                                      {"--with-weights", with_weights},
                                      {"--with-tokenizer", with_tokenizer}}) {
    if (given)
      usage_error(fmt::format("{} is for files, and {} is in a store; leave it out", option,
                              printable(path)));
  }
}

void SaveFileOptions::check(const std::string& path, const Session& session,
                            const Tokenizer* tokenizer) const {
  if (is_in_store(path)) return require_plain(path);
  const FileSource& weights = session.model().source();
  for (const std::string& name :
       with_weights ? Model::files_of(weights) : std::vector<std::string>())
    weights.check_own(name);
  if (with_tokenizer && tokenizer == nullptr) no_tokenizer(session.model().directory());
  if (with_tokenizer) tokenizer->check_own_files();
  if (form == "delta") Snapshot::open(against).check_parent(session.kv().shape(), path);
}

StateDigests SaveFileOptions::save(Session& session,
                                   const std::shared_ptr<const Tokenizer>& tokenizer,
                                   const std::string& path, const Snapshot* from) const {
  if (is_in_store(path)) {
    require_plain(path);
    if (from != nullptr && from->weights() != nullptr)
      say("(a store keeps no weights: -m names those in {})\n", printable(from->path()));
    return store_session(session, tokenizer.get(), path);
  }
  std::unique_ptr<Snapshot> parent;
  SaveOptions o = options(from, parent);
  std::shared_ptr<const FileSource> files;
  if (with_weights) o.weights_files = &session.model().source();
  if (with_tokenizer) {
    if (tokenizer == nullptr) no_tokenizer(session.model().directory());
    tokenizer->check_own_files();
    files = memory_source(tokenizer->files(), "tokenizer");
    o.tokenizer_files = files.get();
  }
  o.tokenizer = tokenizer.get();
  return Snapshot::save(session, path, o);
}

StateDigests SaveFileOptions::write(const State& state, const Snapshot& like,
                                    const std::string& path,
                                    const CheckpointOption& checkpoint) const {
  if (is_in_store(path))
    usage_error("--output takes a file here; stet store put puts that into a store");
  std::unique_ptr<Snapshot> parent;
  SaveOptions o = options(&like, parent);
  const auto source = with_weights || with_tokenizer ? checkpoint.source() : nullptr;
  if (with_weights) {
    // Only the checkpoint that the state was made with may be included.
    const Contract contract = parse_contract(like.meta().contract).value_or(Contract::f32);
    like.check_compatible(*Model::load(source, 0, contract), contract);
    o.weights_files = source.get();
  }
  if (with_tokenizer) {
    const auto tokenizer = require_tokenizer(checkpoint);
    if (!like.meta().tokenizer.empty() && like.meta().tokenizer != tokenizer->fingerprint()) {
      throw Error(ErrorKind::mismatch, like.path(), "tokenizer", like.meta().tokenizer,
                  tokenizer->fingerprint() + " in " + checkpoint.directory);
    }
    o.tokenizer_files = source.get();
  }
  StateDigests digests;
  end_on_signals([&] { digests = Snapshot::save(state, like, path, o); });
  return digests;
}

void RestoreFileOptions::add_to(Command& app, Option* snapshot) {
  for (Option* option :
       {app.add_flag("--heal", how.heal, "compute damaged blocks again from the tokens"),
        app.add_flag("--replay", how.replay,
                     "compute everything again, as for another model, contract or kv type"),
        app.add_option("--parent", parent, "the snapshot that a delta was made from")
            ->type_name("FILE")}) {
    option->group("Snapshot");
    if (snapshot != nullptr) option->needs(snapshot);
  }
  app.after_parsing([this] {
    if (how.heal && how.replay)
      usage_error("--heal excludes --replay, which computes every block again");
  });
}

Snapshot RestoreFileOptions::open(const std::string& path) const {
  return how.replay && !parent ? open_state(path) : open_state_with_parents(path, parent);
}

void RestoreFileOptions::take(ModelOptions& model) {
  how.map = !model.in_memory;
  how.check = model.check;
  model.of_snapshot = true;
}

void choose_checkpoint(ModelOptions& model, const Snapshot& snapshot) {
  if (model.checkpoint.named) return;
  model.weights = snapshot.weights();
  const std::string bundled = bundled_checkpoint(snapshot.meta().checkpoint);
  if (!bundled.empty()) model.checkpoint.directory = bundled;
}

std::shared_ptr<const Tokenizer> tokenizer_of(const Snapshot& snapshot, const ModelOptions& model) {
  const auto brought = model.checkpoint.named ? nullptr : snapshot.tokenizer_files();
  if (brought != nullptr) return load_tokenizer(*overridden(brought, model.checkpoint.overrides));
  if (model.weights != nullptr) return nullptr;  // the snapshot includes weights but no tokenizer
  return load_tokenizer(model.checkpoint);
}

std::string restored_text(const Snapshot& snapshot, Session& session, bool replay,
                          const RestoreReport& report, double seconds) {
  if (replay) {
    return fmt::format(
        "migrated {} tokens in {:.1f} ms: computed again with {}, {}, kv {}; state {}",
        session.size(), seconds * 1e3, printable(session.model().directory()),
        contract_name(session.model(), session.compute().contract),
        kv_type_name(session.kv().shape().type), sha256_text(digests_of(session).id));
  }
  return fmt::format(
      "resumed {} tokens in {:.1f} ms ({} recomputed{}{}), state {}", snapshot.meta().positions,
      seconds * 1e3, report.recomputed,
      report.healed.empty() ? "" : fmt::format(", blocks {} healed", fmt::join(report.healed, ",")),
      report.checked ? ", all digests checked" : "", snapshot.state_name());
}

void follow(ModelOptions& model, const Snapshot& snapshot, bool replay) {
  const std::string type = kv_type_name(snapshot.meta().kv.type);
  if (!replay && !model.kv.empty() && model.kv != type) {
    throw Error(ErrorKind::mismatch, snapshot.path(), "kv type", type,
                model.kv + " (--kv; --replay computes it again)");
  }
  choose_checkpoint(model, snapshot);
  if (!replay || contract_of_weights(*model.source()) == Contract::f32)
    choose_contract(model, snapshot);
}

void choose_contract(ModelOptions& model, const Snapshot& snapshot) {
  if (!model.compute.empty() || !model.gemm.empty()) return;
  const std::optional<Contract> contract = parse_contract(snapshot.meta().contract);
  model.follows_snapshot = contract.has_value();
  if (contract) model.session.compute.contract = *contract;
}

Session restore_session(const Snapshot& snapshot, ModelOptions& model, const RestoreOptions& how,
                        const Tokenizer* tokenizer, RestoreReport* report) {
  return restore_session(snapshot, model.load_model(), model, how, tokenizer, report);
}

Session restore_session(const Snapshot& snapshot, const std::shared_ptr<const Model>& loaded,
                        const ModelOptions& model, RestoreOptions how, const Tokenizer* tokenizer,
                        RestoreReport* report) {
  how.session = model.session_options();
  if (model.kv.empty()) how.session.kv_type = snapshot.meta().kv.type;
  how.tokenizer = tokenizer;
  try {
    Session session = is_in_store(snapshot.path()) ? restore_stored(snapshot, loaded, how, report)
                                                   : snapshot.restore(loaded, how, report);
    if (const auto& eos = model.checkpoint.overrides.eos_ids; !eos.empty())
      session.generation().stop_ids = eos;
    return session;
  } catch (const Error& e) {
    if (e.kind != ErrorKind::mismatch) throw;
    throw Error(
        e.kind, e.file, e.field, e.expected,
        e.found + (e.expected.empty() ? "; the model is " : " in ") + loaded->directory() +
            "; the snapshot was made with a checkpoint named " + snapshot.meta().checkpoint +
            (model.checkpoint.named ? "" : ", give it with -m") + "; --replay computes it again");
  }
}

bool is_stored_recipe(const Snapshot& snapshot) {
  return is_in_store(snapshot.path()) && snapshot.meta().form == SnapshotForm::recipe;
}

State state_of_recipe(const Snapshot& snapshot, const std::shared_ptr<const Model>& loaded,
                      ModelOptions model) {
  model.kv = "";  // use the recipe's type
  return restore_session(snapshot, loaded, model, {}, nullptr).state();
}

Json report_healed(Session& session) {
  Json all = Json::array();
  for (const HealedBlocks& healed : session.take_healed()) {
    say("{}\n", printable(healed.text(), 3000));
    all.push_back({{"file", healed.file}, {"blocks", healed.blocks}, {"tokens", healed.tokens}});
  }
  return all;
}

Progress prefill_progress(int64_t total) {
  const double start = seconds();
  return [start, total, shown = false](int64_t done) mutable {
    const double t = seconds() - start;
    if (!watched() || (!shown && t < 1)) return;
    rewrite_line(done < total ? fmt::format("prefill {} / {} tokens, {:.0f} tokens/s", done, total,
                                            static_cast<double>(done) / t)
                              : "");
    shown = true;
  };
}

}  // namespace stet::tool

// What the subcommands of `stet` share: options, opening models and tokenizers, output.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stet/checkpoint/overrides.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/generate/generate.hpp"
#include "stet/session/session.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/text/tokenizer.hpp"
#include "tools/command/streams.hpp"
#include "tools/options/options.hpp"

namespace stet::tool {

using Json = nlohmann::ordered_json;

// Every subcommand adds itself to the application and runs when it was named.
void add_generate(Command& app);
void add_save(Command& app);
void add_resume(Command& app);
void add_logits(Command& app);
void add_tokenize(Command& app);
void add_detokenize(Command& app);
void add_template(Command& app);
void add_inspect(Command& app);
void add_check(Command& app);
void add_prune(Command& app);
void add_convert(Command& app);
void add_verify(Command& app);
void add_diff(Command& app);
void add_quantize(Command& app);
void add_prepare(Command& app);
void add_convert_model(Command& app);
void add_bench(Command& app);
void add_chat(Command& app);
void add_serve(Command& app);
void add_store(Command& app);
void add_capture(Command& app);
void add_measure(Command& app);
void add_patch(Command& app);
void add_edit(Command& app);
void add_export(Command& app);
void add_import(Command& app);
void add_experiment(Command& app);
void add_equivalence(Command& app);
void add_lab(Command& app);
void add_completion(Command& app);
void add_help(Command& app);

// Thrown by a subcommand that has said all it has to say.
struct ExitStatus {
  int status;
};

// -m: the checkpoint's directory, or its GGUF file.
struct CheckpointOption {
  std::string directory;
  bool named = false;  // by the user
  CheckpointOverrides overrides = {};

  void add_to(Command& app);
  void add_overrides_to(Command& app);  // --chat-template, --eos
  std::shared_ptr<const FileSource> source(bool map = true) const;
};

// The directory of a bundled checkpoint, or "" where there is none of that name.
std::string bundled_checkpoint(const std::string& name);

// What a checkpoint is called: the last part of its path.
std::string checkpoint_name(const std::string& path);

// -m and how to compute.
struct ModelOptions {
  CheckpointOption checkpoint;
  SessionOptions session;
  // The weights of a self-contained snapshot, in place of the directory.
  std::shared_ptr<const FileSource> weights;
  std::string compute, gemm, kv, cache;
  bool in_memory = false, check = false;
  bool of_snapshot = false;       // `check` is for one as well
  bool follows_snapshot = false;  // its contract, which is in `session`

  void add_to(Command& app);
  std::shared_ptr<const FileSource> source() const;  // of the weights
  // Loads the model, with a line on stderr when that takes long and someone watches.
  std::shared_ptr<const Model> load_model();
  // Checked and complete session options.
  SessionOptions session_options() const;

 private:
  void check_digests(const FileSource& from) const;
};

// The tokenizer of a checkpoint; null when the directory has none, or one that this build cannot
// read. `hint` is added to what was expected.
std::shared_ptr<const Tokenizer> load_tokenizer(const CheckpointOption& checkpoint);
std::shared_ptr<const Tokenizer> load_tokenizer(const FileSource& source);
std::shared_ptr<const Tokenizer> require_tokenizer(const CheckpointOption& checkpoint,
                                                   const std::string& hint = "");
// Throws what says why `from`, a directory or a snapshot's weights, came without a tokenizer.
[[noreturn]] void no_tokenizer(const std::string& from, const std::string& hint = "");

// Options of which one is to be given, and no two.
class SourceOptions {
 public:
  Option* add(Option* option);
  const Option* chosen() const;                  // null where none was given
  void require(const std::string& names) const;  // a wrong command line, where none was given
  const std::vector<Option*>& options() const { return options_; }

 private:
  std::vector<Option*> options_;
};

// Writes f(line, name of the line) for every line of standard input, at once: whoever asks may wait
// for the answer.
void each_line(
    const std::function<std::string(const std::string& line, const std::string& where)>& f);

// What a session is to process next: token ids, or (where there are none) a message of the user.
struct Prompt {
  std::vector<int32_t> ids;
  std::string message;
};
using Prompts = std::vector<Prompt>;  // all of one kind

// --prompt, --prompt-file, --ids, --ids-file, --say: what is to be processed. Several are several
// turns.
struct PromptOptions {
  std::vector<std::string> prompts, messages;
  std::string prompt_file, ids, ids_file, system, bos = "auto";

  void add_to(Command& app);
  void add_messages_to(Command& app);  // --say and --system
  bool given() const { return sources_.chosen() != nullptr; }
  bool conversation() const { return !messages.empty(); }
  void require() const;  // one of them
  // None of them empty. The checkpoint's tokenizer is needed for text alone; bos stands only first,
  // and where `fresh` is set or --bos on was given. `from` is where an error says that the
  // tokenizer is missing.
  Prompts read(const std::string& from, const std::shared_ptr<const Tokenizer>& tokenizer,
               bool fresh) const;
  // Throws an argument Error where a snapshot holds raw text and messages were given, or the other
  // way round.
  void require_fit(const Snapshot& snapshot) const;

 private:
  SourceOptions sources_;
  Option* bos_ = nullptr;
};

// `automatic` says what auto means.
Option* add_bos_to(Command& app, std::string& bos, const std::string& automatic,
                   const std::string& group);
Tokenizer::Bos bos_of(const std::string& name);

// Sampling and stop options; those that were given replace what `state` holds.
struct SamplingOptions {
  std::optional<double> temperature, top_p, min_p, typical_p, repetition_penalty;
  std::optional<double> frequency_penalty, presence_penalty;
  std::optional<int> top_k;
  bool greedy = false, sample = false;
  std::string seed;                     // a number, "random", or "" where none was given
  std::vector<std::string> logit_bias;  // each as parse_logit_bias() takes it
  std::vector<std::string> stop_strings;
  std::vector<int32_t> stop_ids;

  void add_to(Command& app);
  void validate() const;  // what can be told without a model
  void apply(GenerationState& state, int64_t vocab_size) const;
  // A line on stderr for options that were given and change nothing, since `state`, to which all
  // was applied, is greedy.
  void report_idle(const GenerationState& state) const;
  // A line on stderr for the seed of replies that are drawn, unless it was named.
  void report_seed(const GenerationState& state) const;

 private:
  std::vector<TokenBias> biases() const;
  std::vector<Option*> for_draws_;
  mutable std::optional<uint64_t> drawn_seed_;  // for "random"
};

// One that nobody chose, below 2^53 - 10^6: exact in JavaScript, also where some are counted up
// from it.
uint64_t random_seed();
// Biases as a user writes them: "17=-100,5=2.5", or nothing.
std::optional<std::vector<TokenBias>> parse_logit_bias(std::string_view text);
constexpr const char* kLogitBiasRange = "ID=X with X in -100..100 (17=-100)";

// What the sampling option of this name ("--top-p") accepts.
Check sampling_range(std::string_view option);

// --form, --compress: how a state is written.
struct SaveFileOptions {
  std::string form = "full", compress, mode;
  bool with_weights = false, with_tokenizer = false;

  // `target`: the option that names the file, without which none of these does anything; null where
  // there is always one.
  void add_to(Command& app, Option* target = nullptr);
  // Options as the library takes them; `parent`, which must outlive them, is opened for a delta.
  SaveOptions options(std::unique_ptr<Snapshot>& parent) const;
  // A session, with the tokenizer that it was used with, if any.
  StateDigests save(Session& session, const std::shared_ptr<const Tokenizer>& tokenizer,
                    const std::string& path) const;
  // A state like that of a snapshot; files of the model and the tokenizer come from `checkpoint`,
  // where they are asked for.
  StateDigests write(const State& state, const Snapshot& like, const std::string& path,
                     const CheckpointOption& checkpoint) const;

  std::string against;  // the parent of a delta

 private:
  void require_plain(const std::string& path) const;
};

// --heal, --replay, --parent: how a snapshot is restored.
struct RestoreFileOptions {
  RestoreOptions how;
  std::optional<std::string> parent;

  void add_to(Command& app,
              Option* snapshot = nullptr);  // which may be left out; null where it may not
  void take(ModelOptions& model);           // --no-mmap and --check, which are for its weights, too
  // With its parents; --replay needs none.
  Snapshot open(const std::string& path) const;
};

// Unless the user names a checkpoint: the one in the snapshot, or the bundled one of the name that
// the snapshot gives.
void choose_checkpoint(ModelOptions& model, const Snapshot& snapshot);
// The one that the snapshot brings, or the checkpoint's; null where there is none.
std::shared_ptr<const Tokenizer> tokenizer_of(const Snapshot& snapshot, const ModelOptions& model);
// What became of the tokens of a snapshot, for a line on stderr.
std::string restored_text(const Snapshot& snapshot, const RestoreReport& report, double seconds);
// Unless the user names --compute or --gemm: the snapshot's.
void choose_contract(ModelOptions& model, const Snapshot& snapshot);
// Both, and the kv type, unless the user names another. Where all is computed again (`replay`),
// weights that are for one contract alone go before the snapshot's.
void follow(ModelOptions& model, const Snapshot& snapshot, bool replay);
// Restores with the options of `model`; a refusal says which checkpoint was tried. `tokenizer` may
// be null.
Session restore_session(const Snapshot& snapshot, const std::shared_ptr<const Model>& loaded,
                        const ModelOptions& model, RestoreOptions how, const Tokenizer* tokenizer,
                        RestoreReport* report = nullptr);
// The same with the model that it loads.
Session restore_session(const Snapshot& snapshot, ModelOptions& model, const RestoreOptions& how,
                        const Tokenizer* tokenizer, RestoreReport* report = nullptr);

// While an object of this class lives, the first SIGINT, SIGTERM or SIGHUP (unless that was ignored
// before) is noted, so that work can end in good order. The second acts as it otherwise would,
// unless `patient`.
class Interrupts {
 public:
  explicit Interrupts(bool patient = false);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  static int signal();  // that came since the last object was made; 0: none

 private:
  void (*before_[3])(int);
};

// Thrown out of a prompt that a signal interrupts, which leaves the session as it was before.
struct Interrupted {};

// A line on stderr for each file of which blocks were computed again since the last call. Returns
// them, for JSON.
Json report_healed(Session& session);

// A progress line on stderr for `total` tokens, once that takes over a second and someone watches.
Progress prefill_progress(int64_t total);

// --threads, and --team, which says where they come from.
void add_threads(Command& app, int& threads, const std::string& group = "Options");

// Token ids: 1,2,3 or a JSON array. `where` names the source in errors.
std::vector<int32_t> parse_ids(const std::string& text, const std::string& where);
std::string read_prompt(const std::string& path);  // - for standard input
double seconds();                                  // monotonic
bool watched();                                    // someone looks at stderr

// An unwritable path is an io Error now rather than after a long computation.
void check_writable(const std::string& path);

// Writes to standard output. False once that has failed; finish_output() then says why.
// Control characters are escaped, tabs and newlines stay.
bool out(std::string_view text);
// The same for a text that is the result itself, as a reply is: escaped on a terminal, unless
// --raw-output asks for the bytes, and as it is where a program reads it.
bool out_text(std::string_view text);
// Our own sequences, as they are.
bool out_style(std::string_view sequence);
void add_raw_output(Command& app);
void flush_output();
void finish_output();  // throws an io Error unless all of it was written

std::string dump(const Json& json, int indent = -1);  // never throws for text that is not UTF-8
Json digests_json(const StateDigests& digests);
Json logit_bias_json(const std::vector<TokenBias>& biases);  // {"17": -100.0}
std::string bytes_text(double bytes);                        // "1.5 MB"

}  // namespace stet::tool

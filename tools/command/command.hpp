// Shared by the subcommands of `stet`: options, opening models and tokenizers, output.
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

namespace stet {
class Conversation;
}

namespace stet::tool {

using Json = nlohmann::ordered_json;

// Each adds its subcommand to `app`, with the callback that runs it.
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

// Thrown by a subcommand to end with this exit status and no further message.
struct ExitStatus {
  int status;
};

// -m: the checkpoint's directory, or its GGUF file.
struct CheckpointOption {
  std::string directory;
  bool named = false;  // the user named it
  CheckpointOverrides overrides = {};

  void add_to(Command& app);
  void add_overrides_to(Command& app);  // --chat-template, --eos
  std::shared_ptr<const FileSource> source(bool map = true) const;
  // Returns these files with the overrides. Throws a UsageError for an --eos that the model lacks.
  std::shared_ptr<const FileSource> overriding(std::shared_ptr<const FileSource> source) const;
};

// Returns the tensors of a checkpoint's files that the model does not read; none for packed weights.
// Examples are vision towers, heads for drafts, and keys of layers that read another's.
std::vector<std::string> unused_tensors(const FileSource& source);

// Returns the directory of a bundled checkpoint, or "" if there is none of that name.
std::string bundled_checkpoint(const std::string& name);

// Returns the last part of a checkpoint's path, its name in messages.
std::string checkpoint_name(const std::string& path);

// The options -m, --compute, --kv and others: which model, and how it computes.
struct ModelOptions {
  CheckpointOption checkpoint;
  SessionOptions session;
  // The weights of a self-contained snapshot, used instead of the directory; else null.
  std::shared_ptr<const FileSource> weights;
  std::string compute, gemm, kv, cache;
  std::optional<int64_t> anchors;  // MiB
  bool in_memory = false, check = false;
  bool of_snapshot = false;       // `check` applies to a snapshot as well
  bool follows_snapshot = false;  // `session` has the snapshot's contract

  void add_to(Command& app);
  std::shared_ptr<const FileSource> source() const;  // files of the weights
  // Loads the model. Prints a line on stderr if that takes long and stderr is a terminal.
  std::shared_ptr<const Model> load_model();
  // Returns the session options. Throws an argument Error if they exclude each other.
  SessionOptions session_options() const;

 private:
  void check_digests(const FileSource& from) const;
};

// Return the checkpoint's tokenizer, or null if it has none or one that this build cannot read.
// require_tokenizer() throws instead of returning null, and appends `hint` to its text.
std::shared_ptr<const Tokenizer> load_tokenizer(const CheckpointOption& checkpoint);
std::shared_ptr<const Tokenizer> load_tokenizer(const FileSource& source);
std::shared_ptr<const Tokenizer> require_tokenizer(const CheckpointOption& checkpoint,
                                                   const std::string& hint = "");
// Throws the Error for `from`, a directory or a snapshot's weights, that has no tokenizer.
[[noreturn]] void no_tokenizer(const std::string& from, const std::string& hint = "");

// A group of options of which exactly one may be given.
class SourceOptions {
 public:
  Option* add(Option* option);
  const Option* chosen() const;                  // the one that was given, or null
  void require(const std::string& names) const;  // throws a UsageError if none was given
  const std::vector<Option*>& options() const { return options_; }

 private:
  std::vector<Option*> options_;
};

// Writes f(line, name of the line) for each line of standard input. Flushes after each one, since
// the other program may wait for the answer.
void each_line(
    const std::function<std::string(const std::string& line, const std::string& where)>& f);

// One turn of input: token ids, or a user message if there are none.
struct Prompt {
  std::vector<int32_t> ids;
  std::string message;
};
using Prompts = std::vector<Prompt>;  // all ids, or all messages

// The options --prompt, --prompt-file, --ids, --ids-file and --say. An option given several times
// makes several turns.
struct PromptOptions {
  std::vector<std::string> prompts, messages;
  std::string prompt_file, ids, ids_file, tools_file, bos = "auto";
  std::optional<std::string> system;  // "" removes the system message
  std::optional<Json> tools;          // the functions in tools_file, after read()

  void add_to(Command& app);
  void add_messages_to(Command& app);  // --say, --system and --tools
  bool given() const { return sources_.chosen() != nullptr; }
  bool conversation() const { return !messages.empty(); }
  void require() const;  // throws a UsageError if no prompt was given
  // Returns the prompts, none of them empty. Only text needs `tokenizer`. The first prompt gets a
  // bos token if `fresh` is set or --bos on was given. `from` names the checkpoint in the error for
  // a missing tokenizer.
  Prompts read(const std::string& from, const std::shared_ptr<const Tokenizer>& tokenizer,
               bool fresh);
  // Gives a conversation the system message and the functions of the options, if there are any.
  void apply_to(Conversation& conversation, const Tokenizer& tokenizer) const;
  // Throws an argument Error if the snapshot holds raw text and the prompt is messages, or the
  // reverse.
  void require_fit(const Snapshot& snapshot) const;
  // Throws an argument Error if the reply in the snapshot has ended, and neither a prompt nor
  // `past_end` continues it.
  void require_open(const Snapshot& snapshot, bool past_end) const;

 private:
  SourceOptions sources_;
  Option* bos_ = nullptr;
};

// Adds --bos. `automatic` is the part of its help that explains auto.
Option* add_bos_to(Command& app, std::string& bos, const std::string& automatic,
                   const std::string& group);
Tokenizer::Bos bos_of(const std::string& name);

// The options for sampling and stopping. Those that were given override the settings of a state.
struct SamplingOptions {
  std::optional<double> temperature, top_p, min_p, typical_p, repetition_penalty;
  std::optional<double> frequency_penalty, presence_penalty;
  std::optional<int> top_k;
  bool greedy = false, sample = false;
  std::string seed;                     // a number, "random", or "" if not given
  std::vector<std::string> logit_bias;  // each as parse_logit_bias() takes it
  std::vector<std::string> stop_strings;
  std::vector<int32_t> stop_ids;

  void add_to(Command& app);
  void validate() const;  // throws a UsageError for values that no model accepts
  void apply(GenerationState& state, int64_t vocab_size) const;
  // Prints a line on stderr that names given options without effect, because `state` is greedy.
  // Call it after apply().
  void report_idle(const GenerationState& state) const;
  // Prints the seed on stderr if replies are drawn and the user gave no seed.
  void report_seed(const GenerationState& state) const;

 private:
  std::vector<TokenBias> biases() const;
  std::vector<Option*> for_draws_;
  mutable std::optional<uint64_t> drawn_seed_;  // for "random"
};

// Prints a line on stderr that names the given options of tokens that --ignore-eos lets pass.
void report_passed(const GenerateOptions& options, const CheckpointOption& checkpoint,
                   const SamplingOptions& sampling = {});

// Returns a random seed below 2^53 - 10^6. JavaScript represents it exactly, and also the seeds
// counted up from it.
uint64_t random_seed();
// Returns the biases of a text such as "17=-100,5=2.5", or nothing if it is malformed.
std::optional<std::vector<TokenBias>> parse_logit_bias(std::string_view text);
constexpr const char* kLogitBiasRange = "ID=X with X in -100..100 (17=-100)";

// Returns the check of the sampling option of this name ("--top-p").
Check sampling_range(std::string_view option);

// The options --form, --compress and others: how a state is written.
struct SaveFileOptions {
  std::string form = "full", compress, mode;
  bool with_weights = false, with_tokenizer = false;

  // Adds the options. `target` is the option that names the file and is needed by each of them. It
  // is null if a file is always written.
  void add_to(Command& app, Option* target = nullptr);
  // Returns the library's options for a state that continues `from`, which may be null. Opens the
  // base of a delta into `parent`. Both must outlive the options.
  SaveOptions options(const Snapshot* from, std::unique_ptr<Snapshot>& parent) const;
  // Throws, before anything is computed, what save() would throw because of these options. `path`
  // is empty if the file is not known yet.
  void check(const std::string& path, const Session& session, const Tokenizer* tokenizer) const;
  // Saves a session with its tokenizer, which may be null. `from` is the snapshot that it was
  // restored from, or null. The files of model and tokenizer in that snapshot are saved as well,
  // except in a store.
  StateDigests save(Session& session, const std::shared_ptr<const Tokenizer>& tokenizer,
                    const std::string& path, const Snapshot* from = nullptr) const;
  // Writes `state` with the metadata of the snapshot `like`. With --with-weights and
  // --with-tokenizer the files come from `checkpoint`.
  StateDigests write(const State& state, const Snapshot& like, const std::string& path,
                     const CheckpointOption& checkpoint) const;

  std::string against;  // path of the snapshot that a delta is made against

 private:
  void require_plain(const std::string& path) const;
};

// The options --heal, --replay and --parent: how a snapshot is restored.
struct RestoreFileOptions {
  RestoreOptions how;
  std::optional<std::string> parent;

  // Adds the options. `snapshot` is null if it is a required argument.
  void add_to(Command& app, Option* snapshot = nullptr);
  void take(ModelOptions& model);  // copies --no-mmap and --check, for included weights
  // Opens a snapshot with its parents, which --replay does not need.
  Snapshot open(const std::string& path) const;
};

// Sets the checkpoint, unless the user named one: the weights in the snapshot, or else the bundled
// checkpoint of the name that the snapshot gives.
void choose_checkpoint(ModelOptions& model, const Snapshot& snapshot);
// Returns the snapshot's own tokenizer, or else the checkpoint's, or null if neither has one.
std::shared_ptr<const Tokenizer> tokenizer_of(const Snapshot& snapshot, const ModelOptions& model);
// Returns a line for stderr: how many tokens were restored, and how many computed again. After
// `replay`, it names the session's state instead of the snapshot's.
std::string restored_text(const Snapshot& snapshot, Session& session, bool replay,
                          const RestoreReport& report, double seconds);
// Sets the snapshot's contract, unless the user gave --compute or --gemm.
void choose_contract(ModelOptions& model, const Snapshot& snapshot);
// Sets checkpoint and contract from the snapshot, unless the user gave others. With `replay`, the
// contract of weights that support only one takes precedence. Without it, throws a mismatch Error
// for another --kv than the snapshot's type.
void follow(ModelOptions& model, const Snapshot& snapshot, bool replay);
// Restores with the options of `model`. An Error names the checkpoint that was tried. `tokenizer`
// may be null.
Session restore_session(const Snapshot& snapshot, const std::shared_ptr<const Model>& loaded,
                        const ModelOptions& model, RestoreOptions how, const Tokenizer* tokenizer,
                        RestoreReport* report = nullptr);
// Loads the model first, then restores as the function above does.
Session restore_session(const Snapshot& snapshot, ModelOptions& model, const RestoreOptions& how,
                        const Tokenizer* tokenizer, RestoreReport* report = nullptr);

// Returns true for a recipe in a store.
bool is_stored_recipe(const Snapshot& snapshot);
// Returns the state of a recipe. Its blocks are fetched from the store, or computed.
State state_of_recipe(const Snapshot& snapshot, const std::shared_ptr<const Model>& loaded,
                      ModelOptions model);

// While an object of this class lives, the first SIGINT, SIGTERM or SIGHUP is only recorded, so
// that work can end cleanly. A signal that was ignored stays ignored, as under nohup. The second
// signal has its usual effect, unless `patient` is set.
class Interrupts {
 public:
  explicit Interrupts(bool patient = false);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  static int signal();  // the one recorded since the last object was made, or 0
  static void check();  // throws Interrupted if one was recorded

 private:
  void (*before_[3])(int);
};

// Thrown when a signal interrupts a prompt. The session is then unchanged.
struct Interrupted {};

// Runs work that writes a file. A signal as of Interrupts ends it at the next check
// (interrupt.hpp, Interrupts::check), so that no part of a file stays. Then the signal ends the
// process.
void end_on_signals(const std::function<void()>& work);

// Prints a line on stderr for each file with blocks that were computed again since the last call.
// Returns them as JSON.
Json report_healed(Session& session);

// Returns a callback that shows progress on stderr once it takes over a second, on a terminal only.
Progress prefill_progress(int64_t total);

// Adds --threads, and --team, which chooses the thread pool.
void add_threads(Command& app, int& threads, const std::string& group = "Options");

// Parses "1,2,3" or a JSON array of token ids, or of other numbers from 0 on: `what` names one in
// errors, and `where` the source.
std::vector<int32_t> parse_ids(const std::string& text, const std::string& where,
                               const std::string& what = "token id");
std::string read_prompt(const std::string& path);  // - for standard input
double seconds();                                  // time of a monotonic clock
bool watched();                                    // stderr is a terminal

// Throws an io Error if `path` cannot be written. Call it before a long computation.
void check_writable(const std::string& path);

// Writes to standard output and escapes control characters other than tab and newline. Returns
// false once a write has failed; finish_output() then throws.
bool out(std::string_view text);
// Writes a text that is itself the result, such as a reply. It is escaped only on a terminal, and
// not with --raw-output.
bool out_text(std::string_view text);
// Writes an escape sequence of our own, unescaped.
bool out_style(std::string_view sequence);
void add_raw_output(Command& app);
void flush_output();
// Throws unless all of it was written: an ExitStatus if the reader of a pipe has closed it, else an
// exception with the reason.
void finish_output();

std::string dump(const Json& json, int indent = -1);  // replaces broken UTF-8, so never throws
Json digests_json(const StateDigests& digests);
Json logit_bias_json(const std::vector<TokenBias>& biases);  // {"17": -100.0}
std::string bytes_text(double bytes);                        // "1.5 MB"
// Returns the error for `tokens` more tokens than fit behind `used` of `capacity` positions.
std::string does_not_fit(int64_t tokens, int64_t used, int64_t capacity);

}  // namespace stet::tool

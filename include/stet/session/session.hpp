// A session: a conversation with a model, holding everything that changes while it runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/model/model.hpp"
#include "stet/session/compute.hpp"
#include "stet/session/drafted.hpp"
#include "stet/session/edit.hpp"
#include "stet/session/identity.hpp"
#include "stet/session/intervention.hpp"
#include "stet/session/kv_range.hpp"
#include "stet/session/pass_setup.hpp"
#include "stet/session/prune.hpp"
#include "stet/session/recompute.hpp"
#include "stet/session/state.hpp"
#include "stet/session/window.hpp"

namespace stet {

// Options of a session.
struct SessionOptions {
  // The number of positions. 0 means the model's max_position_embeddings, which is also the maximum.
  int64_t capacity = 0;
  KvType kv_type = KvType::f32;
  ComputeOptions compute = {};
  WindowOptions window = {};
  // Memory for anchors of recurrent layers (anchors.hpp), in bytes.
  int64_t anchor_bytes = Anchors::kDefaultBytes;
};

// Returns the contract, version and fingerprint that a session stamps on its states.
StateOrigin origin_of(const Model& model, Contract contract);

namespace detail {
// Returns the shape of the keys and values of a model.
KvShape kv_shape(const ModelConfig& c, KvType type);
// Throws an argument Error for an id outside of the vocabulary.
void check_ids(std::span<const int32_t> ids, int64_t vocab);
// Returns the name and version of the contract, for messages.
std::string contract_text(const StateOrigin& origin);
// Returns true if processing positions from .. to-1 again, with the keys and values of earlier
// positions, yields the same recurrent arrays as the first time. A rewind to `to` discards the edits
// of later positions.
bool gives_arrays_again(const State& state, int64_t from, int64_t to);
}  // namespace detail

// Receives consecutive rows: `logits` of positions first .. first + logits.count - 1.
using LogitSink = std::function<void(int64_t first, Rows logits)>;
// Receives consecutive rows of hidden state `index`. Index 0 is the embedding. Index i is the
// residual stream before layer i, counted from 0. The last index is the head's input, after the
// norm.
using HiddenSink = std::function<void(size_t index, int64_t first, Rows hidden)>;
// The points to capture during a call. List each point once, with a sink. After every chunk, `sink` receives
// each point's rows of consecutive positions from `first` on. Rows of scores and pattern are
// [heads][positions so far]. Chunks are cut so that a chunk's rows take at most 64 MB, if a single
// position's do.
//
// A row of hook_state is as large as the layer's state. It is captured at `state_positions` only,
// one row a call, and refused without them.
struct Watch {
  std::vector<PointAt> points;
  std::function<void(const PointAt& at, int64_t first, Rows rows)> sink;
  std::vector<int64_t> state_positions = {};  // each once
};
// Called after every chunk with the number of tokens of this call processed so far.
using Progress = std::function<void(int64_t done)>;

// Set once a buffer is shared, after which it must not be written. Any thread may set it.
class SharedFlag {
 public:
  SharedFlag() = default;
  SharedFlag(SharedFlag&& other) noexcept : set_(other.is_set()) {}
  SharedFlag& operator=(SharedFlag&& other) noexcept {
    set_.store(other.is_set(), std::memory_order_relaxed);
    return *this;
  }
  void set() const { set_.store(true, std::memory_order_relaxed); }
  void clear() { set_.store(false, std::memory_order_relaxed); }
  bool is_set() const { return set_.load(std::memory_order_relaxed); }

 private:
  mutable std::atomic<bool> set_{false};
};

class Session;
// Processes tokens in place of Session::append, for example in passes shared with other sessions.
using Appender = std::function<void(Session& session, std::span<const int32_t> ids)>;

// A session. It is movable and is copied only by fork(). Calls to one that was moved from throw an
// argument Error, except those that only read members; it may be destroyed and assigned to. A
// session must not be moved to itself.
//
// A session whose blocks are in a mapped file heals itself. If that file is truncated, overwritten
// or unreadable, the call that detects the damage recomputes the blocks from the session's own
// tokens, exactly. Only the bytes count: touching the file has no effect.
//
// A call throws a format Error, and leaves the session unchanged, if a damaged block cannot be
// recomputed. This is the case for blocks that were edited, computed after an edit
// (replayable_blocks), or computed by BLAS.
class Session {
 public:
  // Throws an argument Error for options out of range or an isa that this CPU lacks. Throws an
  // unsupported Error for a contract that does not suit the model's weights
  // (Model::check_contract).
  //
  // Both constructors throw an argument Error if `model` is null.
  explicit Session(std::shared_ptr<const Model> model, const SessionOptions& options = {});
  // Continues from a state of this model. Uses only `compute` and `window` of the options. Throws a
  // mismatch Error for a state of another contract or model (State::origin). Throws an argument
  // Error for a cache of another shape, or for tokens outside the model's vocabulary.
  Session(std::shared_ptr<const Model> model, State state, const SessionOptions& options);

  // Processes tokens after those already present. Throws an argument Error for an id outside the
  // vocabulary and a capacity Error if they do not fit. If anything throws, sinks included, the
  // session is unchanged.
  //
  // With sinks, every row is passed to them. A sink may read tokens() and kv(), which hold the
  // chunks before its own. If it changes or copies the session or requests its logits, that call
  // throws an argument Error.
  void append(std::span<const int32_t> ids, const LogitSink& logits = nullptr,
              const HiddenSink& hidden = nullptr, const Progress& progress = nullptr,
              const Watch* watch = nullptr);
  // Attaches an intervention (hooks.hpp). It applies to tokens processed from now on, in this
  // session, its forks and sessions restored from it. Rewinding to before this point removes it.
  // Throws an argument Error, and does nothing, for a point, layer or head that does not exist. The
  // same holds for positions already processed, and for values of a wrong number or not finite. Nor
  // may products of the values overflow: with the amount, or for project_out with themselves.
  void attach(Intervention intervention);
  // Ends intervention `index` of interventions() at position `from`, which must be at least size().
  // The session is then the same as if it had been attached with that end. A later rewind does not
  // move the end. Removes the intervention if it has changed nothing until then. Throws an argument
  // Error for an invalid index or position.
  void detach(size_t index, int64_t from);
  // Attaches a function that changes activations (hooks.hpp). It applies to tokens processed from
  // now on, in this session and its forks, until it is detached. Snapshots do not contain it.
  // Everything it affects is logged as an edit: the state is then identified by its bytes and never
  // recomputed. Throws an argument Error, and does nothing, for a null function and for a point
  // that does not exist, is repeated or cannot be changed.
  void attach(std::shared_ptr<const Callback> callback);
  void detach_callbacks();
  // Drops all tokens from position `size` on, exactly: the session continues as if they had never
  // been appended. A turn that is cut becomes open again; text of its reply then starts at the next
  // token.
  //
  // In an edited session, logits are taken from State::kept or recomputed. If neither is possible,
  // logits() throws until a token is appended. If dropped windows must be recomputed, the cost is
  // rewind_cost() (WindowOptions::before_recall).
  //
  // Recurrent layers compute their arrays again from the nearest anchor at or before `size`, or from
  // the first token. The call throws an argument Error if those tokens read keys or values that an
  // edit has changed since.
  //
  // Throws an argument Error for a position that does not exist, or that is not after the last
  // prune (State::floor). The keys that it saw no longer exist.
  void rewind(int64_t size);
  // Returns the number of tokens that rewind(size) would process again. Processing them yields the
  // keys and values of all layers that a query at `size` sees. Returns 0 except in window-only
  // sessions and in models with recurrent layers.
  int64_t rewind_cost(int64_t size) const;
  // Returns the number of tokens that prune_range() would process again.
  int64_t prune_cost(int64_t begin, int64_t end, bool shift) const;
  // Returns options that give another session the same windows.
  WindowOptions window() const { return recompute_.options(); }
  // Recomputes the dropped layers of positions begin .. end-1 (WindowOptions::before_recall), so
  // that kv() can be read there. Throws an argument Error for positions that do not exist.
  void recall(int64_t begin, int64_t end);
  // Replaces WindowOptions::before_recall.
  void set_before_recall(std::function<void(int64_t tokens)> callback);
  // Returns an independent copy of the session, which shares all blocks until one of the two
  // writes. The copy has an anchor at its size.
  Session fork() const;
  // Keeps an anchor (anchors.hpp) at size(). Does nothing in models without recurrent layers.
  void keep_anchor();
  // Makes the next appends keep anchors at these positions, instead of those of an earlier call.
  void anchor_at(std::vector<int64_t> positions);
  const Anchors& anchors() const { return state_.anchors; }
  // Computes the recurrent arrays at `size`, which is at most size(), again from the last anchor
  // before it, and makes it the session's size. Returns the anchor's position. Unlike rewind(),
  // recomputes them even if they are kept. Throws an argument Error if they cannot be recomputed
  // from tokens, and for a position that does not exist. Without recurrent layers, it is rewind().
  int64_t process_again(int64_t size);
  // Drafted tokens (BatchEntry::draft) are processed with the tokens before them. They are no part
  // of the session: not of its tokens, size, keys and values, state, forks or digests. Appending
  // the next drafted token alone, without sinks, accepts its row and processes nothing. Any other
  // operation first discards the rows and zeroes their slots. The results are bit for bit the same
  // either way.
  bool accepts(int32_t id) const { return !drafted_.empty() && drafted_.front().id == id; }
  void discard_drafted();
  // Returns false if drafts are ignored: where detail::can_speculate() is false, and under callbacks.
  bool can_speculate() const;
  // Returns how many tokens can be drafted after the next token.
  size_t most_drafted() const { return can_speculate() ? draft_room(size() + 1) : 0; }
  // See prune.hpp and edit.hpp. prune() returns the number of positions removed from view.
  int64_t prune(const PruneOptions& options);
  void prune_range(int64_t begin, int64_t end, bool shift);
  void set_key(int64_t layer, int64_t head, int64_t position, std::span<const float> x);
  void set_value(int64_t layer, int64_t head, int64_t position, std::span<const float> x);
  void set_array(int64_t layer, int64_t index, std::span<const float> x);
  // See kv_range.hpp.
  void zero_kv(const KvRange& range);
  void scale_kv(const KvRange& range, float factor);
  void set_kv(const KvRange& range, std::span<const float> x);
  void copy_kv(const KvRange& range, const Session& from, int64_t from_position);
  Session(Session&&) noexcept = default;
  Session& operator=(Session&&) noexcept = default;

  // While one exists, calls that would change the session throw an argument Error, but reading,
  // forking and saving it go on. Scoring makes one while its callback runs, and the C interface
  // while a callback of a reply runs. `call` names the function in errors.
  class ReadOnly {
   public:
    explicit ReadOnly(const Session& session, const char* call = "generate")
        : session_(session), before_(std::exchange(session.read_only_, call)) {}
    ~ReadOnly() { session_.read_only_ = before_; }
    ReadOnly(const ReadOnly&) = delete;
    ReadOnly& operator=(const ReadOnly&) = delete;

   private:
    const Session& session_;
    const char* before_;
  };
  // Throws an argument Error if the session may not be changed now: in a sink of append() and while
  // it is ReadOnly. `call` names the caller's function.
  void refuse_changes(const char* call) const;

  const std::vector<int32_t>& tokens() const { return state_.tokens; }
  int64_t size() const { return state_.size(); }
  int64_t transcript_size() const { return state_.transcript_size(); }
  int64_t capacity() const { return state_.kv.capacity(); }
  // Sets a smaller capacity, but not less than size(). Throws an argument Error for a larger one.
  void lower_capacity(int64_t capacity);
  // Returns the identities of all full blocks (identity.hpp). They follow from the tokens alone,
  // unless the state was edited.
  std::vector<BlockIdentity> block_identities();
  // Returns the logits that follow the last token, [vocab_size]; empty if there are no tokens.
  // After a rewind they are restored from kept logits or by processing the last token again. If
  // keys or values were edited since, all tokens are processed again. Keys and values do not
  // change.
  //
  // Throws an argument Error if the logits after a rewind are neither kept nor computable. This
  // happens, for example, if keys and values were rounded to another type in between.
  std::span<const float> logits();

  GenerationState& generation() { return state_.generation; }
  const GenerationState& generation() const { return state_.generation; }
  const std::vector<Prune>& prunes() const { return state_.prunes; }
  const std::vector<KvEdit>& edits() const { return state_.edits; }
  const std::vector<Intervention>& interventions() const { return state_.interventions; }
  size_t callbacks() const { return callbacks_.size(); }
  ChatState& chat() { return state_.chat; }
  const ChatState& chat() const { return state_.chat; }
  std::vector<int32_t> transcript() const { return state_.transcript(); }
  // Returns the complete state, with logits computed and every block checked.
  const State& state();
  // Returns the blocks healed since the last call.
  std::vector<HealedBlocks> take_healed() { return recompute_.take_healed(); }

  const Model& model() const {
    refuse_moved("model");
    return *model_;
  }
  const std::shared_ptr<const Model>& shared_model() const { return model_; }
  const KvCache& kv() const {
    forget_drafted();
    return state_.kv;
  }
  const RecurrentState& recurrent() const {
    forget_drafted();
    return state_.recurrent;
  }
  const ComputeOptions& compute() const { return compute_; }
  // Throws what the constructor throws, and a mismatch Error if the contract changes while there
  // are tokens.
  void set_compute(const ComputeOptions& compute);

 private:
  friend class BatchAppend;  // batch-inl.hpp
  friend class Trace;        // trace.hpp
  // An append in progress.
  struct PendingAppend {
    int64_t before = -1;                         // size at its beginning; -1: none in progress
    std::shared_ptr<std::vector<float>> logits;  // buffer for the new logits
    bool marked = false;                         // it has added an entry to the log of edits
    std::span<const int32_t> draft = {};         // tokens to process as drafted rows
  };
  struct Attached {
    std::shared_ptr<const Callback> what;
    int64_t from;  // first position that it applies to
  };

  Session(const Session& other);  // only fork() copies
  void begin_append(const Session& first, std::span<const int32_t> ids,
                    std::span<const int32_t> draft);
  std::span<const int32_t> fitting_draft(std::span<const int32_t> ids,
                                         std::span<const int32_t> draft) const;
  void keep_window_of(int64_t size) { recompute_.keep_window_of(size); }
  bool accept_drafted(std::span<const int32_t> ids);
  void forget_drafted() const;
  size_t draft_room(int64_t from) const;
  void settle_accepted();
  void drop_windows();
  void undo_append();
  void finish_append();
  void take_logits(std::shared_ptr<std::vector<float>> logits);
  void keep_rows(Rows hidden);
  void restore_logits();
  std::shared_ptr<std::vector<float>> new_logits_buffer() const;
  void refuse_moved(const char* call) const;
  void refuse_in_sink(const char* call) const;
  void enter(const char* call) const;
  void enter_change(const char* call) const;
  void cut(int64_t to);
  // The beginning of a computation of recurrent arrays (anchors-inl.hpp).
  struct StartingPoint {
    int64_t position = 0;
    RecurrentArrays arrays = nullptr;  // null: as before the first token
  };
  std::optional<StartingPoint> starting_point(int64_t from_at_most, int64_t to) const;
  StartingPoint checked_starting_point(int64_t to) const;
  Session compute_from(const StartingPoint& from, int64_t to) const;
  void rewind_recurrent(int64_t to);
  void restore_recurrent_logits();
  void add_anchor(Anchor anchor);
  void keep_anchor(bool by_content);
  size_t until_anchor(size_t rest) const;
  void end_pass(const float* hidden, int64_t end);
  void process_without(int64_t begin, int64_t end);
  void refuse_prune() const;
  void mark_callback();
  void move_callbacks(const Prune& prune);
  template <class Change>
  void change_kv(const char* call, Change change);
  Recomputer::Target target() { return {state_, compute_}; }
  template <class Reads>
  void with_healing(Reads reads) {
    recompute_.with_healing(target(), reads);
  }

  std::shared_ptr<const Model> model_;
  ComputeOptions compute_;
  State state_;
  PendingAppend pending_;
  // The function of a ReadOnly, or null; not copied by fork().
  mutable const char* read_only_ = nullptr;
  SharedFlag logits_shared_;  // another object may hold state_.logits
  // The logits buffer of the previous token, not shared.
  std::shared_ptr<std::vector<float>> spare_;
  detail::DraftedRows drafted_;
  std::vector<Attached> callbacks_;
  int64_t anchor_bytes_ = Anchors::kDefaultBytes;
  std::vector<int64_t> anchors_wanted_;  // positions of the next appends, ascending
  Recomputer recompute_;
};

// One session of a batch and the tokens to append to it, at least one.
struct BatchEntry {
  Session* session;
  std::span<const int32_t> ids;
  const Watch* watch = nullptr;
  // Guesses of the tokens after `ids`, to process in the same pass (Session::accepts). Ignored
  // where can_speculate() is false, in a batch with a watch, and in one of more than one pass. Also
  // ignored if a pass with them fails.
  std::span<const int32_t> draft = {};
};

// Options of append() for a batch.
struct BatchOptions {
  // Called after each layer of each pass, including those that recompute damaged blocks, as a sign
  // of progress. Any computing thread may call it, one at a time. It must not throw.
  std::function<void()> after_layer = nullptr;
};

// Appends tokens to several sessions in shared passes over the weights. Prompts and single tokens
// may be mixed. Each session gets the bits that its own append() would give (not under f32_blas).
//
// Sessions may differ in length, capacity and KV type, and may be forks of each other. The first
// session's compute options (isa, threads, chunk) apply to all. Only the calling thread may use the
// sessions meanwhile.
//
// Throws an argument Error for sessions of different models or contracts, for a repeated session
// and for an entry without tokens, and whatever append() throws. If an entry is at fault, the
// error's field names it ("batch[2]: tokens"). If anything throws, all sessions are unchanged.
void append(std::span<const BatchEntry> batch, const BatchOptions& options = {});

// Returns a session in which all tokens of a state were processed again, with its prunes at their
// places. `state` needs no keys, values or logits; its generation state is copied. Anchors are kept
// where the state has some. Windows that a prune needs are recomputed without asking before_recall.
//
// If `append` is given, `progress` is called once for each stretch between two changes. Throws an
// argument Error for a state with edits.
Session replay(std::shared_ptr<const Model> model, const State& state,
               const SessionOptions& options, const Progress& progress = nullptr,
               const Appender& append = nullptr);

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/session/anchors-inl.hpp"
#include "stet/session/batch-inl.hpp"
#include "stet/session/recompute-inl.hpp"
#include "stet/session/replay-inl.hpp"
#include "stet/session/session-inl.hpp"
#endif

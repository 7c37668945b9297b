// A conversation with a model: everything that changes while it runs, and nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/model/model.hpp"
#include "stet/session/compute.hpp"
#include "stet/session/edit.hpp"
#include "stet/session/identity.hpp"
#include "stet/session/intervention.hpp"
#include "stet/session/kv_range.hpp"
#include "stet/session/prune.hpp"
#include "stet/session/recompute.hpp"
#include "stet/session/state.hpp"
#include "stet/session/window.hpp"

namespace stet {

struct SessionOptions {
  // Positions; 0: the model's max_position_embeddings, which it may not exceed.
  int64_t capacity = 0;
  KvType kv_type = KvType::f32;
  ComputeOptions compute = {};
  WindowOptions window = {};
};

// Of what a session of this model computes under this contract.
StateOrigin origin_of(const Model& model, Contract contract);

// Called for consecutive rows: `logits` are those of positions first .. first + logits.count - 1.
using LogitSink = std::function<void(int64_t first, Rows logits)>;
// Called for consecutive rows of hidden state `index`: 0 is the embedding, i the residual stream
// before layer i (layers count from 0), and the last one what the head reads, after the norm.
using HiddenSink = std::function<void(size_t index, int64_t first, Rows hidden)>;
// What somebody wants to see of the tokens of a call: these points, each once. `sink` is called
// after every chunk, for each point, with rows of consecutive positions from `first` on; those of
// scores and pattern are [heads][positions so far]. Chunks are cut so that the rows of one take at
// most 64 MB, where a single position does.
struct Watch {
  std::vector<PointAt> points;
  std::function<void(const PointAt& at, int64_t first, Rows rows)> sink;
};
// Called after every chunk with the number of tokens of this call processed so far.
using Progress = std::function<void(int64_t done)>;

// That something was given to others, who may keep it. Copies are told of it from any thread.
class SharedMark {
 public:
  SharedMark() = default;
  SharedMark(SharedMark&& other) noexcept : set_(other.is_set()) {}
  SharedMark& operator=(SharedMark&& other) noexcept {
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
// Has tokens processed in place of Session::append: by passes that others share, say.
using Appender = std::function<void(Session& session, std::span<const int32_t> ids)>;

// A session whose blocks lie in a mapped file heals itself: where that file is cut off, overwritten
// or unreadable, the blocks that are no longer what was saved are computed again from the session's
// own tokens, exactly, within the call that finds out. The bytes decide: a file that is merely
// touched changes nothing. Calls that can find out throw a format Error, and leave the session as
// it was, where that is impossible: what the block holds was edited, or computed after an edit
// (replayable_blocks), or comes from BLAS.
class Session {
 public:
  // Throws an argument Error for options out of range, or an isa that this CPU lacks; an
  // unsupported Error for a contract that this model's weights are not for (Model::check_contract).
  explicit Session(std::shared_ptr<const Model> model, const SessionOptions& options = {});
  // Goes on from a state of this model; of the options, only `compute` and `window` count. Throws a
  // mismatch Error for a state of another contract or model (State::origin), an argument Error for
  // one whose cache has another shape, or whose tokens are not of the model's vocabulary.
  Session(std::shared_ptr<const Model> model, State state, const SessionOptions& options);

  // Tokens go through the model after those already there. Throws an argument Error for an id
  // outside the vocabulary and a capacity Error when they do not fit; either leaves the session as
  // it was. With sinks, every row is handed out; an exception that a sink throws leaves the session
  // as it was, too. A sink may read tokens() and kv() (the chunks before its own); changing,
  // copying or asking logits of the session is an argument Error.
  void append(std::span<const int32_t> ids, const LogitSink& logits = nullptr,
              const HiddenSink& hidden = nullptr, const Progress& progress = nullptr,
              const Watch* watch = nullptr);
  // From here on activations are changed as it says (hooks.hpp): of what is processed now, in this
  // session, its forks and what is restored from it. Rewinding before it forgets it. Throws an
  // argument Error, and does nothing, for a point, layer or head that is not there, positions that
  // were processed already, and values of another number or that are not finite.
  void attach(Intervention intervention);
  // Intervention `index` of interventions() ends at position `from`, which is not before size():
  // the session is then what it would be, had it been attached with that end. A later rewind leaves
  // the end where it is. One that has changed nothing by then is forgotten. Throws an argument
  // Error for an index or a position that is not there.
  void detach(size_t index, int64_t from);
  // From here on this function changes activations (hooks.hpp): of what is processed now, in this
  // session and its forks, until it is detached; snapshots do not hold it. All that it had part in
  // is marked as an edit: such a state is truth itself, named by its bytes and never computed
  // again. Throws an argument Error, and does nothing, for a point that is not there, stands twice
  // or cannot be changed, and without a function.
  void attach(std::shared_ptr<const Callback> callback);
  void detach_callbacks();
  // Drops all tokens from position `size` on. Exact: what follows is as if they had never been. Of
  // an edited session, the logits of before come back with what was kept of them (State::kept), or
  // are computed again; where neither can be, logits() throws until a token is appended. A
  // turn that is cut is open again; text of its reply then begins at the next token. Throws an
  // argument Error for a position that is not there, or that is not after the last prune
  // (State::floor): what it saw is gone. Where windows before it were let go, its cost is
  // rewind_cost() (WindowOptions::before_recall).
  void rewind(int64_t size);
  // How many tokens are processed again by rewind(size), or for the keys and values of all layers
  // to be there that a query at `size` sees. 0 but for a session that keeps windows only.
  int64_t rewind_cost(int64_t size) const { return recompute_.rewind_cost(state_, size); }
  // The same for prune_range().
  int64_t prune_cost(int64_t begin, int64_t end, bool shift) const {
    return recompute_.prune_cost(state_, begin, end, shift);
  }
  // WindowOptions::before_recall from here on.
  void set_before_recall(std::function<void(int64_t tokens)> told);
  // A second session that shares every full block with this one and goes its own way.
  Session fork() const;
  // See state.hpp. Returns the number of positions that are seen no more.
  int64_t prune(const PruneOptions& options);
  void prune_range(int64_t begin, int64_t end, bool shift);
  void set_key(int64_t layer, int64_t head, int64_t position, std::span<const float> x);
  void set_value(int64_t layer, int64_t head, int64_t position, std::span<const float> x);
  // See kv_range.hpp.
  void zero_kv(const KvRange& range);
  void scale_kv(const KvRange& range, float factor);
  void set_kv(const KvRange& range, std::span<const float> x);
  void copy_kv(const KvRange& range, const Session& from, int64_t from_position);
  Session(Session&&) noexcept = default;
  Session& operator=(Session&&) noexcept = default;

  const std::vector<int32_t>& tokens() const { return state_.tokens; }
  int64_t size() const { return state_.size(); }
  int64_t transcript_size() const { return state_.transcript_size(); }
  int64_t capacity() const { return state_.kv.capacity(); }
  // What every full block is called (identity.hpp): of a state that its tokens give, nothing is
  // looked at but those.
  std::vector<BlockIdentity> block_identities();
  // Logits that follow the last token, [vocab_size]; empty when there are no tokens. After a rewind
  // they are those of before: kept, or computed here by processing the last token again, or all of
  // them where keys or values were edited since. Keys and values stay as they are. Throws an
  // argument Error where a rewind led to a token whose logits are neither kept nor can be computed:
  // one from before keys and values were rounded to another type, say.
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
  // All of it, with logits() known and every block looked at.
  const State& state();
  // What was healed since the last call.
  std::vector<HealedBlocks> take_healed() { return recompute_.take_healed(); }

  const Model& model() const { return *model_; }
  const std::shared_ptr<const Model>& shared_model() const { return model_; }
  const KvCache& kv() const { return state_.kv; }
  const ComputeOptions& compute() const { return compute_; }
  // Throws what the constructor does, and a mismatch Error for another contract while there are
  // tokens.
  void set_compute(const ComputeOptions& compute);

 private:
  friend class BatchAppend;  // batch-inl.hpp
  // Of an append that is running.
  struct PendingAppend {
    int64_t before = -1;                         // the size it began with; -1: none is running
    std::shared_ptr<std::vector<float>> logits;  // where the new ones will go
    bool marked = false;                         // the log of edits has one more for it
  };
  struct Attached {
    std::shared_ptr<const Callback> what;
    int64_t from;  // position
  };

  Session(const Session& other);  // fork() is the only copy
  void begin_append(const Session& first, std::span<const int32_t> ids);
  void undo_append();
  void finish_append();
  void keep_rows(Rows hidden);
  void restore_logits();
  std::shared_ptr<std::vector<float>> logits_room() const;
  void refuse_in_sink(const char* call) const;
  void cut(int64_t to);
  void mark_callback();
  void move_callbacks(const Prune& prune);
  template <class Change>
  void change_kv(const char* call, Change change);
  Recompute::Target target() { return {state_, compute_}; }
  template <class Reads>
  void with_mending(Reads reads) {
    recompute_.with_mending(target(), reads);
  }

  std::shared_ptr<const Model> model_;
  ComputeOptions compute_;  // how, not what
  State state_;             // what
  PendingAppend pending_;
  SharedMark logits_shared_;  // somebody else may hold state_.logits
  // The logits of the token before, which nobody else holds.
  std::shared_ptr<std::vector<float>> spare_;
  std::vector<Attached> callbacks_;
  Recompute recompute_;
};

// The tokens, one or more, that a batch adds to one of its sessions.
struct BatchEntry {
  Session* session;
  std::span<const int32_t> ids;
  const Watch* watch = nullptr;
};

struct BatchOptions {
  // Called after each layer of each pass, also of those that compute again what a file has lost: a
  // sign that the call goes on. By any thread that computes, one at a time; it may not throw.
  std::function<void()> after_layer = nullptr;
};

// Every session goes on by its tokens, and all of them by the same passes over the weights: prompts
// and single tokens may be mixed. Each session afterwards has the bits that an append() of its own
// would have given it (not under f32_blas). Sessions may differ in length, capacity and kv type,
// and may be forks of one another. How to compute (isa, threads, chunk) is up to the first; nothing
// but the calling thread may use any of them meanwhile. Throws an argument Error for sessions of
// different models or contracts, for one that stands twice and for an entry without tokens, and
// what append() throws; where an entry is at fault, the field begins with its place ("batch[2]:
// tokens"). Whatever is thrown, all sessions are as they were.
void append(std::span<const BatchEntry> batch, const BatchOptions& options = {});

// A session in which the tokens of a state were processed again from nothing, with its prunes where
// they were made. `state` need not have keys, values or logits; its generation state is taken over.
// What a prune needs of windows that were let go is processed again, whatever before_recall says.
// With `append`, `progress` hears of what lies between two changes at once. Throws an argument
// Error for a state with edits.
Session replay(std::shared_ptr<const Model> model, const State& state,
               const SessionOptions& options, const Progress& progress = nullptr,
               const Appender& append = nullptr);

}  // namespace stet

#include "stet/session/batch-inl.hpp"
#include "stet/session/recompute-inl.hpp"
#include "stet/session/replay-inl.hpp"
#include "stet/session/session-inl.hpp"

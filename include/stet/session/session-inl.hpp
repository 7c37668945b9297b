// Implements Session, except for passes (batch-inl.hpp) and recomputing (recompute-inl.hpp).
#pragma once

#include <algorithm>
#include <utility>

#include "stet/base/error.hpp"
#include "stet/kv/kv_writer.hpp"
#include "stet/model/recurrence.hpp"

namespace stet {

namespace detail {

STET_INL KvShape kv_shape(const ModelConfig& c, KvType type) {
  std::vector<KvLayer> layers;
  for (int64_t i = 0; i < c.layers; ++i) {
    const LayerShape l = c.layer(i);
    layers.push_back(l.recurrent ? KvLayer{.owner = -1}
                                 : KvLayer{l.owner, l.kv_heads, l.key_dim, l.value_dim, l.window});
  }
  return KvShape::of(std::move(layers), type);
}

STET_INL void check_ids(std::span<const int32_t> ids, int64_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    throw Error(ErrorKind::argument, "", "ids[" + std::to_string(i) + "]",
                "a token id in 0.." + std::to_string(vocab - 1), std::to_string(ids[i]));
  }
}

STET_INL std::string contract_text(const StateOrigin& origin) {
  return origin.contract + " version " + std::to_string(origin.version);
}

}  // namespace detail

STET_INL StateOrigin origin_of(const Model& model, Contract contract) {
  return {contract_name(model, contract), kContractVersion, model.fingerprint()};
}

namespace detail {

STET_INL std::shared_ptr<const Model> not_null(std::shared_ptr<const Model> model) {
  if (model == nullptr) throw Error(ErrorKind::argument, "", "model", "a model", "null");
  return model;
}

// Throws a mismatch Error unless a session of `model` can continue the state.
STET_INL void check_origin(const StateOrigin& state, const StateOrigin& session,
                           const Model& model) {
  if (contract_text(state) != contract_text(session)) {
    throw Error(ErrorKind::mismatch, "", "contract",
                contract_text(state) + ", under which the tokens were processed",
                contract_text(session));
  }
  if (state.model != model.fingerprint()) {
    throw Error(ErrorKind::mismatch, "", "model",
                state.model + ", by which the tokens were processed", session.model);
  }
}

// Checks the sizes of kept rows. They can come from files and are copied into buffers of this
// model's size.
STET_INL void check_rewind_logits(const RewindLogits& kept, const ModelConfig& config) {
  for (const RewindLogits::Row& row : kept.rows()) {
    const int64_t numbers = row.hidden ? config.hidden_size : config.vocab_size;
    if (row.values != nullptr && static_cast<int64_t>(row.values->size()) == numbers) continue;
    throw Error(ErrorKind::argument, "", "state",
                "kept logits of " + std::to_string(numbers) + " numbers",
                row.values == nullptr ? "none" : std::to_string(row.values->size()));
  }
}

}  // namespace detail

STET_INL Session::Session(std::shared_ptr<const Model> model, const SessionOptions& options)
    : model_(detail::not_null(std::move(model))),
      compute_(options.compute),
      anchor_bytes_(options.anchor_bytes) {
  detail::check_compute(compute_, *model_);
  const ModelConfig& c = model_->config();
  state_.origin = origin_of(*model_, compute_.contract);
  recompute_ = Recomputer(model_, compute_.contract, options.window);
  state_.kv = KvCache(detail::kv_shape(c, options.kv_type), checked_capacity(c, options.capacity),
                      recompute_.keeps_windows_only());
  state_.recurrent = RecurrentState(recurrent_shape(c));
  recompute_.set_whole_kv(target());
}

STET_INL Session::Session(std::shared_ptr<const Model> model, State state,
                          const SessionOptions& options)
    : model_(detail::not_null(std::move(model))),
      compute_(options.compute),
      state_(std::move(state)),
      anchor_bytes_(options.anchor_bytes) {
  logits_shared_.set();
  detail::check_compute(compute_, *model_);
  const KvShape& shape = state_.kv.shape();
  if (!(shape == detail::kv_shape(model_->config(), shape.type)) || state_.kv.size() != size()) {
    throw Error(ErrorKind::argument, "", "state", "keys and values of this model", "another shape");
  }
  if (!(state_.recurrent.shape() == recurrent_shape(model_->config()))) {
    throw Error(ErrorKind::argument, "", "state", "recurrent arrays of this model",
                "others or none");
  }
  const StateOrigin origin = origin_of(*model_, compute_.contract);
  detail::check_origin(state_.origin, origin, *model_);
  state_.origin = origin;
  detail::check_ids(state_.tokens, model_->config().vocab_size);
  detail::check_rewind_logits(state_.kept, model_->config());
  if (!state_.edits.empty()) detail::keep_logits(state_);
  if (!state_.edits.empty()) keep_anchor(true);
  recompute_ = Recomputer(model_, compute_.contract, options.window);
  recompute_.set_whole_kv(target());
}

STET_INL int64_t Session::prune_cost(int64_t begin, int64_t end, bool shift) const {
  refuse_moved("prune_cost");
  return recompute_.prune_cost(state_, begin, end, shift);
}

STET_INL void Session::set_before_recall(std::function<void(int64_t)> callback) {
  refuse_moved("set_before_recall");
  recompute_.set_before_recall(std::move(callback));
  recompute_.set_whole_kv(target());
}

STET_INL void Session::recall(int64_t begin, int64_t end) {
  enter("recall");
  if (begin < 0 || end < begin || end > size())
    throw Error(ErrorKind::argument, "", "recall", some_positions(size()), range_text(begin, end));
  recompute_.recall(target(), begin, end);
}

STET_INL void Session::refuse_moved(const char* call) const {
  if (model_ == nullptr)
    throw Error(ErrorKind::argument, "", call, "a session", "one that was moved from");
}

STET_INL void Session::refuse_in_sink(const char* call) const {
  refuse_moved(call);
  if (pending_.before < 0) return;
  throw Error(ErrorKind::argument, "", call, "a call after append() has returned",
              "a call from its sink");
}

STET_INL void Session::refuse_changes(const char* call) const {
  refuse_in_sink(call);
  if (read_only_ != nullptr)
    throw Error(ErrorKind::argument, "", call,
                std::string("a call after ") + read_only_ + "() has returned",
                "a call from its callback");
}

// Begins an operation other than append() and logits().
STET_INL void Session::enter(const char* call) const {
  refuse_in_sink(call);
  forget_drafted();
}

// Begins an operation that changes what callers see.
STET_INL void Session::enter_change(const char* call) const {
  refuse_changes(call);
  forget_drafted();
}

STET_INL bool Session::can_speculate() const {
  return detail::can_speculate(compute_.contract) && callbacks_.empty();
}

STET_INL void Session::discard_drafted() {
  settle_accepted();
  if (drafted_.empty()) return;
  KvWriter(state_.kv).truncate(size());
  drafted_.clear();
}

// Drafted rows are not seen by callers, so a const session may discard them. A session that was
// declared const has none.
STET_INL void Session::forget_drafted() const {
  if (!drafted_.empty() || drafted_.unsettled().size() > 0)
    const_cast<Session*>(this)->discard_drafted();
}

// Brings the recurrent arrays to the session's size: runs the recurrence of the accepted rows, whose
// inputs the pass has recorded. Cannot fail, because accept_drafted() has reserved the buffer.
STET_INL void Session::settle_accepted() {
  const Range rows = drafted_.unsettled();
  if (state_.recurrent.empty() || rows.size() == 0) return;
  const float* const from = state_.recurrent.numbers().data();
  float* const to = state_.recurrent.next();
  const auto advance = [&](Team t) {
    advance_arrays(t, detail::kernels_of(compute_), model_->config().recurrence,
                   state_.recurrent.shape(), drafted_.inputs(), rows, from, to);
  };
  run_operations(detail::pass_team(compute_, *model_, rows.size()), std::ref(advance));
  state_.recurrent.commit_pass();
  drafted_.settle();
}

// Makes the first drafted row part of the session if it is the row of `ids`. If it throws, nothing
// has changed.
STET_INL bool Session::accept_drafted(std::span<const int32_t> ids) {
  refuse_changes("append");
  if (ids.size() != 1 || !accepts(ids[0])) return false;
  state_.recurrent.next();  // for settle_accepted(); allocates, so it comes first
  if (!state_.edits.empty())
    state_.kept.keep({size(), true, std::make_shared<std::vector<float>>(drafted_.front().hidden)});
  KvWriter(state_.kv).commit(1);
  state_.tokens.push_back(ids[0]);  // does not allocate: an earlier append reserved room
  take_logits(drafted_.pop());
  drop_windows();
  return true;
}

// Replaces the logits. The next append reuses their buffer unless it is shared.
STET_INL void Session::take_logits(std::shared_ptr<std::vector<float>> logits) {
  if (!logits_shared_.is_set()) {
    if (spare_ == nullptr)
      spare_ = std::move(state_.logits);
    else
      drafted_.recycle(std::move(state_.logits));
  }
  state_.logits = std::move(logits);
  logits_shared_.clear();
}

// Drops keys and values that are outside their layer's window. If memory runs out meanwhile, keeps
// them until the next call.
STET_INL void Session::drop_windows() {
  try {
    recompute_.drop_windows(state_, pending_.before);
  } catch (const std::bad_alloc&) {
  }
}

STET_INL void Session::lower_capacity(int64_t capacity) {
  enter_change("lower_capacity");
  if (capacity > this->capacity())
    throw Error(ErrorKind::argument, "", "capacity",
                "at most the present " + std::to_string(this->capacity()),
                std::to_string(capacity));
  state_.kv.lower_capacity(capacity);
}

STET_INL void Session::set_compute(const ComputeOptions& compute) {
  enter_change("set_compute");
  detail::check_compute(compute, *model_);
  const StateOrigin origin = origin_of(*model_, compute.contract);
  if (size() > 0) detail::check_origin(state_.origin, origin, *model_);
  state_.origin = origin;
  compute_ = compute;
}

STET_INL Session::Session(const Session& other)
    : model_(other.model_),
      compute_(other.compute_),
      state_(other.state_),
      callbacks_(other.callbacks_),
      anchor_bytes_(other.anchor_bytes_),
      recompute_(other.recompute_.fork()) {
  other.logits_shared_.set();
  logits_shared_.set();
}

STET_INL Session Session::fork() const {
  enter("fork");
  Session copy(*this);
  copy.keep_anchor();
  return copy;
}

namespace detail {

// Returns a Watch that captures hidden states as points: the residual stream before each layer, and
// the head's input. Adds the points of `more`, unless it is null.
STET_INL Watch watch_hidden(const ModelConfig& c, const HiddenSink& hidden, const Watch* more) {
  Watch w;
  for (int64_t i = 0; i < c.layers; ++i) w.points.push_back({Point::resid_pre, i});
  w.points.push_back({Point::ln_final, 0});
  const size_t own = w.points.size();
  if (more != nullptr) {
    w.points.insert(w.points.end(), more->points.begin(), more->points.end());
    w.state_positions = more->state_positions;
  }
  const auto is_state = [](const PointAt& at) { return at.point == Point::state; };
  const auto states = static_cast<size_t>(std::ranges::count_if(w.points, is_state));
  w.sink = [&hidden, more, own, is_state, next = size_t{0}, all = w.points.size() - states](
               const PointAt& at, int64_t first, Rows rows) mutable {
    if (is_state(at)) return more->sink(at, first, rows);
    const size_t i = next++ % all;
    if (i < own)
      hidden(i, first, rows);
    else
      more->sink(at, first, rows);
  };
  return w;
}

}  // namespace detail

STET_INL void Session::append(std::span<const int32_t> ids, const LogitSink& logits,
                              const HiddenSink& hidden, const Progress& progress,
                              const Watch* watch) {
  refuse_changes("append");
  if (ids.empty()) return;
  Watch both;
  if (hidden) {
    if (watch != nullptr) detail::check_sink(*watch);
    both = detail::watch_hidden(model_->config(), hidden, watch);
    watch = &both;
  }
  const BatchEntry alone{this, ids, watch};
  BatchAppend({&alone, 1}, {logits, progress}).run();
}

// Does everything that can fail before the first pass. Prepares the cache last, so that a failure
// leaves nothing to undo.
STET_INL void Session::begin_append(const Session& first, std::span<const int32_t> ids,
                                    std::span<const int32_t> draft) {
  enter_change("append");
  if (model_ != first.model_)
    throw Error(ErrorKind::argument, "", "model", "the model of the first session",
                "another model");
  if (compute_.contract != first.compute_.contract) {
    throw Error(ErrorKind::argument, "", "contract",
                contract_name(first.compute_.contract) + std::string(", as of the first session"),
                contract_name(compute_.contract));
  }
  detail::check_ids(ids, model_->config().vocab_size);
  // at once, so that later tokens allocate nothing
  state_.tokens.reserve(static_cast<size_t>(capacity()));
  const bool mark = !callbacks_.empty() &&
                    std::none_of(state_.edits.begin(), state_.edits.end(),
                                 [](const KvEdit& e) { return e.what == KvEdit::What::callback; });
  if (mark) state_.edits.reserve(state_.edits.size() + 1);
  if ((mark || !state_.edits.empty()) && detail::keep_logits(state_)) logits_shared_.set();
  std::shared_ptr<std::vector<float>> logits =
      spare_ != nullptr ? std::move(spare_) : new_logits_buffer();
  // The previous logits buffer becomes the next spare one, unless there is none or it is shared.
  if (state_.logits == nullptr || logits_shared_.is_set()) spare_ = new_logits_buffer();
  draft = fitting_draft(ids, draft);
  if (!state_.recurrent.empty() && !draft.empty())
    drafted_.inputs().begin(model_->config(), draft.size());
  with_healing(
      [&] { KvWriter(state_.kv).prepare(static_cast<int64_t>(ids.size() + draft.size())); });
  state_.recurrent.begin_append();
  pending_ = {size(), std::move(logits), false, draft};
  if (mark) mark_callback();
}

// Returns as much of a draft as this session can process after `ids`.
STET_INL std::span<const int32_t> Session::fitting_draft(std::span<const int32_t> ids,
                                                         std::span<const int32_t> draft) const {
  const bool one_pass = until_anchor(ids.size()) == ids.size();
  if (draft.empty() || !can_speculate() || !one_pass) return {};
  const size_t most = draft_room(size() + static_cast<int64_t>(ids.size()));
  if (most > 0) detail::check_ids(draft, model_->config().vocab_size);
  return draft.first(std::min(draft.size(), most));
}

// Returns how many positions from `from` on can be drafted. With recurrent layers, a row at whose end
// an anchor is due needs a pass of its own, since an anchor holds the arrays. So does every row before
// the end of an intervention on states, which recorded inputs do not contain.
STET_INL size_t Session::draft_room(int64_t from) const {
  const auto room = static_cast<size_t>(std::max<int64_t>(0, capacity() - from));
  if (state_.recurrent.empty()) return room;
  const bool changed = std::ranges::any_of(state_.interventions, [&](const Intervention& w) {
    const int64_t end = reach_of(state_, w).end;
    return w.point == Point::state && (end < 0 || end > size());
  });
  if (changed) return 0;
  int64_t anchor = (from / kBlockPositions + 1) * kBlockPositions;
  const auto wanted = std::ranges::upper_bound(anchors_wanted_, from);
  if (wanted != anchors_wanted_.end()) anchor = std::min(anchor, *wanted);
  return std::min(room, static_cast<size_t>(anchor - from - 1));
}

// Logs the callback. One entry covers all later positions; its room is reserved.
STET_INL void Session::mark_callback() {
  KvEdit e = detail::entry(state_, KvEdit::What::callback);
  e.position = size();
  state_.edits.push_back(std::move(e));
  pending_.marked = true;
}

STET_INL std::shared_ptr<std::vector<float>> Session::new_logits_buffer() const {
  auto room = std::make_shared<std::vector<float>>();
  room->reserve(static_cast<size_t>(model_->config().vocab_size));
  return room;
}

STET_INL void Session::undo_append() {
  recompute_.blocks_changed();
  drafted_.clear();
  KvWriter(state_.kv).truncate(pending_.before);
  state_.recurrent.undo_append();
  state_.anchors.truncate(pending_.before);
  state_.kept.truncate(pending_.before);
  state_.tokens.resize(static_cast<size_t>(pending_.before));
  spare_ = std::move(pending_.logits);
  if (pending_.marked) state_.edits.pop_back();
  pending_ = {};
}

// Commits the append; cannot fail.
STET_INL void Session::finish_append() {
  if (!state_.recurrent.empty()) {
    state_.recurrent.finish_append();
    state_.anchors.settle(anchor_bytes_, state_.recurrent.shape().bytes());
    std::erase_if(anchors_wanted_, [&](int64_t p) { return p <= size(); });
  }
  take_logits(std::move(pending_.logits));
  pending_ = {};
}

STET_INL void Session::attach(Intervention intervention) {
  enter_change("attach");
  logits();  // computed first, because the intervention does not apply to the last token
  stet::attach(state_, model_->config(), std::move(intervention));
}

STET_INL void Session::detach(size_t index, int64_t from) {
  enter_change("detach");
  logits();  // computed first, because the intervention applied to the last token
  stet::detach(state_, model_->config(), index, from);
}

STET_INL void Session::attach(std::shared_ptr<const Callback> callback) {
  enter_change("attach");
  detail::check_callback(model_->config(), callback.get());
  logits();
  callbacks_.push_back({std::move(callback), size()});
}

STET_INL void Session::detach_callbacks() {
  enter_change("detach_callbacks");
  if (!callbacks_.empty()) logits();  // computed first, under the callbacks
  callbacks_.clear();
}

// Moves the starts of callbacks that are after the gap closed by a shift.
STET_INL void Session::move_callbacks(const Prune& p) {
  for (Attached& a : callbacks_) {
    if (p.shift && a.from > p.begin) a.from = std::max(p.begin, a.from - (p.end - p.begin));
  }
}

STET_INL void Session::rewind(int64_t to) {
  enter_change("rewind");
  if (to < 0 || to > size()) {
    throw Error(ErrorKind::argument, "", "rewind", "a position in 0.." + std::to_string(size()),
                std::to_string(to));
  }
  if (to == size()) return;
  if (!state_.prunes.empty() && to <= state_.floor()) {
    throw Error(
        ErrorKind::argument, "", "rewind",
        "a position after " + std::to_string(state_.floor()) + ", where the session was pruned",
        std::to_string(to));
  }
  if (state_.recurrent.empty()) {
    recompute_.before_rewind(target(), to);
    cut(to);
  } else {
    rewind_recurrent(to);
  }
  discard_edits(state_, to);
  discard_interventions(state_, to);
  if (state_.edits.empty())
    state_.kept.clear();
  else
    keep_anchor(true);
  for (Attached& a : callbacks_) a.from = std::min(a.from, to);
  state_.generation.rewind(to);
  state_.chat.rewind(to + shifted_out(state_.prunes));
}

STET_INL void Session::cut(int64_t to) {
  recompute_.blocks_changed();
  with_healing([&] { KvWriter(state_.kv).truncate(to); });
  state_.tokens.resize(static_cast<size_t>(to));
  state_.kept.truncate(to);
  state_.anchors.truncate(to);
  state_.logits.reset();
}

STET_INL int64_t Session::prune(const PruneOptions& options) {
  enter_change("prune");
  detail::check_prune_options(options);
  if (!options.recompute) refuse_prune();
  logits();  // called now: a rewound session cannot compute them after the prune
  int64_t gone = 0;
  const int64_t begin = std::min(options.sinks, size()),
                end = size() - std::min(options.keep_last, size());
  if (options.recompute && begin < end) {
    process_without(begin, end);
    return end - begin;
  }
  recompute_.before_prune(target(), begin, end, options.shift);
  with_healing([&] { gone = stet::prune(state_, model_->config(), options); });
  if (gone > 0) move_callbacks(state_.prunes.back());
  return gone;
}

STET_INL void Session::prune_range(int64_t begin, int64_t end, bool shift) {
  enter_change("prune");
  refuse_prune();
  logits();
  recompute_.before_prune(target(), begin, end, shift);
  with_healing([&] { stet::prune_range(state_, model_->config(), begin, end, shift); });
  if (begin != end) move_callbacks(state_.prunes.back());
}

STET_INL void Session::set_key(int64_t layer, int64_t head, int64_t position,
                               std::span<const float> x) {
  change_kv("set_key", [&] { stet::set_key(state_, layer, head, position, x); });
}

STET_INL void Session::set_value(int64_t layer, int64_t head, int64_t position,
                                 std::span<const float> x) {
  change_kv("set_value", [&] { stet::set_value(state_, layer, head, position, x); });
}

STET_INL void Session::set_array(int64_t layer, int64_t index, std::span<const float> x) {
  enter_change("set_array");
  logits();
  logits_shared_.set();  // the anchor keeps a reference to them
  stet::set_array(state_, layer, index, x);
}

template <class Change>
void Session::change_kv(const char* call, Change change) {
  enter_change(call);
  logits();
  logits_shared_.set();  // the state keeps a reference to them
  keep_anchor(true);     // later positions cannot be processed again from an earlier one
  with_healing(change);
}

STET_INL void Session::zero_kv(const KvRange& range) {
  change_kv("zero_kv", [&] { stet::zero_kv(state_, range); });
}

STET_INL void Session::scale_kv(const KvRange& range, float factor) {
  change_kv("scale_kv", [&] { stet::scale_kv(state_, range, factor); });
}

STET_INL void Session::set_kv(const KvRange& range, std::span<const float> x) {
  change_kv("set_kv", [&] { stet::set_kv(state_, range, x); });
}

STET_INL void Session::copy_kv(const KvRange& range, const Session& from, int64_t from_position) {
  from.forget_drafted();
  Session source(from);  // heals in place of `from`, which is not changed
  change_kv("copy_kv", [&] {
    source.with_healing(
        [&] { stet::copy_kv(state_, model_->config(), range, source.state_, from_position); });
  });
}

STET_INL std::vector<BlockIdentity> Session::block_identities() {
  enter("block_identities");
  std::vector<BlockIdentity> all;
  with_healing([&] { all = stet::block_identities(state_, compute_.threads); });
  return all;
}

STET_INL std::span<const float> Session::logits() {
  refuse_in_sink("logits");
  if (state_.tokens.empty()) return {};
  if (state_.logits == nullptr) restore_logits();
  return *state_.logits;
}

STET_INL void Session::restore_logits() {
  if (const RewindLogits::Row* row = state_.kept.find(size() - 1)) {
    state_.logits = row->hidden ? detail::logits_of(*model_, compute_, *row->values) : row->values;
    logits_shared_.set();
    return;
  }
  if (!state_.recurrent.empty()) return restore_recurrent_logits();
  const bool from_cache = detail::cache_gives_logits(state_);
  if (!from_cache && !tokens_give_logits(state_)) {
    throw Error(ErrorKind::argument, "", "logits",
                "a token whose logits are kept (append one: its logits are known)",
                "that of position " + std::to_string(size() - 1) +
                    ", whose logits are from before an edit (" + replay_limit(state_)->reason +
                    ")");
  }
  if (from_cache) {
    Session again = fork();
    again.cut(size() - 1);
    discard_interventions(again.state_, size() - 1);  // the ones attached after the last token
    again.append({&state_.tokens.back(), 1});
    state_.logits = std::move(again.state_.logits);
  } else {
    recompute_.tell(transcript_size());
    Session again =
        replay(model_, detail::recipe_of(state_), {capacity(), state_.kv.shape().type, compute_});
    again.logits();
    state_.logits = std::move(again.state_.logits);
  }
  logits_shared_.clear();
}

// Keeps the head's input of the next positions, [positions][hidden_size].
STET_INL void Session::keep_rows(Rows hidden) {
  for (size_t i = 0; i < hidden.count; ++i) {
    state_.kept.keep(
        {size() + static_cast<int64_t>(i), true,
         std::make_shared<std::vector<float>>(hidden.row(i), hidden.row(i) + hidden.width)});
  }
}

STET_INL const State& Session::state() {
  logits();
  forget_drafted();
  recompute_.mend(target(), KvCache::Look::all_blocks);
  logits_shared_.set();  // copies of the state share them
  return state_;
}

}  // namespace stet

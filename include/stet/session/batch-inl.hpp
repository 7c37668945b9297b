// Implements append(): tokens of one or several sessions are processed in shared passes.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/kv/kv_writer.hpp"
#include "stet/kv/overflow.hpp"
#include "stet/threads/interrupt.hpp"

namespace stet {

namespace detail {

// A copy of a watched point's rows.
struct WatchedRows {
  const Watch* watch;
  PointAt at;
  int64_t first;  // position of the first row
  Memory memory;
  Rows rows;
};

constexpr size_t kWatchedBytes = size_t{64} << 20;

// Returns the bytes of one row of the watched points: of hook_state, or of the others.
STET_INL size_t watched_bytes(const ModelConfig& c, const Watch& watch, int64_t positions,
                              bool states) {
  size_t numbers = 0;
  for (const PointAt& at : watch.points) {
    if ((at.point == Point::state) == states)
      numbers += static_cast<size_t>(point_width(c, at, positions));
  }
  return numbers * sizeof(float);
}

// Returns the largest number of tokens per pass for which the watched rows fit in memory.
// `positions` is the number of positions after the call.
STET_INL size_t watched_rows(const ModelConfig& c, const Watch& watch, int64_t positions,
                             size_t most) {
  const size_t row = watched_bytes(c, watch, positions, false);
  return std::clamp<size_t>(row == 0 ? most : kWatchedBytes / row, 1, most);
}

STET_INL bool captures_state(const Watch& watch, int64_t position) {
  return std::ranges::find(watch.state_positions, position) != watch.state_positions.end();
}

// Returns how many of `count` tokens after position `first` fit in a pass. `kept` is the size of
// the states that the pass already captures, and grows by those of these tokens.
STET_INL size_t until_states(const ModelConfig& c, const Watch& watch, int64_t first, size_t count,
                             size_t& kept) {
  const size_t state = watched_bytes(c, watch, 0, true);
  for (size_t i = 0; state > 0 && i < count; ++i) {
    if (!captures_state(watch, first + static_cast<int64_t>(i))) continue;
    if (kept > 0 && kept + state > kWatchedBytes) return i;
    kept += state;
  }
  return count;
}

// Throws an argument Error for hook_state without positions: its rows are too large for all.
STET_INL void check_state_positions(const ModelConfig& c, const Watch& watch) {
  if (!watch.state_positions.empty()) return;
  for (size_t i = 0; i < watch.points.size(); ++i) {
    const PointAt& at = watch.points[i];
    if (at.point != Point::state) continue;
    const auto bytes = static_cast<size_t>(point_width(c, at, 0)) * sizeof(float);
    throw Error(ErrorKind::argument, "", "points[" + std::to_string(i) + "]",
                "state_positions: the positions at which to capture " + point_name(at) + ", of " +
                    std::to_string(bytes) + " bytes each",
                "none");
  }
}

// Throws an argument Error for a point of keys or values in a layer that reads another's.
STET_INL void refuse_shared_point(const ModelConfig& c, const std::string& field,
                                  const PointAt& at) {
  const int64_t owner = c.layer(at.layer).owner;
  if (!has_point(c, at.point) || owner == at.layer || owner < 0 || !is_of_keys(at.point)) return;
  throw Error(ErrorKind::argument, "", field,
              "a layer with keys and values of its own (" + point_name({at.point, owner}) +
                  " is what this layer reads)",
              point_name(at));
}

// Throws an argument Error for points that nothing receives.
STET_INL void check_sink(const Watch& watch) {
  if (!watch.sink && !watch.points.empty())
    throw Error(ErrorKind::argument, "", "watch", "a sink for its points", "none");
}

STET_INL void check_watch(const ModelConfig& c, const Watch& watch) {
  for (size_t i = 0; i < watch.points.size(); ++i) {
    const PointAt& at = watch.points[i];
    const bool layer = at.layer >= 0 && at.layer < (point_info(at.point).of_layer ? c.layers : 1);
    if (layer && has_point(c, at)) continue;
    if (layer) refuse_shared_point(c, "points[" + std::to_string(i) + "]", at);
    if (layer && has_point(c, at.point) &&
        (is_of_recurrence(at.point) || c.layer(at.layer).recurrent))
      throw Error(ErrorKind::argument, "", "points[" + std::to_string(i) + "]",
                  is_of_recurrence(at.point) ? "a recurrent layer" : "a layer with attention",
                  point_name(at));
    throw Error(ErrorKind::argument, "", "points[" + std::to_string(i) + "]",
                "a point of family " + c.family + " with " + std::to_string(c.layers) + " layers",
                point_name(at));
  }
}

// Throws an argument Error if the callback is null or has an unsuitable point.
STET_INL void check_callback(const ModelConfig& c, const Callback* callback) {
  if (callback == nullptr || !callback->change)
    throw Error(ErrorKind::argument, "", "callback", "a function", "none");
  check_watch(c, {callback->points, nullptr});
  for (auto at = callback->points.begin(); at != callback->points.end(); ++at) {
    const char* expected = !point_info(at->point).changes ? "a point that can be changed"
                           : std::find(callback->points.begin(), at, *at) != at ? "each point once"
                                                                                : nullptr;
    if (expected != nullptr)
      throw Error(ErrorKind::argument, "", "callback", expected, point_name(*at));
  }
}

// Returns the logits [vocab_size] for one row of hidden state that the head reads, [hidden_size].
STET_INL std::shared_ptr<std::vector<float>> logits_of(const Model& model,
                                                       const ComputeOptions& compute,
                                                       const std::vector<float>& hidden) {
  const WorkspaceLease w(model, 1, threads_of(compute));
  (*w).ids.clear();
  const Pass pass = make_pass(compute, *w, nullptr);
  const Rows from = (*w).last.rows(0, 1), to = (*w).logits.rows(0, 1);
  const auto head = [&](Team t) { model.head(t, pass, from, to); };
  std::ranges::copy(hidden, from.row(0));
  for (int tries = 0; tries <= kMaxRestarts; ++tries) {
    const uint64_t weights = model.weights_version();
    run_operations(pass_team(compute, model, 1), std::ref(head));
    if (model.weights_intact_since(weights))
      return std::make_shared<std::vector<float>>(to.row(0), to.row(0) + to.width);
  }
  throw_file_keeps_changing();
}

}  // namespace detail

// One append() of tokens to some sessions. The tokens of all entries are concatenated and cut into
// passes of `chunk` rows. Each session's last row is kept until all passes are done. One product
// then computes all logits, and nothing can fail after it.
class BatchAppend {
 public:
  struct Sinks {
    const LogitSink& logits;   // only for a batch of one
    const Progress& progress;  // only for a batch of one
    const std::function<void()>* after_layer = nullptr;
  };

  // Needs at least one entry; no entry may be empty.
  BatchAppend(std::span<const BatchEntry> batch, const Sinks& sinks)
      : batch_(batch), sinks_(sinks), first_(*batch[0].session) {
    for (const BatchEntry& entry : batch_)
      entry.session->recompute_.after_layer = sinks_.after_layer;
  }
  ~BatchAppend() {
    for (const BatchEntry& entry : batch_) entry.session->recompute_.after_layer = nullptr;
  }
  BatchAppend(const BatchAppend&) = delete;
  BatchAppend& operator=(const BatchAppend&) = delete;

  // Runs the append. If it throws, no session has changed.
  void run();

 private:
  bool has_drafts() const;
  void run_passes();
  void begin_entry(size_t index);
  void run_pass(size_t most, Workspace& w);
  void run_until_valid(size_t first_entry, const Pass& pass, const Workspace& w);
  std::unique_ptr<Hooks> hooks_of(size_t first_entry, const Workspace& w,
                                  std::vector<detail::WatchedRows>& watched) const;
  void check_recorded(const Span& span) const;
  void hand_out(const Pass& pass, const Workspace& w);
  void run_head(const Pass& pass, Rows hidden, Rows logits) const;
  void compute_logits(const Pass& pass, Workspace& w);
  void take_drafted(size_t entry, const Pass& pass, const Span& span, size_t first, Workspace& w);
  void drop_windows();
  int threads() const { return detail::threads_of(first_.compute_); }
  const Model& model() const { return first_.model(); }

  std::span<const BatchEntry> batch_;
  const Sinks& sinks_;
  const Session& first_;                             // its compute options apply to all
  bool drafts_ = false;                              // drafted rows are processed, too
  std::vector<std::vector<float>*> drafted_logits_;  // for drafted rows, as in Workspace::last
};

STET_INL void append(std::span<const BatchEntry> batch, const BatchOptions& options) {
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].session == nullptr)
      throw Error(ErrorKind::argument, "", detail::entry_name(i) + "session", "a session", "null");
    if (batch[i].ids.empty())
      throw Error(ErrorKind::argument, "", detail::entry_name(i) + "ids", "at least one token",
                  "none");
  }
  if (batch.empty()) return;
  BatchAppend(batch, {nullptr, nullptr, options.after_layer ? &options.after_layer : nullptr})
      .run();
}

// Returns true if all rows, with drafted ones, fit in one pass without watches and sinks.
STET_INL bool BatchAppend::has_drafts() const {
  size_t rows = 0, drafts = 0;
  for (const BatchEntry& e : batch_) {
    if (e.watch != nullptr) return false;
    rows += e.ids.size() + e.draft.size();
    drafts += e.draft.size();
  }
  return drafts > 0 && rows <= static_cast<size_t>(first_.compute_.chunk) && !sinks_.logits &&
         !sinks_.progress;
}

// Runs the passes, with drafts if there are any. If that fails, runs them again without drafts. A
// drafted row can fail where the tokens do not, for example by a value too large for the cache.
STET_INL void BatchAppend::run() {
  const bool alone =
      batch_.size() == 1 && batch_[0].watch == nullptr && !sinks_.logits && !sinks_.progress;
  if (alone && batch_[0].session->accept_drafted(batch_[0].ids)) return;
  if (has_drafts()) {
    drafts_ = true;
    try {
      return run_passes();
    } catch (const Interrupted&) {
      throw;
    } catch (...) {
      drafts_ = false;
    }
  }
  run_passes();
}

STET_INL void BatchAppend::run_passes() {
  size_t begun = 0, tokens = 0;
  drafted_logits_.clear();
  try {
    for (; begun < batch_.size(); ++begun) {
      begin_entry(begun);
      tokens += batch_[begun].ids.size() + batch_[begun].session->pending_.draft.size();
    }
    size_t most = std::min(tokens, static_cast<size_t>(first_.compute_.chunk));
    for (const BatchEntry& e : batch_) {
      if (e.watch != nullptr)
        most = detail::watched_rows(model().config(), *e.watch,
                                    e.session->size() + static_cast<int64_t>(e.ids.size()), most);
    }
    const detail::WorkspaceLease w(model(), std::max(most, batch_.size()), threads());
    const auto unfinished = [](const BatchEntry& e) {
      return e.session->size() - e.session->pending_.before < std::ssize(e.ids);
    };
    while (std::ranges::any_of(batch_, unfinished)) run_pass(most, *w);
    compute_logits(detail::make_pass(first_.compute_, *w, nullptr), *w);
    for (const BatchEntry& entry : batch_) entry.session->finish_append();
  } catch (...) {
    for (const BatchEntry& entry : batch_.first(begun)) entry.session->undo_append();
    throw;
  }
  drop_windows();
}

STET_INL void BatchAppend::drop_windows() {
  for (const BatchEntry& entry : batch_) entry.session->drop_windows();
}

STET_INL void BatchAppend::begin_entry(size_t index) {
  const BatchEntry& entry = batch_[index];
  detail::for_entry(batch_.size(), index, [&] {
    for (const BatchEntry& other : batch_.first(entry.session->pending_.before < 0 ? 0 : index)) {
      if (other.session == entry.session)
        throw Error(ErrorKind::argument, "", "session", "each session once", "one twice");
    }
    if (entry.watch != nullptr) {
      detail::check_sink(*entry.watch);
      detail::check_watch(model().config(), *entry.watch);
      detail::check_state_positions(model().config(), *entry.watch);
    }
    entry.session->begin_append(first_, entry.ids,
                                drafts_ ? entry.draft : std::span<const int32_t>{});
  });
}

// Repeats a pass until all mapped data that it read was intact, healing damaged blocks in between.
// Its spans belong to the entries from `first_entry` on.
STET_INL void BatchAppend::run_until_valid(size_t first_entry, const Pass& pass,
                                           const Workspace& w) {
  const auto forward = [&](Team t) { model().forward(t, pass); };
  size_t seen = 0;
  for (const Span& span : w.spans) seen += span.count * static_cast<size_t>(span.first);
  for (int tries = 0; tries <= detail::kMaxRestarts; ++tries) {
    const uint64_t weights = model().weights_version();
    forget_routers(pass);
    run_interruptible(detail::pass_team(first_.compute_, model(), pass.x.count, seen),
                      // std::ref avoids allocating a copy of the closure
                      std::ref(forward));
    if (pass.hooks != nullptr) pass.hooks->rethrow();
    bool sound = model().weights_intact_since(weights);
    for (size_t i = first_entry; i < first_entry + w.spans.size(); ++i) {
      Session& session = *batch_[i].session;
      if (session.state_.kv.pass_is_valid()) continue;
      sound = false;
      detail::for_entry(batch_.size(), i,
                        [&] { session.recompute_.mend(session.target(), KvCache::Look::again); });
    }
    if (sound) return check_routers(pass);
  }
  detail::throw_file_keeps_changing();
}

// Processes the next `most` tokens of the batch. They come from consecutive entries, of which the
// first may continue an earlier pass and the last may continue in the next.
STET_INL void BatchAppend::run_pass(size_t most, Workspace& w) {
  const auto done = [](const BatchEntry& e) {
    return static_cast<size_t>(e.session->size() - e.session->pending_.before);
  };
  size_t entry = 0;
  while (done(batch_[entry]) == batch_[entry].ids.size()) ++entry;
  w.ids.clear();
  w.spans.clear();
  size_t states = 0;  // bytes
  for (const BatchEntry& e : batch_.subspan(entry)) {
    size_t count = std::min(e.session->until_anchor(e.ids.size() - done(e)), most - w.ids.size());
    if (e.watch != nullptr)
      count = detail::until_states(model().config(), *e.watch, e.session->size(), count, states);
    const std::span<const int32_t> part = e.ids.subspan(done(e)).first(count);
    if (part.empty()) break;
    const std::span<const int32_t> draft = e.session->pending_.draft;  // fits: has_drafts()
    State& state = e.session->state_;
    w.spans.push_back({&state.kv, e.session->size(), w.ids.size(), part.size() + draft.size(),
                       state.recurrent.numbers().data(), state.recurrent.next(), draft.size(),
                       &e.session->drafted_.inputs()});
    w.ids.insert(w.ids.end(), part.begin(), part.end());
    w.ids.insert(w.ids.end(), draft.begin(), draft.end());
    if (part.size() < e.ids.size() - done(e)) break;  // the next pass continues this session
  }
  std::vector<detail::WatchedRows> watched;
  const std::unique_ptr<Hooks> hooks = hooks_of(entry, w, watched);
  Pass pass = detail::make_pass(first_.compute_, w, hooks.get());
  pass.after_layer = sinks_.after_layer;
  run_until_valid(entry, pass, w);
  for (const Span& span : w.spans) {
    check_overflow(*span.kv, span.first, static_cast<int64_t>(span.count));
    check_recorded(span);
  }
  for (const detail::WatchedRows& x : watched) x.watch->sink(x.at, x.first, x.rows);
  hand_out(pass, w);
  for (const Span& span : w.spans) {
    const BatchEntry& e = batch_[entry];
    const auto ids = w.ids.begin() + static_cast<std::ptrdiff_t>(span.row);
    const size_t count = span.kept();
    if (count < span.count) take_drafted(entry, pass, span, count, w);
    if (!e.session->state_.edits.empty()) e.session->keep_rows(pass.out.rows(span.row, count));
    KvWriter(*span.kv).commit(static_cast<int64_t>(count));
    e.session->state_.tokens.insert(e.session->state_.tokens.end(), ids,
                                    ids + static_cast<std::ptrdiff_t>(count));
    e.session->end_pass(pass.out.row(span.row + count - 1),
                        e.session->pending_.before + std::ssize(e.ids));
    std::copy_n(pass.out.row(span.row + count - 1), pass.out.width, w.last.row(entry++));
    if (sinks_.progress) sinks_.progress(static_cast<int64_t>(done(e)));
  }
  drop_windows();
}

// Throws an unsupported Error if a family does not record the inputs of its recurrent layers. The
// tokens are then processed again without drafts.
STET_INL void BatchAppend::check_recorded(const Span& span) const {
  if (span.drafted == 0 || span.recurrent_after == nullptr ||
      span.inputs->complete(recurrent_shape(model().config())))
    return;
  throw Error(ErrorKind::unsupported, "", "draft",
              "recurrent layers that record their inputs (Span::inputs)",
              "family " + model().config().family);
}

// Keeps the rows of a span from `first` on, which are drafted. Their inputs of the head follow
// those of the entries.
STET_INL void BatchAppend::take_drafted(size_t entry, const Pass& pass, const Span& span,
                                        size_t first, Workspace& w) {
  Session& session = *batch_[entry].session;
  session.drafted_.begin(session.pending_.draft, static_cast<size_t>(model().config().vocab_size));
  for (size_t i = 0; i < session.drafted_.size(); ++i) {
    const float* const hidden = pass.out.row(span.row + first + i);
    std::copy_n(hidden, pass.out.width, w.last.row(batch_.size() + drafted_logits_.size()));
    detail::DraftedRows::Row& row = session.drafted_.rows()[i];
    if (!session.state_.edits.empty()) row.hidden.assign(hidden, hidden + pass.out.width);
    drafted_logits_.push_back(row.logits.get());
  }
}

// Returns the hooks of this pass: interventions, callbacks and watched points. Null if there are
// none.
STET_INL std::unique_ptr<Hooks> BatchAppend::hooks_of(
    size_t first_entry, const Workspace& w, std::vector<detail::WatchedRows>& watched) const {
  const ModelConfig& c = model().config();
  std::unique_ptr<Hooks> hooks;
  const auto made = [&]() -> Hooks& {
    if (hooks == nullptr) hooks = std::make_unique<Hooks>(c);
    return *hooks;
  };
  for (size_t i = 0; i < w.spans.size(); ++i) {
    const Span& span = w.spans[i];
    const BatchEntry& e = batch_[first_entry + i];
    for (const Intervention& x : e.session->state_.interventions) {
      const Reach reach = reach_of(e.session->state_, x);
      if (reach.end < 0 || reach.end > span.first)
        made().change({&x, span.row, span.count, span.first, reach.from, reach.end});
    }
    for (const auto& [what, from] : e.session->callbacks_) {
      const auto skipped = static_cast<size_t>(std::max<int64_t>(0, from - span.first));
      if (skipped < span.count)
        made().call(*what, span.row + skipped, span.count - skipped,
                    span.first + static_cast<int64_t>(skipped));
    }
    if (e.watch == nullptr) continue;
    for (const PointAt& at : e.watch->points) {
      const auto width =
          static_cast<size_t>(point_width(c, at, span.first + static_cast<int64_t>(span.count)));
      const size_t stride = detail::round_up(width, kLanes);
      if (at.point == Point::state) {
        for (int64_t p = span.first; p < span.first + static_cast<int64_t>(span.count); ++p) {
          if (!detail::captures_state(*e.watch, p)) continue;
          watched.push_back({e.watch, at, p, Memory(stride * sizeof(float)), {}});
          watched.back().rows = {watched.back().memory.as<float>(), stride, width, 1};
          made().copy_states(static_cast<size_t>(at.layer),
                             span.row + static_cast<size_t>(p - span.first),
                             watched.back().rows.data);
        }
        continue;
      }
      watched.push_back({e.watch, at, span.first, Memory(span.count * stride * sizeof(float)), {}});
      watched.back().rows = {watched.back().memory.as<float>(), stride, width, span.count};
      made().copy(at, span.row, watched.back().rows);
    }
  }
  return hooks;
}

// Passes the logits of every row to the sink, if there is one (only for a batch of one).
STET_INL void BatchAppend::hand_out(const Pass& pass, const Workspace& w) {
  for (size_t at = 0; sinks_.logits && at < pass.out.count; at += w.logits.count) {
    const Rows part = w.logits.rows(0, std::min(w.logits.count, pass.out.count - at));
    run_head(pass, pass.out.rows(at, part.count), part);
    sinks_.logits(first_.size() + static_cast<int64_t>(at), part);
  }
}

STET_INL void BatchAppend::run_head(const Pass& pass, Rows hidden, Rows logits) const {
  const auto head = [&](Team t) { model().head(t, pass, hidden, logits); };
  run_interruptible(detail::pass_team(first_.compute_, model(), hidden.count), std::ref(head));
}

// Computes the logits of every entry and drafted row. Repeats this if the weights changed
// meanwhile.
STET_INL void BatchAppend::compute_logits(const Pass& pass, Workspace& w) {
  for (int tries = 0; tries <= detail::kMaxRestarts; ++tries) {
    const uint64_t weights = model().weights_version();
    const size_t rows = batch_.size() + drafted_logits_.size();
    for (size_t at = 0; at < rows; at += w.logits.count) {
      const Rows part = w.logits.rows(0, std::min(w.logits.count, rows - at));
      run_head(pass, w.last.rows(at, part.count), part);
      for (size_t i = 0; i < part.count; ++i) {
        std::vector<float>& to = at + i < batch_.size() ? *batch_[at + i].session->pending_.logits
                                                        : *drafted_logits_[at + i - batch_.size()];
        to.assign(part.row(i), part.row(i) + part.width);
      }
    }
    if (model().weights_intact_since(weights)) return;
  }
  detail::throw_file_keeps_changing();
}
}  // namespace stet

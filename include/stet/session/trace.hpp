// What tokens gave, kept so that their end can be computed again under changes of activations, from
// the layer and the position of each change on: sweeps of activation patching.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "stet/session/session.hpp"

namespace stet {

// Holds the residual stream behind each layer, [layers][tokens][hidden_size] float32, beside a
// session.
class Trace {
 public:
  // `ids` go through the model after what `before` holds, which stays as it is. Throws what
  // Session::append does, and an argument Error for a session with callbacks and for no tokens.
  Trace(const Session& before, std::span<const int32_t> ids);

  // After the tokens.
  Session& session() { return session_; }
  // Called once for each change: the logits after the last token, [vocab_size].
  using Sink = std::function<void(size_t index, std::span<const float> logits)>;
  // Each change alone, as if it had been attached before the tokens, with the same bits. Changes of
  // a layer share passes over the weights, from that layer on (all layers, where the model cannot
  // begin at a later one). Throws what attach() does, its field with the change's place before it
  // ("changes[3]: ..."), before anything is computed.
  void run(std::span<const Intervention> changes, const Sink& sink);

 private:
  // A change that is being computed.
  struct Run {
    size_t index;
    Intervention what;
    int64_t first, next;  // positions: where it begins; of its next pass
    KvCache kv;
  };

  size_t layer_of(const Intervention& w) const;
  std::vector<Intervention> checked(std::span<const Intervention> changes) const;
  Run begin(size_t index, const Intervention& what);
  void run_layer(size_t layer, std::span<const size_t> order,
                 const std::vector<Intervention>& changes, const Sink& sink);
  void run_pass(size_t layer, std::vector<Run>& runs, Workspace& w, const Sink& sink);
  void forward(size_t layer, const Workspace& w, const Pass& pass) const;
  Hooks hooks_of(std::span<Run* const> runs, const Workspace& w) const;

  Session session_;
  int64_t first_;                             // position of the first token
  std::vector<std::vector<float>> residual_;  // [layers]: [tokens][hidden_size], behind each
};

inline Trace::Trace(const Session& before, std::span<const int32_t> ids)
    : session_(before.fork()), first_(before.size()) {
  if (before.callbacks() > 0)
    throw Error(ErrorKind::argument, "", "callbacks", "none: they cannot be traced",
                std::to_string(before.callbacks()));
  if (ids.empty()) throw Error(ErrorKind::argument, "", "ids", "at least one token", "none");
  residual_.resize(static_cast<size_t>(session_.model().config().layers));
  Watch watch;
  for (size_t l = 0; l < residual_.size(); ++l)
    watch.points.push_back({Point::resid_post, static_cast<int64_t>(l)});
  watch.sink = [&](const PointAt& at, int64_t, Rows rows) {
    std::vector<float>& to = residual_[static_cast<size_t>(at.layer)];
    to.reserve(ids.size() * rows.width);
    for (size_t i = 0; i < rows.count; ++i)
      to.insert(to.end(), rows.row(i), rows.row(i) + rows.width);
  };
  session_.append(ids, nullptr, nullptr, nullptr, &watch);
  session_.state();  // all blocks are what they should be
}

// The first that it changes anything in; all of them for what comes behind the last.
inline size_t Trace::layer_of(const Intervention& w) const {
  if (!session_.model().begins_anywhere()) return 0;
  if (w.point == Point::ln_final) return residual_.size();
  if (!point_info(w.point).of_layer || w.layers.empty()) return 0;
  return static_cast<size_t>(*std::min_element(w.layers.begin(), w.layers.end()));
}

inline std::vector<Intervention> Trace::checked(std::span<const Intervention> changes) const {
  State before;
  before.tokens.resize(static_cast<size_t>(first_));
  before.prunes = session_.prunes();
  for (size_t i = 0; i < changes.size(); ++i) {
    try {
      attach(before, session_.model().config(), changes[i]);
    } catch (const Error& e) {
      throw Error(e.kind, e.file, "changes[" + std::to_string(i) + "]: " + e.field, e.expected,
                  e.found);
    }
  }
  return std::move(before.interventions);
}

inline void Trace::run(std::span<const Intervention> given, const Sink& sink) {
  const std::vector<Intervention> changes = checked(given);
  std::vector<size_t> order(changes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return layer_of(changes[a]) < layer_of(changes[b]); });
  for (size_t at = 0, next = 0; at < order.size(); at = next) {
    const size_t layer = layer_of(changes[order[at]]);
    while (next < order.size() && layer_of(changes[order[next]]) == layer) ++next;
    run_layer(layer, std::span(order).subspan(at, next - at), changes, sink);
  }
}

// What comes before its position is shared; the blocks behind are its own, and are written again
// from its layer on.
inline Trace::Run Trace::begin(size_t index, const Intervention& what) {
  const int64_t first = std::max(what.begin, first_);
  Run r{index, what, first, first, KvCache(session_.kv())};
  KvWriter writer(r.kv);
  for (int64_t b = 0; b < r.kv.blocks(); ++b) {
    if (b < first / kBlockPositions)
      writer.load(b);
    else
      writer.own(b);
  }
  return r;
}

// As many runs at a time as fill a pass.
inline void Trace::run_layer(size_t layer, std::span<const size_t> order,
                             const std::vector<Intervention>& changes, const Sink& sink) {
  const ComputeOptions& compute = session_.compute();
  const auto most = static_cast<size_t>(compute.chunk);
  const detail::WorkspaceLease lease(session_.model(), most, detail::threads_of(compute));
  std::vector<Run> runs;
  size_t rows = 0;
  for (auto next = order.begin(); next != order.end() || !runs.empty();) {
    for (; next != order.end() && rows < most; ++next) {
      if (changes[*next].begin >= session_.size()) {  // none of these tokens
        sink(*next, session_.logits());
        continue;
      }
      runs.push_back(begin(*next, changes[*next]));
      rows += static_cast<size_t>(session_.size() - runs.back().first);
    }
    if (runs.empty()) return;
    run_pass(layer, runs, *lease, sink);
    std::erase_if(runs, [&](const Run& r) { return r.next == session_.size(); });
    rows = 0;
    for (const Run& r : runs) rows += static_cast<size_t>(session_.size() - r.next);
  }
}

inline void Trace::run_pass(size_t layer, std::vector<Run>& runs, Workspace& w, const Sink& sink) {
  const auto most = static_cast<size_t>(session_.compute().chunk);
  std::vector<Run*> some;
  w.ids.clear();
  w.spans.clear();
  for (Run& r : runs) {
    const size_t count =
        std::min(static_cast<size_t>(session_.size() - r.next), most - w.ids.size());
    if (count == 0) break;
    w.spans.push_back({&r.kv, r.next, w.ids.size(), count});
    const auto ids = session_.tokens().begin() + r.next;
    w.ids.insert(w.ids.end(), ids, ids + static_cast<std::ptrdiff_t>(count));
    some.push_back(&r);
  }
  const Hooks hooks = hooks_of(some, w);
  Pass pass = detail::make_pass(session_.compute(), w, &hooks);
  pass.first_layer = layer;
  std::vector<size_t> ended;
  for (int tries = 0;; ++tries) {
    if (tries > detail::kMostMends) detail::throw_restless();
    const uint64_t weights = session_.model().weights_version();
    forward(layer, w, pass);
    if (session_.model().weights_held_since(weights)) break;
  }
  for (size_t i = 0; i < some.size(); ++i) {
    some[i]->next += static_cast<int64_t>(w.spans[i].count);
    if (some[i]->next == session_.size()) ended.push_back(i);
  }
  const size_t hidden = pass.out.width * sizeof(float);
  for (size_t at = 0; at < ended.size(); at += w.logits.count) {
    const size_t count = std::min(w.logits.count, ended.size() - at);
    for (size_t i = 0; i < count; ++i) {
      const Span& span = w.spans[ended[at + i]];
      std::memcpy(w.last.row(i), pass.out.row(span.row + span.count - 1), hidden);
    }
    const auto head = [&](Team t) {
      session_.model().head(t, pass, w.last.rows(0, count), w.logits.rows(0, count));
    };
    run_operations(detail::team_of(session_.compute()), std::ref(head));
    for (size_t i = 0; i < count; ++i)
      sink(some[ended[at + i]]->index, {w.logits.row(i), w.logits.width});
  }
}

inline void Trace::forward(size_t layer, const Workspace& w, const Pass& pass) const {
  for (size_t i = 0; layer > 0 && i < w.spans.size(); ++i) {
    const Span& span = w.spans[i];
    for (size_t r = 0; r < span.count; ++r) {
      const size_t at = static_cast<size_t>(span.first - first_) + r;
      std::memcpy(pass.x.row(span.row + r), residual_[layer - 1].data() + at * pass.x.width,
                  pass.x.width * sizeof(float));
    }
  }
  const auto work = [&](Team t) { session_.model().forward(t, pass); };
  run_operations(detail::team_of(session_.compute()), std::ref(work));
}

inline Hooks Trace::hooks_of(std::span<Run* const> runs, const Workspace& w) const {
  Hooks hooks(session_.model().config());
  for (size_t i = 0; i < runs.size(); ++i) {
    const Span& span = w.spans[i];
    for (const Intervention& x : session_.interventions()) {
      const Reach reach = reach_of(session_.prunes(), x);
      if (reach.end < 0 || reach.end > span.first)
        hooks.change({&x, span.row, span.count, span.first, reach.from, reach.end});
    }
    const Intervention& x = runs[i]->what;
    hooks.change({&x, span.row, span.count, span.first, runs[i]->first, x.end});
  }
  return hooks;
}

}  // namespace stet

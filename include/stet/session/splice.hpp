// Splicing: builds a state from parts of others.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "stet/session/session.hpp"

namespace stet {

// Positions begin .. end-1 of a state.
struct Cut {
  const State* from;
  int64_t begin, end;
};

// Returns a state that concatenates the tokens, keys and values of all cuts. Keys are rotated to
// their new positions (prune.hpp). For example, {a, 0, n}, {b, m, b.size()} puts the first n
// positions of a before those of b from m on.
//
// Nothing is recomputed: keys and values depend on the tokens that preceded them in their source,
// not on those that precede them in the result. truth_of() together with compare() measures the
// difference. Settings, open interventions and capacity come from the first cut's state. The result
// has no messages, turns or logits (Session::logits computes those).
//
// Dropped layers of a window-only state are recomputed where a cut needs them (State::whole_kv). A
// session of the result needs the window of the first cut's session (Session::window) to recompute
// those of older blocks.
//
// Throws an argument Error for positions that do not exist or were pruned, and if there are no
// positions. Throws a mismatch Error for states of different models, contracts or KV types. Throws
// an unsupported Error if parts move and the model has no rotary positions, and a capacity Error if
// they do not fit.
State splice(const ModelConfig& config, std::span<const Cut> cuts);

// Returns a session with the same tokens, prunes and interventions, all computed from the start
// without the edits.
Session truth_of(std::shared_ptr<const Model> model, const State& state,
                 const SessionOptions& options, const Progress& progress = nullptr);

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/session/splice-inl.hpp"
#endif

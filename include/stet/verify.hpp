// Proof by recomputation: a state is a function of its tokens, so it can be computed again and compared.
#pragma once

#include <optional>

#include "stet/compare.hpp"

namespace stet {

// A session in which the tokens of a state were processed again from nothing, with its prunes where they were made.
// `state` need not have keys, values or logits; its generation state is taken over. Throws an argument Error for a state with
// edits.
Session replay(std::shared_ptr<const Model> model, const State& state, const SessionOptions& options,
               const Progress& progress = nullptr);

// Replay under OpenBLAS does not give the same bits; verify compares within this.
constexpr double kBlasTolerance = 1e-3;

// Replays a snapshot and compares. Returns what differs first in the file. With `bisect`, only digests are compared, of one
// layer of one block each: the file's keys and values need not be there (recipe, delta), and the difference is named by
// block and layer.
std::optional<Difference> verify(const Snapshot& snapshot, std::shared_ptr<const Model> model, const SessionOptions& options,
                                 bool bisect, const Progress& progress = nullptr);

}  // namespace stet

// Proof by recomputation: a state is a function of its tokens, so it can be computed again and compared.
#pragma once

#include <optional>
#include <string>

#include "stet/snapshot.hpp"

namespace stet {

// A session in which the tokens of a state were processed again from nothing, with its prunes where they were made.
// `state` need not have keys, values or logits; its generation state is taken over. Throws an argument Error for a state with
// edits.
Session replay(std::shared_ptr<const Model> model, const State& state, const SessionOptions& options,
               const Progress& progress = nullptr);

// The first place where two states are not the same.
struct Difference {
  std::string what;  // "token", "key", "value", "logit", "visibility", "generation", "prunes", ...
  int64_t position = -1, layer = -1, head = -1, element = -1;  // -1: does not apply
  std::string expected, found;

  std::string text() const;  // "position 70, layer 1, key, head 0, element 3: expected 0.25, found 0.5"
};

// Compares tokens, visibility, keys and values (by position, then layer, key before value, head, element), logits,
// generation state and prunes. Numbers are equal when their bits are; with `tolerance` > 0, when they differ by at most
// tolerance x max(1, |expected|). Throws a format Error for a damaged block.
std::optional<Difference> first_difference(const State& expected, const State& found, double tolerance = 0);

// What two snapshots say of their model, contract and tokenizer; and of their state by digests alone, for recipes.
std::optional<Difference> different_origin(const Snapshot& expected, const Snapshot& found);
std::optional<Difference> different_digests(const Snapshot& expected, const Snapshot& found);

// Replay under OpenBLAS does not give the same bits; verify compares within this.
constexpr double kBlasTolerance = 1e-3;

// Replays a snapshot and compares. Returns what differs first in the file. With `bisect`, only digests are compared, of one
// layer of one block each: the file's keys and values need not be there (recipe, delta), and the difference is named by
// block and layer.
std::optional<Difference> verify(const Snapshot& snapshot, std::shared_ptr<const Model> model, const SessionOptions& options,
                                 bool bisect, const Progress& progress = nullptr);

}  // namespace stet

// Two states side by side: whether each of their parts is equal, where it first differs, and how
// far numbers are apart.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/snapshot/snapshot.hpp"

namespace stet {

// The first place where two states are not the same.
struct STET_API Difference {
  std::string what;  // "token", "key", "value", "logit", "visibility", "generation", "prunes", ...
  int64_t position = -1, layer = -1, head = -1, element = -1;  // -1: does not apply
  std::string expected, found;
  std::optional<double> expected_number = std::nullopt,
                        found_number = std::nullopt;  // where they are numbers

  std::string where() const;  // "position 70, layer 1, key, head 0, element 3"
  // "position 70, layer 1, key, head 0, element 3: expected 0.25, found 0.5"
  std::string text() const;
};

// Compares tokens, visibility, keys and values (by position, then layer, key before value, head,
// element), logits, generation state and prunes. Numbers are equal when their bits are; with
// `tolerance` > 0, when they differ by at most tolerance x max(1, |expected|). Throws a format
// Error for a damaged block.
STET_API std::optional<Difference> first_difference(const State& expected, const State& found,
                                                    double tolerance = 0);

// How far numbers are apart: 0 where all are equal, infinite where a difference is no number.
struct Deviation {
  double largest = 0, rms = 0;
};

// What two states, a and b, have in common.
struct STET_API Comparison {
  struct Part {
    // "model", "kv shape", "tokens", "visibility", "keys", "values", "logits", "generation",
    // "messages", ...
    std::string name;
    // The first one: a is what was expected, b what was found.
    std::optional<Difference> difference = std::nullopt;
    bool compared = true;  // false: at least in part not, `note` says why
    std::string note = "";
  };
  struct Layer {
    Deviation keys, values;
  };

  std::vector<Part> parts;
  int64_t common_tokens = 0;    // tokens that are equal, from the first on
  int64_t equal_positions = 0;  // positions whose keys and values are equal, from the first on
  // Deviations over positions that both have and none has pruned; empty: not compared.
  std::vector<Layer> layers;
  // Kullback-Leibler divergence, in nats, of the distributions of the next token that the logits
  // give, a and b: the sum of a log(a / b), and of b log(b / a). None where a state has no logits.
  std::optional<double> a_from_b, b_from_a;

  bool equal() const;  // all that was compared
  const Part* first_difference() const;
};

// Keys and values of different types are compared as numbers. Throws a format Error for a damaged
// block.
STET_API Comparison compare(const State& a, const State& b);
// The same, and what the snapshots say of their models. A recipe has digests alone: keys and values
// of whole blocks are then compared by those, and logits likewise. Blocks of files are taken as
// they are, damaged or not.
STET_API Comparison compare(const Snapshot& a, const Snapshot& b);

}  // namespace stet

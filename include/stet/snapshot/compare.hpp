// Comparison of two states: whether their parts are equal, where they first differ, and by how
// much.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/snapshot/snapshot.hpp"

namespace stet {

// The first difference of two states.
struct STET_API Difference {
  std::string what;  // "token", "key", "value", "logit", "visibility", "generation", "prunes", ...
  int64_t position = -1, layer = -1, head = -1, element = -1;  // -1: not applicable
  std::string expected, found;
  std::optional<double> expected_number = std::nullopt,
                        found_number = std::nullopt;  // set if the values are numbers

  std::string where() const;  // "position 70, layer 1, key, head 0, element 3"
  // "position 70, layer 1, key, head 0, element 3: expected 0.25, found 0.5"
  std::string text() const;
};

// Returns the first difference in tokens, visibility, keys and values, logits, generation state and
// prunes. Keys and values are ordered by position, layer, key before value, head, element. Numbers
// are equal if their bits are or, with `tolerance` > 0, if they differ by at most tolerance x
// max(1, |expected|). Throws a format Error for a damaged block.
STET_API std::optional<Difference> first_difference(const State& expected, const State& found,
                                                    double tolerance = 0);

// Deviation of numbers: 0 if all are equal, infinite if a difference is not a number.
struct Deviation {
  double largest = 0, rms = 0;
};

// The result of comparing two states, a and b.
struct STET_API Comparison {
  struct Part {
    // "model", "kv shape", "tokens", "visibility", "keys", "values", "logits", "generation",
    // "messages", ...
    std::string name;
    // The first difference: a is expected, b is found.
    std::optional<Difference> difference = std::nullopt;
    bool compared = true;  // false: not compared, at least in part; `note` gives the reason
    std::string note = "";
  };
  struct Layer {
    Deviation keys, values;
  };

  std::vector<Part> parts;
  int64_t common_tokens = 0;    // equal tokens, from the first on
  int64_t equal_positions = 0;  // positions with equal keys and values, from the first on
  // Deviations over positions that both states have and neither has pruned; empty if not compared.
  std::vector<Layer> layers;
  // Kullback-Leibler divergences, in nats, of the next token's distributions a and b: the sum of a
  // log(a / b), and of b log(b / a). Empty if a state has no logits.
  std::optional<double> a_from_b, b_from_a;

  bool equal() const;  // true if everything that was compared is equal
  const Part* first_difference() const;
};

// Compares two states. Keys and values of different types are compared as numbers. Throws a format
// Error for a damaged block.
STET_API Comparison compare(const State& a, const State& b);
// Compares two snapshots, including their models. A recipe contains only digests: whole blocks of
// keys and values, and logits, are then compared by digest. Blocks of files are used as they are,
// even damaged ones.
STET_API Comparison compare(const Snapshot& a, const Snapshot& b);

}  // namespace stet

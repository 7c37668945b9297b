// Proof by recomputation: a state is a function of its tokens, so it can be computed again and
// compared.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/session/session.hpp"
#include "stet/snapshot/compare.hpp"

namespace stet {

// Replay under OpenBLAS does not give the same bits; verify compares within this.
constexpr double kBlasTolerance = 1e-3;

// Which blocks, the last one perhaps partial, the tokens of a snapshot give: all, unless keys or
// values were edited (identity.hpp).
STET_API std::vector<bool> replayable_blocks(const Snapshot& snapshot);

// What verify() has proved, of how much, and what it has not, and why. Converts to true where a
// difference was found, and leads to it like a pointer, as an optional Difference does.
struct STET_API VerifyReport {
  std::optional<Difference> difference;  // the first; what comes behind it was not compared
  int64_t tokens = 0;                    // that were processed again
  // Blocks of keys and values that were compared with what the tokens give, and are equal; of all.
  int64_t blocks = 0, of = 0;
  // Of `blocks`, those that were compared by digests, wholly or in layers that are not at hand: of
  // a recipe, outside of windows, or because the caller asked for digests.
  int64_t by_digests = 0;
  bool logits = false;   // those of the last token are what the tokens give
  double tolerance = 0;  // within which numbers were compared; 0: bit for bit
  // From where on tokens do not give the state, and why. Of the rest, bytes that are at hand were
  // compared with the digests that were saved: they are what was saved, and no more is known of
  // them. Nothing: the tokens give all of it.
  std::optional<ReplayLimit> limit;

  // Whether all of the state was proved.
  bool whole() const { return !difference && blocks == of && logits; }
  // "byte for byte", "by digests of every layer of every block", ...
  std::string how() const;
  // "4 of 6 blocks are what the tokens give, byte for byte; not proved, from position 70 on: ..."
  std::string text() const;

  bool has_value() const { return difference.has_value(); }
  explicit operator bool() const { return has_value(); }
  const Difference* operator->() const { return &*difference; }
  const Difference& operator*() const { return *difference; }
  const Difference& value() const { return difference.value(); }
  operator std::optional<Difference>() const { return difference; }
};

// Replays a snapshot, as far as its tokens give the state, and compares every byte of keys and
// values that is at hand with what the tokens give. With `bisect`, digests of one layer of one
// block each are compared: the file's keys and values need not be there (recipe, or a delta without
// its parent), and the difference is named by block and layer. Bytes that are at hand are compared
// with their digests all the same.
STET_API VerifyReport verify(const Snapshot& snapshot, std::shared_ptr<const Model> model,
                             const SessionOptions& options, bool bisect,
                             const Progress& progress = nullptr);
// The same of a running session. `append`: by what its tokens are processed again; null: by a
// session alone.
STET_API VerifyReport verify(Session& session, const Progress& progress = nullptr,
                             const Appender& append = nullptr);

}  // namespace stet

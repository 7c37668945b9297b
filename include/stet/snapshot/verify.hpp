// Verification by recomputation: a state is a function of its tokens, so it can be recomputed and
// compared.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/session/session.hpp"
#include "stet/snapshot/compare.hpp"

namespace stet {

// Tolerance of verify() under OpenBLAS, where a replay does not reproduce the same bits.
constexpr double kBlasTolerance = 1e-3;

// Returns, for each block, whether the snapshot's tokens determine it: all of them, unless keys or
// values were edited (identity.hpp). The last block may be partial.
STET_API std::vector<bool> replayable_blocks(const Snapshot& snapshot);

// The result of verify(): the parts proved, and the reason for the rest. Converts to true if a
// difference was found, and dereferences to it like an optional Difference.
struct STET_API VerifyReport {
  std::optional<Difference> difference;  // the first; nothing after it was compared
  int64_t tokens = 0;                    // tokens processed again
  // Number of blocks whose keys and values equal the replayed ones, and number of all blocks.
  int64_t blocks = 0, of = 0;
  // Number of `blocks` compared by digest, entirely or in some layers: for a recipe, for layers
  // outside windows, or on request.
  int64_t by_digests = 0;
  bool logits = false;     // the last token's logits equal the replayed ones
  bool arrays = true;      // the recurrent arrays, too; true if there are none
  bool recurrent = false;  // the state has recurrent arrays
  int64_t anchors = 0;     // anchors that equal the replayed ones; others were not compared
  double tolerance = 0;    // tolerance of the comparison; 0: bit for bit
  // First position from which tokens do not determine the state, and the reason; empty if they
  // determine all of it. Beyond it, available bytes were only compared with the saved digests.
  std::optional<ReplayLimit> limit;

  // Returns true if the entire state was proved.
  bool whole() const { return !difference && blocks == of && logits && arrays; }
  // Returns the method: "byte for byte", "by digests of every layer of every block", ...
  std::string how() const;
  // Returns, for example, "4 of 6 blocks were recomputed from the tokens and are equal, byte for
  // byte; not proved, from position 70 on: ...".
  std::string text() const;

  bool has_value() const { return difference.has_value(); }
  explicit operator bool() const { return has_value(); }
  const Difference* operator->() const { return &*difference; }
  const Difference& operator*() const { return *difference; }
  const Difference& value() const { return difference.value(); }
  operator std::optional<Difference>() const { return difference; }
};

// Replays a snapshot as far as its tokens determine the state, and compares all available keys and
// values with the result.
//
// With `bisect`, compares the digest of each layer of each block, and names the difference by block
// and layer. Keys and values need not be available (a recipe, or a delta without its parent).
// Available bytes are still compared with their digests.
STET_API VerifyReport verify(const Snapshot& snapshot, std::shared_ptr<const Model> model,
                             const SessionOptions& options, bool bisect,
                             const Progress& progress = nullptr);
// Verifies a session by replaying its tokens in a new one. `append` appends them; null:
// Session::append does.
STET_API VerifyReport verify(Session& session, const Progress& progress = nullptr,
                             const Appender& append = nullptr);

}  // namespace stet

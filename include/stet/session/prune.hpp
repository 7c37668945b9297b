// Pruning: removes positions from a state.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/kernels/float_environment.hpp"
#include "stet/kernels/rope.hpp"
#include "stet/kv/kv_writer.hpp"
#include "stet/kv/overflow.hpp"
#include "stet/session/intervention.hpp"
#include "stet/session/state.hpp"

namespace stet {

// prune() keeps the first `sinks` positions and the last `keep_last`.
struct PruneOptions {
  int64_t keep_last = 0, sinks = 0;
  // false: later positions stay, and the gap is masked. true: they move to lower numbers, which
  // closes the gap.
  bool shift = false;
  // Only Session::prune: processes the later tokens again, as if the removed ones had never been
  // there. The result is another state, without an entry in the log of prunes.
  bool recompute = false;
};

// Removes positions from a state; needs no weights. Returns the number of positions removed from
// view (0 if there was nothing to do). Logits remain those computed for the last token. If no token
// is left, there are none.
//
// Without shift, the result is exact: it equals a computation that masks the pruned positions from
// then on. With shift, stored keys are rotated by -d positions, where d = end - begin. This is done
// for each pair (a, b) of a head's dimensions:
//   t = float32(d x frequency),  c = float32(cos t),  s = float32(sin t)
//   a' = fma(a, c, b s),         b' = fma(b, c, -(a s))
// The input comes from read_row(), and the computation is in float32. write_row() rounds once to
// the cache's type, so a q8 key gets a new scale. Values move unchanged.
//
// Compared with keys computed at the new position, the error has two sources. Two angles are
// rounded to float32, each by at most 2^-24 of the position's angle, in radians. The rotation adds
// a few units in the last place. For float32 caches, each 1,000 positions of `d` cost less than
// 1e-6 of a key's length. Values, and keys of deeper layers, are not recomputed and still depend on
// the removed tokens.
//
// Throws an argument Error for negative numbers, and for a shift if the model has no rotary
// positions. Throws a capacity Error if the log would exceed what a snapshot can hold (limits.hpp).
int64_t prune(State& state, const ModelConfig& config, const PruneOptions& options);
// Prunes positions begin .. end-1, as a replayed log does. Does not check the limit of tokens
// shifted out; saving does.
void prune_range(State& state, const ModelConfig& config, int64_t begin, int64_t end, bool shift);
// Throws a capacity Error if a snapshot cannot hold that many prunes and tokens shifted out.
void check_prune_log(size_t prunes, int64_t removed);

namespace detail {

// The rotation of every pair of dimensions by -distance positions. A negative distance rotates
// forward.
struct Rotation {
  std::vector<float> cos, sin;

  Rotation(const Rope& rope, int64_t dim, int64_t distance) {
    const std::vector<float> frequencies = inverse_frequencies(rope, dim);
    cos.resize(frequencies.size());
    sin.resize(frequencies.size());
    rope_angles_back(distance, frequencies, cos.data(), sin.data());
  }
};

// Appends positions begin .. end-1 of `old` to `kv`, and rotates their keys to the new positions.
void add_positions(const KvCache& old, int64_t begin, int64_t end, KvCache& kv,
                   const ModelConfig& config);

// Subtracts the gap's length from the positions of turns after it. Shortens turns that overlap it,
// and removes those inside it.
void shift_turns(GenerationState& g, int64_t begin, int64_t end);

void check_prune_options(const PruneOptions& options);

}  // namespace detail
}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/session/prune-inl.hpp"
#endif

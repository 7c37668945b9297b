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

// Copies one position of one head of a layer. If `r` is not null, rotates the key, using `key` as
// scratch. Values are copied with their scales.
inline void move_position(const KvShape& shape, int64_t layer, const Rotation* r,
                          const std::byte* from, size_t slot, std::byte* to, size_t to_slot,
                          std::vector<float>& key) {
  const KvLayer l = shape.layer(layer);
  const size_t row = static_cast<size_t>(l.value_dim) * shape.element_size(),
               scale = shape.type == KvType::q8 ? sizeof(float) : 0,
               keys = shape.part_bytes(l.key_dim);
  const auto copy_column = [&](size_t at, size_t bytes) {  // copies one element of an array [64]
    std::memcpy(to + at + to_slot * bytes, from + at + slot * bytes, bytes);
  };
  if (r != nullptr) {
    key.resize(static_cast<size_t>(l.key_dim));
    read_row(shape, true, from, static_cast<int64_t>(slot), key);
    best_kernels().rope(key.data(), r->cos.data(), r->sin.data(), r->cos.size());
    write_row(shape, true, key, to, static_cast<int64_t>(to_slot));
  } else {
    for (size_t d = 0; d < static_cast<size_t>(l.key_dim); ++d)
      copy_column(d * kBlockPositions * shape.element_size(), shape.element_size());
    copy_column(shape.elements_bytes(l.key_dim), scale);
  }
  copy_column(keys, row);
  copy_column(keys + shape.elements_bytes(l.value_dim), scale);
}

// Appends positions begin .. end-1 of `old` to `kv`, and rotates their keys to the new positions.
inline void add_positions(const KvCache& old, int64_t begin, int64_t end, KvCache& kv,
                          const ModelConfig& config) {
  const KvShape& shape = old.shape();
  const int64_t first = kv.size(), moved = end - begin;
  std::vector<Rotation> rotations;
  for (const Rope& rope : config.ropes)
    rotations.emplace_back(rope, config.rotated(rope), begin - first);
  std::vector<float> key;
  KvWriter writer(kv);
  writer.prepare(moved);
  for (int64_t i = 0; i < moved; ++i) {
    const int64_t from = begin + i, to = first + i, from_block = from / kBlockPositions,
                  to_block = to / kBlockPositions;
    const size_t slot = static_cast<size_t>(from % kBlockPositions),
                 to_slot = static_cast<size_t>(to % kBlockPositions);
    const bool seen = (old.visible(from_block) >> slot & 1) != 0;
    const uint64_t bit = uint64_t{1} << to_slot, bits = kv.visible(to_block);
    writer.set_visible(to_block, seen ? bits | bit : bits & ~bit);
    for (int64_t layer = 0; seen && layer < shape.layers; ++layer) {
      const int rope = config.layer(layer).rope;
      const Rotation* const r =
          rope < 0 || begin == first ? nullptr : &rotations[static_cast<size_t>(rope)];
      const int64_t heads = shape.owns(layer) ? shape.layer(layer).kv_heads : 0;
      for (int64_t head = 0; head < heads; ++head) {
        const size_t offset = shape.k_offset(layer, head);
        move_position(shape, layer, r, old.unchecked_block(from_block) + offset, slot,
                      writer.writable(to_block) + offset, to_slot, key);
      }
    }
  }
  check_overflow(kv, first, moved);  // a rotation can enlarge one number of a pair
  writer.commit(moved);
}

// Subtracts the gap's length from the positions of turns after it. Shortens turns that overlap it,
// and removes those inside it.
inline void shift_turns(GenerationState& g, int64_t begin, int64_t end) {
  const auto moved = [&](int64_t at) {
    return at < begin ? at : std::max(begin, at - (end - begin));
  };
  std::vector<Turn> kept;
  for (const Turn& t : g.turns) {
    if (t.prompt >= begin && t.end <= end && t.end > t.prompt && !t.open) continue;
    kept.push_back({moved(t.prompt), moved(t.reply), moved(t.end), t.open});
  }
  g.turns = std::move(kept);
}

}  // namespace detail

inline void check_prune_log(size_t prunes, int64_t removed) {
  const auto check = [](const char* field, size_t most, size_t found) {
    if (found > most)
      throw Error(ErrorKind::capacity, "", field,
                  "at most " + std::to_string(most) + " in a state's log", std::to_string(found));
  };
  check("prunes", kMaxPrunes, prunes);
  check("tokens shifted out", kMaxRemoved, static_cast<size_t>(removed));
}

inline void prune_range(State& state, const ModelConfig& config, int64_t begin, int64_t end,
                        bool shift) {
  const int64_t size = state.size();
  if (begin < 0 || end < begin || end > size) {
    throw Error(ErrorKind::argument, "", "prune", some_positions(size), range_text(begin, end));
  }
  if (begin == end) return;
  if (!state.recurrent.empty())
    throw Error(ErrorKind::unsupported, "", "prune",
                "--recompute, which processes the tokens that stay anew: recurrent layers cannot "
                "forget tokens",
                "a state with recurrent layers");
  if (shift) check_shift_allowed(state);
  if (shift && config.ropes.empty()) {
    throw Error(ErrorKind::unsupported, "", "positions",
                "keep (keys of this model carry no rotary position)", "shift");
  }
  check_prune_log(state.prunes.size() + 1, 0);
  const FloatEnvironment contract;
  Prune entry{size, begin, end, shift, {}};
  KvCache kv = state.kv;
  std::vector<int32_t> tokens;
  GenerationState generation;
  if (shift) {
    tokens = state.tokens;
    generation = state.generation;
    entry.removed.assign(tokens.begin() + begin, tokens.begin() + end);
    tokens.erase(tokens.begin() + begin, tokens.begin() + end);
    KvCache before(state.kv);
    for (int64_t b = end / kBlockPositions; b < before.blocks(); ++b) KvWriter(before).load(b);
    KvWriter(kv).truncate(begin);
    detail::add_positions(before, end, size, kv, config);
    detail::shift_turns(generation, begin, end);
  } else {
    KvWriter(kv).hide(begin, end);
  }
  state.prunes.push_back(std::move(entry));  // the last step that can fail
  state.kv = std::move(kv);
  state.kept.clear();  // all below the floor
  if (!shift) return;
  state.tokens = std::move(tokens);
  state.generation = std::move(generation);
  if (state.tokens.empty()) state.logits.reset();  // there is no last token
}

namespace detail {

inline void check_prune_options(const PruneOptions& options) {
  for (const auto& [name, value] :
       {std::pair{"keep-last", options.keep_last}, std::pair{"sinks", options.sinks}}) {
    if (value < 0) throw Error(ErrorKind::argument, "", name, "0 or more", std::to_string(value));
  }
}

}  // namespace detail

inline int64_t prune(State& state, const ModelConfig& config, const PruneOptions& options) {
  detail::check_prune_options(options);
  const int64_t size = state.size(), begin = std::min(options.sinks, size);
  const int64_t end = std::max(begin, size - std::min(options.keep_last, size));
  if (options.shift) check_prune_log(0, shifted_out(state.prunes) + end - begin);
  prune_range(state, config, begin, end, options.shift);
  return end - begin;
}

}  // namespace stet

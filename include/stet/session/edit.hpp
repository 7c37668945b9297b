// Edits of keys and values from outside the model.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/float_environment.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/kv/kv_writer.hpp"
#include "stet/kv/overflow.hpp"
#include "stet/model/contract.hpp"
#include "stet/session/state.hpp"

namespace stet {

// Removes edits of positions from `size` on, as a rewind does.
void discard_edits(State& state, int64_t size);

// Replaces the key or the value of one position by `x`, as many numbers as a head of the layer has.
// Keys are given as stored, after norm and rotation. `x` is rounded once to the cache's type
// (write_row()). Shared blocks are copied before the write. Logits remain those computed for the
// last token.
//
// Throws an argument Error for a position, layer or head that does not exist, and for a pruned
// position. A layer that reads the keys and values of another is refused. A wrong number of
// elements, and numbers that are not finite, are errors too.
void set_key(State& state, int64_t layer, int64_t head, int64_t position, std::span<const float> x);
void set_value(State& state, int64_t layer, int64_t head, int64_t position,
               std::span<const float> x);
// Replaces an array of a recurrent layer after the last token. Logits remain those computed for
// that token. Throws an argument Error for an array that does not exist and for a state without
// tokens. A wrong number of elements, and numbers that are not finite, are errors too.
void set_array(State& state, int64_t layer, int64_t index, std::span<const float> x);
// Returns a key or value as float32; widening is exact. Throws an argument Error if it does not
// exist, and a format Error if its block is damaged.
std::vector<float> read_key(const State& state, int64_t layer, int64_t head, int64_t position);
std::vector<float> read_value(const State& state, int64_t layer, int64_t head, int64_t position);
// Returns the state with keys and values converted to another type. Each is rounded once, to
// nearest even; widening is exact (q8: as in read_row()). `capacity` 0 keeps the capacity.
//
// The conversion counts as an edit. A session of that type would compute other bits from the
// tokens, because its later layers would see rounded keys and values. Layers that a window-only
// session has dropped are recomputed (WindowOptions::before_recall). Throws an argument Error for
// dropped layers of a state without a session (Snapshot::state).
State with_kv_type(const State& state, KvType type, int64_t capacity = 0);
// Returns true if the logits after the last token can be recomputed from the tokens: all edits were
// made later.
bool tokens_give_logits(const State& state);

const char* kv_edit_name(KvEdit::What what);

namespace detail {

inline void check_index(const char* field, int64_t i, int64_t count) {
  if (i >= 0 && i < count) return;
  throw Error(ErrorKind::argument, "", field, "0.." + std::to_string(count - 1), std::to_string(i));
}

// Returns the number of elements of a key or value.
inline size_t row_dim(const KvShape& shape, bool key, int64_t layer) {
  const KvLayer l = shape.layer(layer);
  return static_cast<size_t>(key ? l.key_dim : l.value_dim);
}

// Throws an argument Error for numbers that the cache's type would turn into infinities.
void check_fits(const KvShape& shape, KvEdit::What what, std::span<const float> x);

inline KvEdit entry(const State& state, KvEdit::What what) {
  return {what, state.size(), static_cast<int64_t>(state.prunes.size()), -1, -1, -1};
}

// Saves the current logits, which an edit does not change, for a later rewind to this size. Returns
// true unless they were already saved.
inline bool keep_logits(State& state) {
  return state.size() > 0 && state.logits != nullptr && !state.logits->empty() &&
         state.kept.keep({state.size() - 1, false, state.logits});
}

std::vector<float> read_kv(const State& state, bool key, int64_t layer, int64_t head,
                           int64_t position);

// Returns the keys and values with all layers of positions begin .. end-1. Recomputes dropped ones
// (State::whole_kv), or throws an argument Error.
KvCache whole_kv(const State& state, int64_t begin, int64_t end);

// Returns true if the logits can be computed from the cache, because it still holds the keys and
// values that the last token saw. An edit after the token changes these, and a callback that took
// part may have been removed. Splices do no harm: spliced positions have only the logits that the
// cache gives.
bool cache_gives_logits(const State& state);

}  // namespace detail

inline std::vector<float> read_key(const State& state, int64_t layer, int64_t head,
                                   int64_t position) {
  return detail::read_kv(state, true, layer, head, position);
}

inline std::vector<float> read_value(const State& state, int64_t layer, int64_t head,
                                     int64_t position) {
  return detail::read_kv(state, false, layer, head, position);
}

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/session/edit-inl.hpp"
#endif

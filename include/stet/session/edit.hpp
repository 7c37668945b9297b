// Edits of keys and values from outside the model.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

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

inline const char* kv_edit_name(KvEdit::What what) {
  static constexpr const char* kNames[] = {"key",      "value",  "kv type",
                                           "callback", "splice", "arrays"};
  return kNames[static_cast<int>(what)];
}

inline void discard_edits(State& state, int64_t size) {
  std::erase_if(state.edits, [&](const KvEdit& e) {
    return (e.position >= size || size == 0) &&
           e.prunes == static_cast<int64_t>(state.prunes.size());
  });
  for (KvEdit& e : state.edits) {
    if (e.prunes != static_cast<int64_t>(state.prunes.size())) continue;
    e.at = std::min(e.at, size), e.end = std::min(e.end, size);
  }
}

namespace detail {

inline void check_index(const char* field, int64_t i, int64_t count) {
  if (i >= 0 && i < count) return;
  throw Error(ErrorKind::argument, "", field, "0.." + std::to_string(count - 1), std::to_string(i));
}

// Throws an argument Error for a layer or head that does not exist, or a layer without its own keys
// and values.
inline void check_head(const KvShape& shape, int64_t layer, int64_t head) {
  check_index("layer", layer, shape.layers);
  check_owns(shape, "layer", layer);
  check_index("head", head, shape.layer(layer).kv_heads);
}

// Returns the number of elements of a key or value.
inline size_t row_dim(const KvShape& shape, bool key, int64_t layer) {
  const KvLayer l = shape.layer(layer);
  return static_cast<size_t>(key ? l.key_dim : l.value_dim);
}

// Throws an argument Error for numbers that the cache's type would turn into infinities.
inline void check_fits(const KvShape& shape, KvEdit::What what, std::span<const float> x) {
  if (shape.type != KvType::f16) return;
  for (const float& one : x) {
    if (!fits_f16({&one, 1}))
      throw Error(ErrorKind::argument, "", kv_edit_name(what),
                  "numbers below 65520 in magnitude for f16", std::to_string(one));
  }
}

inline void check_edit(const State& state, const KvEdit& e, std::span<const float> x) {
  const KvShape& shape = state.kv.shape();
  check_head(shape, e.layer, e.head);
  check_index("position", e.position, state.size());
  if ((state.kv.visible(e.position / kBlockPositions) >> (e.position % kBlockPositions) & 1) == 0) {
    throw Error(ErrorKind::argument, "", "position", "one that is visible",
                std::to_string(e.position) + ", which was pruned");
  }
  const size_t dim = row_dim(shape, e.what == KvEdit::What::key, e.layer);
  if (x.size() != dim) {
    throw Error(ErrorKind::argument, "", kv_edit_name(e.what), std::to_string(dim) + " numbers",
                std::to_string(x.size()));
  }
  if (const std::optional<size_t> bad = find_not_finite(x)) {
    throw Error(ErrorKind::argument, "", kv_edit_name(e.what), "finite numbers",
                std::to_string(x[*bad]));
  }
  check_fits(state.kv.shape(), e.what, x);
}

inline KvEdit entry(const State& state, KvEdit::What what) {
  return {what, state.size(), static_cast<int64_t>(state.prunes.size()), -1, -1, -1};
}

// Saves the current logits, which an edit does not change, for a later rewind to this size. Returns
// true unless they were already saved.
inline bool keep_logits(State& state) {
  return state.size() > 0 && state.logits != nullptr && !state.logits->empty() &&
         state.kept.keep({state.size() - 1, false, state.logits});
}

inline void edit(State& state, const KvEdit& e, std::span<const float> x) {
  check_edit(state, e, x);
  const FloatEnvironment contract;
  const KvShape& shape = state.kv.shape();
  const int64_t block = e.position / kBlockPositions, slot = e.position % kBlockPositions;
  state.edits.reserve(state.edits.size() + 1);
  KvWriter writer(state.kv);
  writer.own(block);
  keep_logits(state);
  const bool key = e.what == KvEdit::What::key;
  write_row(shape, key, x, writer.writable(block) + shape.offset(key, e.layer, e.head), slot);
  state.edits.push_back(e);
}

}  // namespace detail

inline void set_key(State& state, int64_t layer, int64_t head, int64_t position,
                    std::span<const float> x) {
  KvEdit e = detail::entry(state, KvEdit::What::key);
  e.layer = layer, e.head = head, e.position = position;
  detail::edit(state, e, x);
}

inline void set_value(State& state, int64_t layer, int64_t head, int64_t position,
                      std::span<const float> x) {
  KvEdit e = detail::entry(state, KvEdit::What::value);
  e.layer = layer, e.head = head, e.position = position;
  detail::edit(state, e, x);
}

// Keeps the arrays as an anchor, because they cannot be recomputed from tokens.
inline void set_array(State& state, int64_t layer, int64_t index, std::span<const float> x) {
  const RecurrentShape& shape = state.recurrent.shape();
  detail::check_index("layer", layer, std::ssize(shape.layers));
  detail::check_index("array", index, std::ssize(shape.layers[static_cast<size_t>(layer)]));
  if (state.size() == 0) throw Error(ErrorKind::argument, "", "tokens", "at least one", "none");
  const RecurrentArray& array =
      shape.layers[static_cast<size_t>(layer)][static_cast<size_t>(index)];
  if (x.size() != array.count())
    throw Error(ErrorKind::argument, "", array.name, std::to_string(array.count()) + " numbers",
                std::to_string(x.size()));
  if (const std::optional<size_t> bad = find_not_finite(x))
    throw Error(ErrorKind::argument, "", array.name, "finite numbers", std::to_string(x[*bad]));
  KvEdit e = detail::entry(state, KvEdit::What::arrays);
  e.layer = layer, e.head = index, e.position = state.size() - 1;
  state.edits.reserve(state.edits.size() + 1);
  auto changed = std::make_shared<RecurrentBuffer>(shape.bytes());
  std::ranges::copy(state.recurrent.numbers(), changed->memory.as<float>());
  std::ranges::copy(x, changed->memory.as<float>() + array.offset);
  detail::keep_logits(state);
  state.anchors.add({state.size(), changed, state.logits, false, false, true});
  state.recurrent.set(changed);
  state.edits.push_back(std::move(e));
}

namespace detail {

inline std::vector<float> read_kv(const State& state, bool key, int64_t layer, int64_t head,
                                  int64_t position) {
  const KvShape& shape = state.kv.shape();
  check_head(shape, layer, head);
  check_index("position", position, state.size());
  std::vector<float> x(row_dim(shape, key, layer));
  read_row(shape, key, state.kv.block(position / kBlockPositions) + shape.offset(key, layer, head),
           position % kBlockPositions, x);
  return x;
}

}  // namespace detail

inline std::vector<float> read_key(const State& state, int64_t layer, int64_t head,
                                   int64_t position) {
  return detail::read_kv(state, true, layer, head, position);
}

inline std::vector<float> read_value(const State& state, int64_t layer, int64_t head,
                                     int64_t position) {
  return detail::read_kv(state, false, layer, head, position);
}

namespace detail {

// Converts the keys and values of a block to another type.
inline void convert_block(const KvShape& from, const std::byte* in, const KvShape& to,
                          std::byte* out) {
  for (int64_t layer = 0; layer < from.layers; ++layer) {
    if (!from.owns(layer)) continue;
    for (int64_t head = 0; head < from.layer(layer).kv_heads; ++head) {
      for (const bool key : {true, false}) {
        std::vector<float> x(row_dim(from, key, layer));
        for (int64_t slot = 0; slot < kBlockPositions; ++slot) {
          read_row(from, key, in + from.offset(key, layer, head), slot, x);
          write_row(to, key, x, out + to.offset(key, layer, head), slot);
        }
      }
    }
  }
}

// Returns the keys and values of all layers, recomputing dropped ones.
inline KvCache whole_kv(const State& state) {
  for (int64_t b = 0; b < state.kv.blocks(); ++b) {
    if (state.kv.block_info(b).holds_all()) continue;
    if (state.whole_kv != nullptr) return (*state.whole_kv)(state);
    throw Error(ErrorKind::argument, "", "KV block " + std::to_string(b),
                "keys and values of all layers (restore a session, whose state() can compute them "
                "again)",
                "a block whose layers outside its window were dropped (--window-only)");
  }
  return KvCache(state.kv);
}

}  // namespace detail

inline State with_kv_type(const State& state, KvType type, int64_t capacity) {
  const FloatEnvironment contract;
  const KvShape from = state.kv.shape();
  KvShape to = from;
  to.type = type;
  KvCache source = detail::whole_kv(state);
  State changed = state;
  if (from.type != type && state.size() > 0) {
    detail::keep_logits(changed);
    changed.edits.push_back(detail::entry(state, KvEdit::What::kv_type));
    changed.anchors.keep_by_content();  // keys and values of the other type gave them
  }
  changed.kv = KvCache(to, capacity == 0 ? state.kv.capacity() : capacity);
  KvWriter writer(changed.kv);
  writer.prepare(state.kv.size());
  for (int64_t b = 0; b < state.kv.blocks(); ++b) {
    KvWriter(source).load(b);
    detail::convert_block(from, source.block(b), to, writer.writable(b));
    writer.set_visible(b, state.kv.visible(b));
  }
  check_overflow(changed.kv, 0, state.kv.size());
  writer.commit(state.kv.size());
  return changed;
}

namespace detail {

// Returns true if an edit was made after the last token had been processed.
inline bool is_later(const KvEdit& e, const State& state) {
  return std::pair(e.prunes, e.at) >
         std::pair(static_cast<int64_t>(state.prunes.size()), state.size() - 1);
}

// Returns true if the logits can be computed from the cache, because it still holds the keys and
// values that the last token saw. An edit after the token changes these, and a callback that took
// part may have been removed. Splices do no harm: spliced positions have only the logits that the
// cache gives.
inline bool cache_gives_logits(const State& state) {
  return std::ranges::all_of(state.edits, [&](const KvEdit& e) {
    return e.what == KvEdit::What::splice ||
           (e.what != KvEdit::What::callback && !is_later(e, state));
  });
}

}  // namespace detail

inline bool tokens_give_logits(const State& state) {
  if (state.edits.empty()) return true;
  return is_replayable(state.origin.contract) &&
         std::ranges::all_of(state.edits, [&](const KvEdit& e) {
           return detail::is_later(e, state) && e.what != KvEdit::What::kv_type &&
                  (e.what != KvEdit::What::splice || e.position >= state.size());
         });
}

}  // namespace stet

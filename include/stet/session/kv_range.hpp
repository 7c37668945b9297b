// Edits of ranges of keys and values: set, zero, scale, or copy from another state of the model. As
// with edit.hpp, each edit is logged in the state, and shared blocks are copied before the write.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "stet/kernels/steer.hpp"
#include "stet/session/edit.hpp"
#include "stet/session/identity.hpp"
#include "stet/session/prune.hpp"

namespace stet {

// A range of keys and values. Pruned positions in it are skipped.
struct KvRange {
  // The layers and KV heads. Empty: all layers with their own keys and values; all their heads.
  std::vector<int64_t> layers, heads;
  int64_t begin = 0, end = -1;  // positions begin .. end-1; end -1: to the last
  bool keys = true, values = true;
};

// Each function leaves the logits as computed for the last token. All throw an argument Error and
// change nothing if layers, heads or positions are out of range or repeated. Layers that read the
// keys and values of another are refused, too. So are a range without keys, values or positions, and
// results that are not finite.
void zero_kv(State& state, const KvRange& range);
void scale_kv(State& state, const KvRange& range, float factor);
// Sets each key or value to x. x is [head_dim], used for all of them, or
// [positions][heads][head_dim], used for each layer. The layers' heads must have one shape.
void set_kv(State& state, const KvRange& range, std::span<const float> x);
// Copies the keys and values at positions from_position .. of `from` into the range. Types of keys
// and values may differ. If positions move, keys are rotated to their new positions (prune.hpp).
//
// Throws a mismatch Error for a state of another model or contract. Throws an unsupported Error if
// keys move in a model without rotary positions.
void copy_kv(State& state, const ModelConfig& config, const KvRange& range, const State& from,
             int64_t from_position);

namespace detail {

// Throws an unsupported Error for a state with recurrent layers.
void refuse_recurrent(const char* call, const State& state);

std::vector<int64_t> check_some(const char* field, const std::vector<int64_t>& some, int64_t count);

KvRange checked_range(const State& state, KvRange r);

// Returns the heads of a range in one layer.
inline std::vector<int64_t> heads_of(const KvShape& shape, const KvRange& r, int64_t layer) {
  return check_some("heads", r.heads, shape.layer(layer).kv_heads);
}

// Calls change(entry, x) for each vector of the range, where x holds its current value. Logs as few
// entries as describe the range.
template <class Change>
void change_range(State& state, const KvRange& given, const KvEdit& log, Change change) {
  const FloatEnvironment contract;
  const KvRange r = checked_range(state, given);
  State changed = state;
  keep_logits(changed);
  const KvShape& shape = changed.kv.shape();
  KvWriter writer(changed.kv);
  for (int64_t b = r.begin / kBlockPositions; b < blocks_of(r.end); ++b) writer.own(b);
  for (const KvEdit::What what : {KvEdit::What::key, KvEdit::What::value}) {
    if (!(what == KvEdit::What::key ? r.keys : r.values)) continue;
    KvEdit e = log;
    e.what = what;
    for (e.position = r.begin; e.position < r.end; ++e.position) {
      const int64_t b = e.position / kBlockPositions;
      if ((changed.kv.visible(b) >> (e.position % kBlockPositions) & 1) == 0) continue;
      for (const int64_t l : r.layers) {
        for (const int64_t h : heads_of(shape, r, l)) {
          e.layer = l, e.head = h;
          std::vector<float> x = read_kv(changed, what == KvEdit::What::key, l, h, e.position);
          change(e, x);
          if (const std::optional<size_t> bad = find_not_finite(x))
            throw Error(ErrorKind::argument, "", kv_edit_name(what), "finite numbers",
                        std::to_string(x[*bad]));
          check_fits(shape, what, x);
          const bool key = what == KvEdit::What::key;
          write_row(shape, key, x, writer.writable(b) + shape.offset(key, l, h),
                    e.position % kBlockPositions);
        }
      }
    }
    e.position = r.begin, e.end = r.end;
    const std::vector<int64_t> all = {-1};
    for (const int64_t l : given.layers.empty() ? all : r.layers) {
      for (const int64_t h : given.heads.empty() ? all : given.heads) {
        e.layer = l, e.head = h;
        changed.edits.push_back(e);
      }
    }
  }
  state = std::move(changed);
}

void check_same_model(const State& a, const State& b);

void check_can_move(const ModelConfig& config, int64_t distance);

}  // namespace detail
}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/session/kv_range-inl.hpp"
#endif

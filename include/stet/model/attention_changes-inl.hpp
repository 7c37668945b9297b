// Implements attention_changes.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "stet/kernels/steer.hpp"
#include "stet/model/attention_changes.hpp"
#include "stet/model/hooks.hpp"

namespace stet {

namespace detail {

// Widens one head's keys of a block to float32, [key_dim][64]. Scales of q8 are not applied.
inline void widened_keys(const Queries& s, int64_t block, std::vector<float>& keys) {
  const KvShape& shape = s.span.kv->shape();
  const std::byte* const k = s.span.kv->unchecked_block(block) +
                             shape.k_offset(s.a.layer, static_cast<int64_t>(s.kv_head));
  s.p.kernels->widen[static_cast<int>(shape.type)](k, keys.data(), s.a.key_dim * kPanel);
}

// Returns the 64 scales of one head's keys in a block, or null if the type has none.
inline const float* key_scales(const Queries& s, int64_t block) {
  const KvShape& shape = s.span.kv->shape();
  if (shape.type != KvType::q8) return nullptr;
  return reinterpret_cast<const float*>(s.span.kv->unchecked_block(block) +
                                        shape.k_offset(s.a.layer, static_cast<int64_t>(s.kv_head)) +
                                        shape.elements_bytes(static_cast<int64_t>(s.a.key_dim)));
}

// Computes one query's scores, [positions]. Positions that it does not see get -inf.
inline void scores_of(const Queries& s, size_t query, size_t positions, std::vector<float>& keys,
                      float* packed, float* to) {
  const Kernels& k = *s.p.kernels;
  std::fill(to, to + positions, -std::numeric_limits<float>::infinity());
  pack_queries(s, query, 1, packed);
  const auto [from, end] = block_range(s, query, 1);
  for (int64_t b = from; b < end; ++b) {
    const uint64_t mask = s.mask(query, b);
    if (mask == 0) continue;
    widened_keys(s, b, keys);
    alignas(64) float x[kPanel];
    k.tile(packed, keys.data(), s.a.key_dim, {nullptr, kPanel, x, kPanel, 1, kPanel / kLanes, {}});
    if (const float* const scales = key_scales(s, b)) stet::multiply(x, {scales, kPanel});
    k.scale(x, static_cast<float>(s.a.scale), kPanel);
    if (s.a.softcap != 0) {
      const auto cap = static_cast<float>(s.a.softcap);
      k.divide(x, cap, x, kPanel);
      k.tanh(x, x, kPanel);
      k.scale(x, cap, kPanel);
    }
    for (size_t i = 0; i < kPanel; ++i) {
      if (mask >> i & 1) to[static_cast<size_t>(b) * kPanel + i] = x[i];
    }
  }
}

// Returns true if an intervention applies to this query.
inline bool reaches(const Hooks::Change& c, const Queries& s, size_t query) {
  const size_t row = s.span.row + query / s.group();
  const int64_t position = s.position(query);
  if (row < c.row || row >= c.row + c.count || position < c.from ||
      (c.end >= 0 && position >= c.end))
    return false;
  const std::vector<int64_t>& heads = c.what->heads;
  return heads.empty() ||
         std::find(heads.begin(), heads.end(), static_cast<int64_t>(s.head(query))) != heads.end();
}

inline bool is_changed(const Queries& s, size_t query) {
  bool found = false;
  for (const Point point : {Point::scores, Point::pattern})
    s.p.hooks->each_change(point, static_cast<size_t>(s.a.layer),
                           [&](const Hooks::Change& c) { found = found || reaches(c, s, query); });
  return found;
}

// One query under interventions: its changed scores, and a factor and a term for each weight.
class ChangedQuery {
 public:
  ChangedQuery(const Queries& s, size_t query, size_t positions)
      : s_(s),
        query_(query),
        positions_(positions),
        scores_((positions + kPanel - 1) / kPanel * kPanel),
        factor_(positions, 1.0f),
        term_(positions) {
    std::vector<float> keys(s.a.key_dim * kPanel), packed(s.a.key_dim * kTileRows);
    scores_of(s, query, positions, keys, packed.data(), scores_.data());
    each(Point::scores, [&](const Intervention& w, size_t at, const float* value) {
      change(w, scores_.data() + at, value);
    });
    each(Point::pattern, [&](const Intervention& w, size_t at, const float* value) {
      change_weight(w, at, value);
    });
  }

  const float* scores() const { return scores_.data(); }
  // Writes the changed weights, [positions].
  void pattern(float* to) const {
    const size_t width = scores_.size();
    std::vector<float> all(width), part(width), ones(kPanel * kPanel);
    for (size_t i = 0; i < kPanel; ++i) ones[i * kPanel + i] = 1;
    float m = 0, l = 0;
    const SoftmaxSums sums = {&m, &l, all.data()};
    reset_sums(s_, query_, 1, sums, width);
    alignas(64) float o[kPanel];
    attend_blocks(
        kPanel, o,
        [&](int64_t) {
          return BlockView{nullptr, ones.data(), KvType::f32, nullptr, nullptr};
        },
        [&](int64_t b, const SoftmaxSums& block) {
          std::fill(part.begin(), part.end(), 0.0f);
          std::copy_n(block.o, kPanel, part.begin() + b * static_cast<int64_t>(kPanel));
          s_.p.kernels->merge(sums, {block.m, block.l, part.data()}, width, 1);
        });
    if (l != 0) s_.p.kernels->divide(all.data(), l, all.data(), width);
    std::copy_n(all.begin(), positions_, to);
    for (size_t i = 0; i < positions_; ++i) {
      if (factor_[i] != 1) steer_scale(to + i, factor_[i], 1);
      const float one = 1;
      if (term_[i] != 0) steer_add(to + i, &one, term_[i], 1);
    }
  }
  // Writes the output, [value_dim]. Values are multiplied by the factors of their weights. Terms
  // that were set or added come last, in a chain over ascending positions.
  void output(float* to) const {
    const size_t ldv = padded(s_.a.value_dim);
    std::vector<float> o(ldv), block_o(ldv), values(kPanel * ldv), scales(kPanel);
    float m = 0, l = 0;
    const SoftmaxSums sums = {&m, &l, o.data()};
    reset_sums(s_, query_, 1, sums, ldv);
    attend_blocks(
        ldv, block_o.data(), [&](int64_t b) { return values_of(b, values, scales); },
        [&](int64_t, const SoftmaxSums& block) { s_.p.kernels->merge(sums, block, ldv, 1); });
    std::fill_n(to, s_.a.value_dim, 0.0f);  // stays zero if the query sees no position
    if (l != 0) s_.p.kernels->divide(o.data(), l, to, s_.a.value_dim);
    for (size_t i = 0; i < positions_; ++i) {
      if (term_[i] == 0) continue;
      value_row(i, values.data());
      steer_add(to, values.data(), term_[i], s_.a.value_dim);
    }
  }

 private:
  bool seen(size_t at) const {
    return (s_.mask(query_, static_cast<int64_t>(at / kPanel)) >> (at % kPanel) & 1) != 0;
  }
  // Calls f(intervention, position, pointer to its value or null) for every position that the query
  // sees.
  template <class F>
  void each(Point point, F f) const {
    s_.p.hooks->each_change(point, static_cast<size_t>(s_.a.layer), [&](const Hooks::Change& c) {
      if (!reaches(c, s_, query_)) return;
      const Intervention& w = *c.what;
      const auto begin = static_cast<size_t>(w.key_begin);
      const size_t end =
          w.key_end < 0 ? positions_ : std::min(positions_, static_cast<size_t>(w.key_end));
      for (size_t at = begin; at < end; ++at) {
        if (!seen(at)) continue;
        const float* const v = w.values ? w.values->data() : nullptr;
        f(w, at, v == nullptr ? nullptr : v + (w.values->size() > 1 ? at - begin : 0));
      }
    });
  }
  // A score of -inf, hidden by an earlier intervention, stays hidden unless it is set.
  static void change(const Intervention& w, float* x, const float* value) {
    if (w.op == Intervention::Op::set) {
      *x = *value;
    } else if (*x == -std::numeric_limits<float>::infinity()) {
      return;
    } else if (w.op == Intervention::Op::add) {
      steer_add(x, value, w.amount, 1);
    } else {
      steer_scale(x, w.amount, 1);
    }
  }
  void change_weight(const Intervention& w, size_t at, const float* value) {
    if (w.op == Intervention::Op::set) {
      factor_[at] = 0;
      term_[at] = *value;
    } else if (w.op == Intervention::Op::add) {
      steer_add(&term_[at], value, w.amount, 1);
    } else {
      steer_scale(&factor_[at], w.amount, 1);
      steer_scale(&term_[at], w.amount, 1);
    }
  }
  uint64_t mask(int64_t block) const {
    uint64_t bits = s_.mask(query_, block);
    for (size_t i = 0; i < kPanel; ++i) {
      if (scores_[static_cast<size_t>(block) * kPanel + i] ==
          -std::numeric_limits<float>::infinity())
        bits &= ~(uint64_t{1} << i);
    }
    return bits;
  }
  // Attends with one-dimensional keys that hold the scores and a query of 1. Their product is the
  // score exactly.
  template <class Values, class Take>
  void attend_blocks(size_t ldv, float* o, Values values, Take take) const {
    float packed[kTileRows] = {1.0f}, m = 0, l = 0;
    int8_t bytes[kPanel];
    std::fill_n(bytes, kPanel, int8_t{1});
    const auto [from, end] = block_range(s_, query_, 1);
    for (int64_t b = from; b < end; ++b) {
      const uint64_t seen = mask(b);
      if (seen == 0) continue;
      const BlockView view = values(b);
      const float* const scores = scores_.data() + static_cast<size_t>(b) * kPanel;
      const bool scaled = view.type == KvType::q8;
      const AttendBlock block = {scaled ? static_cast<const void*>(bytes) : scores,
                                 view.v,
                                 1,
                                 ldv,
                                 1.0f,
                                 0.0f,
                                 {},
                                 scaled ? scores : nullptr,
                                 view.v_scale};
      const AttendTile tile = {packed, 1, &seen, {&m, &l, o}};
      s_.p.kernels->attend[static_cast<int>(view.type)](block, &tile, 1);
      take(b, tile.out);
    }
  }
  const std::byte* stored_values(int64_t block) const {
    const KvShape& shape = s_.span.kv->shape();
    return s_.span.kv->unchecked_block(block) +
           shape.v_offset(s_.a.layer, static_cast<int64_t>(s_.kv_head));
  }
  // Returns the scales of q8 values.
  const float* scales_of(const KvShape& shape, const std::byte* values) const {
    return reinterpret_cast<const float*>(
        values + shape.elements_bytes(static_cast<int64_t>(s_.a.value_dim)));
  }
  // Returns the values of a block as attention reads them, multiplied by the factors of their
  // weights.
  BlockView values_of(int64_t block, std::vector<float>& values, std::vector<float>& scales) const {
    const KvShape& shape = s_.span.kv->shape();
    const size_t value_dim = s_.a.value_dim, ldv = padded(value_dim),
                 first = static_cast<size_t>(block) * kPanel;
    const std::byte* const v = stored_values(block);
    const auto factor = [&](size_t t) {
      return first + t < positions_ ? factor_[first + t] : 1.0f;
    };
    if (shape.type == KvType::q8) {
      std::copy_n(scales_of(shape, v), kPanel, scales.data());
      for (size_t t = 0; t < kPanel; ++t) {
        if (factor(t) != 1) steer_scale(&scales[t], factor(t), 1);
      }
      return {nullptr, padded_int8(v, value_dim, ldv, values.data()), shape.type, nullptr,
              scales.data()};
    }
    const auto widen = s_.p.kernels->widen[static_cast<int>(shape.type)];
    for (size_t t = 0; t < kPanel; ++t) {
      float* const row = values.data() + t * ldv;
      std::fill_n(row, ldv, 0.0f);
      if (factor(t) == 0) continue;
      widen(v + t * value_dim * shape.element_size(), row, value_dim);
      if (factor(t) != 1) steer_scale(row, factor(t), value_dim);
    }
    return {nullptr, values.data(), KvType::f32, nullptr, nullptr};
  }
  void value_row(size_t at, float* to) const {
    const KvShape& shape = s_.span.kv->shape();
    const std::byte* const v = stored_values(static_cast<int64_t>(at / kPanel));
    const size_t t = at % kPanel;
    s_.p.kernels->widen[static_cast<int>(shape.type)](v + t * s_.a.value_dim * shape.element_size(),
                                                      to, s_.a.value_dim);
    if (shape.type == KvType::q8) steer_scale(to, scales_of(shape, v)[t], s_.a.value_dim);
  }

  const Queries& s_;
  size_t query_, positions_;
  std::vector<float> scores_;         // [positions], padded to a multiple of 64
  std::vector<float> factor_, term_;  // a weight w becomes factor w + term
};

}  // namespace detail

STET_INL void change_attention(Team t, const Pass& p, const AttentionShape& a, Rows q, Rows y) {
  const auto layer = static_cast<size_t>(a.layer);
  if (!p.hooks->changes(Point::scores, layer) && !p.hooks->changes(Point::pattern, layer)) return;
  const size_t group = a.heads / a.kv_heads;
  for (const Span& span : p.spans) {
    t.each_range(span.count * a.heads, 1, [&](Range some) {
      for (size_t i = some.begin; i < some.end; ++i) {
        const size_t r = i / a.heads, head = i % a.heads;
        const detail::Queries s{p, a, span, head / group, q, y};
        const size_t query = r * group + head % group;
        if (!detail::is_changed(s, query)) continue;
        const auto positions = static_cast<size_t>(s.position(query)) + 1;
        detail::ChangedQuery(s, query, positions).output(s.output(query));
      }
    });
  }
}

}  // namespace stet

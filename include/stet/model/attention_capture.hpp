// Scores and patterns of attention for whoever looks: by the kernels that the pass itself used, in
// the same order of blocks, maxima and sums.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "stet/kernels/numbers.hpp"
#include "stet/model/attention.hpp"
#include "stet/model/hooks.hpp"

namespace stet {

// After attention() of a pass with hooks. Allocates, where somebody looks.
void capture_attention(Team t, const Pass& p, const AttentionShape& a, Rows q);

namespace detail {

// Keys of one head of a block as float32, [head_dim][64]; of q8 without their scales.
inline void widened_keys(const Queries& s, int64_t block, std::vector<float>& keys) {
  const KvShape& shape = s.span.kv->shape();
  const std::byte* const k = s.span.kv->unchecked_block(block) +
                             shape.k_offset(s.a.layer, static_cast<int64_t>(s.kv_head));
  s.p.kernels->widen[static_cast<int>(shape.type)](k, keys.data(), s.a.head_dim * kPanel);
}

// The 64 scales of one head's keys of a block; null where the type has none.
inline const float* key_scales(const Queries& s, int64_t block) {
  const KvShape& shape = s.span.kv->shape();
  if (shape.type != KvType::q8) return nullptr;
  return reinterpret_cast<const float*>(s.span.kv->unchecked_block(block) +
                                        shape.k_offset(s.a.layer, static_cast<int64_t>(s.kv_head)) +
                                        shape.elements_bytes());
}

// One query's scores of the positions that it sees; -inf for the others. `to`: [positions].
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
    k.tile(packed, keys.data(), s.a.head_dim, {nullptr, kPanel, x, kPanel, 1, kPanel / kLanes, {}});
    if (const float* const scales = key_scales(s, b)) multiply(x, {scales, kPanel});
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

// Values of which each position has a column of its own, for blocks of any type.
struct OneHot {
  std::vector<float> floats = std::vector<float>(kPanel * kPanel), scales;
  std::vector<int8_t> bytes = std::vector<int8_t>(kPanel * kPanel);

  OneHot() : scales(kPanel, 1.0f) {
    for (size_t i = 0; i < kPanel; ++i) floats[i * kPanel + i] = 1, bytes[i * kPanel + i] = 1;
  }
};

// One query's weights: what attention() gives for values of which each position has a column of its
// own, so that every weight goes through the same maxima, sums and merges.
inline void pattern_of(const Queries& s, size_t query, size_t positions, std::vector<float>& keys,
                       float* packed, float* to) {
  const Kernels& k = *s.p.kernels;
  const size_t width = (positions + kPanel - 1) / kPanel * kPanel;
  std::vector<float> all(width), part(width);
  const OneHot ones;
  float m = 0, l = 0, block_m = 0, block_l = 0;
  alignas(64) float o[kPanel];
  const SoftmaxSums sums = {&m, &l, all.data()};
  k.reset(sums, 1, width);
  pack_queries(s, query, 1, packed);
  const auto [from, end] = block_range(s, query, 1);
  for (int64_t b = from; b < end; ++b) {
    const uint64_t mask = s.mask(query, b);
    if (mask == 0) continue;
    const AttendTile tile = {packed, 1, &mask, {&block_m, &block_l, o}};
    AttendBlock block = {keys.data(),
                         ones.floats.data(),
                         s.a.head_dim,
                         kPanel,
                         static_cast<float>(s.a.scale),
                         static_cast<float>(s.a.softcap)};
    KvType type = KvType::f32;
    if (const float* const scales = key_scales(s, b)) {
      type = KvType::q8;
      block.k = keys_and_values(s, b).at;
      block.v = ones.bytes.data();
      block.k_scale = scales, block.v_scale = ones.scales.data();
    } else {
      widened_keys(s, b, keys);
    }
    k.attend[static_cast<int>(type)](block, &tile, 1);
    std::fill(part.begin(), part.end(), 0.0f);
    std::copy_n(o, kPanel, part.begin() + b * static_cast<int64_t>(kPanel));
    k.merge(sums, {&block_m, &block_l, part.data()}, width, 1);
  }
  k.divide(all.data(), l, all.data(), width);
  std::copy_n(all.begin(), positions, to);
}

}  // namespace detail

// Rows are [heads][positions], where positions are those after this pass.
inline void capture_attention(Team t, const Pass& p, const AttentionShape& a, Rows q) {
  const auto layer = static_cast<size_t>(a.layer);
  for (const Point point : {Point::scores, Point::pattern}) {
    if (!p.hooks->wants(point, layer)) continue;
    p.hooks->each_copy(point, layer, [&](size_t row, const Rows& to) {
      const auto span =
          std::find_if(p.spans.begin(), p.spans.end(), [&](const Span& s) { return s.row == row; });
      const size_t positions = to.width / a.heads, group = a.heads / a.kv_heads;
      t.each_range(to.count * a.heads, 1, [&](Range some) {
        std::vector<float> keys(a.head_dim * kPanel);
        std::vector<float> packed(a.head_dim * kTileRows);
        for (size_t i = some.begin; i < some.end; ++i) {
          const size_t r = i / a.heads, head = i % a.heads;
          const detail::Queries s{p, a, *span, head / group, q, {}};
          float* const out = to.row(r) + head * positions;
          (point == Point::scores ? detail::scores_of : detail::pattern_of)(
              s, r * group + head % group, positions, keys, packed.data(), out);
        }
      });
    });
  }
}

}  // namespace stet

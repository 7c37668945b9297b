// Implements attention_capture.hpp.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "stet/kernels/numbers.hpp"
#include "stet/model/attention_capture.hpp"
#include "stet/model/attention_changes-inl.hpp"
#include "stet/model/ops.hpp"

namespace stet {

namespace detail {

// An identity matrix as the values of a block, for blocks of any type.
struct OneHot {
  std::vector<float> floats = std::vector<float>(kPanel * kPanel), scales;
  std::vector<int8_t> bytes = std::vector<int8_t>(kPanel * kPanel);

  OneHot() : scales(kPanel, 1.0f) {
    for (size_t i = 0; i < kPanel; ++i) floats[i * kPanel + i] = 1, bytes[i * kPanel + i] = 1;
  }
};

// Computes one query's attention weights by attending to one-hot values. Every weight therefore
// goes through the same maxima, sums and merges as the output. A sink has no column.
inline void pattern_of(const Queries& s, size_t query, size_t positions, std::vector<float>& keys,
                       float* packed, float* to) {
  const Kernels& k = *s.p.kernels;
  const size_t width = (positions + kPanel - 1) / kPanel * kPanel;
  std::vector<float> all(width), part(width);
  const OneHot ones;
  float m = 0, l = 0, block_m = 0, block_l = 0;
  alignas(64) float o[kPanel];
  const SoftmaxSums sums = {&m, &l, all.data()};
  reset_sums(s, query, 1, sums, width);
  pack_queries(s, query, 1, packed);
  const auto [from, end] = block_range(s, query, 1);
  for (int64_t b = from; b < end; ++b) {
    const uint64_t mask = s.mask(query, b);
    if (mask == 0) continue;
    const AttendTile tile = {packed, 1, &mask, {&block_m, &block_l, o}};
    AttendBlock block = {keys.data(),
                         ones.floats.data(),
                         s.a.key_dim,
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

// Rows are [heads][positions]; `positions` counts those present after this pass.
STET_INL void capture_attention(Team t, const Pass& p, const AttentionShape& a, Rows q) {
  const auto layer = static_cast<size_t>(a.layer);
  for (const Point point : {Point::scores, Point::pattern}) {
    if (!p.hooks->wants(point, layer)) continue;
    p.hooks->each_copy(point, layer, [&](size_t row, const Rows& to) {
      const auto span =
          std::find_if(p.spans.begin(), p.spans.end(), [&](const Span& s) { return s.row == row; });
      const size_t positions = to.width / a.heads, group = a.heads / a.kv_heads;
      t.each_range(to.count * a.heads, 1, [&](Range some) {
        std::vector<float> keys(a.key_dim * kPanel);
        std::vector<float> packed(a.key_dim * kTileRows);
        for (size_t i = some.begin; i < some.end; ++i) {
          const size_t r = i / a.heads, head = i % a.heads;
          const detail::Queries s{p, a, *span, head / group, q, {}};
          float* const out = to.row(r) + head * positions;
          const size_t query = r * group + head % group;
          if (detail::is_changed(s, query)) {
            const detail::ChangedQuery changed(s, query, positions);
            if (point == Point::scores)
              std::copy_n(changed.scores(), positions, out);
            else
              changed.pattern(out);
            continue;
          }
          (point == Point::scores ? detail::scores_of : detail::pattern_of)(
              s, query, positions, keys, packed.data(), out);
        }
      });
    });
  }
}

// The heads' outputs are kept in the columns of the queries while p.attention holds one head at a
// time.
STET_INL void result_point(Team t, const Pass& p, const ModelConfig& c, size_t index,
                           const Matrix& output) {
  if (p.hooks == nullptr || !p.hooks->wants(Point::result, index)) return;
  const Rows z = p.attention, kept = p.qkv.columns(0, z.width);
  const auto dim = static_cast<size_t>(c.layer(static_cast<int64_t>(index)).value_dim);
  const size_t bytes = z.width * sizeof(float);
  detail::each_row(t, z.count, [&](size_t r) {
    std::memcpy(kept.row(r), z.row(r), bytes);
    std::memset(z.row(r), 0, bytes);
  });
  for (size_t h = 0; h < static_cast<size_t>(c.heads); ++h) {
    detail::each_row(t, z.count, [&](size_t r) {
      if (h > 0) std::memset(z.row(r) + (h - 1) * dim, 0, dim * sizeof(float));
      std::memcpy(z.row(r) + h * dim, kept.row(r) + h * dim, dim * sizeof(float));
    });
    linear(t, p, output, z, p.out);
    p.hooks->each_copy(Point::result, index, [&](size_t row, const Rows& to) {
      detail::each_row(t, to.count, [&](size_t i) {
        std::memcpy(to.row(i) + h * p.out.width, p.out.row(row + i), p.out.width * sizeof(float));
      });
    });
  }
  detail::each_row(t, z.count, [&](size_t r) { std::memcpy(z.row(r), kept.row(r), bytes); });
}

}  // namespace stet

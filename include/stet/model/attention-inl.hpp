// Implements attention.hpp.
#pragma once

#include <algorithm>
#include <utility>

#include "stet/kv/kv_writer.hpp"
#include "stet/model/attention.hpp"

namespace stet {

namespace detail {

// Runs queries [first, first + count) over all blocks in order. count is at most kTaskRows.
inline void attend_queries(const Queries& s, size_t first, size_t count, const Local& local) {
  const size_t key_dim = s.a.key_dim, ldv = padded(s.a.value_dim);
  const auto rows = [count](size_t i) { return std::min(size_t{kTileRows}, count - i); };
  const auto part = [&](float* tiles, size_t i) {
    return tile_at(tiles + i / kTileRows * tile_floats(kTileRows, ldv));
  };
  for (size_t i = 0; i < count; i += kTileRows) {
    pack_queries(s, first + i, rows(i), local.q + i * key_dim);
    reset_sums(s, first + i, rows(i), part(local.sums, i), ldv);
  }
  const auto [from, to] = block_range(s, first, count);
  for (int64_t b = from; b < to; ++b) {
    if (s.span.kv->visible(b) == 0) continue;
    MaskedTiles masked(s, b);
    unsigned seen[kTilesPerTask];
    for (size_t i = 0; i < count; i += kTileRows) {
      seen[i / kTileRows] =
          masked.add(first + i, rows(i), local.q + i * key_dim, part(local.block, i));
    }
    masked.attend(view_block(s, b, local), b + 1 < to ? keys_and_values(s, b + 1) : Fetch{});
    for (size_t i = 0; i < count; i += kTileRows)
      s.p.kernels->merge(part(local.sums, i), part(local.block, i), ldv, seen[i / kTileRows]);
  }
  for (size_t i = 0; i < count; i += kTileRows) finish(s, first + i, rows(i), part(local.sums, i));
}

// Attention during decoding, for spans of a single position: as many spans at once as `partial` has
// room for. The threads share the heads of all blocks in memory order (split-KV, as in
// Flash-Decoding). The sums of each tile are stored in `partial`, then merged in the same order as
// in attend_queries.
class DecodeAttention {
 public:
  DecodeAttention(const Pass& p, const AttentionShape& a, Rows q, Rows y,
                  std::span<const Span> spans, const Local& local)
      : p_(p),
        a_(a),
        q_(q),
        y_(y),
        spans_(spans),
        local_(local),
        tiles_(a),
        ldv_(padded(a.value_dim)) {}

  // The queries of a KV head's group, split into `count` tiles of nearly equal size: at most `rows`
  // queries each.
  struct Tiles {
    size_t group, count, rows;
    explicit Tiles(size_t queries)
        : group(queries),
          count((queries + kTileRows - 1) / kTileRows),
          rows((queries + count - 1) / count) {}
    explicit Tiles(const AttentionShape& a) : Tiles(a.heads / a.kv_heads) {}
    // Returns the floats of `partial` that one block needs.
    size_t floats(size_t kv_heads, size_t value_dim) const {
      return kv_heads * count * tile_floats(rows, padded(value_dim));
    }
  };

  // Returns how many leading spans are handled at once.
  static size_t fit(const Pass& p, const AttentionShape& a, std::span<const Span> spans) {
    const size_t room =
        p.scratch->partial.size() / sizeof(float) / Tiles(a).floats(a.kv_heads, a.value_dim);
    size_t n = 0;
    for (size_t blocks = 0; n < spans.size() && spans[n].count == 1; ++n) {
      const auto [begin, end] = range({p, a, spans[n], 0, {}, {}});
      blocks += static_cast<size_t>(end - begin);
      if (blocks > room && n > 0) break;
    }
    return n;
  }

  void run(Team t) const {
    constexpr size_t kPieceBytes = 128 << 10;
    size_t blocks = 0;
    for (const Span& span : spans_) blocks += count(span);
    const size_t least =
        std::max<size_t>(1, kPieceBytes / spans_[0].kv->shape().head_bytes(a_.layer));
    const size_t heads = blocks * a_.kv_heads, pieces = t.parts_of(heads, least);
    t.each(pieces, [&](size_t piece) {
      const Range some = part_of(heads, pieces, piece);
      Cursor at(*this, some.begin);
      for (size_t i = some.begin; i < some.end; ++i) {
        // After its last head, prefetch the piece that this thread will probably take next.
        const size_t other = piece + static_cast<size_t>(t.size);
        Cursor next = at;
        if (i + 1 < some.end)
          next.advance();
        else if (other < pieces)
          next = Cursor(*this, part_of(heads, pieces, other).begin);
        attend_head(at.queries(), at.block, at.before,
                    keys_and_values(next.queries(), next.index()));
        at = next;
      }
    });
    const size_t tiles = a_.kv_heads * tiles_.count;
    t.each_range(spans_.size() * tiles, 1, [&](Range some) {
      size_t before = 0;
      for (size_t s = 0; s < spans_.size(); before += count(spans_[s++])) {
        for (size_t i = std::max(s * tiles, some.begin); i < std::min((s + 1) * tiles, some.end);
             ++i) {
          merge_tile(queries(spans_[s], (i - s * tiles) / tiles_.count), i % tiles_.count, before);
        }
      }
    });
  }

 private:
  // Points to one KV head of one block. advance() goes through all of them in memory order.
  struct Cursor {
    const DecodeAttention* all;
    size_t span = 0, before = 0, block = 0, kv_head = 0;  // before: blocks in earlier spans

    Cursor(const DecodeAttention& s, size_t i) : all(&s) {
      for (; i >= blocks() * s.a_.kv_heads; ++span)
        i -= blocks() * s.a_.kv_heads, before += blocks();
      block = i / s.a_.kv_heads;
      kv_head = i % s.a_.kv_heads;
    }
    size_t blocks() const { return all->count(all->spans_[span]); }
    Queries queries() const { return all->queries(all->spans_[span], kv_head); }
    int64_t index() const { return range(queries()).first + static_cast<int64_t>(block); }
    void advance() {
      if (++kv_head < all->a_.kv_heads) return;
      kv_head = 0;
      if (++block < blocks()) return;
      before += block;
      block = 0;
      ++span;
    }
  };

  static std::pair<int64_t, int64_t> range(const Queries& s) { return block_range(s, 0, 1); }
  Queries queries(const Span& span, size_t kv_head) const {
    return {p_, a_, span, kv_head, q_, y_};
  }
  size_t count(const Span& span) const {
    const auto [begin, end] = range(queries(span, 0));
    return static_cast<size_t>(end - begin);
  }
  size_t rows(size_t tile) const {
    return std::min(tiles_.rows, tiles_.group - tile * tiles_.rows);
  }
  float* part(size_t block, size_t kv_head, size_t tile) const {
    return p_.scratch->partial.as<float>() +
           ((block * a_.kv_heads + kv_head) * tiles_.count + tile) * tile_floats(tiles_.rows, ldv_);
  }

  // Attends with the queries of one KV head to the `block`-th block that the span can see.
  void attend_head(const Queries& s, size_t block, size_t before, const Fetch& next) const {
    const int64_t index = range(s).first + static_cast<int64_t>(block);
    const bool visible = s.span.kv->visible(index) != 0;
    const BlockView view = visible ? view_block(s, index, local_) : BlockView{};
    for (size_t i = 0; i < tiles_.count; ++i) {
      float* out = part(before + block, s.kv_head, i);
      unsigned seen = 0;
      if (visible) {
        pack_queries(s, i * tiles_.rows, rows(i), local_.q);
        MaskedTiles masked(s, index);
        seen = masked.add(i * tiles_.rows, rows(i), local_.q, tile_at(out));
        masked.attend(view, i == 0 ? next : Fetch{});
      }
      set_seen(out, seen);
    }
  }

  void merge_tile(const Queries& s, size_t tile, size_t before) const {
    const SoftmaxSums sums = tile_at(local_.sums);
    reset_sums(s, tile * tiles_.rows, rows(tile), sums, ldv_);
    for (size_t b = 0; b < count(s.span); ++b) {
      float* in = part(before + b, s.kv_head, tile);
      p_.kernels->merge(sums, tile_at(in), ldv_, seen_of(in));
    }
    finish(s, tile * tiles_.rows, rows(tile), sums);
  }

  const Pass& p_;
  const AttentionShape& a_;
  Rows q_, y_;
  std::span<const Span> spans_;
  const Local& local_;
  const Tiles tiles_;
  const size_t ldv_;
};

}  // namespace detail

STET_INL size_t attention_local_floats(size_t key_dim, size_t value_dim) {
  return detail::offsets(key_dim, value_dim).back();
}
STET_INL size_t attention_partial_floats(size_t heads, size_t kv_heads, size_t value_dim) {
  return detail::DecodeAttention::Tiles(heads / kv_heads).floats(kv_heads, value_dim);
}

STET_INL void attention(Team t, const Pass& p, const AttentionShape& a, Rows q, Rows y) {
  const detail::Local local =
      detail::layout(p.scratch->local[static_cast<size_t>(t.rank)].as<float>(), a);
  for (std::span<const Span> spans = p.spans; !spans.empty();) {
    if (const size_t decoding = detail::DecodeAttention::fit(p, a, spans); decoding > 0) {
      detail::DecodeAttention(p, a, q, y, spans.first(decoding), local).run(t);
      spans = spans.subspan(decoding);
      continue;
    }
    const size_t each = (detail::Queries{p, a, spans[0], 0, q, y}.count() + detail::kTaskRows - 1) /
                        detail::kTaskRows,
                 tasks = each * a.kv_heads;
    // Later queries see more positions, so the longest tasks start first.
    t.each(tasks, [&](size_t i) {
      const detail::Queries s{p, a, spans[0], i % a.kv_heads, q, y};
      const size_t first = (each - 1 - i / a.kv_heads) * detail::kTaskRows;
      detail::attend_queries(s, first, std::min(detail::kTaskRows, s.count() - first), local);
    });
    spans = spans.subspan(1);
  }
}

namespace detail {

inline void store_block(const Span& span, size_t head, int64_t layer, Rows k, Rows v,
                        size_t block) {
  const KvShape& shape = span.kv->shape();
  const KvLayer l = shape.layer(layer);
  const auto key_dim = static_cast<size_t>(l.key_dim), value_dim = static_cast<size_t>(l.value_dim);
  std::byte* const base = KvWriter(*span.kv).writable(static_cast<int64_t>(block));
  std::byte* const keys = base + shape.k_offset(layer, static_cast<int64_t>(head));
  std::byte* const values = base + shape.v_offset(layer, static_cast<int64_t>(head));
  const int64_t begin = static_cast<int64_t>(block) * kBlockPositions;
  const int64_t from = std::max(begin, span.first),
                to = std::min(begin + kBlockPositions,
                              span.first + static_cast<int64_t>(span.count));
  for (int64_t position = from; position < to; ++position) {
    const size_t row = span.row + static_cast<size_t>(position - span.first);
    write_row(shape, true, {k.row(row) + head * key_dim, key_dim}, keys, position - begin);
    write_row(shape, false, {v.row(row) + head * value_dim, value_dim}, values, position - begin);
  }
}

}  // namespace detail

// A task is one head of a whole block, so that no two threads write the same cache line.
STET_INL void store_kv(Team t, const Pass& p, int64_t layer, Rows k, Rows v) {
  const auto heads = static_cast<size_t>(p.spans[0].kv->shape().layer(layer).kv_heads);
  const auto blocks = [](const Span& span) {
    const int64_t last = span.first + static_cast<int64_t>(span.count) - 1;
    return Range{static_cast<size_t>(span.first / kBlockPositions),
                 static_cast<size_t>(last / kBlockPositions) + 1};
  };
  size_t tasks = 0;
  for (const Span& span : p.spans) tasks += heads * blocks(span).size();
  t.each_range(tasks, 1, [&](Range some) {
    size_t task = 0;
    for (const Span& span : p.spans) {
      for (size_t i = 0; i < heads * blocks(span).size(); ++i, ++task) {
        if (task < some.begin || task >= some.end) continue;
        const size_t head = i % heads, block = blocks(span).begin + i / heads;
        detail::store_block(span, head, layer, k, v, block);
      }
    }
  });
}

}  // namespace stet

// Attention over the KV cache, and storing new keys and values in it.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "stet/kv/kv_writer.hpp"
#include "stet/model/pass.hpp"
#include "stet/threads/team.hpp"

namespace stet {

// Writes k ([kv_heads][key_dim]) and v ([kv_heads][value_dim]) of every row to the row's slot in the
// cache.
void store_kv(Team t, const Pass& p, int64_t layer, Rows k, Rows v);

// The shape of one layer's attention.
struct AttentionShape {
  int64_t layer;
  size_t heads, kv_heads, key_dim, value_dim;
  int64_t window;  // 0: all earlier positions
  double scale, softcap;
  // [heads], or null: a further score of each head, which takes its part of the softmax and has no
  // value. It is neither scaled nor capped.
  const float* sinks = nullptr;
};
// Computes y[heads][value_dim] = softmax(scale q·k over the visible positions) v. Head h reads KV
// head h / (heads / kv_heads).
void attention(Team t, const Pass& p, const AttentionShape& a, Rows q, Rows y);

// Return the scratch memory that attention needs, in floats: per thread (local), and per block of a
// cache, shared by all threads (partial).
size_t attention_local_floats(size_t key_dim, size_t value_dim);
size_t attention_partial_floats(size_t heads, size_t kv_heads, size_t value_dim);

namespace detail {

// A task is one KV head and up to kTilesPerTask tiles of its queries. Each block of keys and values
// is thus read only once for all of them.
constexpr size_t kTilesPerTask = 8;
constexpr size_t kTaskRows = kTilesPerTask * kTileRows;

inline size_t padded(size_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// The softmax sums of a tile of queries lie in one array. Its first kLanes floats hold each query's
// maximum, then each query's sum, then a word with a bit for each query. The bit is set if the query
// saw any position. The weighted values [rows][ldv] follow.
inline size_t tile_floats(size_t rows, size_t ldv) { return kLanes + rows * ldv; }
inline SoftmaxSums tile_at(float* at) { return {at, at + kTileRows, at + kLanes}; }
inline void set_seen(float* at, unsigned bits) {
  std::memcpy(at + 2 * kTileRows, &bits, sizeof bits);
}
inline unsigned seen_of(const float* at) {
  unsigned bits;
  std::memcpy(&bits, at + 2 * kTileRows, sizeof bits);
  return bits;
}

// The scratch memory that one thread uses for attention.
struct Local {
  float* q;      // [tiles][key_dim][kTileRows]
  float* sums;   // [tiles], over all blocks so far
  float* block;  // [tiles], of the current block
  float* k;      // a padded block as float32: [key_dim][64], then [64][ldv]
  float* v;
};

// Returns the offset of each part of Local, in floats. The last entry is the total size.
inline std::array<size_t, 6> offsets(size_t key_dim, size_t value_dim) {
  const size_t ldv = padded(value_dim), tile = tile_floats(kTileRows, ldv);
  const size_t sizes[] = {padded(kTaskRows * key_dim), kTilesPerTask * tile, kTilesPerTask * tile,
                          key_dim * kPanel, kPanel * ldv};
  std::array<size_t, 6> at{};
  for (size_t i = 0; i < 5; ++i) at[i + 1] = at[i] + sizes[i];
  return at;
}

inline Local layout(float* base, const AttentionShape& a) {
  const auto at = offsets(a.key_dim, a.value_dim);
  return {base + at[0], base + at[1], base + at[2], base + at[3], base + at[4]};
}

// The queries of one KV head in one span. Query i belongs to position i / group of the span and to
// head i % group within the KV head's group.
struct Queries {
  const Pass& p;
  const AttentionShape& a;
  const Span& span;
  size_t kv_head;
  Rows q, y;

  size_t group() const { return a.heads / a.kv_heads; }
  size_t count() const { return span.count * group(); }
  int64_t position(size_t i) const { return span.first + static_cast<int64_t>(i / group()); }
  size_t head(size_t i) const { return kv_head * group() + i % group(); }
  const float* query(size_t i) const { return q.row(span.row + i / group()) + head(i) * a.key_dim; }
  float* output(size_t i) const { return y.row(span.row + i / group()) + head(i) * a.value_dim; }
  int64_t lowest(int64_t position) const {
    return a.window == 0 ? 0 : std::max<int64_t>(0, position - a.window + 1);
  }
  // Returns true if queries first .. first + rows - 1 see the whole block.
  bool all_seen(size_t first, size_t rows, int64_t block) const {
    const int64_t begin = block * kBlockPositions;
    return begin + kBlockPositions - 1 <= position(first) &&
           lowest(position(first + rows - 1)) <= begin && ~span.kv->visible(block) == 0;
  }
  // Returns the positions of a block that query i sees, as bits: not after the query, inside the
  // window and not pruned.
  uint64_t mask(size_t i, int64_t block) const {
    const int64_t begin = block * kBlockPositions, at = position(i), low = lowest(at);
    if (begin > at || begin + kBlockPositions <= low) return 0;
    uint64_t bits = span.kv->visible(block);
    if (at - begin < kBlockPositions - 1) bits &= (uint64_t{2} << (at - begin)) - 1;
    if (low > begin) bits &= ~uint64_t{0} << (low - begin);
    return bits;
  }
};

// Starts the sums of queries first .. first + rows - 1, of which there are at most kTileRows.
inline void reset_sums(const Queries& s, size_t first, size_t rows, const SoftmaxSums& sums,
                       size_t ldv) {
  float sinks[kTileRows];
  for (size_t r = 0; s.a.sinks != nullptr && r < rows; ++r) sinks[r] = s.a.sinks[s.head(first + r)];
  s.p.kernels->reset(sums, rows, ldv, s.a.sinks == nullptr ? nullptr : sinks);
}

inline void pack_queries(const Queries& s, size_t first, size_t rows, float* packed) {
  for (size_t r = 0; r < rows; ++r) {
    const float* const query = s.query(first + r);
    for (size_t d = 0; d < s.a.key_dim; ++d) packed[d * kTileRows + r] = query[d];
  }
}

// Returns the stored keys of a block, followed by its values, as a prefetch range.
inline Fetch keys_and_values(const Queries& s, int64_t index) {
  const KvShape& shape = s.span.kv->shape();
  return {s.span.kv->unchecked_block(index) +
              shape.k_offset(s.a.layer, static_cast<int64_t>(s.kv_head)),
          shape.head_bytes(s.a.layer)};
}

// The keys and values of one head in one block, as attend() reads them.
struct BlockView {
  const void* k;  // [key_dim][64]
  const void* v;  // [64][ldv]
  KvType type;
  const float *k_scale, *v_scale;  // [64], or null
};

// Copies int8 values of a block to `memory`, padding each row from value_dim to ldv: [64][ldv].
inline const void* padded_int8(const std::byte* v, size_t value_dim, size_t ldv, float* memory) {
  auto* const rows = reinterpret_cast<std::byte*>(memory);
  for (size_t t = 0; t < kPanel; ++t) {
    std::memcpy(rows + t * ldv, v + t * value_dim, value_dim);
    std::memset(rows + t * ldv + value_dim, 0, ldv - value_dim);
  }
  return rows;
}

// Returns the keys and values of a block. They are used in place unless rows need padding; then
// they are widened to float32, or copied if they are int8.
inline BlockView view_block(const Queries& s, int64_t index, const Local& local) {
  const KvShape& shape = s.span.kv->shape();
  s.span.kv->check(index, s.a.layer);
  const std::byte* block = s.span.kv->unchecked_block(index);
  const int64_t head = static_cast<int64_t>(s.kv_head);
  const std::byte* k = block + shape.k_offset(s.a.layer, head);
  const std::byte* v = block + shape.v_offset(s.a.layer, head);
  const size_t key_dim = s.a.key_dim, value_dim = s.a.value_dim, ldv = padded(value_dim);
  if (shape.type == KvType::q8) {
    const auto scales = [&](const std::byte* part, size_t dim) {
      return reinterpret_cast<const float*>(part + shape.elements_bytes(static_cast<int64_t>(dim)));
    };
    const void* const rows = ldv == value_dim ? v : padded_int8(v, value_dim, ldv, local.v);
    return {k, rows, shape.type, scales(k, key_dim), scales(v, value_dim)};
  }
  if (ldv == value_dim) return {k, v, shape.type, nullptr, nullptr};
  const auto widen = s.p.kernels->widen[static_cast<int>(shape.type)];
  widen(k, local.k, key_dim * kPanel);
  for (size_t t = 0; t < kPanel; ++t) {
    widen(v + t * value_dim * shape.element_size(), local.v + t * ldv, value_dim);
  }
  return {local.k, local.v, KvType::f32, nullptr, nullptr};
}

// The tiles of queries that attend to one block, each with its causal and window mask. Tiles that
// see nothing of the block are left out.
class MaskedTiles {
 public:
  MaskedTiles(const Queries& s, int64_t block) : s_(s), block_(block) {}

  // Adds queries first .. first + rows - 1. Returns the queries that see any position, as bits.
  // attend() writes `out` for these only.
  unsigned add(size_t first, size_t rows, const float* packed, const SoftmaxSums& out) {
    uint64_t* const mask = masks_[count_];
    unsigned seen = 0;
    const bool all = s_.all_seen(first, rows, block_);
    for (size_t r = 0; r < rows; ++r) {
      mask[r] = all ? ~uint64_t{0} : s_.mask(first + r, block_);
      if (mask[r] != 0) seen |= 1u << r;
    }
    if (seen != 0) tiles_[count_++] = {packed, static_cast<int>(rows), mask, out};
    return seen;
  }
  void attend(const BlockView& view, const Fetch& next) const {
    if (count_ == 0) return;
    const AttentionShape& a = s_.a;
    const size_t ldv = padded(a.value_dim);
    const AttendBlock block = {view.k,
                               view.v,
                               a.key_dim,
                               ldv,
                               static_cast<float>(a.scale),
                               static_cast<float>(a.softcap),
                               next,
                               view.k_scale,
                               view.v_scale};
    s_.p.kernels->attend[static_cast<int>(view.type)](block, tiles_, count_);
  }

 private:
  const Queries& s_;
  int64_t block_;
  size_t count_ = 0;
  AttendTile tiles_[kTilesPerTask];
  uint64_t masks_[kTilesPerTask][kTileRows];
};

// Returns the first and one past the last block that queries [first, first + count) can see.
inline std::pair<int64_t, int64_t> block_range(const Queries& s, size_t first, size_t count) {
  return {s.lowest(s.position(first)) / kBlockPositions,
          s.position(first + count - 1) / kBlockPositions + 1};
}

// Writes the output of queries first .. first + rows - 1: the weighted values divided by the sums.
inline void finish(const Queries& s, size_t first, size_t rows, const SoftmaxSums& sums) {
  const size_t ldv = padded(s.a.value_dim);
  for (size_t r = 0; r < rows; ++r)
    s.p.kernels->divide(sums.o + r * ldv, sums.l[r], s.output(first + r), s.a.value_dim);
}

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

inline size_t attention_local_floats(size_t key_dim, size_t value_dim) {
  return detail::offsets(key_dim, value_dim).back();
}
inline size_t attention_partial_floats(size_t heads, size_t kv_heads, size_t value_dim) {
  return detail::DecodeAttention::Tiles(heads / kv_heads).floats(kv_heads, value_dim);
}

inline void attention(Team t, const Pass& p, const AttentionShape& a, Rows q, Rows y) {
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
inline void store_kv(Team t, const Pass& p, int64_t layer, Rows k, Rows v) {
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

// Attention over the KV cache, and storing new keys and values in it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "stet/api.h"
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
    float* const to = packed + r;
    size_t d = 0;
    for (; d + 4 <= s.a.key_dim; d += 4) {  // four at a time, in half the instructions
      to[d * kTileRows] = query[d];
      to[(d + 1) * kTileRows] = query[d + 1];
      to[(d + 2) * kTileRows] = query[d + 2];
      to[(d + 3) * kTileRows] = query[d + 3];
    }
    for (; d < s.a.key_dim; ++d) to[d * kTileRows] = query[d];
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

}  // namespace detail

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/model/attention-inl.hpp"
#endif

// Allocates the scratch memory of layers with experts, which also records the first failure of a
// router.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "stet/base/error.hpp"
#include "stet/model/config.hpp"
#include "stet/model/pass.hpp"
#include "stet/model/points.hpp"
#include "stet/model/product.hpp"

namespace stet {

// Clears the router failure that an earlier pass recorded in this scratch memory.
inline void forget_routers(const Pass& p) { p.scratch->experts.failed_layer = -1; }
// Throws an Error that names layer and position if a router of the pass gave a logit that is not
// finite.
void check_routers(const Pass& p);

namespace detail {

// Packed blocks that are computed at once, and their outputs.
constexpr size_t kExpertBlocks = 16, kExpertOutputs = kExpertBlocks * kLanes;
constexpr size_t kExpertOutputBytes = 2 * kGemvRows * kExpertOutputs * sizeof(float);

inline size_t pad_to(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Returns the number of slots that matrix-vector products have room for.
inline size_t few_slots(const ExpertShape& e) {
  return static_cast<size_t>(std::max(e.count, kGemvRows * e.chosen));
}

// Allocates the scratch memory of experts, and enlarges the buffers that all layers share.
inline void make_expert_scratch(const ModelConfig& c, size_t max_rows, Scratch* s) {
  const ExpertShape& e = c.experts;
  if (e.count == 0) return;
  ExpertScratch& x = s->experts;
  const auto count = static_cast<size_t>(e.count), chosen = static_cast<size_t>(e.chosen),
             width = static_cast<size_t>(e.width), hidden = static_cast<size_t>(c.hidden_size),
             slots = std::max(count, std::min(max_rows, kGemmRows) * chosen);
  const auto stride = [](size_t n) { return pad_to(n, kSuperBlock); };
  const size_t floats =
      max_rows * (2 * stride(count) + stride(chosen) + stride(hidden)) + slots * stride(width);
  x.memory = Memory(floats * sizeof(float));
  float* at = x.memory.as<float>();
  const auto rows = [&](size_t n, size_t columns) {
    const Rows r = {at, stride(columns), columns, n};
    at += n * r.stride;
    return r;
  };
  x.logits = rows(max_rows, count);
  x.weights = rows(max_rows, count);
  x.chosen = rows(max_rows, chosen);
  x.out = rows(max_rows, hidden);
  x.hidden = rows(slots, width);
  x.experts.resize(count);
  x.first.resize(count + 1);
  x.tiles.resize(count + 1);
  x.rows.resize(slots);
  x.slot_weights.resize(slots);
  x.sound.resize(max_rows, 1);
  // `packed` holds the tiles of all slots; the last tile of each expert may be partly filled.
  // `local` also holds the inputs that a thread rounds.
  const size_t deep = pad_to(std::max(width, hidden), kQuantStrip),
               packed = (slots + count * kTileRows) * deep * sizeof(float), few = few_slots(e);
  if (s->packed.size() < packed) s->packed = Memory(packed);
  const size_t local =
      kExpertOutputBytes + (2 * kGemvRows * deep + few * stride(width)) * sizeof(float);
  for (Memory& m : s->local) {
    if (m.size() < local) m = Memory(local);
  }
}

}  // namespace detail

inline void check_routers(const Pass& p) {
  ExpertScratch& s = p.scratch->experts;
  if (s.failed_layer < 0) return;
  const int64_t layer = s.failed_layer;
  for (const Span& span : p.spans) {
    if (s.failed_row < span.row || s.failed_row >= span.row + span.count) continue;
    const int64_t position = span.first + static_cast<int64_t>(s.failed_row - span.row);
    throw Error(
        ErrorKind::argument, "",
        point_name({Point::router_logits, layer}) + ", position " + std::to_string(position),
        "finite numbers", "others");
  }
}

}  // namespace stet

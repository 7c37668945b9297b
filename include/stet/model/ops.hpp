// The operations of a forward pass. All threads of a team call each one with the same arguments. It
// splits outputs, rows, heads or blocks of positions among them, and returns when all of it is
// done. None allocates.
#pragma once

#include <algorithm>
#include <span>

#include "stet/api.h"
#include "stet/model/attention.hpp"
#include "stet/model/config.hpp"
#include "stet/model/hooks.hpp"
#include "stet/model/product.hpp"

namespace stet {

// Allocates scratch memory for passes of up to `max_rows` rows on `threads` threads, in a session
// of `capacity` positions.
Scratch make_scratch(const ModelConfig& config, size_t max_rows, int threads, int64_t capacity);

// embed() sets each row of x to `scale` times the table's row for its token. linear() computes y =
// W x, with the bias of `layer` if it has one.
void embed(Team t, const Pass& p, const Matrix& table, float scale, Rows x);
void embed_positions(Team t, const Pass& p, const Matrix& table,
                     Rows x);  // x = the row of `table` for each position
void linear(Team t, const Pass& p, const Matrix& w, Rows x, Rows y);
void linear(Team t, const Pass& p, const Linear& layer, Rows x, Rows y);
// Computes a gated linear unit `y = f(gate) up`, element by element; gate and up are the halves of
// `W x + b`. Writes these to gate_up unless they can stay in the cache. `index` is the layer whose
// points are run.
void linear_gated(Team t, const Pass& p, size_t index, const Linear& layer, Gate gate, Rows x,
                  Rows gate_up, Rows y);
void rms_norm(Team t, const Pass& p, const Vector& weight, double eps, Rows x, Rows y);
void layer_norm(Team t, const Pass& p, const Vector& weight, const Vector& bias, double eps, Rows x,
                Rows y);
// Applies the kind of norm that `n` describes. x and y may be the same.
void norm(Team t, const Pass& p, const Norm& n, Rows x, Rows y);
// Normalizes each head of x ([heads][head_dim]) separately.
void rms_norm_heads(Team t, const Pass& p, const Vector& weight, double eps, Rows x,
                    size_t head_dim);
void add(Team t, const Pass& p, Rows y, Rows x);           // y += x
void scale(Team t, const Pass& p, double factor, Rows y);  // y *= factor
void clamp(Team t, const Pass& p, double limit, Rows y);   // to +- limit; nothing when that is 0
void gelu_tanh(Team t, const Pass& p, Rows x, Rows y);
void gelu(Team t, const Pass& p, Rows x, Rows y);  // exact GELU, by the error function
// One Rope: the angle per position of each pair, and the factor of cosines and sines.
struct Frequencies {
  Vector inverse;
  float magnitude = 1;
};
// rope_tables() computes the pass's tables from the positions of its spans. rope() then rotates
// every head of x, or its first dimensions, by table `index`.
void rope_tables(Team t, const Pass& p, std::span<const Frequencies> frequencies);
void rope(Team t, const Pass& p, int index, Rows x, size_t head_dim);
void divide(Team t, const Pass& p, double divisor, Rows y);  // y /= divisor
// Computes y = cap * tanh(y / cap). Does nothing if cap is 0.
void softcap(Team t, const Pass& p, double cap, Rows y);

// Runs the hooks of point `which` in layer `index` on x.
void point(Team t, const Pass& p, Point which, size_t index, Rows x);
// Runs the hooks of a norm on its output y, and on the divisor that it applied to x.
void norm_point(Team t, const Pass& p, Point which, size_t index, const Norm& norm, Rows x, Rows y);

namespace detail {

inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

template <class F>
void each_row(Team t, size_t rows, F f) {
  t.each_range(rows, 1, [&](Range some) {
    for (size_t r = some.begin; r < some.end; ++r) f(r);
  });
}

// Calls f(r, begin, n) for columns [begin, begin + n) of row r. A single row is split at multiples
// of a cache line.
template <class F>
void each_part(Team t, Rows y, F f) {
  const size_t parts = y.count == 1 ? static_cast<size_t>(t.size) : 1;
  const size_t step = round_up((y.width + parts - 1) / parts, kLanes);
  each_row(t, y.count * parts, [&](size_t i) {
    const size_t begin = std::min(i % parts * step, y.width);
    f(i / parts, begin, std::min(step, y.width - begin));
  });
}

}  // namespace detail

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/model/ops-inl.hpp"
#endif

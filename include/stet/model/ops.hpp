// The operations a forward pass is written in. Each is called by all threads of a team with the
// same arguments, splits outputs, rows, heads or blocks of positions among them, and ends with a
// barrier. None allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stet/kernels/kernels.hpp"
#include "stet/kv/kv_cache.hpp"
#include "stet/model/config.hpp"
#include "stet/model/contract.hpp"
#include "stet/model/matrix.hpp"
#include "stet/threads/team.hpp"

namespace stet {

// Activations: `count` rows of `width` float32, `stride` apart. Rows start on 64 bytes. In what
// linear layers read, the padding up to the next multiple of 64 is zero.
struct Rows {
  float* data = nullptr;
  size_t stride = 0;
  size_t width = 0;
  size_t count = 0;

  float* row(size_t i) const { return data + i * stride; }
  // Columns [begin, begin + n) of the same rows.
  Rows columns(size_t begin, size_t n) const { return {data + begin, stride, n, count}; }
  Rows rows(size_t begin, size_t n) const { return {data + begin * stride, stride, width, n}; }
};

using Vector = std::vector<float>;  // norm weights, biases

// A linear layer: y = W x + b. An empty bias adds nothing.
struct Linear {
  Matrix weight;
  Vector bias;
};

// Consecutive tokens of one session inside a pass: rows [row, row + count), positions from `first`.
struct Span {
  KvCache* kv;
  int64_t first;
  size_t row, count;
};

// Scratch memory of a pass, sized once for the largest pass, the number of threads and the
// capacity.
struct Scratch {
  Memory packed;              // a block of rows, packed for the tile kernel
  std::vector<Memory> local;  // per thread: a panel and its sums; rounded inputs; queries, partial
                              // results of attention
  Memory partial;             // attention over few rows: what tiles of queries saw of each block
  std::vector<Memory> tables;
  std::vector<Rows> cos, sin;  // per Rope: [rows][head_dim / 2], in `tables`
};

// One trip of some tokens through the model.
struct Pass {
  const Kernels* kernels;
  Contract contract;
  std::span<const int32_t> ids;  // [rows]
  std::span<const Span> spans;
  Scratch* scratch;
  // The residual stream after the embedding (0), after layer i (i), after the final norm (last):
  // hidden[i] is copied out when hidden is not empty.
  std::span<Rows> hidden;

  // Activations. q, k and v are columns of qkv; gate and up are those of gate_up.
  Rows x, normed, qkv, attention, gate_up, mlp, out;
};

Scratch make_scratch(const ModelConfig& config, size_t max_rows, int threads, int64_t capacity);

void embed(Team t, const Pass& p, const Matrix& table, float scale, Rows x);
void embed_positions(Team t, const Pass& p, const Matrix& table,
                     Rows x);  // x = the table's row of each position
void linear(Team t, const Pass& p, const Matrix& w, Rows x, Rows y);
void linear(Team t, const Pass& p, const Linear& layer, Rows x, Rows y);
// y = f(gate) up, element by element: the first half of W x + b are gates. p.gate_up is written, or
// not.
enum class Gate : uint8_t { silu, gelu_tanh };
void linear_gated(Team t, const Pass& p, const Linear& layer, Gate gate, Rows x, Rows y);
void rms_norm(Team t, const Pass& p, const Vector& weight, double eps, Rows x, Rows y);
void layer_norm(Team t, const Pass& p, const Vector& weight, const Vector& bias, double eps, Rows x,
                Rows y);
// Every head of x ([heads][head_dim] side by side) normalised by itself.
void rms_norm_heads(Team t, const Pass& p, const Vector& weight, double eps, Rows x,
                    size_t head_dim);
void add(Team t, const Pass& p, Rows y, Rows x);  // y += x
void gelu_tanh(Team t, const Pass& p, Rows x, Rows y);
// The tables of this pass, from the positions of its spans; then rotates every head of x by table
// `index`.
void rope_tables(Team t, const Pass& p, std::span<const Vector> inverse_frequencies);
void rope(Team t, const Pass& p, int index, Rows x, size_t head_dim);
// Writes k and v ([kv_heads][head_dim]) of every row to its slot.
void store_kv(Team t, const Pass& p, int64_t layer, Rows k, Rows v);

struct AttentionShape {
  int64_t layer;
  size_t heads, kv_heads, head_dim;
  int64_t window;  // 0: all earlier positions
  double scale, softcap;
};
// y[heads][head_dim] = softmax(scale q·k over the visible positions) v; head h reads kv head h /
// (heads / kv_heads).
void attention(Team t, const Pass& p, const AttentionShape& a, Rows q, Rows y);

// y = cap * tanh(y / cap); nothing when cap is 0.
void softcap(Team t, const Pass& p, double cap, Rows y);

// Copies x out as the hidden state of that index, if asked for.
void tap(Team t, const Pass& p, size_t index, Rows x);

}  // namespace stet

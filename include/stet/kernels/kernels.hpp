// The kernel table: every arithmetic operation of the forward pass, once per instruction set.
//
// All tables compute the same bits (the numeric contract). A vector has 16 float32 lanes on every
// instruction set, an FMA rounds once (IEEE 754), and this header defines the order of every chain.
// A NaN result is a NaN on all of them, but its sign and payload are not promised, except that
// widening keeps them. Kernels never read or write memory outside their operands.
//
// This header only declares. Kernel files include no header with inline code, so that no function
// exists twice under different instruction sets.
//
// Shapes: `[a][b]` is row-major. "Chain" means acc = fma(w, x, acc), starting at +0, one after
// another.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "stet/api.h"

namespace stet {

// The type of packed weights.
enum class WeightType : uint8_t {
  f32 = 0,
  bf16 = 1,
  f16 = 2,
  q8 = 3,
  q4 = 4,
  q5 = 5,
  mxfp4 = 6,
  q4_k = 7,
  q5_k = 8,
  q6_k = 9
};
enum {
  kFloatWeightTypes = 3,  // f32, bf16, f16: the first types of WeightType
  kSuperTypes = 3,        // q4_k, q5_k, q6_k: the last types
  kFirstSuperType = 7,
  kStoredTypes = 4  // types of keys and values: the floats, and int8 with scales
};

enum {
  kLanes = 16,      // outputs per packed block of weights; lanes of every reduction
  kPanel = 64,      // outputs per panel of the matrix-matrix product; positions per KV block
  kTileRows = 6,    // rows of the register tile
  kGemvRows = 16,   // most rows of x in one call of gemv
  kCacheLine = 64,  // bytes
};

// Quantized weights and inputs are integers in blocks of 32 consecutive inputs, each with a scale.
enum {
  kQuantBlock = 32,
  // Weights are packed in strips of two blocks, so that scales and bytes fill whole cache lines.
  kQuantStrip = 64,
  kStripBytesQ8 = 1088,  // for 16 outputs: 64 bytes of scales, 64 bytes per 4 inputs
  kStripBytesQ4 = 576,
  kStripBytesQ5 = 704,
  kStripMxfp4 = 128,           // inputs of a strip of mxfp4
  kStripBytesMxfp4 = 1088,     // for 16 outputs
  kHalfStripBytesMxfp4 = 576,  // for the last strip, if it is only half full
  kExpandedMxfp4 = 1152,       // for 16 outputs and 64 inputs, expanded for tile kernels
};

// q4_k, q5_k and q6_k use super-blocks of 256 consecutive inputs.
enum {
  kSuperBlock = 256,
  kSuperBytesQ4K = 2304,  // for 16 outputs, packed
  kSuperBytesQ5K = 2816,
  kSuperBytesQ6K = 3392,
  kExpandedBlock = 640,  // for 16 outputs and 32 inputs, expanded for tile kernels
};

// 32 rounded inputs of one row.
struct QuantBlock {
  int32_t quads[kQuantBlock / 4];  // four int8 each, the first in the low byte
  float scale;
  int32_t sum;  // sum of the int8
};
// QuantBlock for all rows of a tile.
struct QuantTile {
  int32_t quads[kQuantBlock / 4][kTileRows];
  float scale[kTileRows];
  int32_t sum[kTileRows];
};

// 32 rounded inputs of one row, for weights in super-blocks.
struct SuperInput {
  int32_t quads[kQuantBlock / 4];
  float scale;
  float offset;     // -(scale times the sum of all int8)
  int32_t sums[2];  // sum of the first 16 int8, and of the last 16
};
// SuperInput for all rows of a tile.
struct SuperTile {
  int32_t quads[kQuantBlock / 4][kTileRows];
  float scale[kTileRows];
  float offset[kTileRows];
  int32_t sums[2][kTileRows];
};

// Memory that will be read next: `runs` runs of `bytes` bytes, `stride` apart. A kernel prefetches
// it while it computes, a few lines at a time. No result depends on it.
struct Fetch {
  const void* at = nullptr;
  size_t bytes = 0, stride = 0, runs = 1;
};

// Destination of a register tile's sums: [rows][16 * vectors].
struct Tile {
  const float* from;  // sums that continue the chains; null: +0
  size_t ld_from;
  float* to;
  size_t ld_to;
  int rows, vectors;  // 1..kTileRows, 1..4
  Fetch next = {};
};

// Running sums of the online softmax, for up to kTileRows queries over the positions seen so far.
struct SoftmaxSums {
  float* m;  // [rows] maximum of the visible scores; -inf if none
  float* l;  // [rows] sum of exp(score - m)
  float* o;  // [rows][ldv] sum of exp(score - m) * v, a chain over positions
};

// One KV block of one head, of the type that attend() is for. bfloat16 and float16 are widened.
//
// For int8 (kv_block.hpp), the key of position t is k * k_scale[t]. The chain over head_dim uses k
// alone, and its sum is multiplied by k_scale[t] before anything else. The weight of position t is
// multiplied by v_scale[t] before the chain over positions uses v. The sum l adds the weights
// without v_scale.
struct AttendBlock {
  const void* k;         // [head_dim][64]
  const void* v;         // [64][ldv]
  size_t head_dim, ldv;  // ldv: head_dim rounded up to kLanes
  float scale;           // factor of the scores
  float softcap;         // 0: none; otherwise s = softcap * tanh(s / softcap)
  Fetch next = {};
  const float *k_scale = nullptr, *v_scale = nullptr;  // [64], for int8 only
};
// Up to kTileRows queries of the head of an AttendBlock.
struct AttendTile {
  const float* q;  // [head_dim][kTileRows], packed; columns past `rows` are not read
  int rows;
  // [rows]: bit t is set if position t of the block is visible. Values of other positions are never
  // read.
  const uint64_t* mask;
  SoftmaxSums out;
};

// Consecutive tokens of one head of a recurrence, and its state [key_dim][value_dim]. Vectors of
// tokens are `stride` numbers apart, the two factors `factor_stride`.
struct StateTokens {
  const float* from;  // the state before the first token; may be `to`
  float* to;          // the state after the last
  size_t key_dim, value_dim, rows;
  const float *q, *k, *v;  // [rows][key_dim], [rows][key_dim], [rows][value_dim]
  size_t stride;
  const float* decay;  // [rows]
  const float* rate;   // [rows]: beta, or the time step
  size_t factor_stride;
  float* out;  // [rows][value_dim]
  size_t out_stride;
  float skip = 0;  // for mamba2 only
};

// The kernels of one instruction set.
struct Kernels {
  // "portable"; "avx2", "avx512", "avx512vnni", "avx512bf16"; "neon", "neondot", "neonbf16"
  const char* name;

  // Linear layers. Packed weights: f32 [n/16][k][16]; 16-bit [n/16][k/2][16][2]; k is even. Each
  // output is one chain over k in the order 1, 0, 3, 2, 5, 4, ...

  // Computes y[rows][16 * blocks] = W x for each row of x[rows][k]. rows is 1..kGemvRows; rows are
  // `ldx` and `ldy` apart.
  void (*gemv[kFloatWeightTypes])(const void* w, size_t blocks, size_t k, const float* x,
                                  size_t ldx, float* y, size_t ldy, int rows);
  // Widens panel columns k0 .. k0+kc of up to 4 packed blocks, in chain order: [kc][64].
  void (*widen_panel[kFloatWeightTypes])(const void* w, size_t blocks, size_t k, size_t k0,
                                         size_t kc, float* panel);
  // Packs rows of x as [kc][kTileRows] in chain order. Rows past `rows` (1..kTileRows) are zero.
  void (*pack_rows)(const float* x, size_t ldx, int rows, size_t kc, float* packed);
  // Adds to sums a chain over kc of packed[kc][kTileRows] and panel[kc][64].
  void (*tile)(const float* packed, const float* panel, size_t kc, const Tile& sums);

  // Linear layers of the contract bf16. Weights are bfloat16, packed as above. Inputs are rounded
  // to bfloat16 and stored in pairs, the even one in the low half of a word.
  //
  // Each output is one chain over k in the same order, of the FMA that VDPBF16PS (Intel 64 manual,
  // volume 2) computes. It rounds to nearest even. Denormal operands read as zero, keeping their
  // sign. A result that is tiny after rounding is flushed to a zero of its sign. Tiny means below
  // 2^-126 when rounded with an unbounded exponent.

  // Rounds x[k] to nearest even as y[k/2]. Denormals become zero, keeping their sign.
  void (*round_pairs)(const float* x, size_t k, uint32_t* y);
  // Like gemv, for x[rows][k/2].
  void (*gemv_pairs)(const void* w, size_t blocks, size_t k, const uint32_t* x, size_t ldx,
                     float* y, size_t ldy, int rows);
  // pack_pairs is like pack_rows, with rounded rows: [kc/2][kTileRows]. tile_pairs is like tile,
  // but reads packed blocks of k inputs in place, as many as there are vectors. w points to column
  // k0 of the first one.
  void (*pack_pairs)(const float* x, size_t ldx, int rows, size_t kc, uint32_t* packed);
  void (*tile_pairs)(const uint32_t* packed, const void* w, size_t k, size_t kc, const Tile& sums);
  // tile_flushed computes the chain of tile_pairs in float32, where that is faster; otherwise both
  // are null. pack_rounded is like pack_rows, for inputs rounded to bfloat16.
  // tile_flushed is like tile, for these inputs and a panel by widen_panel, with denormals flushed.
  void (*pack_rounded)(const float* x, size_t ldx, int rows, size_t kc, float* packed);
  void (*tile_flushed)(const float* packed, const float* panel, size_t kc, const Tile& sums);

  // Linear layers of the contracts q8 and q4, and of ggml's blocks of 32.
  //
  // Inputs are rounded to int8 in blocks of 32. Let a be the largest magnitude of a block. Then
  // scale = a / 127 and q = x * (127 / a), each operation rounded to float32, with q rounded to the
  // nearest integer, ties to even. If a is below 2^-100, the block is zero with scale 0. If the
  // block contains a NaN or an infinity, it is zero with scale NaN.
  //
  // A weight is (u - 128) d in q8, (u - 8) d in q4, and (u - 16) d in q5. Here d is the float16
  // scale of its block. q5 is thus q8 in fewer bytes and gives the same bits. Each output is one
  // chain over the blocks. The sum is exact, and d scale is rounded to float32:
  //   acc = fma(sum of (u - 128) q over the block, d scale, acc)
  //
  // Packed weights: [n/16][k/64] strips, each with d as [2][16], then u.
  //   q8  [2][8][16][4]: a line of 64 bytes for each four inputs
  //   q4  [2][4][16][4]: the bytes of line i hold inputs 4i .. 4i+3 in their low halves, and inputs
  //       16 further in their high halves
  //   q5  as q4, with a line of the fifth bits before each block, as in q5_k below

  // Rounds x[k] to y[k/32]. k is a multiple of 32.
  void (*quantize)(const float* x, size_t k, QuantBlock* y);
  // Like gemv, for x[rows][k/32]. k is a multiple of 64.
  void (*gemv_q8)(const void* w, size_t blocks, size_t k, const QuantBlock* x, size_t ldx, float* y,
                  size_t ldy, int rows);
  void (*gemv_q4)(const void* w, size_t blocks, size_t k, const QuantBlock* x, size_t ldx, float* y,
                  size_t ldy, int rows);
  void (*gemv_q5)(const void* w, size_t blocks, size_t k, const QuantBlock* x, size_t ldx, float* y,
                  size_t ldy, int rows);
  // Like pack_rows and tile_pairs: packed[kc/32]. kc is a multiple of 64.
  void (*pack_quants)(const float* x, size_t ldx, int rows, size_t kc, QuantTile* packed);
  void (*tile_q8)(const QuantTile* packed, const void* w, size_t k, size_t kc, const Tile& sums);
  // expand_q4 widens q4 strips to one byte per u, laid out like q8 strips. tile_q4 is like tile_q8,
  // for expanded strips.
  void (*expand_q4)(const void* w, size_t strips, void* y);
  void (*tile_q4)(const QuantTile* packed, const void* w, size_t k, size_t kc, const Tile& sums);
  // Converts q5 strips to q8 strips.
  void (*expand_q5)(const void* w, size_t strips, void* y);

  // Linear layers of weights in mxfp4. A weight is v s. Four bits give v: 0, 1, 2, 3, 4, 6, 8, 12
  // or the negative of one. s = 2^(e - 128) for the byte e <= 252 of its block of 32. Inputs are
  // rounded as for q8. Each output is one chain over the blocks:
  //   acc = fma(sum of v q over the block, s scale, acc)
  // The sum is exact, and s scale is rounded to float32.
  //
  // Packed weights are [n/16] rows of strips of 128 inputs:
  //   e as [4][16], then [4][4][16][4] as in q4.
  // If k is an odd multiple of 64, the last strip has 64 inputs:
  //   e as [2][16], 32 zero bytes, [2][4][16][4].

  // Like gemv_q8, k a multiple of 64.
  void (*gemv_mxfp4)(const void* w, size_t blocks, size_t k, const QuantBlock* x, size_t ldx,
                     float* y, size_t ldy, int rows);
  // Expands `halves` times 64 inputs from the beginning of a strip. The form of 64 inputs is s as
  // float32 [2][16], then bytes v + 128 as [2][8][16][4]. tile_mxfp4 multiplies them like tile_q8.
  void (*expand_mxfp4)(const void* w, size_t halves, void* y);
  void (*tile_mxfp4)(const QuantTile* packed, const void* w, size_t k, size_t kc, const Tile& sums);
  // Like gemv and widen_panel, for mxfp4 weights under the contract f32. k0 is a multiple of 128.
  void (*gemv_wide_mxfp4)(const void* w, size_t blocks, size_t k, const float* x, size_t ldx,
                          float* y, size_t ldy, int rows);
  void (*widen_panel_mxfp4)(const void* w, size_t blocks, size_t k, size_t k0, size_t kc,
                            float* panel);

  // Linear layers of weights in ggml's K types: super-blocks of 256 inputs with float16 d and m,
  // and small integers for each sub-block.
  //   q4_k, q5_k  (d s) u - (m t); u has 4 or 5 bits, s and t have 6 bits for each 32 inputs
  //   q6_k        (d s) (u - 32); u has 6 bits, s has 8 bits with sign for each 16 inputs
  // d s and m t are exact in float32. Inputs are rounded as for q8.
  //
  // Each output is one chain over the sub-blocks. Sums are exact, and each product by scale is
  // rounded to float32.
  //   q4_k, q5_k  acc = fma(sum of u q, (d s) scale, acc), then
  //               acc = fma(m t, -(scale (sum of q)), acc)
  //   q6_k        acc = fma(sum of (u - 32) q, (d s) scale, acc)
  //
  // Packed weights: [n/16][k/256] super-blocks.
  //   q4_k  d [16], m [16]; three lines of 64 bytes for s and t; [8] blocks as in q4: [4][16][4]
  //   q5_k  the same, with a line of fifth bits before each sub-block: bit i of byte 4 lane + j
  //         belongs to input 4i + j
  //   q6_k  d [16], 32 zero bytes; s [16][16]; [8] of 32 inputs: the low four bits as in q4, then
  //         two lines of the high two, one for each 16 inputs: bits 2i, 2i + 1 of byte 4 lane + j
  //         belong to input 4i + j
  // s[8] and t[8] form 16 values. Value v < 12 is in the low six bits of byte 16 (v % 4) + lane of
  // line v / 4. Value 12 + c is in the high two bits of byte 16 c + lane of lines 0, 1 and 2,
  // lowest bits first.

  // Rounds x[k] to y[k/32]. k is a multiple of 32.
  void (*quantize_super)(const float* x, size_t k, SuperInput* y);
  // Like gemv, for x[rows][k/32]. k is a multiple of 256. Indexed by type from kFirstSuperType on.
  void (*gemv_super[kSuperTypes])(const void* w, size_t blocks, size_t k, const SuperInput* x,
                                  size_t ldx, float* y, size_t ldy, int rows);
  // Like pack_rows: packed[kc/32].
  void (*pack_super)(const float* x, size_t ldx, int rows, size_t kc, SuperTile* packed);
  // expand_super widens super-blocks to one byte per integer. For each 32 inputs it writes
  // [8][16][4] and two lines of float32: d s and m t, or d s of either half.
  //
  // tile_super is like tile_q8, for expanded super-blocks. k and kc count inputs.
  void (*expand_super[kSuperTypes])(const void* w, size_t supers, void* y);
  void (*tile_super[kSuperTypes])(const SuperTile* packed, const void* w, size_t k, size_t kc,
                                  const Tile& sums);
  // Converts super-blocks of Q4_K, Q5_K or Q6_K, as stored in GGUF files, to y[256 supers]
  // (ggml.hpp).
  void (*dequantize_super[kSuperTypes])(const void* from, size_t supers, float* y);

  // attend computes the attention of `n` > 0 tiles over one block. merge combines blocks in order
  // of position, with o treated like `l`. It skips rows whose bit in `seen` is 0 and does not read
  // `next` for them. m = -inf means that no position was seen so far.
  //   m' = max(m, mb)
  //   l = l exp(m - m') + lb exp(mb - m')
  void (*attend[kStoredTypes])(const AttendBlock& block, const AttendTile* tiles, size_t n);
  // Sets sums to "nothing seen". `sinks` is null or has, for each row, a score without a value: the
  // sums then start at m = sink, l = 1.
  void (*reset)(const SoftmaxSums& sums, size_t rows, size_t ldv, const float* sinks);
  void (*merge)(const SoftmaxSums& sums, const SoftmaxSums& next, size_t ldv, unsigned seen);
  void (*divide)(const float* x, float divisor, float* y, size_t n);  // y = x / divisor

  // Computes an RMS norm. The sum uses 16 lanes: lane i is a chain over x[i], x[i+16], and so on.
  // Then a tree adds lanes i+8, i+4, i+2 and i+1 to lane i.
  //   y = x (1 / sqrt(mean(x^2) + eps)) w
  void (*rms_norm)(const float* x, const float* w, float eps, float* y, size_t n);
  // Computes a layer norm, each operation rounded. The mean is computed first, the variance then by
  // FMA. Both sums use the lanes and the tree of rms_norm.
  //   y = (x - mean) (1 / sqrt(variance + eps)) w + b
  //   mean = sum(x) / n,   variance = sum((x - mean)^2) / n
  void (*layer_norm)(const float* x, const float* w, const float* b, float eps, float* y, size_t n);
  // Returns the divisor of both norms: sqrt(mean of squares + eps) or, if `centred`, sqrt(variance
  // + eps).
  float (*norm_scale)(const float* x, float eps, bool centred, size_t n);
  void (*add)(float* y, const float* x, size_t n);  // y += x
  void (*scale)(float* y, float factor, size_t n);  // y *= factor
  // Gated activations. The errors are the largest before the multiplication by `up`, measured by
  // the sweeps of tests/kernels/transcendentals.cpp. Both return nan for -inf.
  //   silu  2.40 ULP of the result for gate >= -88; |error| < 2.61e-37 below, where it turns to -0
  //   gelu  1.57 ULP of gate (and so of the result where it is not small beside it)
  void (*silu_mul)(const float* gate, const float* up, float* y, size_t n);
  void (*gelu_tanh_mul)(const float* gate, const float* up, float* y, size_t n);
  // gpt-oss. With g = min(gate, limit) and u = up clamped to -limit .. limit, computes
  // y = (u + 1) (g / (1 + exp(-(1.702 g)))). Each operation is rounded to float32.
  void (*clamped_silu_mul)(const float* gate, const float* up, float limit, float* y, size_t n);
  void (*gelu_tanh)(const float* x, float* y, size_t n);
  // Computes 0.5 g (1 + erf(g / sqrt(2))). Error: 1.52 ULP of g. Returns nan for -inf.
  void (*gelu)(const float* x, float* y, size_t n);
  // Maps (x1, x2) to (x1 cos - x2 sin, x2 cos + x1 sin) for x1 = x[i], x2 = x[half + i].
  void (*rope)(float* x, const float* cos, const float* sin, size_t half);
  // Both return nan for nan.
  //   exp   0.940 ULP (of the denormal spacing if denormal); exp(-inf) = 0, exp(inf) = inf
  //   tanh  1.371 ULP; tanh(+-0) = +-0, tanh(+-inf) = +-1
  void (*exp)(const float* x, float* y, size_t n);
  // x = exp(x - m) / sum, m the largest of x, all finite; the sum in the lanes and the tree of
  // rms_norm.
  void (*softmax)(float* x, size_t n);
  void (*sigmoid)(const float* x, float* y, size_t n);                     // y = 1 / (1 + exp(-x))
  void (*weighted_add)(float* y, const float* x, float weight, size_t n);  // y = fma(weight, x, y)
  void (*clamp)(float* x, float limit, size_t n);  // x = min(limit, max(-limit, x)); nan for nan
  void (*tanh)(const float* x, float* y, size_t n);

  // Recurrences, token by token. Every result is rounded to float32 after each operation, and a
  // chain begins at +0.

  // y = log(1 + exp(x + bias)), computed as max(z, 0) + log1p(exp(-|z|)) with z = x + bias. With
  // s = t / (2 + t), log1p(t) = 2 atanh(s) by its series up to s^15. Error: 2.9 ULP.
  void (*softplus)(const float* x, const float* bias, float* y, size_t n);
  void (*exp_of_product)(const float* x, const float* a, float* y, size_t n);  // y = exp(x a)
  void (*multiply)(const float* x, const float* a, float* y, size_t n);        // y = x a
  void (*silu)(const float* x, float* y, size_t n);  // y = x / (1 + exp(-x))
  void (*sigmoid_mul)(const float* gate, const float* x, float* y,
                      size_t n);  // x / (1 + exp(-gate))
  // y = (x (1 / sqrt(sum(x^2) + eps))) factor, the sum as in rms_norm.
  void (*l2_norm)(const float* x, float eps, float factor, float* y, size_t n);
  // One token of a causal convolution, channel by channel: a chain over inputs[tap][n] and
  // w[tap][n], taps in ascending order; rows of w are `ldw` apart. Adds bias[n] unless it is null.
  // y may be one of the inputs.
  void (*convolve)(const float* const* inputs, const float* w, size_t ldw, const float* bias,
                   size_t taps, float* y, size_t n);
  // The gated delta rule (Yang et al., arXiv 2412.06464), for each token:
  //   S' = decay S,  u = rate (v - chain over i of k[i] S'[i]),  S[i] = fma(k[i], u, S'[i]),
  //   out = chain over i of q[i] S[i]
  void (*delta_rule)(const StateTokens& tokens);
  // Mamba-2 (Dao and Gu, arXiv 2405.21060), for each token:
  //   S[i] = fma(k[i], rate v, decay S[i]),  out = fma(skip, v, chain over i of q[i] S[i])
  void (*mamba2)(const StateTokens& tokens);

  void (*widen[kStoredTypes])(const void* x, float* y, size_t n);  // exact; int8 without its scale

  // Probes of the machine, for rooflines. probe_read reads `bytes` once. probe_fma runs `steps` x
  // 16 vector FMAs in registers. probe_dot and probe_bytes run as many operations of the contract
  // bf16, with two inputs each, and of q8 and q4, with four.
  uint64_t (*probe_read)(const void* data, size_t bytes);
  float (*probe_fma)(size_t steps);    // operations: steps * 16 * 16 lanes * 2
  float (*probe_dot)(size_t steps);    // operations: steps * 16 * 16 lanes * 4
  float (*probe_bytes)(size_t steps);  // operations: steps * 16 * 16 lanes * 8
};

STET_API extern const Kernels kernels_portable;
STET_API extern const Kernels kernels_avx2;
STET_API extern const Kernels kernels_avx512;
STET_API extern const Kernels kernels_neon;

// Returns true if streams of weights should be prefetched by software. Intel's hardware prefetchers
// stop at the end of a 4 KB page and start late; AMD's work better alone (bench/README.md).
STET_API bool use_stream_prefetch();

// Returns the table of that name, or null if the name is unknown or the CPU or build lacks the
// instructions.
STET_API const Kernels* find_kernels(const char* name);
STET_API const Kernels& best_kernels();
// Returns the names of all tables that this CPU can run, slowest first, null-terminated.
STET_API const char* const* kernel_names();

// Sets this thread's floating-point environment as the contract requires (round to nearest,
// denormals honoured) and returns the previous one. Without this, a caller built with -ffast-math
// would change bits.
STET_API uint64_t enter_float_environment();
STET_API void leave_float_environment(uint64_t previous);

}  // namespace stet

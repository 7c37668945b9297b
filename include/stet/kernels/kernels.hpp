// The kernel table: every arithmetic operation of the forward pass, once per instruction set.
//
// All tables compute the same bits (the numeric contract): a vector is 16 float32 lanes on every
// instruction set, an FMA is one IEEE-754 rounding, and the order of every chain is written down
// here. A NaN is a NaN on all of them; which one (sign, payload) is not promised, except that
// widening keeps them. Memory outside the operands is neither written nor read.
//
// This header declares only; kernel files include nothing with inline code, so that no function
// exists twice under different instruction sets.
//
// Shapes: `[a][b]` is row-major. "Chain" means acc = fma(w, x, acc), starting at +0, one after
// another.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "stet/api.h"

namespace stet {

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
  kFloatWeightTypes = 3,  // f32, bf16, f16: the first of WeightType
  kSuperTypes = 3,        // q4_k, q5_k, q6_k: the last
  kFirstSuperType = 7,
  kStoredTypes = 4  // of keys and values: the floats, and int8 with scales
};

enum {
  kLanes = 16,      // outputs in one packed block of weights; lanes of every reduction
  kPanel = 64,      // outputs in a panel of the matrix-matrix product; positions in a KV block
  kTileRows = 6,    // rows of the register tile
  kGemvRows = 16,   // rows of a matrix-vector product, at most
  kCacheLine = 64,  // bytes
};

// Quantized weights and inputs are integers in blocks of 32 consecutive inputs, each with a scale.
enum {
  kQuantBlock = 32,
  // Weights are packed in strips of two blocks, so that scales and bytes fill whole cache lines.
  kQuantStrip = 64,
  kStripBytesQ8 = 1088,  // of 16 outputs: 64 for scales, 64 for each 4 inputs
  kStripBytesQ4 = 576,
  kStripBytesQ5 = 704,
  kStripMxfp4 = 128,           // inputs of a strip of mxfp4
  kStripBytesMxfp4 = 1088,     // of 16 outputs
  kHalfStripBytesMxfp4 = 576,  // of the last one, where a row ends in its middle
  kExpandedMxfp4 = 1152,       // of 16 outputs and 64 inputs, as tiles take them
};

// The types q4_k, q5_k and q6_k have super-blocks of 256 consecutive inputs.
enum {
  kSuperBlock = 256,
  kSuperBytesQ4K = 2304,  // of 16 outputs, packed
  kSuperBytesQ5K = 2816,
  kSuperBytesQ6K = 3392,
  kExpandedBlock = 640,  // of 16 outputs and 32 inputs, as tiles take them
};

// 32 inputs of one row.
struct QuantBlock {
  int32_t quads[kQuantBlock / 4];  // four int8 each, the first in the low byte
  float scale;
  int32_t sum;  // of the int8
};
// The same of the rows of a tile.
struct QuantTile {
  int32_t quads[kQuantBlock / 4][kTileRows];
  float scale[kTileRows];
  int32_t sum[kTileRows];
};

// The same for weights in super-blocks.
struct SuperInput {
  int32_t quads[kQuantBlock / 4];
  float scale;
  float offset;     // -(scale times the sum of all int8)
  int32_t sums[2];  // of the first 16 int8, and of the others
};
struct SuperTile {
  int32_t quads[kQuantBlock / 4][kTileRows];
  float scale[kTileRows];
  float offset[kTileRows];
  int32_t sums[2][kTileRows];
};

// Memory that is read next: as many bytes in each of some runs, `stride` apart. A kernel fetches it
// into a cache while it computes, a few lines at a time. No result depends on it.
struct Fetch {
  const void* at = nullptr;
  size_t bytes = 0, stride = 0, runs = 1;
};

// Sums of a register tile: [rows][16 * vectors].
struct Tile {
  const float* from;  // where the chains go on; null: they start at +0
  size_t ld_from;
  float* to;
  size_t ld_to;
  int rows, vectors;  // 1..kTileRows, 1..4
  Fetch next = {};
};

// The running sums of online softmax, of up to kTileRows queries over the positions seen so far.
struct SoftmaxSums {
  float* m;  // [rows] maximum of the visible scores (-inf if none)
  float* l;  // [rows] sum of exp(score - m)
  float* o;  // [rows][ldv] sum of exp(score - m) * v, a chain over positions
};

// One KV block of one head, of the type that attend() is for: float32; or bfloat16 or float16,
// which are widened; or int8 (kv_block.hpp), of which the key of position t stands for k
// k_scale[t]: the chain over head_dim takes k alone, and its sum is multiplied by k_scale[t] before
// all else. So is the weight of position t by v_scale[t] before the chain over positions takes v;
// the sum l is that of the weights as they were.
struct AttendBlock {
  const void* k;         // [head_dim][64]
  const void* v;         // [64][ldv]
  size_t head_dim, ldv;  // ldv: head_dim rounded up to kLanes
  float scale;           // scores are multiplied by it
  float softcap;         // 0, or s = softcap * tanh(s / softcap)
  Fetch next = {};
  const float *k_scale = nullptr, *v_scale = nullptr;  // [64], of int8
};
// Up to kTileRows queries of that head.
struct AttendTile {
  const float* q;  // [head_dim][kTileRows], packed; those past `rows` are not read
  int rows;
  // [rows]; bit t is set where position t of the block is visible. Others are never read from v.
  const uint64_t* mask;
  SoftmaxSums out;
};

struct Kernels {
  const char* name;  // "portable", "avx2", "avx512", "avx512vnni", "avx512bf16"

  // Linear layers. Packed weights: f32 [n/16][k][16]; 16-bit [n/16][k/2][16][2]; k even. Each
  // output is one chain over k in the order 1, 0, 3, 2, 5, 4, ...

  // y[rows][16 * blocks] = W x of each row, for x[rows][k]; rows 1..kGemvRows, `ldx` and `ldy`
  // apart.
  void (*gemv[kFloatWeightTypes])(const void* w, size_t blocks, size_t k, const float* x,
                                  size_t ldx, float* y, size_t ldy, int rows);
  // Panel columns k0 .. k0+kc of `blocks` (<= 4) packed blocks, widened, in chain order: [kc][64].
  void (*widen_panel[kFloatWeightTypes])(const void* w, size_t blocks, size_t k, size_t k0,
                                         size_t kc, float* panel);
  // x rows -> [kc][kTileRows] in chain order; rows past `rows` (1..kTileRows) are zero.
  void (*pack_rows)(const float* x, size_t ldx, int rows, size_t kc, float* packed);
  // sums += chain over kc of packed[kc][kTileRows] and panel[kc][64].
  void (*tile)(const float* packed, const float* panel, size_t kc, const Tile& sums);

  // Linear layers of the contract bf16: bfloat16 weights, packed as above, and inputs rounded to
  // bfloat16 in pairs: the even one in the low half of a word. Each output is one chain over k in
  // the same order, of the FMA that VDPBF16PS (Intel 64 manual, volume 2) computes: rounded to
  // nearest even; denormal operands read as zero, keeping their sign; results flushed to a zero of
  // their sign where they are tiny after rounding (below 2^-126 when rounded without a lower end of
  // exponents).

  // y[k/2] = x[k], rounded to nearest even; denormals to zero, keeping their sign.
  void (*round_pairs)(const float* x, size_t k, uint32_t* y);
  // Like gemv, for x[rows][k/2].
  void (*gemv_pairs)(const void* w, size_t blocks, size_t k, const uint32_t* x, size_t ldx,
                     float* y, size_t ldy, int rows);
  // Like pack_rows and tile: rows rounded -> [kc/2][kTileRows]; and a chain over kc of those and as
  // many packed blocks of k inputs as there are vectors, in place: w is where the first one's
  // column k0 stands.
  void (*pack_pairs)(const float* x, size_t ldx, int rows, size_t kc, uint32_t* packed);
  void (*tile_pairs)(const uint32_t* packed, const void* w, size_t k, size_t kc, const Tile& sums);
  // The same chain in float32, where that is faster than tile_pairs (AVX2); null elsewhere.
  // pack_rounded: like pack_rows, of inputs rounded to bfloat16. tile_flushed: like tile, of those
  // and a panel by widen_panel, denormals flushed.
  void (*pack_rounded)(const float* x, size_t ldx, int rows, size_t kc, float* packed);
  void (*tile_flushed)(const float* packed, const float* panel, size_t kc, const Tile& sums);

  // Linear layers of the contracts q8 and q4, and of ggml's blocks of 32. Inputs are rounded to
  // int8 in blocks of 32: with a the largest magnitude of a block, scale = a / 127 and q = x (127 /
  // a), each operation rounded to float32, q then to the nearest integer, ties to even. A block
  // whose a is below 2^-100 is zero, scale 0; one with a NaN or an infinity is zero, scale NaN. A
  // weight is (u - 128) d in q8, (u - 8) d in q4 and (u - 16) d in q5, with the float16 d of its
  // block; so q5 is q8 in fewer bytes, and gives its bits. Each output is one chain over the
  // blocks: acc = fma(sum of (u - 128) q over the block, d scale, acc), the sum exact, d scale
  // rounded to float32. Packed weights: [n/16][k/64] strips: d as [2][16]; then u. q8:
  // [2][8][16][4], a line of 64 bytes for each four inputs. q4: [2][4][16][4], line i holding
  // inputs 4i .. 4i+3 in the low halves of its bytes and 16 more on in the high ones. q5: the same,
  // each block behind a line of its fifth bits, as in q5_k below.

  // y[k/32] = x[k], for k a multiple of 32.
  void (*quantize)(const float* x, size_t k, QuantBlock* y);
  // Like gemv, for x[rows][k/32], k a multiple of 64.
  void (*gemv_q8)(const void* w, size_t blocks, size_t k, const QuantBlock* x, size_t ldx, float* y,
                  size_t ldy, int rows);
  void (*gemv_q4)(const void* w, size_t blocks, size_t k, const QuantBlock* x, size_t ldx, float* y,
                  size_t ldy, int rows);
  void (*gemv_q5)(const void* w, size_t blocks, size_t k, const QuantBlock* x, size_t ldx, float* y,
                  size_t ldy, int rows);
  // Like pack_rows and tile_pairs; kc a multiple of 64, packed[kc/32].
  void (*pack_quants)(const float* x, size_t ldx, int rows, size_t kc, QuantTile* packed);
  void (*tile_q8)(const QuantTile* packed, const void* w, size_t k, size_t kc, const Tile& sums);
  // q4 strips with a byte for each u, laid out as q8 strips are; and like tile_q8, of those.
  void (*expand_q4)(const void* w, size_t strips, void* y);
  void (*tile_q4)(const QuantTile* packed, const void* w, size_t k, size_t kc, const Tile& sums);
  // q5 strips as those of q8.
  void (*expand_q5)(const void* w, size_t strips, void* y);

  // Linear layers of weights in mxfp4, of ggml's blocks and of published ones: a weight is v s with
  // v = 0, 1, 2, 3, 4, 6, 8, 12 or the negative of one, by its four bits, and s = 2^(e - 128) for
  // the byte e <= 252 of its block of 32. Inputs are rounded as for q8. Each output is one chain
  // over the blocks: acc = fma(sum of v q over the block, s scale, acc), the sum exact, s scale
  // rounded to float32. Packed weights: [n/16] rows of strips of 128 inputs: e as [4][16]; then
  // [4][4][16][4] as q4's. Where k is an odd multiple of 64 the last strip has 64 inputs: e as
  // [2][16], 32 zero bytes, [2][4][16][4].

  // Like gemv_q8, k a multiple of 64.
  void (*gemv_mxfp4)(const void* w, size_t blocks, size_t k, const QuantBlock* x, size_t ldx,
                     float* y, size_t ldy, int rows);
  // So many times 64 inputs, from the beginning of a strip on, with a byte for each v + 128: s as
  // float32 [2][16], then [2][8][16][4]. And like tile_q8, of those.
  void (*expand_mxfp4)(const void* w, size_t halves, void* y);
  void (*tile_mxfp4)(const QuantTile* packed, const void* w, size_t k, size_t kc, const Tile& sums);
  // The same weights under the contract f32: like gemv and widen_panel (k0 a multiple of 128).
  void (*gemv_wide_mxfp4)(const void* w, size_t blocks, size_t k, const float* x, size_t ldx,
                          float* y, size_t ldy, int rows);
  void (*widen_panel_mxfp4)(const void* w, size_t blocks, size_t k, size_t k0, size_t kc,
                            float* panel);

  // Linear layers of weights in ggml's K types: super-blocks of 256 inputs with float16 d and m,
  // and small integers for each sub-block. A weight is (d s) u - (m t) in q4_k (u 4 bits) and q5_k
  // (u 5 bits), with s and t of 6 bits for each 32 inputs; (d s) (u - 32) in q6_k (u 6 bits), with
  // s of 8 bits and a sign for each 16 inputs; d s and m t are exact in float32. Inputs are rounded
  // as for q8. Each output is one chain over the sub-blocks. q4_k, q5_k, two steps for each: acc =
  // fma(sum of u q, (d s) scale, acc), then acc = fma(m t, -(scale (sum of q)), acc). q6_k: acc =
  // fma(sum of (u - 32) q, (d s) scale, acc). The sums are exact, each product by scale is rounded
  // to float32.
  //
  // Packed weights: [n/16][k/256] super-blocks.
  //   q4_k  d [16], m [16]; three lines of 64 bytes for s and t; [8] sub-blocks as q4's: [4][16][4]
  //   q5_k  the same, each sub-block behind a line of its fifth bits: bit i of byte 4 lane + j is
  //         that of input 4i + j
  //   q6_k  d [16], 32 zero bytes; s [16][16]; [8] of 32 inputs: the low four bits as q4's, then
  //         two lines of the high two, one for each 16 inputs: bits 2i and 2i + 1 of byte 4 lane + j
  //         are those of input 4i + j
  // Value v of s[8] and then t[8], v < 12, stands in the low six bits of byte 16 (v % 4) + lane of
  // line v / 4; value 12 + c is in the high two bits of byte 16 c + lane of lines 0, 1 and 2, the
  // lowest bits first.

  // y[k/32] = x[k], for k a multiple of 32.
  void (*quantize_super)(const float* x, size_t k, SuperInput* y);
  // Like gemv, for x[rows][k/32], k a multiple of 256. By type, from kFirstSuperType on.
  void (*gemv_super[kSuperTypes])(const void* w, size_t blocks, size_t k, const SuperInput* x,
                                  size_t ldx, float* y, size_t ldy, int rows);
  // Like pack_rows; packed[kc/32].
  void (*pack_super)(const float* x, size_t ldx, int rows, size_t kc, SuperTile* packed);
  // Super-blocks with a byte for each u: for each 32 inputs [8][16][4] and two lines of float32, d
  // s and m t, or d s of either half. And like tile_q8, of those: k and kc in inputs.
  void (*expand_super[kSuperTypes])(const void* w, size_t supers, void* y);
  void (*tile_super[kSuperTypes])(const SuperTile* packed, const void* w, size_t k, size_t kc,
                                  const Tile& sums);
  // Super-blocks of Q4_K, Q5_K or Q6_K, as GGUF files have them, to y[256 supers] (ggml.hpp).
  void (*dequantize_super[kSuperTypes])(const void* from, size_t supers, float* y);

  // Attention of some tiles over one block, and the combination of blocks in order of position:
  //   m' = max(m, mb); l = l*exp(m-m') + lb*exp(mb-m'); o likewise. m = -inf: nothing seen so far.
  // Rows whose bit in `seen` is 0 stay as they are; those of `next` are not read.
  void (*attend[kStoredTypes])(const AttendBlock& block, const AttendTile* tiles,
                               size_t n);  // n > 0
  // Nothing seen so far. `sinks`, where it is not null: a score of each row that has no value; the
  // sums start at m = sink, l = 1.
  void (*reset)(const SoftmaxSums& sums, size_t rows, size_t ldv, const float* sinks);
  void (*merge)(const SoftmaxSums& sums, const SoftmaxSums& next, size_t ldv, unsigned seen);
  void (*divide)(const float* x, float divisor, float* y, size_t n);  // y = x / divisor

  // y = x (1 / sqrt(mean(x^2) + eps)) w. Sum: 16 lanes, lane i is a chain over x[i], x[i+16], ...;
  // then a tree: lane i += lane i+8, i+4, i+2, i+1.
  void (*rms_norm)(const float* x, const float* w, float eps, float* y, size_t n);
  // y = (x - mean) (1 / sqrt(variance + eps)) w + b, each operation rounded; mean = sum(x) / n,
  // then variance = sum((x - mean)^2) / n, by FMA. Both sums in the lanes and the tree of rms_norm.
  void (*layer_norm)(const float* x, const float* w, const float* b, float eps, float* y, size_t n);
  // Returns what both divide by: sqrt(mean of squares + eps), or, `centred`, sqrt(variance + eps).
  float (*norm_scale)(const float* x, float eps, bool centred, size_t n);
  void (*add)(float* y, const float* x, size_t n);  // y += x
  void (*scale)(float* y, float factor, size_t n);  // y *= factor
  // Largest errors before the multiplication by `up`, over the sweeps of
  // tests/kernels/transcendentals.cpp. silu: 2.40 ULP of the result for gate >= -88; |error| <
  // 2.61e-37 below, where it turns to -0. gelu: 1.57 ULP of gate (so of the result where it is not
  // small beside it). Both: nan for -inf.
  void (*silu_mul)(const float* gate, const float* up, float* y, size_t n);
  void (*gelu_tanh_mul)(const float* gate, const float* up, float* y, size_t n);
  // gpt-oss: with g = min(gate, limit) and u = up clamped to -limit .. limit,
  // y = (u + 1) (g / (1 + exp(-(1.702 g)))), each operation rounded to float32.
  void (*clamped_silu_mul)(const float* gate, const float* up, float limit, float* y, size_t n);
  void (*gelu_tanh)(const float* x, float* y,
                    size_t n);  // gelu_tanh_mul without the multiplication
  // 0.5 g (1 + erf(g / sqrt(2))): 1.52 ULP of g. nan for -inf.
  void (*gelu)(const float* x, float* y, size_t n);
  // (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin) for x1 = x[i], x2 = x[half + i].
  void (*rope)(float* x, const float* cos, const float* sin, size_t half);
  // exp: 0.940 ULP (of the denormal spacing where the result is denormal). exp(-inf) = 0, exp(inf)
  // = inf. tanh: 1.371 ULP. tanh(+-0) = +-0, tanh(+-inf) = +-1. nan for nan.
  void (*exp)(const float* x, float* y, size_t n);
  // x = exp(x - m) / sum, m the largest of x, all finite; the sum in the lanes and the tree of
  // rms_norm.
  void (*softmax)(float* x, size_t n);
  void (*sigmoid)(const float* x, float* y, size_t n);                     // y = 1 / (1 + exp(-x))
  void (*weighted_add)(float* y, const float* x, float weight, size_t n);  // y = fma(weight, x, y)
  void (*clamp)(float* x, float limit, size_t n);  // x = min(limit, max(-limit, x)); nan for nan
  void (*tanh)(const float* x, float* y, size_t n);
  void (*widen[kStoredTypes])(const void* x, float* y, size_t n);  // exact; int8 without a scale

  // Probes of the machine, for rooflines: read `bytes` once; run `steps` x 16 vector FMAs in
  // registers, or as many of what the contract bf16 takes two inputs with, and q8 and q4 four.
  uint64_t (*probe_read)(const void* data, size_t bytes);
  float (*probe_fma)(size_t steps);    // operations: steps * 16 * 16 lanes * 2
  float (*probe_dot)(size_t steps);    // operations: steps * 16 * 16 lanes * 4
  float (*probe_bytes)(size_t steps);  // operations: steps * 16 * 16 lanes * 8
};

STET_API extern const Kernels kernels_portable;
STET_API extern const Kernels kernels_avx2;
STET_API extern const Kernels kernels_avx512;

// Whether streams of weights are fetched ahead of their loads: Intel's own prefetchers stop at the
// end of a 4 KB page and start late; AMD's do better alone (bench/README.md).
STET_API bool streams_are_fetched();

// The table of that name; null for an unknown name, or where CPU or build lack the instructions.
STET_API const Kernels* find_kernels(const char* name);
STET_API const Kernels& best_kernels();
// Names of all tables this CPU can run, slowest first; null-terminated.
STET_API const char* const* kernel_names();

// Sets the floating-point environment that the contract assumes (round to nearest, denormals
// honoured) in this thread and returns the previous one; a caller built with -ffast-math would
// change bits otherwise.
STET_API uint64_t enter_float_environment();
STET_API void leave_float_environment(uint64_t previous);

}  // namespace stet

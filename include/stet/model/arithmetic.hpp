// The arithmetic of products with many rows. For each contract and type of weights, it names the
// kernels that multiply a piece of a group of panels with a tile of rows.
#pragma once

#include "stet/model/panels.hpp"

namespace stet::detail {

// The depth of a piece is a multiple of `unit` and at most `depth` inputs. The piece therefore stays
// in the second-level cache beside the next piece and the sums (bench/README.md).
struct Arithmetic {
  size_t unit, depth;
  size_t inputs, tile_bytes;  // a tile of packed rows has `tile_bytes` per `inputs` inputs
  size_t panel_floats;        // of a prepared panel in `local`; 0: weights are used in place
  void (*pack)(const Kernels& k, const float* x, size_t ldx, int rows, size_t kc, void* packed);
  // Prepares the weights in `local`, panel after panel.
  void (*begin)(const Kernels& k, const Piece& p, float* local);
  // Multiplies the i-th panel with a tile of packed rows.
  void (*tile)(const Kernels& k, const Piece& p, size_t i, const void* packed, const float* local,
               const Tile& sums);
};

inline void use_in_place(const Kernels&, const Piece&, float*) {}

// Widens panels once and reuses them for all rows. kPack and kTile are the kernels.
constexpr size_t kWidenedFloats = kGemmDepth * kPanel;
inline void widen_panels(const Kernels& k, const Piece& p, float* local) {
  for (size_t i = 0; i < p.group->count; ++i)
    widen_panel(k, p.panel(i), p.k0, p.kc, local + i * kWidenedFloats);
}
template <auto Kernels::*kPack, auto Kernels::*kTile>
constexpr Arithmetic widened(size_t unit) {
  return {unit,
          kGemmDepth,
          1,
          kTileRows * sizeof(float),
          kWidenedFloats,
          [](const Kernels& k, const float* x, size_t ldx, int rows, size_t kc, void* packed) {
            (k.*kPack)(x, ldx, rows, kc, static_cast<float*>(packed));
          },
          widen_panels,
          [](const Kernels& k, const Piece& p, size_t i, const void* packed, const float* local,
             const Tile& sums) {
            (k.*kTile)(static_cast<const float*>(packed), local + i * kWidenedFloats, p.kc, sums);
          }};
}
inline constexpr Arithmetic kFloats = widened<&Kernels::pack_rows, &Kernels::tile>(2);
inline constexpr Arithmetic kWideMxfp4 = widened<&Kernels::pack_rows, &Kernels::tile>(kStripMxfp4);
inline constexpr Arithmetic kWidePairs = widened<&Kernels::pack_rounded, &Kernels::tile_flushed>(2);

inline constexpr Arithmetic kPairs = {
    2,
    2048,
    2,
    kTileRows * sizeof(uint32_t),
    0,
    [](const Kernels& k, const float* x, size_t ldx, int rows, size_t kc, void* packed) {
      k.pack_pairs(x, ldx, rows, kc, static_cast<uint32_t*>(packed));
    },
    use_in_place,
    [](const Kernels& k, const Piece& p, size_t i, const void* packed, const float*,
       const Tile& sums) {
      k.tile_pairs(static_cast<const uint32_t*>(packed), p.weights(i), p.w->depth(), p.kc, sums);
    }};

// Weights in blocks of 32, whose inputs are rounded to int8.
inline void pack_quants(const Kernels& k, const float* x, size_t ldx, int rows, size_t kc,
                        void* packed) {
  k.pack_quants(x, ldx, rows, kc, static_cast<QuantTile*>(packed));
}
inline constexpr Arithmetic kQuants8 = {kQuantStrip,
                                        2048,
                                        kQuantBlock,
                                        sizeof(QuantTile),
                                        0,
                                        pack_quants,
                                        use_in_place,
                                        [](const Kernels& k, const Piece& p, size_t i,
                                           const void* packed, const float*, const Tile& sums) {
                                          k.tile_q8(static_cast<const QuantTile*>(packed),
                                                    p.weights(i), p.w->depth(), p.kc, sums);
                                        }};

// The next two expand weights to bytes once and reuse them for all rows.
constexpr size_t kExpandedDepth = 1024;
template <auto kExpand, auto kTile, size_t kStripBytes>
constexpr Arithmetic expanded(size_t unit) {
  constexpr size_t kBlock = kExpandedDepth / kQuantStrip * kStripBytes / sizeof(float);
  constexpr size_t kWhole = kPanelBlocks * kBlock;
  return {unit,
          kExpandedDepth,
          kQuantBlock,
          sizeof(QuantTile),
          kWhole,
          pack_quants,
          [](const Kernels& k, const Piece& p, float* local) {
            for (size_t i = 0; i < p.group->count; ++i) {
              for (size_t b = 0; b < p.panel(i).blocks; ++b)
                (k.*kExpand)(p.weights(i, b), p.kc / kQuantStrip, local + i * kWhole + b * kBlock);
            }
          },
          [](const Kernels& k, const Piece& p, size_t i, const void* packed, const float* local,
             const Tile& sums) {
            (k.*kTile)(static_cast<const QuantTile*>(packed), local + i * kWhole, kExpandedDepth,
                       p.kc, sums);
          }};
}
inline constexpr Arithmetic kQuants4 =
    expanded<&Kernels::expand_q4, &Kernels::tile_q4, kStripBytesQ8>(kQuantStrip);
inline constexpr Arithmetic kQuants5 =
    expanded<&Kernels::expand_q5, &Kernels::tile_q8, kStripBytesQ8>(kQuantStrip);
inline constexpr Arithmetic kQuantsMxfp4 =
    expanded<&Kernels::expand_mxfp4, &Kernels::tile_mxfp4, kExpandedMxfp4>(kStripMxfp4);

// Weights in super-blocks.
constexpr size_t kSuperFloats = kExpandedDepth / kQuantBlock * kExpandedBlock / sizeof(float);
inline constexpr Arithmetic kSupers = {
    kSuperBlock,
    kExpandedDepth,
    kQuantBlock,
    sizeof(SuperTile),
    kPanelBlocks* kSuperFloats,
    [](const Kernels& k, const float* x, size_t ldx, int rows, size_t kc, void* packed) {
      k.pack_super(x, ldx, rows, kc, static_cast<SuperTile*>(packed));
    },
    [](const Kernels& k, const Piece& p, float* local) {
      const auto expand = k.expand_super[super_index(p.w->type())];
      for (size_t i = 0; i < p.group->count; ++i) {
        for (size_t b = 0; b < p.panel(i).blocks; ++b)
          expand(p.weights(i, b), p.kc / kSuperBlock,
                 local + (i * kPanelBlocks + b) * kSuperFloats);
      }
    },
    [](const Kernels& k, const Piece& p, size_t i, const void* packed, const float* local,
       const Tile& sums) {
      k.tile_super[super_index(p.w->type())](static_cast<const SuperTile*>(packed),
                                             local + i * kPanelBlocks * kSuperFloats,
                                             kExpandedDepth, p.kc, sums);
    }};

// Returns the arithmetic that multiplies weights of this type.
inline const Arithmetic& arithmetic_of(const Pass& p, WeightType type) {
  if (type == WeightType::q8) return kQuants8;
  if (type == WeightType::q4) return kQuants4;
  if (type == WeightType::q5) return kQuants5;
  if (type == WeightType::mxfp4) return p.contract == Contract::ggml ? kQuantsMxfp4 : kWideMxfp4;
  if (is_super(type)) return kSupers;
  if (p.contract != Contract::bf16) return kFloats;
  return p.kernels->tile_flushed != nullptr ? kWidePairs : kPairs;
}

// Returns the size of a thread's local memory. It holds the prepared weights, the sums of all rows
// between the pieces of a group, and finally the sums of a tile.
constexpr size_t local_floats(const Arithmetic& a) {
  return Group::kMost * (a.panel_floats + (kGemmRows + kTileRows) * kPanel);
}

}  // namespace stet::detail

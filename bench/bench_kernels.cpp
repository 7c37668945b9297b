// Measures kernels one at a time against their limits. Products of a 1B model's linear layers and
// attention run on one thread, beside the peak rate of the multiplying instruction. Decoding runs
// on two threads over memory far larger than the caches, beside a plain read.
//
// The host's memory and clock vary with time. Use --benchmark_enable_random_interleaving=true
// --benchmark_repetitions=15 to interleave the rows of a filter.
#include <benchmark/benchmark.h>

#include <string>

#include "stet/base/memory.hpp"
#include "stet/kernels/kernels.hpp"

namespace {

using namespace stet;

constexpr size_t kInputs = 2048;            // inputs of a linear layer
constexpr size_t kFar = size_t{256} << 20;  // bytes that each thread reads

// Returns memory in which every float, bfloat16, float16, scale and byte is an ordinary number.
Memory filled(size_t bytes) {
  Memory m(bytes);
  for (size_t i = 0; i < bytes / 2; ++i)
    m.as<uint16_t>()[i] = static_cast<uint16_t>(0x3C00 + i % 7);
  return m;
}

void count_operations(benchmark::State& state, size_t each) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(1e-9 * static_cast<double>(each) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}
void count_bytes(benchmark::State& state, size_t each) {
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(each));
}

// A linear layer's weights, and the kernels of its contract.
struct Linear {
  const char* name;
  size_t block_bytes;  // bytes for kInputs inputs and 16 outputs
  // Computes y[rows][16 * blocks] = W x for each row. Rounds the inputs as the contract requires.
  void (*gemv)(const Kernels& k, const void* w, size_t blocks, const float* x, float* y, int rows);
  // Computes y[rows][64] = W x for packed rows. Widens or expands the weights into `local` where
  // the contract does.
  void (*panel)(const Kernels& k, const std::byte* w, size_t rows, const void* packed,
                std::byte* local, float* y);
  size_t row_bytes;  // maximum bytes of a packed row
};

// Walks a panel as product.hpp does, but without its work between panels, because only the kernel
// table is measured. Where the inputs come in pieces, each piece's sums start at zero, which costs
// as much as continuing.
template <class Packed, class Multiply>
void each_tile(size_t rows, const void* packed, size_t tile_elements, float* y, Multiply multiply) {
  for (size_t r = 0; r < rows; r += kTileRows) {
    multiply(static_cast<const Packed*>(packed) + r / kTileRows * tile_elements,
             Tile{nullptr, 0, y + r * kPanel, kPanel, kTileRows, 4});
  }
}

template <int kType>
void widened_gemv(const Kernels& k, const void* w, size_t blocks, const float* x, float* y,
                  int rows) {
  k.gemv[kType](w, blocks, kInputs, x, kInputs, y, blocks * kLanes, rows);
}
template <int kType, auto Kernels::*kTile = &Kernels::tile>
void widened_panel(const Kernels& k, const std::byte* w, size_t rows, const void* packed,
                   std::byte* local, float* y) {
  constexpr size_t kDepth = 512;  // fits the second-level cache beside the rows
  float* const panel = reinterpret_cast<float*>(local);
  for (size_t k0 = 0; k0 < kInputs; k0 += kDepth) {
    k.widen_panel[kType](w, 4, kInputs, k0, kDepth, panel);
    each_tile<float>(rows, packed, kTileRows * kDepth, y,
                     [&](const float* a, const Tile& sums) { (k.*kTile)(a, panel, kDepth, sums); });
  }
}
void pairs_gemv(const Kernels& k, const void* w, size_t blocks, const float* x, float* y,
                int rows) {
  uint32_t pairs[kGemvRows * kInputs / 2];
  k.round_pairs(x, static_cast<size_t>(rows) * kInputs, pairs);
  k.gemv_pairs(w, blocks, kInputs, pairs, kInputs / 2, y, blocks * kLanes, rows);
}
void pairs_panel(const Kernels& k, const std::byte* w, size_t rows, const void* packed,
                 std::byte* local, float* y) {
  if (k.tile_flushed != nullptr)
    return widened_panel<1, &Kernels::tile_flushed>(k, w, rows, packed, local, y);
  each_tile<uint32_t>(
      rows, packed, kTileRows * kInputs / 2, y,
      [&](const uint32_t* a, const Tile& sums) { k.tile_pairs(a, w, kInputs, kInputs, sums); });
}
template <auto Kernels::*kGemv>
void quant_gemv(const Kernels& k, const void* w, size_t blocks, const float* x, float* y,
                int rows) {
  QuantBlock quants[kGemvRows * kInputs / kQuantBlock];
  k.quantize(x, static_cast<size_t>(rows) * kInputs, quants);
  (k.*kGemv)(w, blocks, kInputs, quants, kInputs / kQuantBlock, y, blocks * kLanes, rows);
}
template <auto Kernels::*kTile>
void quant_panel(const Kernels& k, const void* w, size_t rows, const void* packed, float* y) {
  each_tile<QuantTile>(
      rows, packed, kInputs / kQuantBlock, y,
      [&](const QuantTile* a, const Tile& sums) { (k.*kTile)(a, w, kInputs, kInputs, sums); });
}
void q8_panel(const Kernels& k, const std::byte* w, size_t rows, const void* packed, std::byte*,
              float* y) {
  quant_panel<&Kernels::tile_q8>(k, w, rows, packed, y);
}
template <auto Kernels::*kExpand, auto Kernels::*kTile>
void expanded_panel(const Kernels& k, const std::byte* w, size_t rows, const void* packed,
                    std::byte* local, float* y) {
  (k.*kExpand)(w, 4 * kInputs / kQuantStrip, local);
  quant_panel<kTile>(k, local, rows, packed, y);
}

template <size_t kSuper>
void super_gemv(const Kernels& k, const void* w, size_t blocks, const float* x, float* y,
                int rows) {
  SuperInput inputs[kGemvRows * kInputs / kQuantBlock];
  k.quantize_super(x, static_cast<size_t>(rows) * kInputs, inputs);
  k.gemv_super[kSuper](w, blocks, kInputs, inputs, kInputs / kQuantBlock, y, blocks * kLanes, rows);
}
template <size_t kSuper>
void super_panel(const Kernels& k, const std::byte* w, size_t rows, const void* packed,
                 std::byte* local, float* y) {
  constexpr size_t kDepth = 1024;
  for (size_t k0 = 0; k0 < kInputs; k0 += kDepth) {
    k.expand_super[kSuper](w, 4 * kDepth / kSuperBlock, local);
    each_tile<SuperTile>(rows, packed, kDepth / kQuantBlock, y,
                         [&](const SuperTile* a, const Tile& sums) {
                           k.tile_super[kSuper](a, local, kDepth, kDepth, sums);
                         });
  }
}

constexpr size_t kSuperRow = kInputs / kQuantBlock * sizeof(SuperTile) / kTileRows,
                 kSupers = kInputs / kSuperBlock;
constexpr size_t kStrips = kInputs / kQuantStrip,
                 kQuantRow = kInputs / kQuantBlock * sizeof(QuantTile) / kTileRows;
constexpr Linear kLinears[] = {
    {"f32", kLanes* kInputs * 4, widened_gemv<0>, widened_panel<0>, kInputs * 4},
    {"f32_of_bf16", kLanes* kInputs * 2, widened_gemv<1>, widened_panel<1>, kInputs * 4},
    {"bf16", kLanes* kInputs * 2, pairs_gemv, pairs_panel, kInputs * 4},
    {"q8", kStrips* kStripBytesQ8, quant_gemv<&Kernels::gemv_q8>, q8_panel, kQuantRow},
    {"q4", kStrips* kStripBytesQ4, quant_gemv<&Kernels::gemv_q4>,
     expanded_panel<&Kernels::expand_q4, &Kernels::tile_q4>, kQuantRow},
    {"q5", kStrips* kStripBytesQ5, quant_gemv<&Kernels::gemv_q5>,
     expanded_panel<&Kernels::expand_q5, &Kernels::tile_q8>, kQuantRow},
    {"mxfp4", kInputs / kStripMxfp4* kStripBytesMxfp4, quant_gemv<&Kernels::gemv_mxfp4>,
     expanded_panel<&Kernels::expand_mxfp4, &Kernels::tile_mxfp4>, kQuantRow},
    {"q4_k", kSupers* kSuperBytesQ4K, super_gemv<0>, super_panel<0>, kSuperRow},
    {"q5_k", kSupers* kSuperBytesQ5K, super_gemv<1>, super_panel<1>, kSuperRow},
    {"q6_k", kSupers* kSuperBytesQ6K, super_gemv<2>, super_panel<2>, kSuperRow},
};

// Measures matrix-vector products, one for each row, of a layer larger than the caches.
void gemv(benchmark::State& state, const Kernels& k, const Linear& linear, int rows) {
  const size_t blocks = kFar / linear.block_bytes, n = static_cast<size_t>(rows);
  const Memory w = filled(kFar), x = filled(n * kInputs * 4), y(n * blocks * kLanes * 4);
  for (auto _ : state) linear.gemv(k, w.data(), blocks, x.as<float>(), y.as<float>(), rows);
  count_bytes(state, blocks * linear.block_bytes);
}

// Measures one panel of 64 outputs for the rows of a prompt.
void panel(benchmark::State& state, const Kernels& k, const Linear& linear) {
  constexpr size_t kRows = 510;
  const Memory w = filled(4 * linear.block_bytes), packed = filled(kRows * linear.row_bytes),
               local(kPanel * kInputs * 4), y(kRows * kPanel * 4);
  for (auto _ : state)
    linear.panel(k, w.as<std::byte>(), kRows, packed.data(), local.as<std::byte>(), y.as<float>());
  count_operations(state, 2 * kRows * kPanel * kInputs);
}

// Keys and values of consecutive heads, for the queries of a tile.
class Attention {
 public:
  Attention(size_t bytes, size_t type, size_t head_dim, int rows)
      : type_(type),
        head_dim_(head_dim),
        half_(head_dim * kPanel * (type == 0 ? 4 : 2)),
        kv_(filled(bytes)),
        q_(filled(head_dim * kTileRows * 4)),
        o_(kTileRows * head_dim * 4),
        tile_{q_.as<float>(), rows, kAll, {m_, l_, o_.as<float>()}} {}
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  // Computes one token's attention. Each head is fetched while the previous one is multiplied.
  void run(const Kernels& k) const {
    const size_t head = 2 * half_;
    for (size_t at = 0; at + head <= kv_.size(); at += head) {
      const std::byte* const keys = kv_.as<std::byte>() + at;
      const Fetch next = at + 2 * head <= kv_.size() ? Fetch{keys + head, head} : Fetch{};
      k.attend[type_]({keys, keys + half_, head_dim_, head_dim_, 0.1f, 0, next}, &tile_, 1);
    }
  }

 private:
  static constexpr uint64_t kAll[kTileRows] = {~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull};
  size_t type_, head_dim_, half_;
  Memory kv_, q_, o_;
  float m_[kTileRows], l_[kTileRows];
  AttendTile tile_;
};

// Measures one head's block, which fits the first-level cache as far as possible.
void attend_block(benchmark::State& state, const Kernels& k, int rows) {
  constexpr size_t kHeadDim = 128, kBytes = 2 * kHeadDim * kPanel * 4;
  const Attention attention(kBytes, 0, kHeadDim, rows);
  for (auto _ : state) attention.run(k);
  count_operations(state, 4 * static_cast<size_t>(rows) * kHeadDim * kPanel);
}

// Measures four queries a head, over memory larger than the caches.
void attend(benchmark::State& state, const Kernels& k, size_t type, size_t head_dim) {
  const Attention attention(kFar, type, head_dim, 4);
  for (auto _ : state) attention.run(k);
  count_bytes(state, kFar);
}

void read(benchmark::State& state, const Kernels& k) {
  const Memory data = filled(kFar);
  for (auto _ : state) benchmark::DoNotOptimize(k.probe_read(data.data(), kFar));
  count_bytes(state, kFar);
}

// Measures the instructions that limit the panels of f32, bf16, and q8 and q4.
void peak(benchmark::State& state, const Kernels& k, float (*Kernels::*probe)(size_t),
          size_t operations) {
  constexpr size_t kSteps = 100000;
  for (auto _ : state) benchmark::DoNotOptimize((k.*probe)(kSteps));
  count_operations(state, kSteps * 16 * kLanes * operations);
}

const int registered = [] {
  for (const char* const* isa = kernel_names(); *isa != nullptr; ++isa) {
    const Kernels* const k = find_kernels(*isa);
    const auto add = [&](const std::string& what, auto run, auto... more) {
      return benchmark::RegisterBenchmark(
          (*isa + ("/" + what)).c_str(), [=](benchmark::State& state) { run(state, *k, more...); });
    };
    add("peak/fma", peak, &Kernels::probe_fma, size_t{2});
    add("peak/dot", peak, &Kernels::probe_dot, size_t{4});
    add("peak/bytes", peak, &Kernels::probe_bytes, size_t{8});
    for (const Linear& linear : kLinears) add(std::string("panel/") + linear.name, panel, linear);
    for (const int rows : {1, 4, 6})
      add("attend_block/rows:" + std::to_string(rows), attend_block, rows);
    add("far/read", read)->Threads(2)->UseRealTime();
    for (const Linear& linear : kLinears) {
      for (const int rows : {1, 4, 8, 16}) {
        add(std::string("far/gemv/") + linear.name + "/rows:" + std::to_string(rows), gemv, linear,
            rows)
            ->Threads(2)
            ->UseRealTime();
      }
    }
    for (const size_t head_dim : {64, 128, 256}) {
      for (const size_t type : {0, 1, 2}) {
        static const char* const kTypes[] = {"f32", "bf16", "f16"};
        add(std::string("far/attend/") + kTypes[type] + "/head_dim:" + std::to_string(head_dim),
            attend, type, head_dim)
            ->Threads(2)
            ->UseRealTime();
      }
    }
  }
  return 0;
}();

}  // namespace

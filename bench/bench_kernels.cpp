// Kernels one at a time, on one thread: the linear layers of a 1B model and attention over a long context.
#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "stet/kernels.hpp"
#include "stet/memory.hpp"

namespace {

using namespace stet;

constexpr size_t kInputs = 2048, kOutputs = 8192;

const Kernels& table(const benchmark::State& state) { return *find_kernels(kernel_names()[state.range(0)]); }

Memory filled(size_t bytes, uint16_t pattern) {
  Memory m(bytes);
  for (size_t i = 0; i < bytes / 2; ++i) m.as<uint16_t>()[i] = static_cast<uint16_t>(pattern + i % 7);
  return m;
}

void gemv_bf16(benchmark::State& state) {
  const Kernels& k = table(state);
  const Memory w = filled(kOutputs * kInputs * 2, 0x3C00), x = filled(kInputs * 4, 0x3C00), y(kOutputs * 4);
  for (auto _ : state) k.gemv[1](w.data(), kOutputs / kLanes, kInputs, x.as<float>(), 0, y.as<float>(), 0, 1);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * w.size()));
  state.SetLabel(k.name);
}

// The same weights under the contract bf16, the rounding of the inputs included.
void gemv_pairs(benchmark::State& state) {
  const Kernels& k = table(state);
  const Memory w = filled(kOutputs * kInputs * 2, 0x3C00), x = filled(kInputs * 4, 0x3C00), pairs(kInputs * 2), y(kOutputs * 4);
  for (auto _ : state) {
    k.round_pairs(x.as<float>(), kInputs, pairs.as<uint32_t>());
    k.gemv_pairs(w.data(), kOutputs / kLanes, kInputs, pairs.as<uint32_t>(), 0, y.as<float>(), 0, 1);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * w.size()));
  state.SetLabel(k.name);
}

// One panel of 64 outputs, widened and multiplied with 510 rows.
void panel_bf16(benchmark::State& state) {
  const Kernels& k = table(state);
  constexpr size_t kDepth = 512, kRows = 510;
  const Memory w = filled(kPanel * kDepth * 2, 0x3C00), a = filled(kRows * kDepth * 4, 0x3C00), panel(kPanel * kDepth * 4), c(kRows * kPanel * 4);
  for (auto _ : state) {
    k.widen_panel[1](w.data(), 4, kDepth, 0, kDepth, panel.as<float>());
    for (size_t r = 0; r < kRows; r += kTileRows) {
      k.tile(a.as<float>() + r * kDepth, panel.as<float>(), kDepth, {nullptr, 0, c.as<float>() + r * kPanel, kPanel, kTileRows, 4});
    }
  }
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(kPanel * kDepth * kRows) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.SetLabel(k.name);
}

// The same, of pairs and not widened.
void panel_pairs(benchmark::State& state) {
  const Kernels& k = table(state);
  constexpr size_t kDepth = 512, kRows = 510;
  const Memory w = filled(kPanel * kDepth * 2, 0x3C00), a = filled(kRows * kDepth * 2, 0x3C00), c(kRows * kPanel * 4);
  for (auto _ : state) {
    for (size_t r = 0; r < kRows; r += kTileRows) {
      k.tile_pairs(a.as<uint32_t>() + r * kDepth / 2, w.data(), kDepth, kDepth, {nullptr, 0, c.as<float>() + r * kPanel, kPanel, kTileRows, 4});
    }
  }
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(kPanel * kDepth * kRows) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.SetLabel(k.name);
}

void attend_block(benchmark::State& state) {
  const Kernels& k = table(state);
  constexpr size_t kHeadDim = 128;
  const int rows = static_cast<int>(state.range(1));
  const Memory q = filled(kHeadDim * kTileRows * 4, 0x3C00), kv = filled(2 * kHeadDim * kPanel * 4, 0x3C00), o(kTileRows * kHeadDim * 4);
  const uint64_t mask[kTileRows] = {~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull};
  float m[kTileRows], l[kTileRows];
  const AttendBlock block{kv.data(), kv.as<float>() + kHeadDim * kPanel, kHeadDim, kHeadDim, 0.1f, 0};
  const AttendTile tile{q.as<float>(), rows, mask, {m, l, o.as<float>()}};
  for (auto _ : state) k.attend[0](block, &tile, 1);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kv.size()));
  state.SetLabel(k.name);
}

// Memory far larger than the caches, for each thread its own.
constexpr size_t kFar = size_t{256} << 20;

// One token's attention over all of it: four queries for each head of a block, which lies behind the one before, the next one
// fetched meanwhile. Take it in turn with read_memory (--benchmark_enable_random_interleaving=true).
void attend_memory(benchmark::State& state) {
  const Kernels& k = table(state);
  const auto type = static_cast<size_t>(state.range(1)), head_dim = static_cast<size_t>(state.range(2));
  const size_t half = head_dim * kPanel * (type == 0 ? 4 : 2), head = 2 * half;
  const Memory kv = filled(kFar, 0x3C00), q = filled(head_dim * kTileRows * 4, 0x3C00), o(kTileRows * head_dim * 4);
  const uint64_t mask[kTileRows] = {~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull};
  float m[kTileRows], l[kTileRows];
  const AttendTile tile{q.as<float>(), 4, mask, {m, l, o.as<float>()}};
  for (auto _ : state) {
    for (size_t at = 0; at + head <= kFar; at += head) {
      const std::byte* const keys = kv.as<std::byte>() + at;
      const Fetch next = at + 2 * head <= kFar ? Fetch{keys + head, head} : Fetch{};
      k.attend[type]({keys, keys + half, head_dim, head_dim, 0.1f, 0, next}, &tile, 1);
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kFar));
  state.SetLabel(std::string(k.name) + (type == 0 ? ", f32" : type == 1 ? ", bf16" : ", f16"));
}

void read_memory(benchmark::State& state) {
  const Kernels& k = table(state);
  const Memory data = filled(kFar, 0x3C00);
  for (auto _ : state) benchmark::DoNotOptimize(k.probe_read(data.data(), kFar));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kFar));
  state.SetLabel(k.name);
}

// A probe runs the same FMAs that bound panel_bf16.
void fma_peak(benchmark::State& state) {
  const Kernels& k = table(state);
  for (auto _ : state) benchmark::DoNotOptimize(k.probe_fma(100000));
  state.counters["GFLOP/s"] = benchmark::Counter(1e-9 * 100000 * 16 * 16 * 2 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.SetLabel(k.name);
}

// And the same dot products that bound panel_pairs.
void dot_peak(benchmark::State& state) {
  const Kernels& k = table(state);
  for (auto _ : state) benchmark::DoNotOptimize(k.probe_dot(100000));
  state.counters["GFLOP/s"] = benchmark::Counter(1e-9 * 100000 * 16 * 16 * 4 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.SetLabel(k.name);
}

int tables() {
  int n = 0;
  while (kernel_names()[n] != nullptr) ++n;
  return n;
}

const int registered = [] {
  for (int i = 0; i < tables(); ++i) {
    benchmark::RegisterBenchmark("gemv_bf16", gemv_bf16)->Arg(i);
    benchmark::RegisterBenchmark("panel_bf16", panel_bf16)->Arg(i);
    benchmark::RegisterBenchmark("fma_peak", fma_peak)->Arg(i);
    benchmark::RegisterBenchmark("gemv_pairs", gemv_pairs)->Arg(i);
    benchmark::RegisterBenchmark("panel_pairs", panel_pairs)->Arg(i);
    benchmark::RegisterBenchmark("dot_peak", dot_peak)->Arg(i);
    for (int rows : {1, 4, 6}) benchmark::RegisterBenchmark("attend_block", attend_block)->Args({i, rows});
    benchmark::RegisterBenchmark("read_memory", read_memory)->Arg(i)->Threads(2)->UseRealTime();
    for (int type : {0, 1, 2}) {
      for (int head_dim : {64, 128, 256}) {
        benchmark::RegisterBenchmark("attend_memory", attend_memory)->Args({i, type, head_dim})->Threads(2)->UseRealTime();
      }
    }
  }
  return 0;
}();

}  // namespace

// Compares contract f32's matrix-matrix product with OpenBLAS's sgemm. Runs of both alternate. Each
// computes y[512][outputs] = x W^T for the linear layers of a llama3.2-1b and a gemma3-1b. Both get
// float32 weights and pack the rows within the measured time. stet's weights are packed when a
// model is loaded; OpenBLAS packs them in every call.
#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "stet/model/ops.hpp"

namespace {

using namespace stet;

constexpr size_t kRows = 512;

// Returns the mean seconds of `work`, over 50 ms or more. Waits first, because the other side's
// threads spin for a while after their last work and would occupy a core. The first call wakes
// sleeping threads.
double seconds_of(const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  work();
  const auto start = Clock::now();
  int times = 0;
  do {
    work();
    ++times;
  } while (Clock::now() - start < std::chrono::milliseconds(50));
  return std::chrono::duration<double>(Clock::now() - start).count() / times;
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Fills x with a reproducible sequence in [-1, 1).
void fill(float* x, size_t n, uint32_t seed) {
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-31f;
  }
}

struct Shape {
  const char* name;
  size_t inputs, outputs;
};

void compare(const Shape& shape, int threads, int repeat) {
  Memory w(shape.inputs * shape.outputs * sizeof(float)), x(kRows * shape.inputs * sizeof(float));
  Memory y(kRows * shape.outputs * sizeof(float)), z(kRows * shape.outputs * sizeof(float));
  fill(w.as<float>(), shape.inputs * shape.outputs, 1);
  fill(x.as<float>(), kRows * shape.inputs, 2);
  const TensorView view{"w",
                        DType::f32,
                        "F32",
                        {static_cast<int64_t>(shape.outputs), static_cast<int64_t>(shape.inputs)},
                        {w.data(), w.size()}};
  const Matrix matrix({&view}, shape.inputs, threads);
  ModelConfig config;
  config.layers = 1;
  config.hidden_size = static_cast<int64_t>(std::max(shape.inputs, shape.outputs));
  config.head_dim = 64;
  config.heads = config.kv_heads = 1;
  Scratch scratch = make_scratch(config, kRows, threads, 64);
  Pass pass = {};
  pass.kernels = &best_kernels();
  pass.contract = Contract::f32;
  pass.scratch = &scratch;
  const Rows in{x.as<float>(), shape.inputs, shape.inputs, kRows},
      out{y.as<float>(), shape.outputs, shape.outputs, kRows};
  const auto own = [&] { run_team(threads, [&](Team t) { linear(t, pass, matrix, in, out); }); };
  const int rows = kRows, outputs = static_cast<int>(shape.outputs),
            inputs = static_cast<int>(shape.inputs);
  const auto blas = [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, outputs, inputs, 1, in.data, inputs,
                w.as<float>(), inputs, 0, z.as<float>(), outputs);
  };
  openblas_set_num_threads(threads);
  own();
  blas();
  std::vector<double> mine, theirs, ratio, peak;
  constexpr size_t kSteps = 200'000;
  for (int i = 0; i < repeat; ++i) {
    mine.push_back(seconds_of(own));
    theirs.push_back(seconds_of(blas));
    ratio.push_back(theirs.back() / mine.back());
    peak.push_back(
        seconds_of([&] { run_team(threads, [&](Team) { pass.kernels->probe_fma(kSteps); }); }));
  }
  float difference = 0;
  for (size_t i = 0; i < kRows * shape.outputs; ++i)
    difference = std::max(difference, std::abs(y.as<float>()[i] - z.as<float>()[i]));
  const double operations = 2.0 * kRows * static_cast<double>(shape.inputs * shape.outputs) / 1e9;
  const double most = kSteps * 16.0 * size_t{kLanes} * 2 * threads / median(peak) / 1e9;
  std::puts(
      fmt::format("{:<24} {:>5} x {:<5} {:>8} {:>12.1f} {:>5.0f} % {:>12.1f} {:>8.2f} {:>14.1e}",
                  shape.name, shape.inputs, shape.outputs, threads, operations / median(mine),
                  100 * operations / median(mine) / most, operations / median(theirs),
                  median(ratio), difference)
          .c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const int repeat = argc > 1 ? std::atoi(argv[1]) : 15;
  if (argc > 2 || repeat < 1) {
    std::fputs(
        "openblas [REPEAT]: stet's f32 matrix product beside OpenBLAS, medians of REPEAT pairs "
        "(default 15)\n",
        stderr);
    return 2;
  }
  std::printf("%s (OPENBLAS_CORETYPE chooses other kernels)\n", openblas_get_config());
  constexpr Shape kShapes[] = {
      {"llama3.2-1b qkv", 2048, 3072},       {"llama3.2-1b out", 2048, 2048},
      {"llama3.2-1b gate, up", 2048, 16384}, {"llama3.2-1b down", 8192, 2048},
      {"gemma3-1b qkv", 1152, 1536},         {"gemma3-1b out", 1024, 1152},
      {"gemma3-1b gate, up", 1152, 13824},   {"gemma3-1b down", 6912, 1152}};
  std::puts(fmt::format("{:<24} {:>13} {:>8} {:>12} {:>7} {:>12} {:>8} {:>14}", "512 rows",
                        "in x out", "threads", "stet GFLOP/s", "of peak", "OpenBLAS", "ratio",
                        "difference")
                .c_str());
  for (const int threads : {1, 2}) {
    for (const Shape& shape : kShapes) compare(shape, threads, repeat);
  }
}

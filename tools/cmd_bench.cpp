// stet bench: prefill, decode, save, restore, fork, beside what the machine can do.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "stet/kernels.hpp"
#include "stet/error.hpp"
#include "tools/command.hpp"

namespace stet::tool {
namespace {

struct Options {
  ModelOptions model;
  int64_t prompt = 512, decode = 64;
  int repeat = 3;
  bool machine = false, json = false;
};

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

struct Machine {
  double read_gb_s;    // streaming reads of a buffer beyond all caches
  double fma_gflop_s;  // independent float32 FMAs in registers
};

// Medians of interleaved probes, so that a passing disturbance hits both alike.
Machine measure_machine(const Kernels& kernels, int threads) {
  const size_t bytes = size_t{1} << 30, steps = 4'000'000;
  const Memory buffer(bytes);
  run_team(threads, [&](Team t) {
    const Range mine = t.share(bytes / 64);
    std::fill(buffer.data() + mine.begin * 64, buffer.data() + mine.end * 64, std::byte{1});
  });
  std::vector<double> read, fma;
  for (int i = 0; i < 5; ++i) {
    double start = seconds();
    run_team(threads, [&](Team t) {
      const Range mine = t.share(bytes / 4096);
      kernels.probe_read(buffer.data() + mine.begin * 4096, (mine.end - mine.begin) * 4096);
    });
    read.push_back(static_cast<double>(bytes) / (seconds() - start) / 1e9);
    start = seconds();
    run_team(threads, [&](Team) {
      volatile float keep = kernels.probe_fma(steps);
      (void)keep;
    });
    fma.push_back(static_cast<double>(steps) * 16 * 16 * 2 * threads / (seconds() - start) / 1e9);
  }
  return {median(read), median(fma)};
}

// Weights that one decode step reads: all but the embedding when the head has its own.
size_t decode_bytes(const Model& model) {
  const ModelConfig& c = model.config();
  const size_t table = static_cast<size_t>(c.vocab_size * c.hidden_size) * 2;
  return c.tied_head ? model.weight_bytes() : model.weight_bytes() - table;
}

// Multiply-adds of the linear layers for `tokens` tokens, the head once; twice that in operations.
double prefill_operations(const Model& model, double tokens) {
  const ModelConfig& c = model.config();
  const double q = static_cast<double>(c.heads * c.head_dim), kv = static_cast<double>(c.kv_heads * c.head_dim);
  const double h = static_cast<double>(c.hidden_size), inter = static_cast<double>(c.intermediate_size);
  const double layer = h * (2 * q + 2 * kv + 3 * inter);
  return 2 * (tokens * static_cast<double>(c.layers) * layer + h * static_cast<double>(c.vocab_size));
}

std::vector<int32_t> some_tokens(const Model& model, int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>((i * 7919 + 13) % model.config().vocab_size));
  return ids;
}

template <class F>
double median_seconds(int repeat, F f) {
  std::vector<double> times;
  for (int i = 0; i < repeat; ++i) times.push_back(f());
  return median(times);
}

template <class F>
double time_of(F f) {
  const double start = seconds();
  f();
  return seconds() - start;
}

void run(Options& o) {
  const SessionOptions options = o.model.session_options();
  const int threads = options.compute.threads > 0 ? options.compute.threads : default_threads();
  const Kernels* kernels = options.compute.isa.empty() ? &best_kernels() : find_kernels(options.compute.isa.c_str());
  if (kernels == nullptr) throw Error(ErrorKind::argument, "", "--isa", "one that this CPU has", options.compute.isa);
  Json j;
  j["isa"] = kernels->name;
  j["threads"] = threads;
  const auto machine = [&] {
    const Machine m = measure_machine(*kernels, threads);
    j["read_gb_per_s"] = m.read_gb_s;
    j["fma_gflop_per_s"] = m.fma_gflop_s;
    return m;
  };
  Machine m = machine();
  if (!o.machine) {
    const double load_start = seconds();
    const auto model = o.model.load_model();
    j["model"] = model->directory();
    j["contract"] = contract_name(options.compute);
    j["load_s"] = seconds() - load_start;
    j["weight_bytes"] = model->weight_bytes();
    Session session(model, options);
    const std::vector<int32_t> ids = some_tokens(*model, o.prompt);
    session.append(std::span(ids).first(1));  // touches the scratch memory
    const double prefill = median_seconds(o.repeat, [&] {
      session.rewind(0);
      return time_of([&] { session.append(ids); });
    });
    const std::vector<int32_t> next = some_tokens(*model, 1);
    const double decode = median_seconds(o.repeat, [&] {
      session.rewind(o.prompt);
      return time_of([&] { for (int64_t i = 0; i < o.decode; ++i) session.append(next); }) / static_cast<double>(o.decode);
    });
    m = machine();
    const double tokens = static_cast<double>(o.prompt);
    j["prefill"] = {{"tokens", o.prompt}, {"s", prefill}, {"tokens_per_s", tokens / prefill},
                    {"gflop_per_s", prefill_operations(*model, tokens) / prefill / 1e9},
                    {"share_of_fma_peak", prefill_operations(*model, tokens) / prefill / 1e9 / m.fma_gflop_s}};
    const double bytes = static_cast<double>(decode_bytes(*model));
    j["decode"] = {{"tokens", o.decode}, {"s_per_token", decode}, {"tokens_per_s", 1 / decode},
                   {"weights_gb_per_s", bytes / decode / 1e9}, {"share_of_read", bytes / decode / 1e9 / m.read_gb_s}};
    const std::string file = (std::filesystem::temp_directory_path() / fmt::format("stet-bench-{}.stet", getpid())).string();
    const double save = median_seconds(o.repeat, [&] { return time_of([&] { Snapshot::save(session, "", file); }); });
    const double restore = median_seconds(o.repeat, [&] {
      return time_of([&] { Snapshot::open(file).restore(model, "", options); });
    });
    const double size = static_cast<double>(std::filesystem::file_size(file));
    std::filesystem::remove(file);
    const double fork = median_seconds(101, [&] { return time_of([&] { session.fork(); }); });
    j["state"] = {{"positions", session.size()}, {"bytes", size}, {"save_s", save}, {"restore_s", restore}, {"fork_s", fork}};
  }
  if (o.json) {
    fmt::print("{}\n", j.dump(2));
    return;
  }
  fmt::print("machine   {} threads, {}: reads {:.1f} GB/s, FMA {:.1f} GFLOP/s (float32)\n", threads, kernels->name, m.read_gb_s, m.fma_gflop_s);
  if (o.machine) return;
  const Json &p = j["prefill"], &d = j["decode"], &s = j["state"];
  fmt::print("load      {:.2f} s, weights {}\n", j["load_s"].get<double>(), bytes_text(j["weight_bytes"].get<double>()));
  fmt::print("prefill   {} tokens: {:.1f} tokens/s, {:.1f} GFLOP/s, {:.0f} % of the FMA peak\n", o.prompt,
             p["tokens_per_s"].get<double>(), p["gflop_per_s"].get<double>(), 100 * p["share_of_fma_peak"].get<double>());
  fmt::print("decode    {} tokens: {:.1f} tokens/s, {:.1f} GB/s, {:.0f} % of the read bandwidth\n", o.decode,
             d["tokens_per_s"].get<double>(), d["weights_gb_per_s"].get<double>(), 100 * d["share_of_read"].get<double>());
  fmt::print("state     {} positions, {}: save {:.1f} ms, restore {:.1f} ms, fork {:.1f} us\n", s["positions"].get<int64_t>(),
             bytes_text(s["bytes"].get<double>()), 1e3 * s["save_s"].get<double>(), 1e3 * s["restore_s"].get<double>(),
             1e6 * s["fork_s"].get<double>());
}

}  // namespace

void add_bench(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("bench", "speed of this machine and of stet on it");
  o->model.add_to(*sub);
  sub->add_option("-p,--prompt-tokens", o->prompt, "tokens of the prefill")->capture_default_str()->check(CLI::Range(1, 1 << 20));
  sub->add_option("-n,--decode-tokens", o->decode, "tokens decoded after it")->capture_default_str()->check(CLI::Range(1, 1 << 20));
  sub->add_option("--repeat", o->repeat, "runs; medians are printed")->capture_default_str()->check(CLI::Range(1, 1000));
  sub->add_flag("--machine", o->machine, "measure the machine alone");
  sub->add_flag("--json", o->json, "print JSON");
  sub->callback([o] { run(*o); });
}

}  // namespace stet::tool

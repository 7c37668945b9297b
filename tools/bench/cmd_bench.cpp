// stet bench: measures prefill, decode, save, restore and fork, next to the machine's limits.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "stet/base/error.hpp"
#include "stet/kernels/kernels.hpp"
#include "tools/bench/figures.hpp"
#include "tools/bench/snapshot.hpp"
#include "tools/bench/speculation.hpp"
#include "tools/bench/turns.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {
namespace {

struct BenchCommand {
  ModelOptions model;
  int64_t prompt = 512, decode = 64;
  int repeat = 3;
  bool machine = false, without_probes = false, snapshot = false, turns = false, json = false;
  std::vector<int64_t> lengths = {512, 4096, 16384};
  std::vector<int64_t> batch;     // numbers of sessions in a batch
  std::vector<int64_t> threads;   // numbers of threads; several print a table
  std::vector<double> speculate;  // shares of drafted tokens that are right
  std::vector<int64_t> rows;      // rows of a pass
  std::string directory;
};

// The probe for the multiply instruction of a contract, and its operations per lane.
struct Peak {
  float (*probe)(size_t steps);
  int operations;
  const char* name;
};
Peak peak(const Kernels& k, Contract contract) {
  if (contract == Contract::f32 || contract == Contract::f32_blas)
    return {k.probe_fma, 2, "float32 FMA"};
  if (contract == Contract::bf16 && k.tile_flushed != nullptr)
    return {k.probe_fma, 2, "float32 FMA"};
  if (contract == Contract::bf16) return {k.probe_dot, 4, "dot products of bfloat16 pairs"};
  return {k.probe_bytes, 8, "dot products of four bytes"};
}

using Regions = std::vector<std::span<const std::byte>>;

// Measures the machine's limits. Each is measured in turn with the run that is compared with it, so
// that a passing disturbance affects both.
struct Probes {
  const Kernels& kernels;
  Contract contract;
  int threads;

  // Returns 10^9 operations per s of independent chains in registers, with the instruction of the
  // contract's linear layers.
  double peak() const {
    const Peak of = tool::peak(kernels, contract);
    const size_t steps = 4'000'000;
    const double start = seconds();
    run_team(threads, [&](Team) {
      volatile float keep = of.probe(steps);
      (void)keep;
    });
    return static_cast<double>(steps) * 16 * 16 * of.operations * threads / (seconds() - start) /
           1e9;
  }
  // Returns 10^9 bytes per s for one read of these regions in order.
  double read(const Regions& regions) const {
    double bytes = 0;
    const double start = seconds();
    run_team(threads, [&](Team t) {
      for (const std::span<const std::byte> region : regions) {
        const Range mine = t.share(region.size() / 64);
        kernels.probe_read(region.data() + mine.begin * 64, mine.size() * 64);
      }
    });
    for (const std::span<const std::byte> region : regions)
      bytes += static_cast<double>(region.size());
    return bytes / (seconds() - start) / 1e9;
  }
};

struct Machine {
  double read_gb_s, gflop_s;
};

// Measures reads of a buffer larger than all caches.
Machine measure_machine(const Probes& probes, int repeat) {
  const size_t bytes = size_t{1} << 30;
  const Memory buffer(bytes);
  run_team(probes.threads, [&](Team t) {
    const Range mine = t.share(bytes / 64);
    std::fill(buffer.data() + mine.begin * 64, buffer.data() + mine.end * 64, std::byte{1});
  });
  std::vector<double> read, peak;
  for (int i = 0; i < repeat; ++i) {
    read.push_back(probes.read({{buffer.data(), bytes}}));
    peak.push_back(probes.peak());
  }
  return {median(read), median(peak)};
}

// Returns the operations of the linear layers for `tokens` tokens: two per multiply-add, and the
// head once.
double prefill_operations(const Model& model, double tokens) {
  const ModelConfig& c = model.config();
  const double q = static_cast<double>(c.heads * c.head_dim),
               kv = static_cast<double>(c.kv_heads * c.head_dim);
  const double h = static_cast<double>(c.hidden_size),
               inter = static_cast<double>(c.intermediate_size);
  const double layer = h * (2 * q + 2 * kv), dense = 3 * h * inter,
               experts = h * static_cast<double>(c.experts.count) +
                         3 * h * static_cast<double>(c.experts.chosen * c.experts.width);
  double all = 0;
  for (int64_t i = 0; i < c.layers; ++i) all += layer + (c.has_experts(i) ? experts : dense);
  return 2 * (tokens * all + h * static_cast<double>(c.vocab_size));
}

double as_double(int64_t x) { return static_cast<double>(x); }

// Medians of a kind of run. The share is computed for each run from the limits right before and
// after it, so it holds on a machine whose memory is shared.
struct Timings {
  double seconds, yardstick = 0, share = 0;
};

// Runs of one kind. `amount` is the work of each, in 10^9 units of the limit's rate.
class Runs {
 public:
  Runs(const BenchCommand& o, double amount, std::function<double()> yardstick)
      : probes_(!o.without_probes), amount_(amount), yardstick_(std::move(yardstick)) {}

  // Runs `times` pieces of work and counts their mean as one run.
  template <class F>
  void run(int64_t times, F f) {
    const double before = probes_ ? yardstick_() : 0;
    times_.push_back(time_of([&] {
                       for (int64_t i = 0; i < times; ++i) f();
                     }) /
                     as_double(times));
    if (!probes_) return;
    yardsticks_.push_back((before + yardstick_()) / 2);
    shares_.push_back(amount_ / times_.back() / yardsticks_.back());
  }
  Timings medians() const {
    if (!probes_) return {median(times_)};
    return {median(times_), median(yardsticks_), median(shares_)};
  }

 private:
  bool probes_;
  double amount_;
  std::function<double()> yardstick_;
  std::vector<double> times_, yardsticks_, shares_;
};

struct Speed {
  double first;             // s for the first token after loading
  Timings prefill, decode;  // times of a prompt, and of a decoded token
};

// Measures prompts and replies in turn, as in a conversation.
Speed measure_speed(Session& session, const BenchCommand& o, const Probes& probes) {
  const Model& model = session.model();
  const std::vector<int32_t> ids = some_tokens(model, o.prompt), next = some_tokens(model, 1);
  const double first = time_of([&] { session.append(next); });  // first use of the scratch memory
  Runs prefill(o, prefill_operations(model, as_double(o.prompt)) / 1e9,
               [&] { return probes.peak(); });
  Runs decode(o, static_cast<double>(model.bytes_per_token()) / 1e9,
              [&] { return probes.read(model.matrices()); });
  for (int i = 0; i < o.repeat; ++i) {
    session.rewind(0);
    prefill.run(1, [&] { session.append(ids); });
    decode.run(o.decode, [&] { session.append(next); });
  }
  return {first, prefill.medians(), decode.medians()};
}

// Measures decode steps of 1 and of `o.batch` sessions at once, in turn. Each session has a prompt
// of its own.
Json batch_json(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                const BenchCommand& o) {
  const std::vector<int32_t> ids = some_tokens(*model, o.prompt + 1);
  const std::span<const int32_t> prompt(ids.data(), ids.size() - 1), next(&ids.back(), 1);
  std::vector<Session> sessions;
  for (int64_t i = *std::max_element(o.batch.begin(), o.batch.end()); i > 0; --i)
    sessions.emplace_back(model, options);
  std::vector<BatchEntry> entries;
  for (Session& s : sessions) entries.push_back({&s, prompt});
  append(entries);
  for (BatchEntry& e : entries) e.ids = next;
  std::vector<int64_t> sizes = {1};
  sizes.insert(sizes.end(), o.batch.begin(), o.batch.end());
  std::vector<std::vector<double>> times(sizes.size());
  for (int run = 0; run < o.repeat; ++run) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::span<const BatchEntry> batch(entries.data(), static_cast<size_t>(sizes[i]));
      times[i].push_back(time_of([&] {
        for (int64_t step = 0; step < o.decode; ++step) append(batch);
      }));
      for (const BatchEntry& e : batch) e.session->rewind(o.prompt);
    }
  }
  Json rows = Json::array();
  const double one = median(times[0]);
  for (size_t i = 1; i < sizes.size(); ++i) {
    const double seconds = median(times[i]), n = as_double(sizes[i]);
    rows.push_back({{"sessions", sizes[i]},
                    {"tokens_per_s", n * as_double(o.decode) / seconds},
                    {"of_one_session", n * one / seconds}});
  }
  return rows;
}

void note_machine(Json& j, const Machine& m) {
  j["read_gb_per_s"] = m.read_gb_s;
  j["peak_gflop_per_s"] = m.gflop_s;
}

std::shared_ptr<const Model> load(Json& j, BenchCommand& o, const SessionOptions& options) {
  const double start = seconds();
  auto model = o.model.load_model();
  j["model"] = model->directory();
  j["contract"] = contract_name(*model, options.compute.contract);
  j["load_s"] = seconds() - start;
  j["weight_bytes"] = model->weight_bytes();
  return model;
}

// Measures the model. Without probes, shares of the machine's limits are left out, and the peak of
// memory is that of the model alone.
void measure_model(Json& j, const std::shared_ptr<const Model>& model, const BenchCommand& o,
                   const SessionOptions& options, const Probes& probes) {
  Session session(model, options);
  const Speed s = measure_speed(session, o, probes);
  j["first_token_s"] = s.first;
  if (o.without_probes) j["peak_bytes"] = peak_bytes();
  j["prefill"] = {
      {"tokens", o.prompt},
      {"s", s.prefill.seconds},
      {"tokens_per_s", as_double(o.prompt) / s.prefill.seconds},
      {"gflop_per_s", prefill_operations(*model, as_double(o.prompt)) / s.prefill.seconds / 1e9}};
  j["decode"] = {
      {"tokens", o.decode},
      {"s_per_token", s.decode.seconds},
      {"tokens_per_s", 1 / s.decode.seconds},
      {"weights_gb_per_s", static_cast<double>(model->bytes_per_token()) / s.decode.seconds / 1e9}};
  if (!o.without_probes) {
    note_machine(j, {s.decode.yardstick, s.prefill.yardstick});
    j["prefill"]["share_of_peak"] = s.prefill.share;
    j["decode"]["share_of_read"] = s.decode.share;
  }
  if (!o.batch.empty()) j["batch"] = batch_json(model, options, o);
  if (!o.rows.empty()) j["rows"] = row_figures(model, options, o.prompt, o.rows, o.repeat);
  if (!o.speculate.empty()) {
    j["speculation"] =
        speculation_figures(model, options, o.prompt, o.decode, o.speculate, o.repeat);
  }
  j["state"] = state_figures(session, options, o.repeat);
}

void print_timings(const Json& j) {
  const auto number = [](const Json& of, const char* name) { return of[name].get<double>(); };
  const bool probes = j.contains("read_gb_per_s");
  const auto share = [&](const Json& of, const char* name, const char* whole) {
    return probes ? fmt::format(", {:.0f} % of the {}", 100 * number(of, name), whole) : "";
  };
  out(fmt::format("machine   {} threads, {}, {}", j["threads"].get<int>(),
                  j["team"].get<std::string>(), j["isa"].get<std::string>()));
  if (const std::string kinds = j["processors"].get<std::string>(); !kinds.empty())
    out(", " + kinds);
  if (probes) {
    out(fmt::format(": reads {} at {:.1f} GB/s, {} {:.1f} GFLOP/s",
                    j.contains("model") ? "these weights" : "memory", number(j, "read_gb_per_s"),
                    j["peak_of"].get<std::string>(), number(j, "peak_gflop_per_s")));
  }
  out("\n");
  if (!j.contains("model")) return;
  const Json &p = j["prefill"], &d = j["decode"], &s = j["state"];
  out(fmt::format("load      {:.2f} s, weights {}{}\n", number(j, "load_s"),
                  bytes_text(number(j, "weight_bytes")),
                  probes ? "" : ", peak memory " + bytes_text(number(j, "peak_bytes"))));
  out(fmt::format("prefill   {} tokens: {:.1f} tokens/s, {:.1f} GFLOP/s{}\n",
                  p["tokens"].get<int64_t>(), number(p, "tokens_per_s"), number(p, "gflop_per_s"),
                  share(p, "share_of_peak", "peak")));
  out(fmt::format("decode    {} tokens: {:.1f} tokens/s, {:.1f} GB/s{}\n",
                  d["tokens"].get<int64_t>(), number(d, "tokens_per_s"),
                  number(d, "weights_gb_per_s"), share(d, "share_of_read", "bandwidth")));
  for (const Json& b : j.value("batch", Json::array())) {
    out(fmt::format("batch     {} sessions: {:.1f} tokens/s in all, {:.2f} x one session\n",
                    b["sessions"].get<int64_t>(), number(b, "tokens_per_s"),
                    number(b, "of_one_session")));
  }
  print_speculation(j);
  out(fmt::format("state     {} positions, {}: save {:.1f} ms, restore {:.1f} ms, fork {:.1f} us\n",
                  s["positions"].get<int64_t>(), bytes_text(number(s, "bytes")),
                  1e3 * number(s, "save_s"), 1e3 * number(s, "restore_s"),
                  1e6 * number(s, "fork_s")));
}

// Prints a row for each number of threads.
void print_threads_table(const Json& j) {
  const std::string kinds = j["processors"].get<std::string>();
  out(fmt::format("machine   {} processors, {}, {}{}{}\n", j["default_threads"].get<int>(),
                  j["team"].get<std::string>(), j["isa"].get<std::string>(),
                  kinds.empty() ? "" : ", ", kinds));
  const auto text = [](const Json& of, const char* name) {
    return of.contains(name) ? fmt::format("{:.1f}", of[name].get<double>()) : "";
  };
  const auto percent = [](const Json& of, const char* name) {
    return of.contains(name) ? fmt::format("{:.0f} %", 100 * of[name].get<double>()) : "";
  };
  const bool model = j.contains("model");
  if (model) {
    out(fmt::format("{:>8}{:>12}{:>9}{:>12}{:>11}\n", "threads", "prefill", "of peak", "decode",
                    "of memory"));
  } else {
    out(fmt::format("{:>8}{:>12}{:>12}\n", "threads", "GFLOP/s", "GB/s"));
  }
  for (const Json& row : j["by_threads"]) {
    out(fmt::format("{:>8}", row["threads"].get<int>()));
    if (model) {
      const Json &p = row["prefill"], &d = row["decode"];
      out(fmt::format("{:>12}{:>9}{:>12}{:>11}\n", text(p, "tokens_per_s"),
                      percent(p, "share_of_peak"), text(d, "tokens_per_s"),
                      percent(d, "share_of_read")));
    } else {
      out(fmt::format("{:>12}{:>12}\n", text(row, "peak_gflop_per_s"), text(row, "read_gb_per_s")));
    }
  }
}

// Measures the model with each number of threads. Returns an object for each.
void run_table(Json j, BenchCommand& o, SessionOptions options, const Kernels& kernels) {
  std::shared_ptr<const Model> model;
  if (!o.machine) model = load(j, o, options);
  j["default_threads"] = default_threads();
  Json rows = Json::array();
  for (const int64_t n : o.threads) {
    options.compute.threads = n > 0 ? static_cast<int>(n) : default_threads();
    const Probes probes{kernels, options.compute.contract, options.compute.threads};
    Json row;
    row["threads"] = probes.threads;
    if (o.machine)
      note_machine(row, measure_machine(probes, o.repeat));
    else
      measure_model(row, model, o, options, probes);
    rows.push_back(std::move(row));
  }
  j["by_threads"] = std::move(rows);
  if (o.json)
    out(dump(j, 2) + "\n");
  else
    print_threads_table(j);
}

// Measures snapshots. Leaves out lengths beyond the model's maximum.
void run_snapshot(BenchCommand& o, const SessionOptions& options) {
  const auto model = o.model.load_model();
  std::vector<int64_t> lengths;
  for (const int64_t n : o.lengths) {
    if (n + 64 <= model->config().max_positions) lengths.push_back(n);
  }
  if (lengths.empty()) usage_error("--lengths needs a length below the model's context");
  const std::string directory =
      o.directory.empty() ? std::filesystem::temp_directory_path().string() : o.directory;
  const Json rows = snapshot_figures(model, options, lengths, o.repeat, directory);
  if (o.json)
    out(dump(rows, 2) + "\n");
  else
    print_snapshot_figures(rows);
}

// Refuses measurements that this contract, these chunks or a table do not have.
void check_measurements(const BenchCommand& o, const ComputeOptions& compute) {
  const char* drafts = !o.rows.empty() ? "--rows" : !o.speculate.empty() ? "--speculate" : nullptr;
  if (drafts != nullptr && !detail::can_speculate(compute.contract))
    usage_error(
        fmt::format("{} has no drafts under {}, where the rows of a pass depend on each other",
                    drafts, contract_name(compute.contract)));
  for (const int64_t n : o.rows) {
    if (n > compute.chunk)
      usage_error(
          fmt::format("--rows: expected at most the chunk of {}, found {}", compute.chunk, n));
  }
  const char* more = !o.batch.empty() ? "--batch" : drafts;
  if (o.threads.size() > 1 && !o.json && more != nullptr)
    usage_error(fmt::format("{} is not in the table of several --threads: add --json", more));
}

void run(BenchCommand& o) {
  SessionOptions options = o.model.session_options();
  check_measurements(o, options.compute);
  const bool table = o.threads.size() > 1;
  if (table && (o.snapshot || o.turns))
    usage_error(std::string(o.snapshot ? "--snapshot" : "--turns") + " needs one --threads");
  if (o.threads.size() == 1) options.compute.threads = static_cast<int>(o.threads[0]);
  if (o.snapshot) return run_snapshot(o, options);
  const int threads = options.compute.threads > 0 ? options.compute.threads : default_threads();
  const Kernels* kernels =
      options.compute.isa.empty() ? &best_kernels() : find_kernels(options.compute.isa.c_str());
  Json j;
  j["isa"] = kernels->name;
  j["processors"] = processor_kinds();
  if (!table) j["threads"] = threads;
  j["team"] = team_runtime();
  j["peak_of"] = peak(*kernels, options.compute.contract).name;
  if (o.turns) {
    Session session(load(j, o, options), options);
    return answer_turns(session, options, std::move(j), o.prompt, o.repeat);
  }
  if (table) return run_table(std::move(j), o, options, *kernels);
  const Probes probes{*kernels, options.compute.contract, threads};
  if (o.machine)
    note_machine(j, measure_machine(probes, o.repeat));
  else
    measure_model(j, load(j, o, options), o, options, probes);
  if (o.json)
    out(dump(j, 2) + "\n");
  else
    print_timings(j);
}

}  // namespace

void add_bench(Command& app) {
  const auto o = std::make_shared<BenchCommand>();
  Command* sub =
      app.add_subcommand("bench", "Measure the speed of this machine and of stet on it.");
  Option* alone = sub->add_flag("--machine", o->machine, "measure only the machine");
  Option* snapshot = sub->add_flag("--snapshot", o->snapshot,
                                   "measure saving, restoring and forking, each beside its limit")
                         ->excludes(alone);
  Option* turns = sub->add_flag(
      "--turns", o->turns,
      "prefill and decode at commands of standard input, to measure in turn with another program");
  turns->excludes(alone)->excludes(snapshot);
  const auto of_model = [&](Option* option) { return option->excludes(alone)->excludes(snapshot); };
  of_model(sub->add_option("-p,--prompt-tokens", o->prompt, "tokens to prefill"))
      ->show_default()
      ->type_name("N")
      ->check(integer(1, 1 << 20));
  of_model(sub->add_option("-n,--decode-tokens", o->decode, "tokens to decode after the prefill"))
      ->show_default()
      ->type_name("N")
      ->check(integer(1, 1 << 20))
      ->excludes(turns);
  of_model(sub->add_option("--batch", o->batch, "also decode in this many sessions at once"))
      ->delimiter(',')
      ->type_name("N,N")
      ->check(integer(1, 256))
      ->excludes(turns);
  of_model(sub->add_option("--speculate", o->speculate,
                           "also draw replies whose drafted tokens are right at these rates"))
      ->delimiter(',')
      ->type_name("P,P")
      ->check({[](std::string& text) {
                 char* end = nullptr;
                 const double rate = std::strtod(text.c_str(), &end);
                 const bool whole = !text.empty() && *end == 0;
                 return whole && rate >= 0 && rate <= 1
                            ? std::string()
                            : fmt::format("expected a number in 0..1, found {}", text);
               },
               ""})
      ->excludes(turns);
  of_model(sub->add_option("--rows", o->rows, "also measure passes of this many rows"))
      ->delimiter(',')
      ->type_name("N,N")
      ->check(integer(2, 64))
      ->excludes(turns);
  sub->add_option("--repeat", o->repeat, "number of runs; medians are printed")
      ->show_default()
      ->type_name("N")
      ->check(integer(1, 1000));
  sub->add_flag("--no-probes", o->without_probes, "measure only the model")
      ->excludes(alone)
      ->excludes(snapshot);
  sub->add_option("--lengths", o->lengths,
                  "tokens of the sessions for --snapshot (default: 512,4096,16384)")
      ->delimiter(',')
      ->type_name("N,N")
      ->check(integer(1, 1 << 20))
      ->needs(snapshot);
  sub->add_option("--directory", o->directory,
                  "where --snapshot writes its files (default: the system's for temporary files)")
      ->type_name("DIR")
      ->needs(snapshot);
  sub->add_flag("--json", o->json, "print JSON (--turns always does)");
  o->model.add_to(*sub);
  sub->remove_option("--threads");
  sub->add_option(
         "--threads", o->threads,
         "number of threads (default: all processors, or OMP_NUM_THREADS); a table of several")
      ->delimiter(',')
      ->type_name("N,N")
      ->group("Model")
      ->check(integer(0, kMaxThreads));
  sub->callback([o] { run(*o); });
}

}  // namespace stet::tool

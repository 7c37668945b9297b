// Options that control how a session computes.
#pragma once

#include <cstdint>
#include <string>

#include "stet/base/error.hpp"
#include "stet/kernels/kernels.hpp"
#include "stet/model/model.hpp"
#include "stet/model/product.hpp"
#include "stet/threads/team.hpp"

namespace stet {

// Computation settings of a session. Only `contract` influences the bits of the result.
struct ComputeOptions {
  Contract contract = Contract::f32;          // bf16 requires all matrices to be bfloat16
  int threads = 0;                            // 0: default_threads()
  TeamBackend team = TeamBackend::automatic;  // source of the threads of passes
  Executor* executor = nullptr;  // not null: used instead of `team`; must outlive the session
  std::string isa;               // a name of kernel_names(); empty: the best for this CPU
  int64_t chunk = 512;           // tokens per pass, over all sessions of a batch
};

namespace detail {

inline const Kernels& kernels_of(const ComputeOptions& compute) {
  if (compute.isa.empty()) return best_kernels();
  if (const Kernels* found = find_kernels(compute.isa.c_str())) return *found;
  std::string known;
  for (const char* const* name = kernel_names(); *name != nullptr; ++name)
    known += (known.empty() ? "" : ", ") + std::string(*name);
  throw Error(ErrorKind::argument, "", "isa", "one that this CPU has: " + known, compute.isa);
}

inline int threads_of(const ComputeOptions& compute) {
  return compute.threads > 0 ? compute.threads : default_threads();
}

// Returns the team that the options ask for. Passes have that of pass_team().
inline TeamOptions team_of(const ComputeOptions& compute) {
  return {threads_of(compute), compute.team, compute.executor};
}

// Returns the team for a pass of `rows` rows, which see `seen` earlier positions together. It has no
// more threads than speed the pass up, unless the program has its own executor.
inline TeamOptions pass_team(const ComputeOptions& compute, const Model& model, size_t rows,
                             size_t seen = 0) {
  constexpr uint64_t kOperations = 16;  // per layer, approximately
  constexpr uint64_t kRows = 8;         // multiplying these takes as long as reading the weights
  TeamOptions team = team_of(compute);
  if (team.executor != nullptr) return team;
  const ModelConfig& c = model.config();
  const auto layers = static_cast<uint64_t>(c.layers);
  const uint64_t keys_values =
      2 * sizeof(uint16_t) * layers * static_cast<uint64_t>(c.kv_heads * c.head_dim);
  const uint64_t bytes = model.bytes_per_token() * (rows + kRows - 1) / kRows + seen * keys_values;
  team.threads = threads_that_pay(team.threads, bytes / (layers * kOperations + 1));
  return team;
}

inline void check_compute(const ComputeOptions& compute, const Model& model) {
  kernels_of(compute);
  model.check_contract(compute.contract);
  if (compute.threads < 0 || compute.threads > kMaxThreads) {
    throw Error(ErrorKind::argument, "", "threads", "0 .. " + std::to_string(kMaxThreads),
                std::to_string(compute.threads));
  }
  if (compute.chunk < 1 || compute.chunk > 65536) {
    throw Error(ErrorKind::argument, "", "chunk", "1 .. 65536", std::to_string(compute.chunk));
  }
  if (compute.executor == nullptr) check_team_backend(compute.team);
  if (compute.contract == Contract::f32_blas) load_openblas();
}

// Returns false if a pass cannot process drafted tokens: under f32_blas, rows depend on each other.
inline bool can_speculate(Contract contract) { return contract != Contract::f32_blas; }

// Maximal number of restarts of a call because a mapped file changed.
constexpr int kMaxRestarts = 8;

[[noreturn]] inline void throw_file_keeps_changing() {
  throw Error(ErrorKind::io, "", "files", "files that do not change while a pass reads them",
              "one that changed during every try");
}

}  // namespace detail

}  // namespace stet

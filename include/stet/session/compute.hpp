// How a session computes.
#pragma once

#include <cstdint>
#include <string>

#include "stet/base/error.hpp"
#include "stet/kernels/kernels.hpp"
#include "stet/model/model.hpp"
#include "stet/model/product.hpp"
#include "stet/threads/team.hpp"

namespace stet {

// How to compute. No choice here changes a bit of the result, but for `contract`.
struct ComputeOptions {
  Contract contract = Contract::f32;  // bf16: for checkpoints whose matrices are all bfloat16
  int threads = 0;                    // 0: default_threads()
  TeamBackend team = TeamBackend::automatic;  // where the threads of passes come from
  Executor* executor = nullptr;  // not null: in place of `team`; it lives as long as the session
  std::string isa;               // a name of kernel_names(); empty: the best this CPU has
  int64_t chunk = 512;           // tokens processed at once, of all sessions of a batch together
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

inline TeamOptions team_of(const ComputeOptions& compute) {
  return {threads_of(compute), compute.team, compute.executor};
}

inline void check_compute(const ComputeOptions& compute, const Model& model) {
  kernels_of(compute);
  model.check_contract(compute.contract);
  if (compute.threads < 0 || compute.threads > kMostThreads) {
    throw Error(ErrorKind::argument, "", "threads", "0 .. " + std::to_string(kMostThreads),
                std::to_string(compute.threads));
  }
  if (compute.chunk < 1 || compute.chunk > 65536) {
    throw Error(ErrorKind::argument, "", "chunk", "1 .. 65536", std::to_string(compute.chunk));
  }
  if (compute.executor == nullptr) check_team_backend(compute.team);
  if (compute.contract == Contract::f32_blas) load_openblas();
}

// How often a call begins anew because a file has changed meanwhile.
constexpr int kMostMends = 8;

[[noreturn]] inline void throw_restless() {
  throw Error(ErrorKind::io, "", "files", "some that keep still while a pass reads them",
              "one that changed every time");
}

}  // namespace detail

}  // namespace stet

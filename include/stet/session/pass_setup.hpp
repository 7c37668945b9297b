// Setup of a pass over rows of sessions: the workspace, the Pass, and errors of a batch's entries.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "stet/base/error.hpp"
#include "stet/model/model.hpp"
#include "stet/session/compute.hpp"

namespace stet::detail {

// A workspace that a pass borrows from the model. It goes back when the pass ends, even if the pass
// throws.
class WorkspaceLease {
 public:
  WorkspaceLease(const Model& model, size_t rows, int threads)
      : model_(model), w_(model.acquire_workspace(rows, threads)) {}
  ~WorkspaceLease() { model_.release_workspace(std::move(w_)); }
  WorkspaceLease(const WorkspaceLease&) = delete;
  WorkspaceLease& operator=(const WorkspaceLease&) = delete;
  Workspace& operator*() const { return *w_; }

 private:
  const Model& model_;
  std::unique_ptr<Workspace> w_;
};

// Returns the pass over the rows of `w`, which has the ids and spans.
inline Pass make_pass(const ComputeOptions& compute, Workspace& w, const Hooks* hooks) {
  const auto cut = [&w](const Rows& rows) { return rows.rows(0, w.ids.size()); };
  return {&kernels_of(compute),
          compute.contract,
          w.ids,
          w.spans,
          &w.scratch,
          hooks,
          cut(w.x),
          cut(w.normed),
          cut(w.qkv),
          cut(w.attention),
          cut(w.gate_up),
          cut(w.mlp),
          cut(w.out),
          w.own};
}

inline std::string entry_name(size_t entry) { return "batch[" + std::to_string(entry) + "]: "; }

// Runs `step` for one entry of a batch. Adds the entry's name to an Error.
template <class Step>
void for_entry(size_t entries, size_t index, Step step) {
  try {
    step();
  } catch (const Error& e) {
    if (entries == 1) throw;
    throw Error(e.kind, e.file, entry_name(index) + e.field, e.expected, e.found);
  }
}

}  // namespace stet::detail

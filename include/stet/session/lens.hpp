// The logit lens: the head applied to any residual stream.
#pragma once

#include <algorithm>
#include <vector>

#include "stet/session/session.hpp"

namespace stet {

namespace detail {

// Returns logits [rows][vocab_size] of the head over the output of normed(t, pass, x, y) on `rows`.
// Uses the session's compute options.
template <class Normed>
std::vector<float> head_over(const Session& session, Rows rows, Normed normed) {
  const Model& model = session.model();
  const ComputeOptions& compute = session.compute();
  const WorkspaceLease lease(model, kHeadRows, threads_of(compute));
  Workspace& w = *lease;
  const auto width = static_cast<size_t>(model.config().vocab_size);
  std::vector<float> all(rows.count * width);
  for (size_t at = 0; at < rows.count; at += w.logits.count) {
    const size_t count = std::min(w.logits.count, rows.count - at);
    w.ids.assign(count, 0);
    w.spans.clear();
    const Pass pass = make_pass(compute, w, nullptr);
    const auto work = [&](Team t) {
      const Rows y = w.out.rows(0, count);
      normed(t, pass, rows.rows(at, count), y);
      model.head(t, pass, y, w.logits.rows(0, count));
    };
    run_operations(pass_team(compute, model, count), work);
    for (size_t i = 0; i < count; ++i)
      std::copy_n(w.logits.row(i), width, all.data() + (at + i) * width);
  }
  return all;
}

}  // namespace detail

// Returns logits [rows][vocab_size] of the model's final norm and head on rows of the residual
// stream.
inline std::vector<float> lens_logits(const Session& session, Rows residual) {
  return detail::head_over(session, residual, [&](Team t, const Pass& p, Rows x, Rows y) {
    norm(t, p, session.model().final_norm(), x, y);
  });
}

// Returns logits [rows][vocab_size] of the head alone, on rows of ln_final.hook_normalized.
inline std::vector<float> head_logits(const Session& session, Rows normed) {
  return detail::head_over(session, normed, [](Team t, const Pass&, Rows x, Rows y) {
    detail::each_row(t, x.count, [&](size_t r) { std::copy_n(x.row(r), x.width, y.row(r)); });
  });
}

}  // namespace stet

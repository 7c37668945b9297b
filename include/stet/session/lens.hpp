// The head over any residual stream: the logit lens.
#pragma once

#include <algorithm>
#include <vector>

#include "stet/session/session.hpp"

namespace stet {

// Logits [rows][vocab_size] of the model's final norm and head over rows of the residual stream, as
// the session computes.
inline std::vector<float> lens_logits(const Session& session, Rows residual) {
  const Model& model = session.model();
  const ModelConfig& c = model.config();
  const ComputeOptions& compute = session.compute();
  const detail::WorkspaceLease lease(model, detail::kHeadRows, detail::threads_of(compute));
  Workspace& w = *lease;
  const auto width = static_cast<size_t>(c.vocab_size);
  std::vector<float> all(residual.count * width);
  for (size_t at = 0; at < residual.count; at += w.logits.count) {
    const size_t count = std::min(w.logits.count, residual.count - at);
    w.ids.assign(count, 0);
    w.spans.clear();
    const Pass pass = detail::make_pass(compute, w, nullptr);
    const FinalNorm norm = model.final_norm();
    const auto work = [&](Team t) {
      const Rows x = residual.rows(at, count), y = w.out.rows(0, count);
      if (norm.bias == nullptr)
        rms_norm(t, pass, *norm.weight, c.norm_eps, x, y);
      else
        layer_norm(t, pass, *norm.weight, *norm.bias, c.norm_eps, x, y);
      model.head(t, pass, y, w.logits.rows(0, count));
    };
    run_operations(detail::team_of(compute), work);
    for (size_t i = 0; i < count; ++i)
      std::copy_n(w.logits.row(i), width, all.data() + (at + i) * width);
  }
  return all;
}

}  // namespace stet

#include <algorithm>
#include <cmath>

#include "tools/lab/measures.hpp"

namespace stet::tool {

Next next_of(std::span<const float> logits) {
  Next n;
  n.best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const double top = logits[static_cast<size_t>(n.best)];
  double sum = 0, weighted = 0;
  for (const float x : logits) {
    const double e = std::exp(x - top);
    sum += e;
    weighted += e * (x - top);
  }
  n.log_sum = top + std::log(sum);
  n.probability = 1 / sum;
  n.entropy = std::log(sum) - weighted / sum;
  return n;
}

Json measure_tokens(LabWork& work) {
  Json rows = Json::array();
  const auto add = [&](int64_t at, std::span<const float> row) {
    const Next n = next_of(row);
    rows.push_back({{"position", at},
                    {"entropy", n.entropy},
                    {"best", n.best},
                    {"best_text", token_text(work.tokenizer.get(), n.best)},
                    {"best_probability", n.probability}});
    const auto next = static_cast<size_t>(at - work.session.size() + 1);
    if (next >= work.ids.size()) return;
    rows.back()["next"] = work.ids[next];
    rows.back()["next_text"] = token_text(work.tokenizer.get(), work.ids[next]);
    rows.back()["logprob"] = row[static_cast<size_t>(work.ids[next])] - n.log_sum;
  };
  const auto sink = [&](int64_t first, Rows logits) {
    for (size_t i = 0; i < logits.count; ++i)
      add(first + static_cast<int64_t>(i), {logits.row(i), logits.width});
  };
  Session copy = work.session.fork();  // its positions count from the beginning of the prompt
  if (copy.size() > 0) add(copy.size() - 1, copy.logits());
  copy.append(work.ids, sink);
  return rows;
}

}  // namespace stet::tool

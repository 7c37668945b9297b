#include <algorithm>
#include <cmath>

#include "tools/lab/measures.hpp"

namespace stet::tool {

Json measure_kl(std::span<const float> p, std::span<const float> q) {
  const Next np = next_of(p), nq = next_of(q);
  double forward = 0, backward = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double a = p[i] - np.log_sum, b = q[i] - nq.log_sum;
    forward += std::exp(a) * (a - b);
    backward += std::exp(b) * (b - a);
  }
  return {{"kl", forward},
          {"kl_reversed", backward},
          {"best", np.best},
          {"best_other", nq.best},
          {"same_bits", std::equal(p.begin(), p.end(), q.begin())}};
}

}  // namespace stet::tool

// Prefetch settings of this CPU. No result depends on them.
#pragma once

namespace stet {

// Returns true if products of several rows should prefetch weights in bursts, far ahead. Zen 3 and
// 4 read half as fast when single lines are requested (bench/README.md).
bool use_burst_prefetch();

}  // namespace stet

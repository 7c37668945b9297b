// How this CPU's caches want to be fed. No result depends on it.
#pragma once

namespace stet {

// Whether, while several rows are multiplied, weights are fetched a burst at a time and far ahead:
// Zen 3 and 4 read half as fast where single lines are asked for (bench/README.md).
bool bursts_are_fetched();

}  // namespace stet

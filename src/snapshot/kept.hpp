// The section KEPT: logits of earlier positions of an edited state (src/snapshot/write.cpp).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "stet/base/digest.hpp"
#include "stet/session/state.hpp"
#include "stet/snapshot/snapshot.hpp"

namespace stet {

// Nothing where there are none but those of the last position. `digest`: of the state.
std::vector<std::byte> encode_kept(const State& state, const Digest& digest);

// Returns none where they belong to another state: a writer that does not know the section may have
// taken it over. Throws a format Error, which names `section`, for what does not fit `meta`.
KeptLogits decode_kept(std::span<const std::byte> bytes, const SnapshotMeta& meta,
                       const Digest& state, const std::string& section);

}  // namespace stet

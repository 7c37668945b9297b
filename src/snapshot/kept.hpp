// The section KEPT: logits of earlier positions of an edited state (docs/snapshot-format.md, "Kept
// logits").
#pragma once

#include <cstddef>
#include <vector>

#include "stet/snapshot/file.hpp"

namespace stet {

// Returns nothing where there are none but those of the last position.
std::vector<std::byte> encode_kept(const SnapshotContents& contents);

// Returns none where they belong to another state: a writer that does not know the section may have
// taken it over. Throws a format Error for what does not fit META.
KeptLogits decode_kept(const SnapshotFile& file);

}  // namespace stet

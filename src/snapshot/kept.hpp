// Encodes and decodes the section KEPT: logits of earlier positions of an edited state
// (docs/formats.md, "Kept logits").
#pragma once

#include <cstddef>
#include <vector>

#include "stet/snapshot/file.hpp"

namespace stet {

// Returns nothing if only the logits of the last position are kept.
std::vector<std::byte> encode_kept(const SnapshotContents& contents);

// Returns the kept logits, or none if they belong to another state: a writer that does not know the
// section may have copied it. Throws a format Error if they do not fit META.
RewindLogits decode_kept(const SnapshotFile& file);

}  // namespace stet

// Compression of a block of keys and values: a byte shuffle, which puts bytes of equal significance
// together into planes, and zlib for each plane. Exponents repeat, mantissas hardly: only planes
// that become shorter are compressed.
// src/snapshot/write.cpp specifies the layout.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace stet {

// Planes of which every byte value is about as frequent: tried, or left as they are at once.
enum class NoisePlanes { tried, as_they_are };

// `bytes` is a multiple of `element` bytes, which is 2 or 4. Throws an unsupported Error in a build
// without zlib.
std::vector<std::byte> compress_shuffled(std::span<const std::byte> bytes, size_t element,
                                         int level, NoisePlanes noise = NoisePlanes::tried);
// Throws a format Error, naming `file` and `field`, unless `stored` gives exactly bytes.size()
// bytes.
void expand_shuffled(std::span<const std::byte> stored, size_t element, std::span<std::byte> bytes,
                     const std::string& file, const std::string& field);

}  // namespace stet

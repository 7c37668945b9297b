#include "src/snapshot/byte_shuffle.hpp"

#include <array>
#include <cstring>

#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/snapshot/snapshot.hpp"

#ifdef STET_HAVE_ZLIB
#include <zlib.h>
#endif

namespace stet {

#ifdef STET_HAVE_ZLIB

bool have_zlib() { return true; }

namespace {

// Two bytes of a plane are equal hardly more often than those of noise, 1 of 256 pairs: then
// Huffman's codes save next to nothing.
bool is_noise(std::span<const std::byte> plane) {
  std::array<uint64_t, 256> counts{};
  for (const std::byte b : plane) ++counts[static_cast<size_t>(b)];
  uint64_t pairs = 0;
  for (const uint64_t n : counts) pairs += n * n;
  return pairs / 9 * 8 < plane.size() * plane.size() / 256;
}

}  // namespace

std::vector<std::byte> compress_shuffled(std::span<const std::byte> bytes, size_t element,
                                         int level, NoisePlanes noise) {
  const size_t size = bytes.size() / element;
  std::vector<std::byte> plane(size), packed(compressBound(size));
  ByteWriter sizes, planes;
  for (size_t p = 0; p < element; ++p) {
    for (size_t i = 0; i < size; ++i) plane[i] = bytes[i * element + p];
    uLongf length = packed.size();
    if (noise == NoisePlanes::as_they_are && is_noise(plane)) {
      sizes.u32(static_cast<uint32_t>(size));
      planes.bytes(plane);
      continue;
    }
    const int status = compress2(reinterpret_cast<Bytef*>(packed.data()), &length,
                                 reinterpret_cast<const Bytef*>(plane.data()), size, level);
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    const bool shorter = status == Z_OK && length < size;
    sizes.u32(static_cast<uint32_t>(shorter ? length : size));
    planes.bytes(shorter ? std::span<const std::byte>(packed).first(length) : plane);
  }
  sizes.bytes(planes.data());
  return sizes.take();
}

void expand_shuffled(std::span<const std::byte> stored, size_t element, std::span<std::byte> bytes,
                     const std::string& file, const std::string& field) {
  const size_t size = bytes.size() / element;
  ByteReader r(stored, file);
  std::vector<uint32_t> sizes;
  for (size_t p = 0; p < element; ++p) sizes.push_back(r.u32(field));
  std::vector<std::byte> expanded(size);
  for (size_t p = 0; p < element; ++p) {
    std::span<const std::byte> plane = r.bytes(sizes[p], field);
    if (plane.size() != size) {
      uLongf length = size;
      const int status = uncompress(reinterpret_cast<Bytef*>(expanded.data()), &length,
                                    reinterpret_cast<const Bytef*>(plane.data()), plane.size());
      if (status != Z_OK || length != size)
        throw Error(ErrorKind::format, file, field, "a plane of " + std::to_string(size) + " bytes",
                    "no zlib stream of them");
      plane = expanded;
    }
    for (size_t i = 0; i < size; ++i) bytes[i * element + p] = plane[i];
  }
  r.end(field);
}

#else

bool have_zlib() { return false; }

std::vector<std::byte> compress_shuffled(std::span<const std::byte>, size_t, int, NoisePlanes) {
  throw Error(ErrorKind::unsupported, "", "compress", "none (built without zlib)", "zlib");
}

void expand_shuffled(std::span<const std::byte>, size_t, std::span<std::byte>,
                     const std::string& file, const std::string& field) {
  throw Error(ErrorKind::unsupported, file, field,
              "a block that is not compressed (built without zlib)", "a compressed one");
}

#endif

}  // namespace stet

// Encodes and decodes the sections KV and KVINDEX: where blocks of keys and values are and how they
// are stored (docs/formats.md, "Keys and values").
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "stet/base/bytes.hpp"
#include "stet/kv/kv_cache.hpp"
#include "stet/snapshot/file.hpp"

namespace stet {

// Compresses a block by a byte shuffle and zlib. The shuffle puts bytes of equal significance
// together into planes. Exponents repeat and mantissas hardly do, so only planes that become
// shorter are compressed.

// Selects what happens to planes whose bytes are nearly random: zlib tries to compress them, or
// they are stored as they are.
enum class NoisePlanes { tried, as_they_are };

// `bytes` is a multiple of `element`, which is 2 or 4 bytes. Throws an unsupported Error in a build
// without zlib.
std::vector<std::byte> compress_shuffled(std::span<const std::byte> bytes, size_t element,
                                         int level, NoisePlanes noise = NoisePlanes::tried);
// Decompresses `stored`. Throws a format Error that names `file` and `field` unless it expands to
// exactly bytes.size() bytes.
void expand_shuffled(std::span<const std::byte> stored, size_t element, std::span<std::byte> bytes,
                     const std::string& file, const std::string& field);

// Sets `extents` and `held` from KVINDEX, or without one by counting. The other sections must have
// been read. Throws a format Error.
void decode_extents(SnapshotFile& file);

// is_held returns true if a block is stored without its windowed layers. is_raw returns true if it
// is stored as in memory.
bool is_held(const BlockExtent& at);
bool is_raw(const BlockExtent& at);
// Decodes block `block` into `to`, [block_bytes], which must be zero. Throws a format Error for an
// invalid encoding. Does not compare the bytes with their digests.
void read_block(const SnapshotFile& file, int64_t block, std::byte* to);

// Writes blocks of a cache to the section KV and records their places for KVINDEX.
class KvSectionWriter {
 public:
  // `compress` is the level of zlib; 0 stores blocks uncompressed.
  KvSectionWriter(const KvCache& kv, int compress, int threads)
      : kv_(kv), compress_(compress), threads_(threads) {}

  using Append = std::function<void(std::span<const std::byte>)>;
  // Throws DamagedBlock if a block of a mapped file no longer has the saved bytes.
  void write(std::span<const int64_t> blocks, const Append& append);
  std::span<const std::byte> index() const { return index_.data(); }  // KVINDEX
  static constexpr size_t kIndexEntry = 24;                           // bytes for each block

 private:
  std::span<const std::byte> bytes_of(int64_t block, std::vector<std::byte>& copy) const;
  std::vector<std::vector<std::byte>> compress(std::span<const int64_t> blocks) const;
  void write_compressed(int64_t block, std::vector<std::byte> packed, const Append& append);
  void note(int64_t block, uint32_t encoding, uint64_t size);

  const KvCache& kv_;
  const int compress_, threads_;
  ByteWriter index_;
  uint64_t written_ = 0;   // bytes of KV
  uint64_t expanded_ = 0;  // bytes of the compressed blocks when expanded
};

}  // namespace stet

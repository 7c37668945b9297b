// The sections KV and KVINDEX: where blocks of keys and values are, and how they are encoded. The
// grammar: docs/snapshot-format.md, "Keys and values".
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

// Compression of a block: a byte shuffle, which puts bytes of equal significance together into
// planes, and zlib for each plane. Exponents repeat, mantissas hardly: only planes that become
// shorter are compressed.

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

// Finds the blocks that a file has, from KVINDEX or by counting: sets `extents` and `held`, by what
// else was read. Throws a format Error.
void decode_extents(SnapshotFile& file);

// Whether a block stands in the file without the layers that have a window, or as it is in memory.
bool is_held(const BlockExtent& at);
bool is_raw(const BlockExtent& at);
// Decodes a block that the file has into `block`, [block_bytes], which is zero. Throws a format
// Error where its bytes are no such encoding; whether they are those that were saved, digests tell.
void read_block(const SnapshotFile& file, int64_t block, std::byte* to);

// Writes blocks of a cache into KV, and notes where they are.
class KvSectionWriter {
 public:
  // `compress`: the level of zlib; 0: blocks as they are.
  KvSectionWriter(const KvCache& kv, int compress, int threads)
      : kv_(kv), compress_(compress), threads_(threads) {}

  using Append = std::function<void(std::span<const std::byte>)>;
  // Throws DamagedBlock for a block of a mapped file that is no longer what was saved there.
  void write(std::span<const int64_t> blocks, const Append& append);
  std::span<const std::byte> index() const { return index_.data(); }  // KVINDEX
  static constexpr size_t kIndexEntry = 24;                           // of a block there

 private:
  std::span<const std::byte> bytes_of(int64_t block, std::vector<std::byte>& copy) const;
  std::vector<std::vector<std::byte>> compress(std::span<const int64_t> blocks) const;
  void write_compressed(int64_t block, std::vector<std::byte> packed, const Append& append);
  void note(int64_t block, uint32_t encoding, uint64_t size);

  const KvCache& kv_;
  const int compress_, threads_;
  ByteWriter index_;
  uint64_t written_ = 0;   // bytes of KV
  uint64_t expanded_ = 0;  // what the compressed blocks become
};

}  // namespace stet

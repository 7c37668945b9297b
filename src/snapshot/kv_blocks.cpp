#include "src/snapshot/kv_blocks.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "src/snapshot/file.hpp"
#include "src/threads/interrupt_check.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/model/config.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/threads/team.hpp"

#ifdef STET_HAVE_ZLIB
#include <zlib.h>
#endif

namespace stet {

// ----------------------------------------------------------- compression

#ifdef STET_HAVE_ZLIB

bool have_zlib() { return true; }

namespace {

// Returns whether a plane resembles noise: two of its bytes are equal in about 1 of 256 pairs.
// Huffman codes save next to nothing then.
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
  throw Error(ErrorKind::unsupported, "", "compress", "",
              "compression is not available: this stet was built without zlib");
}

void expand_shuffled(std::span<const std::byte>, size_t, std::span<std::byte>,
                     const std::string& file, const std::string& field) {
  throw Error(ErrorKind::unsupported, file, field, "",
              "the block is compressed, and this stet was built without zlib");
}

#endif

// ------------------------------------------------------------ block index

namespace {

// The last two hold only the layers of a block that have no window.
constexpr uint32_t kRaw = 0, kByteShuffle = 1, kHeldRaw = 2, kHeldShuffle = 3;

bool is_held(uint32_t encoding) { return encoding >= kHeldRaw; }
bool is_shuffled(uint32_t encoding) { return encoding == kByteShuffle || encoding == kHeldShuffle; }

// Returns the bytes of the layers `held` of a block, rounded up to pages.
size_t held_bytes(const KvShape& shape, const HeldLayers& held) {
  size_t bytes = 0;
  for (int64_t l = 0; l < shape.layers; ++l)
    bytes += held[static_cast<size_t>(l)] ? shape.layer_bytes(l) : 0;
  return (bytes + 4095) / 4096 * 4096;
}

// Returns the bytes of a block in the file before compression.
uint64_t stored_bytes(const SnapshotFile& file, uint32_t encoding) {
  return is_held(encoding) ? held_bytes(file.meta.kv, *file.held) : file.meta.kv.block_bytes();
}

// Checks that a compressed block of `size` bytes can expand to `block` bytes, and that all blocks
// so far, `expanded` bytes, stay within the limit.
void check_expanded(const SnapshotFile& file, uint64_t block, uint64_t size, uint64_t expanded) {
  const uint64_t least = block / kMaxDeflateRatio,
                 most = kExpandedBytes + kExpandedRatio * file.bytes.size();
  if (size < least)
    snapshot_damaged(file.path, "KVINDEX",
                     "at least " + std::to_string(least) + " bytes of a compressed block",
                     std::to_string(size));
  if (expanded <= most) return;
  snapshot_damaged(file.path, "KVINDEX",
                   "compressed blocks that become at most " + std::to_string(most) + " bytes",
                   "more");
}

// Returns whether an entry of KVINDEX has a size that its encoding allows.
bool fits(const SnapshotFile& file, uint32_t encoding, uint64_t offset, uint64_t size) {
  switch (encoding) {
    case kRaw:
      return size == file.meta.kv.block_bytes() && offset % 4096 == 0;
    case kByteShuffle:
      return true;
    case kHeldRaw:
    case kHeldShuffle: {
      if (file.held->size() != static_cast<size_t>(file.meta.kv.layers)) return false;
      const uint64_t held = stored_bytes(file, encoding);
      return encoding == kHeldRaw ? size == held : held > 0;
    }
    default:
      return false;
  }
}

void decode_index(SnapshotFile& file) {
  const SnapshotSection& kv = *file.find("KV");
  file.held = std::make_shared<const HeldLayers>(
      detail::held_layers(ModelConfig::from_canonical(file.meta.config, file.path)));
  ByteReader r(file.content("KVINDEX"), file.path);
  uint64_t end = 0, next = 0, expanded = 0;
  while (r.remaining() > 0) {
    const uint32_t block = r.u32("KVINDEX: block"), encoding = r.u32("KVINDEX: encoding");
    const uint64_t offset = r.u64("KVINDEX: offset"), size = r.u64("KVINDEX: bytes");
    if (block < next || block >= file.extents.size() || offset != end || size > kv.size - offset ||
        !fits(file, encoding, offset, size)) {
      snapshot_damaged(file.path, "KVINDEX", "blocks in order, one behind the other",
                       "block " + std::to_string(block) + " at " + std::to_string(offset));
    }
    if (is_shuffled(encoding)) {
      const uint64_t bytes = stored_bytes(file, encoding);
      check_expanded(file, bytes, size, expanded += bytes);
    }
    file.extents[block] = {kv.offset + offset, size, encoding, true};
    next = block + 1;
    end = offset + size;
  }
  if (end != kv.size)
    snapshot_damaged(file.path, "KV", std::to_string(end) + " bytes", std::to_string(kv.size));
  for (size_t b = 0; b < file.extents.size() && file.meta.form == SnapshotForm::full; ++b) {
    if (!file.extents[b].there && file.visible[b] != 0)
      snapshot_damaged(file.path, "KVINDEX", "block " + std::to_string(b) + ", which is visible",
                       "none");
  }
}

}  // namespace

bool is_held(const BlockExtent& at) { return is_held(at.encoding); }
bool is_raw(const BlockExtent& at) { return at.encoding == kRaw; }

void decode_extents(SnapshotFile& file) {
  const size_t blocks = file.visible.size();
  const uint64_t block_bytes = file.meta.kv.block_bytes();
  const SnapshotSection& kv = *file.find("KV");
  file.extents.resize(blocks);
  if (file.find("KVINDEX") != nullptr) return decode_index(file);
  // A delta without blocks has an index if blocks have no bytes.
  const bool none = kv.size == 0 && (file.meta.form == SnapshotForm::recipe ||
                                     (file.meta.form == SnapshotForm::delta && block_bytes > 0));
  if (!none && kv.size != blocks * block_bytes) {
    snapshot_damaged(file.path, "KV", std::to_string(blocks * block_bytes) + " bytes",
                     std::to_string(kv.size));
  }
  for (size_t b = 0; b < blocks && !none; ++b)
    file.extents[b] = {kv.offset + b * block_bytes, block_bytes, kRaw, true};
}

// --------------------------------------------- reading and writing blocks

void read_block(const SnapshotFile& file, int64_t block, std::byte* to) {
  const BlockExtent& at = file.extent(block);
  const KvShape& shape = file.meta.kv;
  const std::string field = "KV block " + std::to_string(block);
  std::span<const std::byte> stored = file.bytes.subspan(at.offset, at.size);
  if (at.encoding == kRaw) {
    copy_bytes(stored, to);
    return;
  }
  if (at.encoding == kByteShuffle)
    return expand_shuffled(stored, shape.element_size(), {to, shape.block_bytes()}, file.path,
                           field);
  std::vector<std::byte> expanded;
  if (at.encoding == kHeldShuffle) {
    expanded.resize(stored_bytes(file, kHeldShuffle));
    expand_shuffled(stored, shape.element_size(), expanded, file.path, field);
    stored = expanded;
  }
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    if (!(*file.held)[static_cast<size_t>(layer)]) continue;
    const size_t part = shape.layer_bytes(layer);
    std::memcpy(to + shape.layer_offset(layer), stored.data(), part);
    stored = stored.subspan(part);
  }
  if (std::ranges::any_of(stored, [](std::byte b) { return b != std::byte{0}; }))
    snapshot_damaged(file.path, field, "zeros behind its layers", "others");
}

// Returns the bytes of a block to store. A mapped block is copied before it is verified, since
// others can change the file.
std::span<const std::byte> KvSectionWriter::bytes_of(int64_t block,
                                                     std::vector<std::byte>& copy) const {
  const KvShape& shape = kv_.shape();
  const KvBlock& info = kv_.block_info(block);
  const size_t size = shape.block_bytes();
  if (info.saved() == nullptr) return {info.data(), size};
  if (info.holds_all()) {
    copy.assign(info.data(), info.data() + size);
    if (!info.saved_as(shape, copy.data())) throw DamagedBlock(info.saved()->file, block, 0);
    return copy;
  }
  copy.clear();
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::byte* const from = info.data() + shape.layer_offset(layer);
    if (info.holds(layer)) copy.insert(copy.end(), from, from + shape.layer_bytes(layer));
  }
  copy.resize(held_bytes(shape, *info.saved()->held));
  return copy;
}

void KvSectionWriter::note(int64_t block, uint32_t encoding, uint64_t size) {
  index_.u32(static_cast<uint32_t>(block));
  index_.u32(encoding);
  index_.u64(written_);
  index_.u64(size);
  written_ += size;
}

// Compresses several blocks at a time on all threads and writes them in order, in bounded memory.
void KvSectionWriter::write(std::span<const int64_t> blocks, const Append& append) {
  std::vector<std::byte> copy;
  for (size_t i = 0; compress_ == 0 && i < blocks.size(); ++i) {
    check_interrupt();
    const std::span<const std::byte> bytes = bytes_of(blocks[i], copy);
    append(bytes);
    note(blocks[i], kv_.block_info(blocks[i]).holds_all() ? kRaw : kHeldRaw, bytes.size());
  }
  const size_t at_once = static_cast<size_t>(threads_) * 4;
  for (size_t begin = 0; compress_ != 0 && begin < blocks.size(); begin += at_once) {
    const auto some = blocks.subspan(begin, std::min(at_once, blocks.size() - begin));
    std::vector<std::vector<std::byte>> packed = compress(some);
    for (size_t i = 0; i < some.size(); ++i)
      write_compressed(some[i], std::move(packed[i]), append);
  }
}

std::vector<std::vector<std::byte>> KvSectionWriter::compress(
    std::span<const int64_t> blocks) const {
  std::vector<std::vector<std::byte>> packed(blocks.size());
  run_each(threads_, blocks.size(), [&](size_t i) {
    check_interrupt();
    std::vector<std::byte> copy;
    const std::span<const std::byte> bytes = bytes_of(blocks[i], copy);
    if (!bytes.empty()) packed[i] = compress_shuffled(bytes, kv_.shape().element_size(), compress_);
  });
  return packed;
}

// Stores the block uncompressed if readers would take it for a decompression bomb (limits.hpp), and
// if it has no bytes.
void KvSectionWriter::write_compressed(int64_t block, std::vector<std::byte> packed,
                                       const Append& append) {
  const bool whole = kv_.block_info(block).holds_all();
  std::vector<std::byte> copy;
  expanded_ += whole ? kv_.shape().block_bytes() : bytes_of(block, copy).size();
  if (!packed.empty() && expanded_ > kExpandedBytes + kExpandedRatio * (written_ + packed.size()))
    packed = compress_shuffled(bytes_of(block, copy), kv_.shape().element_size(), 0);
  append(packed);
  const uint32_t shuffled = whole ? kByteShuffle : kHeldShuffle, raw = whole ? kRaw : kHeldRaw;
  note(block, packed.empty() ? raw : shuffled, packed.size());  // no layer may have keys and values
}

}  // namespace stet

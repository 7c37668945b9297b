// The snapshot format, version 2. Integers are little-endian, digests are XXH3-128 as two u64, low half first.
//
//   header, 128 bytes
//     0   8  magic: 93 'S' 'T' 'E' 'T' 0D 0A 1A
//     8   4  format version: 2
//    12   4  bytes of this header: 128
//    16   8  required features: bits that a reader must know. 1: not all keys and values are in this file (delta, recipe);
//            2: blocks are compressed; 4: keys or values were edited, META says which (edits)
//    24   8  optional features: bits that a reader may ignore; none is defined
//    32   8  size of the file
//    40   4  number of sections, at most 256
//    44   4  reserved: written as 0, not looked at
//    48   8  offset of the section table: 128
//    56  16  digest of the section table
//    72  16  state digest (see digests_of)
//    88  24  reserved
//   112  16  digest of bytes 0 .. 111
//   section table, 64 bytes for each section, in the order of their offsets
//     0   8  name, padded with zero bytes; each name once
//     8   8  offset
//    16   8  size
//    24   4  flags: bit 0: a reader that does not know the section must refuse the file
//    28   4  encoding: 0: bytes as they are
//    32  16  digest of the section's bytes; for KV: of the BLOCKS section
//    48  16  reserved
//   sections, written in this order, each at a multiple of 64
//     META     JSON: form, parent, contract, kv type, model config and fingerprints, tokenizer fingerprint, capacity,
//              generation state (sampling, seed, stops, turns, what an open reply holds back), logs of prunes
//              and edits, messages
//     TOKENS   i32 per position
//     VISIBLE  u64 per block: bit t is set when position 64 b + t may be attended to
//     LOGITS   f32 [vocab_size], of the last position; empty without positions, and in a recipe
//     BLOCKS   [blocks][layers] digests: of the layer's bytes in the block, the last one with the padding behind them
//     KVINDEX  for each block that KV holds, in order: u32 block, u32 encoding (0: as it is; 1: planes, see below), u64 offset
//              in KV, u64 bytes. Without this section KV holds all blocks, one after the other, as they are. A block of which
//              nothing is visible need not be there: it is zero. All others are in a full snapshot's index; one that is
//              not in a delta's is the parent's.
//     WEIGHTS  optional: the checkpoint's files, and
//     TOKENIZR optional: the tokenizer's: archives (archive.hpp) at multiples of 4096; their digests are those of the archives'
//              indexes, which hold a digest of each file
//     sections that this writer does not know, taken over from a file that was converted
//     KV       starts at a multiple of 65536 (of 64 when it is empty); a block that is stored as it is lies as in memory (see kv_cache.hpp), padded to
//              whole 4096-byte pages; slots of positions that do not exist are zero
//
//   encoding 1, planes: byte i of every element is put into plane i (elements of 4 or 2 bytes: 4 or 2 planes of equal size);
//   u32 per plane: its bytes in this file; then the planes, each a zlib stream (RFC 1950), or as it is where that is shorter
//
// Every byte is covered: header by its own digest, table by the header's, sections by the table's, blocks by
// BLOCKS, and gaps between sections must be zero.
//
// Version 1 differs in: BLOCKS holds one digest per block; no KVINDEX; no form and no prunes in META.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stet/digest.hpp"
#include "stet/snapshot.hpp"

namespace stet {

inline constexpr const char* kSectionNames[] = {"META", "TOKENS", "VISIBLE", "LOGITS", "BLOCKS", "KVINDEX", "WEIGHTS", "TOKENIZR", "KV"};
inline bool is_archive_section(const std::string& name) { return name == "WEIGHTS" || name == "TOKENIZR"; }
bool is_known_section(const std::string& name);

constexpr uint64_t kElsewhere = 1, kCompressed = 2, kEdited = 4;  // required features
constexpr uint32_t kRaw = 0, kPlanes = 1;            // encodings of a block

// Where a section begins that follows byte `end` of the file.
uint64_t section_offset(const std::string& name, uint64_t end);
uint64_t front_bytes(size_t sections);

// Header and section table of a file that consists of them and `sections`.
std::vector<std::byte> encode_front(const std::vector<Snapshot::Section>& sections, uint64_t required, const Digest& state);

struct Front {
  uint32_t version;
  std::vector<Snapshot::Section> sections;
  Digest state;
};

// The state digest in the header of a file that begins so, if it is a snapshot: what a delta's parent is found by.
std::optional<Digest> state_of_header(std::span<const std::byte> header);

// Reads header and table, and checks every byte of the file but those of KV. Throws Error: unsupported for what a
// later version may have written, format for damage.
Front decode_front(std::span<const std::byte> file, const std::string& path);

[[noreturn]] void snapshot_damaged(const std::string& path, const std::string& field, const std::string& expected,
                                   const std::string& found);

}  // namespace stet

// The snapshot format, version 1. Integers are little-endian, digests are XXH3-128 as two u64, low half first.
//
//   header, 128 bytes
//     0   8  magic: 93 'S' 'T' 'E' 'T' 0D 0A 1A
//     8   4  format version: 1
//    12   4  bytes of this header: 128
//    16   8  required features: bits that a reader must know; none is defined
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
//     META     JSON: contract, kv type, model config and fingerprints, tokenizer fingerprint, capacity,
//              generation state (sampling, seed, stops, turns, what an open reply holds back)
//     TOKENS   i32 per position
//     VISIBLE  u64 per block: bit t is set when position 64 b + t may be attended to
//     LOGITS   f32 [vocab_size], of the last position; empty without positions
//     BLOCKS   a digest per block of the KV section
//     KV       starts at a multiple of 65536; per 64 positions one block as in memory (see kv_cache.hpp), padded
//              to whole 4096-byte pages; slots of positions that do not exist are zero
//
// Every byte is covered: header by its own digest, table by the header's, sections by the table's, blocks by
// BLOCKS, and gaps between sections must be zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stet/digest.hpp"
#include "stet/snapshot.hpp"

namespace stet {

inline constexpr const char* kSectionNames[] = {"META", "TOKENS", "VISIBLE", "LOGITS", "BLOCKS", "KV"};

// Where a section of `size` bytes begins that follows byte `end` of the file.
uint64_t section_offset(const std::string& name, uint64_t end);

// Header and section table of a file that consists of them and `sections`.
std::vector<std::byte> encode_front(const std::vector<Snapshot::Section>& sections, const Digest& state);

struct Front {
  std::vector<Snapshot::Section> sections;
  Digest state;
};

// Reads header and table, and checks every byte of the file but those of KV. Throws Error: unsupported for what a
// later version may have written, format for damage.
Front decode_front(std::span<const std::byte> file, const std::string& path);

[[noreturn]] void snapshot_damaged(const std::string& path, const std::string& field, const std::string& expected,
                                   const std::string& found);

}  // namespace stet

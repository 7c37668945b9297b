// Records of a store: a payload with a header that identifies it and proves that a holder of the
// writers' key has written it. Until that is checked, the contents of a store are untrusted.
//
//   record = 93 'S' 'T' 'K' 0D 0A 1A 0A
//            u32 version                        2
//            u32 kind                           1 block, 2 state, 3 name, 4 anchor
//            hash name                          the name that it is stored under
//            32 bytes content                   authenticates the payload as stored:
//              16 bytes nonce                   random
//              16 bytes tag                     Poly1305 under the one-time key HMAC-SHA256(
//                                               writers' key, "stet content 2\n" kind name nonce)
//            u64 bytes of the payload
//            u32 encoding                       0 none; 1, for blocks: u64 uncompressed bytes, then
//                                               the data, shuffled as elements of 4 bytes and
//                                               deflated plane by plane (encoding 1 of
//                                               docs/formats.md)
//            u32 offset of the payload          4096 for blocks and anchors, so that it can be
//                                               mapped; 192
//            hash HMAC-SHA256 of the bytes before it, under the writers' key
//            zeros up to the payload
//            payload
//
// Integers are little-endian; hashes are SHA-256.
//
// Poly1305 is several times as fast as SHA-256, but its key must never tag two payloads: anyone who
// sees both tags can forge a third. Kind and name do not determine the payload. Two machines may
// store a block in different encodings, and a name is set to different states. Every record
// therefore has its own nonce, so records of one payload differ, but only in their headers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/sha256.hpp"

namespace stet {

// The kind of a record.
// An anchor holds recurrent arrays under an anchor's name (docs/formats.md). Stores keep anchors
// where they keep blocks.
enum class RecordKind : uint32_t { block = 1, state = 2, name = 3, anchor = 4 };
const char* record_kind_name(RecordKind kind);  // "block", "state", "name" or "anchor"

// The key of a store's writers, and the salt of its names.
struct StoreKey {
  std::array<std::byte, 32> writers{};
  // If zero, records are stored under their identities. Otherwise they are stored under HMACs of
  // their identities, so that a client with another salt can neither find nor guess them.
  Sha256 salt;

  // Returns a new key from the system's random numbers.
  STET_API static StoreKey random();
  // Reads a key file. Throws an io Error if anyone but its owner may read it, and a format Error
  // for anything that save() does not write.
  STET_API static StoreKey load(const std::string& path);
  // Writes a new file with mode 0600. Throws an argument Error if the file exists.
  STET_API void save(const std::string& path) const;
  // Returns the same writers' key with a salt for this tenant.
  STET_API StoreKey for_tenant(const std::string& tenant) const;
  // Returns the name under which a record of this identity is stored.
  STET_API Sha256 place(const Sha256& identity) const;
};

constexpr size_t kRecordFront = 192, kBlockFront = 4096;

// A record without its header.
struct Record {
  RecordKind kind = RecordKind::block;
  Sha256 name;
  uint32_t encoding = 0;
  std::span<const std::byte> payload;
};

// Returns the header of a record, different each time; the payload follows it. Throws an io Error
// if the system has no random numbers.
STET_API std::vector<std::byte> seal_record(const StoreKey& key, const Record& record);
// Checks a record and returns it; its payload is a view into `bytes`. `where` names the source in
// errors. Throws a format Error for damage and an unsupported Error for another version. Throws a
// mismatch Error for another kind or name, or for a record by another writer.
STET_API Record open_record(const StoreKey& key, RecordKind kind, const Sha256& name,
                            std::span<const std::byte> bytes, const std::string& where);

// Returns whether a record claims to hold an anchor, which open_record() checks.
bool claims_anchor(std::span<const std::byte> bytes);

inline const char* record_kind_name(RecordKind kind) {
  return kind == RecordKind::block   ? "block"
         : kind == RecordKind::state ? "state"
         : kind == RecordKind::name  ? "name"
                                     : "anchor";
}

}  // namespace stet

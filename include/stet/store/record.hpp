// What stands in a store: payloads under a front that says what they are, and that somebody who
// holds the writers' key has written it. Everything in a store comes from strangers until then.
//
//   record = 93 'S' 'T' 'K' 0D 0A 1A 0A
//            u32 version                        2
//            u32 kind                           1 block, 2 state, 3 name
//            hash name                          what it is stored under
//            32 bytes content                   what the payload is checked by, as it stands here:
//              16 bytes nonce                   random
//              16 bytes tag                     Poly1305 under the one-time key HMAC-SHA256(
//                                               writers' key, "stet content 2\n" kind name nonce)
//            u64 bytes of the payload
//            u32 encoding                       0 as it is; 1, of blocks: u64 bytes that it gives,
//                                               and those shuffled as elements of 4 bytes and
//                                               deflated plane by plane (encoding 1 of
//                                               docs/snapshot-format.md)
//            u32 offset of the payload          4096 for blocks, so that it can be mapped; 192
//            hash HMAC-SHA256 of the bytes before it, under the writers' key
//            zeros up to the payload
//            payload
//
// Integers are little-endian; hashes are SHA-256.
//
// Poly1305 is several times as fast as SHA-256, and its key must never tag two payloads: whoever
// sees both tags can forge a third. Name and kind do not say what the payload is (two machines may
// store one block in different encodings, a name is set to another state), so every record has a
// nonce of its own. Hence records of one payload differ, but in their fronts alone.
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

enum class RecordKind : uint32_t { block = 1, state = 2, name = 3 };
const char* record_kind_name(RecordKind kind);  // "block"

// Who may write to a store, and what its names are salted with.
struct StoreKey {
  std::array<std::byte, 32> writers{};
  // All zero: records are stored under their identities. Else under HMACs of them, so that whoever
  // has another salt can neither find nor guess them.
  Sha256 salt;

  // A fresh one from the system's random numbers.
  STET_API static StoreKey random();
  // Reads a key file. Throws an io Error where others than its owner may read it, a format Error
  // for anything but what save() writes.
  STET_API static StoreKey load(const std::string& path);
  // Writes a new file with mode 0600; throws an argument Error where there is one already.
  STET_API void save(const std::string& path) const;
  // The same writers, and a salt of this tenant's own.
  STET_API StoreKey for_tenant(const std::string& tenant) const;
  // What a record of this identity is stored under.
  STET_API Sha256 place(const Sha256& identity) const;
};

constexpr size_t kRecordFront = 192, kBlockFront = 4096;

struct Record {
  RecordKind kind = RecordKind::block;
  Sha256 name;
  uint32_t encoding = 0;
  std::span<const std::byte> payload;
};

// The front of a record, never the same twice; the payload follows it. Throws an io Error where the
// system has no random numbers.
STET_API std::vector<std::byte> seal_record(const StoreKey& key, const Record& record);
// Checks everything. `where` names the source in errors. Throws a format Error: damage; a mismatch
// Error: of another kind or name than was asked for, or by another writer; an unsupported Error: of
// another version. The payload is a view.
STET_API Record open_record(const StoreKey& key, RecordKind kind, const Sha256& name,
                            std::span<const std::byte> bytes, const std::string& where);

inline const char* record_kind_name(RecordKind kind) {
  return kind == RecordKind::block ? "block" : kind == RecordKind::state ? "state" : "name";
}

}  // namespace stet

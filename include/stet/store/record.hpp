// What stands in a store: payloads under a front that says what they are, and that somebody who
// holds the writers' key has written it. Everything in a store comes from strangers until then.
//
//   record = 93 'S' 'T' 'K' 0D 0A 1A 0A
//            u32 version                        1
//            u32 kind                           1 block, 2 state, 3 name
//            hash name                          what it is stored under
//            hash content                       SHA-256 of the payload as it stands here
//            u64 bytes of the payload
//            u32 encoding                       0 as it is; 1, of blocks: u64 bytes that it gives,
//                                               and those shuffled as elements of 4 bytes and
//                                               deflated plane by plane (src/snapshot/write.cpp)
//            u32 offset of the payload          4096 for blocks, so that it can be mapped; 192
//            hash HMAC-SHA256 of the bytes before it, under the writers' key
//            zeros up to the payload
//            payload
//
// Integers are little-endian; hashes are SHA-256.
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

constexpr uint32_t kRecordVersion = 1;
constexpr size_t kRecordFront = 192, kBlockFront = 4096;

struct Record {
  RecordKind kind = RecordKind::block;
  Sha256 name;
  uint32_t encoding = 0;
  std::span<const std::byte> payload;
};

// The front of a record; the payload follows it. `content`: the payload's SHA-256, of those who
// have hashed many together (sha256_of_each).
STET_API std::vector<std::byte> seal_record(const StoreKey& key, const Record& record);
STET_API std::vector<std::byte> seal_record(const StoreKey& key, const Record& record,
                                            const Sha256& content);
// Checks everything. `where` names the source in errors. Throws a format Error: damage; a mismatch
// Error: of another kind or name than was asked for, or by another writer. The payload is a view.
STET_API Record open_record(const StoreKey& key, RecordKind kind, const Sha256& name,
                            std::span<const std::byte> bytes, const std::string& where);
// The same by the SHA-256 of payload_of(kind, bytes).
STET_API Record open_record(const StoreKey& key, RecordKind kind, const Sha256& name,
                            std::span<const std::byte> bytes, const std::string& where,
                            const Sha256& content);
// What stands behind the front in the bytes of a record, which nobody has looked at yet.
STET_API std::span<const std::byte> payload_of(RecordKind kind, std::span<const std::byte> bytes);

inline const char* record_kind_name(RecordKind kind) {
  return kind == RecordKind::block ? "block" : kind == RecordKind::state ? "state" : "name";
}

}  // namespace stet

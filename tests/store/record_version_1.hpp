// Records of version 1 as stores hold them, after the table in stet/store/record.hpp.
#pragma once

#include "stet/base/bytes.hpp"
#include "stet/base/hmac.hpp"
#include "stet/store/record.hpp"
#include "tests/support/files.hpp"

namespace stet::test {

inline std::vector<std::byte> record_version_1(const stet::StoreKey& key,
                                               const stet::Record& record) {
  constexpr unsigned char kMagic[] = {0x93, 'S', 'T', 'K', '\r', '\n', 0x1a, '\n'};
  const bool block = record.kind == stet::RecordKind::block;
  stet::ByteWriter w;
  w.bytes(std::as_bytes(std::span(kMagic)));
  w.u32(1);
  w.u32(block ? 1 : record.kind == stet::RecordKind::state ? 2 : 3);
  w.bytes(record.name.bytes);
  w.bytes(stet::sha256_of(record.payload).bytes);
  w.u64(record.payload.size());
  w.u32(record.encoding);
  w.u32(block ? 4096 : 192);
  w.bytes(stet::hmac_sha256(key.writers, w.data()).bytes);
  w.zeros((block ? 4096 : 192) - w.size());
  w.bytes(record.payload);
  return w.take();
}

}  // namespace stet::test

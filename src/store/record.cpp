#include "stet/store/record.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include "src/store/text.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/base/hmac.hpp"
#include "stet/base/poly1305.hpp"
#include "stet/files/file.hpp"

namespace stet {
namespace {

constexpr unsigned char kRecordMagic[8] = {0x93, 'S', 'T', 'K', 0x0D, 0x0A, 0x1A, 0x0A};
constexpr uint32_t kRecordVersion = 2;
constexpr size_t kNonce = 16, kKindAt = 12;
constexpr size_t kSealed = 8 + 4 + 4 + 32 + 32 + 8 + 4 + 4;  // bytes that the HMAC covers
constexpr size_t kKeyFileBytes = 4096;
constexpr char kKeyFileHead[] = "stet store key 1";

Sha256 hash_of(std::span<const std::byte> bytes) {
  Sha256 hash;
  std::copy(bytes.begin(), bytes.end(), hash.bytes.begin());
  return hash;
}

std::string hex_of(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text;
}

// Returns the 32 bytes after "NAME " in the next line of a key file.
Sha256 key_line(std::string_view& lines, const std::string& name, const std::string& path) {
  const std::string line = next_line(lines);
  const auto hash = line.starts_with(name + " ")
                        ? parse_sha256("sha256:" + line.substr(name.size() + 1))
                        : std::nullopt;
  if (!hash)
    throw Error(ErrorKind::format, path, name, "64 hex digits behind \"" + name + " \"",
                "another line");
  return *hash;
}

[[noreturn]] void record_damaged(const std::string& where, const std::string& field,
                                 const std::string& expected, const std::string& found) {
  throw Error(ErrorKind::format, where, field, expected, found);
}

uint32_t payload_offset(RecordKind kind) {
  const bool mapped = kind == RecordKind::block || kind == RecordKind::anchor;
  return static_cast<uint32_t>(mapped ? kBlockFront : kRecordFront);
}

// Fills at most 256 bytes, a size that no signal can interrupt.
void fill_randomly(std::span<std::byte> bytes) {
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw Error(ErrorKind::io, "", "random bytes", "", "the system did not provide them");
}

Poly1305Tag tag_of_payload(const StoreKey& key, const Record& record,
                           std::span<const std::byte> nonce) {
  ByteWriter w;
  w.text("stet content 2\n");
  w.u32(static_cast<uint32_t>(record.kind));
  w.bytes(record.name.bytes);
  w.bytes(nonce);
  return poly1305_of(hmac_sha256(key.writers, w.data()).bytes, record.payload);
}

// Checks the tag of the payload. The error does not contain the expected tag, since that would be a
// second valid tag under its key.
void check_payload(const StoreKey& key, const Record& record, std::span<const std::byte> content,
                   const std::string& where) {
  if (!equal_in_constant_time(tag_of_payload(key, record, content.first(kNonce)),
                              content.subspan(kNonce)))
    record_damaged(where, "content", "", "the bytes are not those that were sealed");
}

}  // namespace

StoreKey StoreKey::random() {
  StoreKey key;
  fill_randomly(key.writers);
  return key;
}

StoreKey StoreKey::load(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
    throw Error(ErrorKind::io, path, "permissions", "",
                fmt::format("others can read the key (mode {:o}); chmod 600 makes it private",
                            info.st_mode & 0777));
  }
  const std::string text = read_text_file(path, kKeyFileBytes);
  std::string_view lines = text;
  const std::string head = next_line(lines);
  if (head != kKeyFileHead)
    throw Error(ErrorKind::format, path, "first line", kKeyFileHead, printable(head, 60));
  StoreKey key;
  key.writers = key_line(lines, "writers", path).bytes;
  key.salt = key_line(lines, "salt", path);
  return key;
}

void StoreKey::save(const std::string& path) const {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored))
    throw Error(ErrorKind::argument, path, "key", "", "the file exists already");
  AtomicFile file(path, 0600);
  const std::string text =
      fmt::format("{}\nwriters {}\nsalt {}\n", kKeyFileHead, hex_of(writers), hex_of(salt.bytes));
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

StoreKey StoreKey::for_tenant(const std::string& tenant) const {
  ByteWriter w;
  w.text("stet tenant 1\n");
  w.bytes(salt.bytes);
  w.text(tenant);
  return {writers, hmac_sha256(writers, w.data())};
}

Sha256 StoreKey::place(const Sha256& identity) const {
  return salt == Sha256() ? identity : hmac_sha256(salt.bytes, identity.bytes);
}

std::vector<std::byte> seal_record(const StoreKey& key, const Record& record) {
  std::array<std::byte, kNonce> nonce;
  fill_randomly(nonce);
  ByteWriter w;
  w.bytes(std::as_bytes(std::span(kRecordMagic)));
  w.u32(kRecordVersion);
  w.u32(static_cast<uint32_t>(record.kind));
  w.bytes(record.name.bytes);
  w.bytes(nonce);
  w.bytes(tag_of_payload(key, record, nonce));
  w.u64(record.payload.size());
  w.u32(record.encoding);
  w.u32(payload_offset(record.kind));
  const Sha256 seal = hmac_sha256(key.writers, w.data());
  w.bytes(seal.bytes);
  w.zeros(payload_offset(record.kind) - w.size());
  return w.take();
}

bool claims_anchor(std::span<const std::byte> bytes) {
  if (bytes.size() < kRecordFront) return false;
  ByteReader r(bytes.subspan(kKindAt), "");
  return r.u32("kind") == static_cast<uint32_t>(RecordKind::anchor);
}

Record open_record(const StoreKey& key, RecordKind kind, const Sha256& name,
                   std::span<const std::byte> bytes, const std::string& where) {
  ByteReader r(bytes, where);
  if (!std::ranges::equal(r.bytes(8, "first bytes"), std::as_bytes(std::span(kRecordMagic))))
    record_damaged(where, "first bytes", "those of a record", "others");
  const uint32_t version = r.u32("version");
  if (version != kRecordVersion)
    throw Error(ErrorKind::unsupported, where, "version", std::to_string(kRecordVersion),
                std::to_string(version));
  const uint32_t found = r.u32("kind");
  const Sha256 found_name = hash_of(r.bytes(32, "name"));
  const std::span<const std::byte> content = r.bytes(32, "content");
  const uint64_t size = r.u64("bytes");
  const uint32_t encoding = r.u32("encoding"), offset = r.u32("offset");
  const std::span<const std::byte> seal = r.bytes(32, "HMAC");
  if (!equal_in_constant_time(seal, hmac_sha256(key.writers, bytes.first(kSealed)).bytes))
    throw Error(ErrorKind::mismatch, where, "HMAC", "",
                "the record was not sealed with this store's key");
  if (found != static_cast<uint32_t>(kind) || offset != payload_offset(kind))
    throw Error(ErrorKind::mismatch, where, "kind", record_kind_name(kind), "another");
  if (found_name != name)
    throw Error(ErrorKind::mismatch, where, "name", sha256_text(name), sha256_text(found_name));
  if (bytes.size() < offset || bytes.size() - offset != size) {
    record_damaged(where, "bytes", std::to_string(size),
                   std::to_string(bytes.size() < offset ? 0 : bytes.size() - offset));
  }
  const std::span<const std::byte> gap = bytes.subspan(r.position(), offset - r.position());
  if (std::ranges::any_of(gap, [](std::byte b) { return b != std::byte{}; }))
    record_damaged(where, "gap", "zeros before the payload", "others");
  const Record record{kind, name, encoding, bytes.subspan(offset)};
  check_payload(key, record, content, where);
  return record;
}

}  // namespace stet

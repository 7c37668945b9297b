#include "src/snapshot/format.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "src/base/digest_bytes.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/files/archive.hpp"

namespace stet {
namespace {

constexpr char kMagic[] = "\x93STET\r\n\x1a";
constexpr uint64_t kEntryBytes = 64, kMaxSections = 256;
constexpr uint64_t kAlignment = 64, kPage = 4096, kKvAlignment = 65536;
constexpr size_t kDigestBytes = 16;  // the digest of all that comes before it ends a header
constexpr uint32_t kMustKnow = 1;

struct Header {
  uint64_t sections;
  Digest table, state;
  Sha256 id;
};

void check_digest(const std::string& path, const std::string& field, const Digest& expected,
                  std::span<const std::byte> bytes) {
  const Digest found = digest_of(bytes);
  if (!(found == expected))
    snapshot_damaged(path, field, "digest " + digest_text(expected), digest_text(found));
}

void check_equal(const std::string& path, const std::string& field, uint64_t expected,
                 uint64_t found) {
  if (found != expected)
    snapshot_damaged(path, field, std::to_string(expected), std::to_string(found));
}

Sha256 get_id(ByteReader& r) {
  Sha256 id;
  std::ranges::copy(r.bytes(sizeof id, "state id"), id.bytes.begin());
  return id;
}

Header decode_header(std::span<const std::byte> file, const std::string& path) {
  if (file.size() < 8 || std::memcmp(file.data(), kMagic, 8) != 0) {
    snapshot_damaged(path, "magic", "a stet snapshot", "another file");
  }
  ByteReader r(file, path);
  r.bytes(8, "magic");
  const uint32_t version = r.u32("format version");
  if (version != kSnapshotVersion) {
    throw Error(ErrorKind::unsupported, path, "format version", std::to_string(kSnapshotVersion),
                std::to_string(version));
  }
  Header h;
  const uint32_t bytes = r.u32("header size");
  const uint64_t required = r.u64("required features");
  r.u64("optional features");
  const uint64_t file_size = r.u64("file size");
  h.sections = r.u32("sections");
  r.u32("reserved");
  const uint64_t table = r.u64("section table");
  h.table = get(r, "table digest");
  h.state = get(r, "state digest");
  h.id = get_id(r);
  r.bytes(kHeaderBytes - kDigestBytes - r.position(), "reserved");
  check_digest(path, "header", get(r, "header digest"), file.first(kHeaderBytes - kDigestBytes));
  constexpr uint64_t known =
      kElsewhere | kCompressed | kEdited | kIntervened | kWindowed | kWeighsTokens;
  if ((required & ~known) != 0) {
    throw Error(ErrorKind::unsupported, path, "required features",
                "bits 1, 2, 4, 8, 16 and 32 at most", std::to_string(required));
  }
  check_equal(path, "header size", kHeaderBytes, bytes);
  check_equal(path, "section table", kHeaderBytes, table);
  check_equal(path, "file size", file_size, file.size());
  if (h.sections > kMaxSections || file.size() - kHeaderBytes < h.sections * kEntryBytes) {
    snapshot_damaged(path, "sections", "a table inside the file",
                     std::to_string(h.sections) + " entries");
  }
  return h;
}

// One entry of the table; the bytes between `end`, where the section before it ends, and its own
// must be zero.
Snapshot::Section decode_entry(ByteReader& table, uint64_t end, std::span<const std::byte> file,
                               const std::string& path) {
  Snapshot::Section s;
  const std::string name = table.text(8, "section name");
  s.name = name.substr(0, name.find('\0'));
  s.offset = table.u64("offset");
  s.size = table.u64("size");
  const uint32_t flags = table.u32("flags"), encoding = table.u32("encoding");
  s.digest = get(table, "digest");
  table.bytes(16, "reserved");
  if (s.offset < end || s.offset > file.size() || s.size > file.size() - s.offset) {
    snapshot_damaged(path, s.name, "a section after the one before it and inside the file",
                     std::to_string(s.offset) + " + " + std::to_string(s.size));
  }
  for (const std::byte b : file.subspan(end, s.offset - end)) {
    if (b != std::byte{0})
      snapshot_damaged(path, "bytes before " + s.name, "zero bytes",
                       std::to_string(static_cast<int>(b)));
  }
  s.must_know = (flags & kMustKnow) != 0;
  if (!is_known_section(s.name) && !s.must_know) return s;
  if (!is_known_section(s.name) || encoding != 0) {
    throw Error(ErrorKind::unsupported, path, "section " + s.name, "one that this version knows",
                "flags " + std::to_string(flags) + ", encoding " + std::to_string(encoding));
  }
  return s;
}

}  // namespace

void snapshot_damaged(const std::string& path, const std::string& field,
                      const std::string& expected, const std::string& found) {
  throw Error(ErrorKind::format, path, field, expected, found);
}

bool is_known_section(const std::string& name) {
  return std::find(std::begin(kSectionNames), std::end(kSectionNames), name) !=
         std::end(kSectionNames);
}

uint64_t front_bytes(size_t sections) { return kHeaderBytes + kEntryBytes * sections; }

uint64_t section_offset(const std::string& name, uint64_t end) {
  const bool page = is_archive_section(name) || !is_known_section(name);
  const uint64_t alignment = name == "KV" ? kKvAlignment : page ? kPage : kAlignment;
  return (end + alignment - 1) / alignment * alignment;
}

std::optional<Sha256> id_in_header(std::span<const std::byte> header) {
  if (header.size() < kHeaderBytes || std::memcmp(header.data(), kMagic, 8) != 0)
    return std::nullopt;
  ByteReader r(header, "");
  r.bytes(8, "magic");
  if (r.u32("format version") != kSnapshotVersion) return std::nullopt;
  r.bytes(76, "all up to the id");
  return get_id(r);
}

std::vector<std::byte> encode_front(const std::vector<Snapshot::Section>& sections,
                                    uint64_t required, const Digest& state, const Sha256& id) {
  ByteWriter table;
  for (const Snapshot::Section& s : sections) {
    table.text(s.name);
    table.zeros(8 - s.name.size());
    table.u64(s.offset);
    table.u64(s.size);
    table.u32(s.must_know ? kMustKnow : 0);
    table.u32(0);
    put(table, s.digest);
    table.zeros(16);
  }
  ByteWriter w;
  w.text({kMagic, 8});
  w.u32(kSnapshotVersion);
  w.u32(kHeaderBytes);
  w.u64(required);
  w.u64(0);
  w.u64(sections.back().offset + sections.back().size);
  w.u32(static_cast<uint32_t>(sections.size()));
  w.u32(0);
  w.u64(kHeaderBytes);
  put(w, digest_of(table.data()));
  put(w, state);
  w.bytes(id.bytes);
  w.zeros(kHeaderBytes - kDigestBytes - w.size());
  put(w, digest_of(w.data()));
  w.bytes(table.data());
  return w.take();
}

Front decode_front(std::span<const std::byte> file, const std::string& path) {
  const Header header = decode_header(file, path);
  const std::span<const std::byte> table =
      file.subspan(kHeaderBytes, header.sections * kEntryBytes);
  check_digest(path, "section table", header.table, table);
  ByteReader entries(table, path);
  Front front{{}, header.state, header.id};
  uint64_t end = kHeaderBytes + table.size();
  for (uint64_t i = 0; i < header.sections; ++i) {
    Snapshot::Section s = decode_entry(entries, end, file, path);
    end = s.offset + s.size;
    for (const Snapshot::Section& other : front.sections) {
      if (other.name == s.name) snapshot_damaged(path, "section " + s.name, "one", "two");
    }
    const std::span<const std::byte> content = file.subspan(s.offset, s.size);
    if (is_archive_section(s.name)) {
      if (s.offset % kArchiveAlignment != 0)
        snapshot_damaged(path, s.name, "a multiple of 4096", std::to_string(s.offset));
      check_digest(path, s.name, s.digest, read_archive_index(content, path + ": " + s.name).bytes);
    } else if (s.name != "KV") {
      check_digest(path, s.name, s.digest, content);
    }
    front.sections.push_back(std::move(s));
  }
  if (end != file.size()) {
    snapshot_damaged(path, "file size", std::to_string(end) + " bytes of sections",
                     std::to_string(file.size()));
  }
  return front;
}

size_t held_bytes(const KvShape& shape, const HeldLayers& held) {
  const size_t bytes = static_cast<size_t>(std::ranges::count(held, true)) * shape.layer_bytes();
  return (bytes + 4095) / 4096 * 4096;
}

void gather_held(const KvShape& shape, const HeldLayers& held, const std::byte* block,
                 std::vector<std::byte>& bytes) {
  const size_t part = shape.layer_bytes();
  bytes.clear();
  for (size_t layer = 0; layer < held.size(); ++layer) {
    if (held[layer]) bytes.insert(bytes.end(), block + layer * part, block + (layer + 1) * part);
  }
  bytes.resize(held_bytes(shape, held));
}

std::span<const std::byte> scatter_held(const KvShape& shape, const HeldLayers& held,
                                        std::span<const std::byte> bytes, std::byte* block) {
  const size_t part = shape.layer_bytes();
  for (size_t layer = 0; layer < held.size(); ++layer) {
    if (!held[layer]) continue;
    std::memcpy(block + layer * part, bytes.data(), part);
    bytes = bytes.subspan(part);
  }
  return bytes;
}

}  // namespace stet

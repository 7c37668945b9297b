// Takes a snapshot file apart and puts a changed one together with correct digests, as a later
// version or an attacker could. Written from the specification, without the library's code.
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stet/base/digest.hpp"
#include "stet/base/error.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/support/files.hpp"

namespace stet::test {

inline uint64_t get_le(std::string_view bytes, size_t at, size_t width) {
  uint64_t value = 0;
  for (size_t i = width; i > 0; --i)
    value = value << 8 | static_cast<unsigned char>(bytes.at(at + i - 1));
  return value;
}

inline std::string le(uint64_t value, size_t width) {
  std::string out;
  for (size_t i = 0; i < width; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

inline std::string le(const Digest& d) { return le(d.low, 8) + le(d.high, 8); }

inline std::string digest_bytes(std::string_view text) {
  return le(digest_of(std::as_bytes(std::span(text))));
}

// Returns the index of an archive section. The section's digest covers only the index, which starts
// with its length.
inline std::string_view archive_index(std::string_view archive) {
  return archive.size() < 12 ? archive : archive.substr(0, get_le(archive, 8, 4));
}

struct SnapshotImage {
  struct Section {
    std::string name, content;
    uint32_t flags = 1, encoding = 0;
  };
  static constexpr uint64_t kHeaderBytes = 192;
  uint64_t version = 3, header_size = kHeaderBytes, required = 0, optional = 0;
  std::string state;  // digest
  std::string id;     // SHA-256
  std::vector<Section> sections;

  static SnapshotImage parse(std::string_view file) {
    SnapshotImage image;
    image.version = get_le(file, 8, 4);
    image.required = get_le(file, 16, 8);
    image.state = file.substr(72, 16);
    image.id = file.substr(88, 32);
    for (size_t i = 0; i < get_le(file, 40, 4); ++i) {
      const size_t at = kHeaderBytes + 64 * i;
      const std::string name(file.substr(at, 8));
      image.sections.push_back(
          {name.substr(0, name.find('\0')),
           std::string(file.substr(get_le(file, at + 8, 8), get_le(file, at + 16, 8)))});
    }
    return image;
  }

  Section& section(const std::string& name) {
    for (Section& s : sections) {
      if (s.name == name) return s;
    }
    throw std::runtime_error("no section " + name);
  }

  // Returns the file. Sections named KV carry the digest of BLOCKS.
  std::string build() const {
    std::string table, body;
    uint64_t end = kHeaderBytes + 64 * sections.size();
    const uint64_t front = end;
    std::string blocks;
    for (const Section& s : sections) {
      const bool archive = s.name == "WEIGHTS" || s.name == "TOKENIZR";
      const uint64_t alignment = s.name == "KV" ? 65536
                                 : archive      ? 4096
                                                : 64,
                     offset = (end + alignment - 1) / alignment * alignment;
      body += std::string(offset - end, '\0') + s.content;
      end = offset + s.content.size();
      if (s.name == "BLOCKS") blocks = digest_bytes(s.content);
      table +=
          s.name + std::string(8 - s.name.size(), '\0') + le(offset, 8) + le(s.content.size(), 8) +
          le(s.flags, 4) + le(s.encoding, 4) +
          (s.name == "KV" ? blocks : digest_bytes(archive ? archive_index(s.content) : s.content)) +
          std::string(16, '\0');
    }
    std::string header = std::string("\x93STET\r\n\x1a", 8) + le(version, 4) + le(header_size, 4) +
                         le(required, 8) + le(optional, 8) + le(front + body.size(), 8) +
                         le(sections.size(), 4) + le(0, 4) + le(kHeaderBytes, 8) +
                         digest_bytes(table) + state + id;
    header.resize(kHeaderBytes - 16);
    return header + digest_bytes(header) + table + body;
  }
};

// Returns the file with the state digest that the reader expects, so every digest is correct
// whatever the content says. XXH3 is not a signature.
inline std::string forged(SnapshotImage image) {
  const std::string file = image.build();
  try {
    Snapshot::parse(std::as_bytes(std::span(file)), "");
  } catch (const Error& e) {
    const std::optional<Digest> state = parse_digest(e.found);
    if (e.field != "state" || !state) return file;
    image.state = le(*state);
    return image.build();
  }
  return file;
}

}  // namespace stet::test

// A snapshot file as bytes, and back: header, section table and sections. Their grammar:
// docs/snapshot-format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stet/snapshot/file.hpp"

namespace stet {

constexpr size_t kHeaderBytes = 192;

bool is_known_section(std::string_view name);
bool is_archive_section(std::string_view name);

// Reads and checks every byte but those of KV and of the files of archives: what the sections hold
// fits the config and the digests of the header; what is claimed stays within limits.hpp. Throws
// Error: unsupported for what a later version may have written, format for damage.
std::shared_ptr<const SnapshotFile> decode_file(std::span<const std::byte> bytes,
                                                const std::string& path,
                                                std::shared_ptr<const MappedFile> mapping);
// The same of a file, which is mapped. Throws an io Error, too.
std::shared_ptr<const SnapshotFile> open_file(const std::string& path);

// Returns the id of the state in a file that begins so, if it is a snapshot: a delta's parent is
// found by it.
std::optional<Sha256> id_in_header(std::span<const std::byte> header);

struct EncodedSection {
  std::string name;
  std::vector<std::byte> bytes;
  bool must_know = true;
};
// Returns the sections before KVINDEX, in their order. Throws a capacity Error where META becomes
// longer than a reader takes.
std::vector<EncodedSection> encode_contents(const SnapshotContents& contents);

// Where a section begins that follows byte `end` of the file.
uint64_t section_offset(std::string_view name, uint64_t end);
uint64_t front_bytes(size_t sections);
// The required features of a file with these contents.
uint64_t features_of(const SnapshotContents& contents, bool compressed, bool windowed);
// Header and section table of a file that consists of them and `sections`.
std::vector<std::byte> encode_front(const std::vector<SnapshotSection>& sections, uint64_t features,
                                    const StateDigests& digests);

[[noreturn]] void snapshot_damaged(const std::string& path, const std::string& field,
                                   const std::string& expected, const std::string& found);

}  // namespace stet

// Encodes and decodes a snapshot file: header, section table and sections. docs/formats.md
// has the grammar.
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

class FileSource;
class Snapshot;

constexpr size_t kHeaderBytes = 192;

bool is_known_section(std::string_view name);
bool is_archive_section(std::string_view name);

// Decodes a file. Checks every byte except those of KV and of archived files: the sections must fit
// the config and the header's digests, and stay within limits.hpp. Throws an unsupported Error for
// features of a later version, and a format Error for damage.
std::shared_ptr<const SnapshotFile> decode_file(std::span<const std::byte> bytes,
                                                const std::string& path,
                                                std::shared_ptr<const MappedFile> mapping);
// Maps a file and decodes it. Also throws an io Error.
std::shared_ptr<const SnapshotFile> open_file(const std::string& path);

// Returns the file that has a section: the snapshot's own, or that of the nearest of its parents that
// were found. Null if there is none, or no snapshot.
const SnapshotFile* holder_of(const Snapshot* snapshot, const std::string& section);
// Returns the archived files in a section, or null if the file lacks it.
std::shared_ptr<const FileSource> archive_in(const SnapshotFile& file, const std::string& section);

// Returns the id of the state if `header` begins a snapshot. A delta finds its parent with it.
std::optional<Sha256> id_in_header(std::span<const std::byte> header);

// Sets the index of anchors (recurrent.hpp). The digests must have been set. Throws a format Error.
void decode_anchor_index(SnapshotFile& file);

struct EncodedSection {
  std::string name;
  std::vector<std::byte> bytes;
  bool must_know = true;
};
// Returns the sections before KVINDEX, in their order. Throws a capacity Error for META that readers
// would refuse.
std::vector<EncodedSection> encode_contents(const SnapshotContents& contents);

// Returns the offset of a section that follows byte `end` of the file.
uint64_t section_offset(std::string_view name, uint64_t end);
uint64_t front_bytes(size_t sections);
// Returns the bits of the features that a reader of these contents needs.
uint64_t features_of(const SnapshotContents& contents, bool compressed, bool windowed);
// Returns the header and section table of a file with these `sections`.
std::vector<std::byte> encode_front(const std::vector<SnapshotSection>& sections, uint32_t version,
                                    uint64_t features, const StateDigests& digests);

[[noreturn]] void snapshot_damaged(const std::string& path, const std::string& field,
                                   const std::string& expected, const std::string& found);

}  // namespace stet

// The front of a snapshot file: header and section table. The format is specified at the head of
// src/snapshot/write.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stet/base/digest.hpp"
#include "stet/base/sha256.hpp"
#include "stet/snapshot/snapshot.hpp"

namespace stet {

inline constexpr const char* kSectionNames[] = {
    "META",    "TOKENS", "VISIBLE", "PRUNES",  "REMOVED",  "LOGITS", "BLOCKS",
    "CONTENT", "KEPT",   "KVINDEX", "WEIGHTS", "TOKENIZR", "KV"};
inline bool is_archive_section(const std::string& name) {
  return name == "WEIGHTS" || name == "TOKENIZR";
}
bool is_known_section(const std::string& name);

// Required features.
constexpr uint64_t kElsewhere = 1, kCompressed = 2, kEdited = 4, kIntervened = 8, kWindowed = 16,
                   kWeighsTokens = 32;
// Encodings of a block; the last two are of its layers without a window alone.
constexpr uint32_t kRaw = 0, kByteShuffle = 1, kHeldRaw = 2, kHeldShuffle = 3;
inline bool is_held(uint32_t encoding) { return encoding >= kHeldRaw; }
inline bool is_shuffled(uint32_t encoding) {
  return encoding == kByteShuffle || encoding == kHeldShuffle;
}
// The layers `held` of a block, one behind the other and zeros up to whole pages, and back.
size_t held_bytes(const KvShape& shape, const HeldLayers& held);
void gather_held(const KvShape& shape, const HeldLayers& held, const std::byte* block,
                 std::vector<std::byte>& bytes);
// Returns the zeros.
std::span<const std::byte> scatter_held(const KvShape& shape, const HeldLayers& held,
                                        std::span<const std::byte> bytes, std::byte* block);

// Where a section begins that follows byte `end` of the file.
uint64_t section_offset(const std::string& name, uint64_t end);
uint64_t front_bytes(size_t sections);

// Header and section table of a file that consists of them and `sections`.
std::vector<std::byte> encode_front(const std::vector<Snapshot::Section>& sections,
                                    uint64_t required, const Digest& state, const Sha256& id);

struct Front {
  std::vector<Snapshot::Section> sections;
  // Of the state that the file holds.
  Digest state;
  Sha256 id;
};

constexpr size_t kHeaderBytes = 192;
// Returns the id of the state in a file that begins so, if it is a snapshot: a delta's parent is
// found by it.
std::optional<Sha256> id_in_header(std::span<const std::byte> header);

// Reads header and table, and checks every byte of the file but those of KV. Throws Error:
// unsupported for what a later version may have written, format for damage.
Front decode_front(std::span<const std::byte> file, const std::string& path);

[[noreturn]] void snapshot_damaged(const std::string& path, const std::string& field,
                                   const std::string& expected, const std::string& found);

}  // namespace stet

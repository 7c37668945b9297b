// The contents of a snapshot file. docs/formats.md defines the format.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/base/digest.hpp"
#include "stet/base/sha256.hpp"
#include "stet/files/mapped_file.hpp"
#include "stet/kv/recurrent_state.hpp"
#include "stet/session/state.hpp"

namespace stet {

// The versions read. A state is written in the first version that can hold it. Version 4 is for
// models whose layers differ in the shape of their keys and values, or are recurrent.
constexpr uint32_t kSnapshotVersion = 3, kSnapshotVersionOfTables = 4;
inline uint32_t snapshot_version(const KvShape& kv) {
  return kv.is_uniform() ? kSnapshotVersion : kSnapshotVersionOfTables;
}

// Digests that identify a state. The XXH3 digests detect damage quickly. The SHA-256 id names the
// state and is the one to compare or store.
struct StateDigests {
  Digest tokens;          // token ids
  Digest logits;          // the last position's logits
  Digest kv;              // over the digests of all layers of all blocks
  Digest recurrent = {};  // over the digests of the recurrent layers' arrays; zero: none
  // Covers everything: contract, model, tokens, visibility, logits, keys, values, generation state,
  // prunes and messages.
  Digest state;
  Sha256 id;  // identity.hpp
};

// The forms of a saved state. All restore to the same bytes.
enum class SnapshotForm {
  full,    // everything
  delta,   // keys and values that its parent snapshot lacks
  recipe,  // no keys and values: they are recomputed and proved by digests
};
STET_API const char* snapshot_form_name(SnapshotForm form);
// inverse of snapshot_form_name()
STET_API std::optional<SnapshotForm> parse_snapshot_form(const std::string& name);

// The metadata of a snapshot.
struct SnapshotMeta {
  SnapshotForm form = SnapshotForm::full;
  std::string parent;        // delta: the parent's id
  std::string parent_state;  // delta: the parent's state digest
  std::string parent_file;   // delta: the parent's file name
  std::string logits;        // recipe: the logits' digest
  std::string contract;      // contract_name()
  int contract_version = 0;
  // Name of the model's directory; a hint that is not part of the state.
  std::string checkpoint;
  std::string architecture;
  std::string config;  // ModelConfig::canonical(); the next four fields are values of it
  std::string family;
  int64_t vocab_size = 0, hidden_size = 0;
  RecurrentShape recurrent;
  // Model::fingerprints() in text form.
  std::vector<std::pair<std::string, std::string>> fingerprints;
  std::string tokenizer;  // the tokenizer's fingerprint, or empty
  KvShape kv;
  int64_t capacity = 0, positions = 0;
  GenerationState generation;
  std::vector<Prune> prunes;
  std::vector<KvEdit> edits;
  std::vector<Intervention> interventions;
  ChatState chat;
};

// Return a log of prunes, edits or interventions as JSON. The log of prunes, which may be long, is
// returned in pieces.
STET_API void encode_prunes(const std::vector<Prune>& prunes,
                            const std::function<void(std::string_view)>& piece);
STET_API std::string encode_edits(const std::vector<KvEdit>& edits);
STET_API std::string encode_interventions(const std::vector<Intervention>& all);

// An anchor in a file (anchors.hpp).
struct AnchorEntry {
  Sha256 name;
  int64_t position = 0;
  bool by_content = false;
  bool block_end = false;
  bool hidden = false;                  // its numbers are a row of hidden state, otherwise logits
  bool in_parent = false;               // only in a delta: its bytes are in a parent
  uint64_t numbers = 0;                 // 0: the anchor has no logits
  Digest digest = {};                   // digest of its numbers and arrays
  uint64_t last_at = 0, arrays_at = 0;  // their offsets in the section ANCHORS
};

// The contents of a file except keys and values.
struct SnapshotContents {
  SnapshotMeta meta;
  std::vector<int32_t> tokens;
  std::vector<uint64_t> visible;               // [blocks]: visibility bits
  std::shared_ptr<std::vector<float>> logits;  // after the last position; null or empty: none
  std::vector<Digest> blocks;                  // [blocks][layers]
  std::vector<Sha256> contents;  // digests of blocks that are identified by their bytes
  RewindLogits kept;
  std::vector<Digest> arrays;        // one for each layer with recurrent arrays
  std::vector<AnchorEntry> anchors;  // ascending
  StateDigests digests;

  std::span<const Digest> block_digests(int64_t block) const {
    const size_t each = static_cast<size_t>(meta.kv.layers);
    return std::span(blocks).subspan(static_cast<size_t>(block) * each, each);
  }
  StateOrigin origin() const {
    return {meta.contract, meta.contract_version, meta.fingerprints.back().second};
  }
  // Returns the state without keys, values and logits.
  State recipe() const {
    return {origin(),           tokens,   {}, nullptr, meta.generation, meta.prunes, meta.edits,
            meta.interventions, meta.chat};
  }
};

// A section of a snapshot file.
struct SnapshotSection {
  std::string name;
  uint64_t offset = 0, size = 0;
  Digest digest;
  bool must_know = true;  // readers that do not know it must refuse the file
};

// The bytes of a block in the file.
struct BlockExtent {
  uint64_t offset = 0, size = 0;
  uint32_t encoding = 0;
  bool there = false;
};

// An opened snapshot file. Keys and values stay in the file until they are used.
struct SnapshotFile : SnapshotContents {
  std::string path;
  std::span<const std::byte> bytes;
  std::shared_ptr<const MappedFile> mapping;  // null: the bytes are in memory
  std::vector<SnapshotSection> sections;
  std::vector<BlockExtent> extents;        // [blocks]: keys and values in this file
  std::shared_ptr<const HeldLayers> held;  // layers held by partial blocks; null: no partial blocks

  // Returns null if there is no section of that name.
  const SnapshotSection* find(std::string_view name) const {
    for (const SnapshotSection& s : sections) {
      if (s.name == name) return &s;
    }
    return nullptr;
  }
  // Returns the bytes of a section, empty if it does not exist.
  std::span<const std::byte> content(std::string_view name) const {
    const SnapshotSection* const s = find(name);
    return s != nullptr ? bytes.subspan(s->offset, s->size) : std::span<const std::byte>();
  }
  const BlockExtent& extent(int64_t block) const { return extents[static_cast<size_t>(block)]; }
};

}  // namespace stet

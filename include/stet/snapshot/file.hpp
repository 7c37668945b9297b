// One snapshot file: what its sections hold. docs/snapshot-format.md has its grammar.
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
#include "stet/session/state.hpp"

namespace stet {

constexpr uint32_t kSnapshotVersion = 3;  // written and read

// What tells a state from others. XXH3 finds damage quickly; the id is its name.
struct StateDigests {
  Digest tokens;  // token ids
  Digest logits;  // of the last position
  Digest kv;      // the digests of all layers of all blocks
  // Covers all of it: contract, model, tokens, visibility, logits, keys, values, generation state,
  // prunes, messages.
  Digest state;
  Sha256 id;  // identity.hpp
};

// Forms of one state; all restore to the same bytes.
enum class SnapshotForm {
  full,    // everything
  delta,   // keys and values that its parent, another snapshot, does not have
  recipe,  // no keys and values: they are computed again, and proved by their digests
};
STET_API const char* snapshot_form_name(SnapshotForm form);
STET_API std::optional<SnapshotForm> parse_snapshot_form(const std::string& name);  // the inverse

// What a snapshot says about itself.
struct SnapshotMeta {
  SnapshotForm form = SnapshotForm::full;
  std::string parent;        // delta: the parent's id
  std::string parent_state;  // delta: the parent's state digest
  std::string parent_file;   // delta: the name its file had
  std::string logits;        // recipe: their digest
  std::string contract;      // contract_name()
  int contract_version = 0;
  // The name of the directory that the model came from: a hint, not part of the state.
  std::string checkpoint;
  std::string architecture;
  std::string config;  // ModelConfig::canonical()
  // The texts of Model::fingerprints().
  std::vector<std::pair<std::string, std::string>> fingerprints;
  std::string tokenizer;  // its fingerprint, or empty
  KvShape kv;
  int64_t capacity = 0, positions = 0;
  GenerationState generation;
  std::vector<Prune> prunes;
  std::vector<KvEdit> edits;
  std::vector<Intervention> interventions;
  ChatState chat;
};

// A log of prunes, of edits or of interventions as JSON; the first, which may be long, in pieces.
STET_API void encode_prunes(const std::vector<Prune>& prunes,
                            const std::function<void(std::string_view)>& piece);
STET_API std::string encode_edits(const std::vector<KvEdit>& edits);
STET_API std::string encode_interventions(const std::vector<Intervention>& all);

// All that a file holds of a state but for its keys and values.
struct SnapshotContents {
  SnapshotMeta meta;
  std::vector<int32_t> tokens;
  std::vector<uint64_t> visible;               // [blocks]: the mask of each
  std::shared_ptr<std::vector<float>> logits;  // of the last position; null or empty: none
  std::vector<Digest> blocks;                  // [blocks][layers]
  std::vector<Sha256> contents;                // of blocks that are named by their bytes
  KeptLogits kept;
  StateDigests digests;

  std::span<const Digest> block_digests(int64_t block) const {
    const size_t each = static_cast<size_t>(meta.kv.layers);
    return std::span(blocks).subspan(static_cast<size_t>(block) * each, each);
  }
  StateOrigin origin() const {
    return {meta.contract, meta.contract_version, meta.fingerprints.back().second};
  }
  // The state without keys, values and logits.
  State recipe() const {
    return {origin(),           tokens,   {}, nullptr, meta.generation, meta.prunes, meta.edits,
            meta.interventions, meta.chat};
  }
};

struct SnapshotSection {
  std::string name;
  uint64_t offset = 0, size = 0;
  Digest digest;
  bool must_know = true;  // a reader that does not know it must refuse the file
};

// The bytes of a file that hold a block.
struct BlockExtent {
  uint64_t offset = 0, size = 0;
  uint32_t encoding = 0;
  bool there = false;
};

// A file that was opened. Keys and values stay in it until they are used.
struct SnapshotFile : SnapshotContents {
  std::string path;
  std::span<const std::byte> bytes;
  std::shared_ptr<const MappedFile> mapping;  // of the bytes; null: they are in memory
  std::vector<SnapshotSection> sections;
  std::vector<BlockExtent> extents;        // [blocks]: of keys and values in this file
  std::shared_ptr<const HeldLayers> held;  // by blocks without layers; null: there are none

  // Null: there is none of that name.
  const SnapshotSection* find(std::string_view name) const {
    for (const SnapshotSection& s : sections) {
      if (s.name == name) return &s;
    }
    return nullptr;
  }
  // Empty where there is no such section.
  std::span<const std::byte> content(std::string_view name) const {
    const SnapshotSection* const s = find(name);
    return s != nullptr ? bytes.subspan(s->offset, s->size) : std::span<const std::byte>();
  }
  const BlockExtent& extent(int64_t block) const { return extents[static_cast<size_t>(block)]; }
};

}  // namespace stet

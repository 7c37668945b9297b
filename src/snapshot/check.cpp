// Proving a snapshot without a model: every byte is what was written, and what it says of itself
// fits together.
#include <algorithm>
#include <optional>

#include "src/snapshot/byte_shuffle.hpp"
#include "src/snapshot/format.hpp"
#include "src/snapshot/identity.hpp"
#include "stet/base/error.hpp"
#include "stet/base/memory.hpp"
#include "stet/files/archive.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

// A file of an archive is compared with its digest when it is opened.
size_t check_files(const FileSource& files, const ArchiveIndex& index) {
  for (const ArchiveIndex::Entry& entry : index.entries) files.open(entry.name);
  return index.entries.size();
}

}  // namespace

// Opening has proved all but the blocks and the files of archives.
SnapshotCheck Snapshot::check(int threads) const {
  SnapshotCheck done;
  for (const auto& [name, files] :
       {std::pair("WEIGHTS", weights()), std::pair("TOKENIZR", tokenizer_files())}) {
    if (files != nullptr)
      done.files += check_files(*files, read_archive_index(content(name), path_ + ": " + name));
  }
  check_id();
  if (meta_.form == SnapshotForm::recipe) return done;
  const Parents parents = parents_or_find();
  const Memory zeros(meta_.kv.block_bytes(),
                     false);  // never written, so that it stays one page of the system's
  std::vector<std::optional<Error>> faults(visible_.size());
  std::vector<const Sha256*> contents(visible_.size());
  const State recipe = this->recipe();
  const std::vector<int64_t> named =
      contents_.empty() ? std::vector<int64_t>() : Lineage{recipe, meta_.kv}.blocks_by_content();
  bool zeros_named = false;
  for (size_t i = 0; i < named.size(); ++i) {
    contents[static_cast<size_t>(named[i])] = &contents_[i];
    zeros_named = zeros_named || visible(named[i]) == 0;
  }
  // Once for all of them, which may be large and many.
  const bool has_zeros = std::ranges::count(visible_, uint64_t{0}) > 0;
  const BlockNames of_zeros = has_zeros ? names_of_block(zeros.data(), zeros_named) : BlockNames();
  run_each(threads > 0 ? threads : default_threads(), faults.size(), [&](size_t block) {
    try {
      check_block(static_cast<int64_t>(block), parents, of_zeros, contents[block]);
    } catch (const Error& e) {
      faults[block] = e;
    }
  });
  for (const std::optional<Error>& fault : faults) {
    if (fault) throw *fault;
  }
  done.blocks = faults.size();
  return done;
}

void Snapshot::check_own_blocks() const {
  for (size_t b = 0; b < extents_.size(); ++b) {
    if (extents_[b].there) check_block(static_cast<int64_t>(b), {}, {}, nullptr);
  }
}

// That the id in the header is the one of what stands in the file.
void Snapshot::check_id() const {
  const State recipe = this->recipe();
  const Lineage lineage{recipe, meta_.kv};
  const Sha256 found = lineage.id(
      contents_, lineage.replayable() ? Sha256() : sha256_of(std::as_bytes(std::span(*logits_))));
  if (found != digests_.id)
    snapshot_damaged(path_, "id", sha256_text(digests_.id), sha256_text(found));
}

Snapshot::BlockNames Snapshot::names_of_block(const std::byte* bytes, bool with_content) const {
  return {layer_digests(meta_.kv, bytes), with_content ? block_content(meta_.kv, bytes) : Sha256()};
}

// What is stored as it is, is looked at in place. `content`: its hash, where the block is named by
// it.
void Snapshot::check_block(int64_t block, const Parents& parents, const BlockNames& of_zeros,
                           const Sha256* content) const {
  const BlockLocation at = locate(block, parents);
  const Snapshot& file = at.file != nullptr ? *at.file : *this;
  const std::string field = "KV block " + std::to_string(block);
  BlockNames found = of_zeros;
  if (at.file != nullptr) {
    std::span<const std::byte> stored = file.bytes_.subspan(at.extent.offset, at.extent.size);
    std::vector<std::byte> expanded(
        is_shuffled(at.extent.encoding) ? file.stored_bytes(at.extent.encoding) : 0);
    if (!expanded.empty()) {
      expand_shuffled(stored, meta_.kv.element_size(), expanded, file.path_, field);
      stored = expanded;
    }
    if (is_held(at.extent.encoding)) return check_held_block(block, file, stored, content);
    found = names_of_block(stored.data(), content != nullptr);
  }
  if (content != nullptr && found.content != *content)
    snapshot_damaged(file.path_, field, sha256_text(*content), sha256_text(found.content));
  const std::span<const Digest> expected = block_digests(block);
  const auto parted = std::ranges::mismatch(expected, found.digests);
  if (parted.in1 == expected.end()) return;
  snapshot_damaged(file.path_, field + ", layer " + std::to_string(parted.in1 - expected.begin()),
                   "digest " + digest_text(*parted.in1), digest_text(*parted.in2));
}

// Of a block without the layers that have a window: the others.
void Snapshot::check_held_block(int64_t block, const Snapshot& file,
                                std::span<const std::byte> bytes, const Sha256* content) const {
  const std::string field = "KV block " + std::to_string(block);
  if (content != nullptr)
    snapshot_damaged(file.path_, field, "all layers, of which it has its name", "some");
  std::vector<std::byte> whole(meta_.kv.block_bytes());
  const std::span<const std::byte> padding =
      scatter_held(meta_.kv, *file.held_, bytes, whole.data());
  if (std::ranges::any_of(padding, [](std::byte b) { return b != std::byte{0}; }))
    snapshot_damaged(file.path_, field, "zeros behind its layers", "others");
  const std::vector<Digest> found = layer_digests(meta_.kv, whole.data());
  const std::span<const Digest> expected = block_digests(block);
  for (size_t layer = 0; layer < found.size(); ++layer) {
    if ((*file.held_)[layer] && !(found[layer] == expected[layer]))
      snapshot_damaged(file.path_, field + ", layer " + std::to_string(layer),
                       "digest " + digest_text(expected[layer]), digest_text(found[layer]));
  }
}

}  // namespace stet

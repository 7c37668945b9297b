// Checks a snapshot without a model: every byte matches its digest, and the parts are consistent.
#include <algorithm>
#include <optional>

#include "src/snapshot/file.hpp"
#include "src/snapshot/identity.hpp"
#include "src/snapshot/kv_blocks.hpp"
#include "src/snapshot/parents.hpp"
#include "src/snapshot/recurrent.hpp"
#include "src/threads/interrupt_check.hpp"
#include "stet/base/error.hpp"
#include "stet/base/memory.hpp"
#include "stet/files/archive.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

// Opens every file of an archive, which compares it with its digest.
size_t check_files(const SnapshotFile& file, const char* name) {
  const std::shared_ptr<const FileSource> files = archive_in(file, name);
  if (files == nullptr) return 0;
  const ArchiveIndex index = read_archive_index(file.content(name), file.path + ": " + name);
  for (const ArchiveIndex::Entry& entry : index.entries) files->open(entry.name);
  return index.entries.size();
}

// Checks that the file still holds the contents that were decoded when it was opened. Another
// program may have overwritten or cut it since.
void check_contents(const SnapshotFile& file) {
  const StateDigests now = decode_file(file.bytes, file.path, file.mapping)->digests;
  if (!(now.state == file.digests.state))
    snapshot_damaged(file.path, "state", digest_text(file.digests.state), digest_text(now.state));
  if (now.id != file.digests.id)
    snapshot_damaged(file.path, "id", sha256_text(file.digests.id), sha256_text(now.id));
}

// Checks that the id in the header belongs to the state in the file.
void check_id(const SnapshotFile& file) {
  const State recipe = file.recipe();
  const Lineage lineage{recipe, file.meta.kv};
  std::optional<Sha256> arrays;
  RecurrentState recurrent;
  if (!lineage.replayable() && !file.arrays.empty()) {
    load_arrays(file, recurrent);
    arrays = recurrent_content(recurrent.numbers());
  }
  const Sha256 found = lineage.id(
      file.contents,
      lineage.replayable() ? Sha256() : sha256_of(std::as_bytes(std::span(*file.logits))), arrays);
  if (found != file.digests.id)
    snapshot_damaged(file.path, "id", sha256_text(file.digests.id), sha256_text(found));
}

// Compares blocks with their digests, and blocks named by content also with their names.
class BlockCheck {
 public:
  // If `chain` is null, checks the blocks in this file alone.
  BlockCheck(const SnapshotFile& file, const SnapshotChain* chain)
      : file_(file), chain_(chain), names_(file.visible.size()) {
    const std::vector<int64_t> named =
        file.contents.empty() ? std::vector<int64_t>()
                              : Lineage{file.recipe(), file.meta.kv}.blocks_by_content();
    bool zeros_named = false;
    for (size_t i = 0; i < named.size(); ++i) {
      const auto block = static_cast<size_t>(named[i]);
      names_[block] = &file.contents[i];
      zeros_named = zeros_named || file.visible[block] == 0;
    }
    if (chain == nullptr || std::ranges::count(file.visible, uint64_t{0}) == 0) return;
    // One block of zeros stands for all pruned ones. It is never written to, so the system keeps it
    // as one page.
    const Memory zeros(file.meta.kv.block_bytes(), false);
    zeros_ = layer_digests(file.meta.kv, zeros.data());
    if (zeros_named) zeros_name_ = block_content(file.meta.kv, zeros.data());
  }

  // Throws a format Error.
  void check(int64_t block) const {
    const SnapshotFile* const from = chain_ != nullptr ? chain_->holder(block) : &file_;
    const Sha256* const name = chain_ != nullptr ? names_[static_cast<size_t>(block)] : nullptr;
    if (from == nullptr) return compare(file_, block, zeros_, name, zeros_name_);
    const BlockExtent& at = from->extent(block);
    const std::byte* bytes = from->bytes.data() + at.offset;
    std::vector<std::byte> decoded;
    if (!is_raw(at)) {  // a raw block is checked in place
      decoded.resize(file_.meta.kv.block_bytes());
      read_block(*from, block, decoded.data());
      bytes = decoded.data();
    }
    if (is_held(at) && name != nullptr)
      snapshot_damaged(from->path, field(block), "all layers, of which it has its name", "some");
    compare(*from, block, layer_digests(file_.meta.kv, bytes), name,
            name != nullptr ? block_content(file_.meta.kv, bytes) : Sha256());
  }

 private:
  static std::string field(int64_t block) { return "KV block " + std::to_string(block); }

  void compare(const SnapshotFile& from, int64_t block, const std::vector<Digest>& digests,
               const Sha256* expected_name, const Sha256& name) const {
    if (expected_name != nullptr && name != *expected_name)
      snapshot_damaged(from.path, field(block), sha256_text(*expected_name), sha256_text(name));
    const bool some = from.extent(block).there && is_held(from.extent(block));
    const std::span<const Digest> expected = file_.block_digests(block);
    for (size_t layer = 0; layer < expected.size(); ++layer) {
      if (expected[layer] == digests[layer] || (some && !(*from.held)[layer])) continue;
      snapshot_damaged(from.path, field(block) + ", layer " + std::to_string(layer),
                       "digest " + digest_text(expected[layer]), digest_text(digests[layer]));
    }
  }

  const SnapshotFile& file_;
  const SnapshotChain* const chain_;
  std::vector<const Sha256*> names_;  // [blocks]: null if its tokens give the block's name
  std::vector<Digest> zeros_;
  Sha256 zeros_name_;
};

}  // namespace

SnapshotCheck Snapshot::check(int threads) const {
  SnapshotCheck done;
  check_interrupt();
  check_contents(*file_);
  done.files = check_files(*file_, "WEIGHTS") + check_files(*file_, "TOKENIZR");
  check_id(*file_);
  if (meta().form == SnapshotForm::recipe) return done;
  const SnapshotChain chain(*this);
  done.arrays = check_recurrent(chain, *file_);
  const BlockCheck blocks(*file_, &chain);
  std::vector<std::optional<Error>> faults(file_->visible.size());
  run_each(threads_or_all(threads), faults.size(), [&](size_t block) {
    check_interrupt();
    try {
      blocks.check(static_cast<int64_t>(block));
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
  const BlockCheck blocks(*file_, nullptr);
  for (int64_t b = 0; b < std::ssize(file_->extents); ++b) {
    if (file_->extent(b).there) blocks.check(b);
  }
}

}  // namespace stet

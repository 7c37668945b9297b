// Proving a snapshot without a model: every byte is what was written, and what it says of itself fits together.
#include <algorithm>
#include <optional>

#include "src/planes.hpp"
#include "src/snapshot_format.hpp"
#include "src/snapshot_meta.hpp"
#include "stet/archive.hpp"
#include "stet/error.hpp"
#include "stet/snapshot.hpp"
#include "stet/team.hpp"

namespace stet {
namespace {

void check_count(const std::string& path, const std::string& field, int64_t expected, int64_t found) {
  if (expected != found) snapshot_damaged(path, field, std::to_string(expected), std::to_string(found));
}

// A file of an archive is compared with its digest when it is opened.
size_t check_files(const FileSource& files, const ArchiveIndex& index) {
  for (const ArchiveIndex::Entry& entry : index.entries) files.open(entry.name);
  return index.entries.size();
}

}  // namespace

// Opening has proved all but the blocks and the files of archives.
SnapshotCheck Snapshot::check(int threads) const {
  check_config();
  SnapshotCheck done;
  for (const auto& [name, files] : {std::pair("WEIGHTS", weights()), std::pair("TOKENIZR", tokenizer_files())}) {
    if (files != nullptr) done.files += check_files(*files, read_archive_index(content(name), path_ + ": " + name));
  }
  if (meta_.form == SnapshotForm::recipe) return done;
  const Parents parents = parents_or_find();
  std::vector<std::optional<Error>> faults(visible_.size());
  run_each(threads > 0 ? threads : default_threads(), faults.size(), [&](size_t block) {
    try {
      check_block(static_cast<int64_t>(block), parents);
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

// Tokens, logits, keys and values are as many as its config says.
void Snapshot::check_config() const {
  const ModelConfig config = ModelConfig::from_canonical(meta_.config, path_);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i] >= 0 && tokens_[i] < config.vocab_size) continue;
    snapshot_damaged(path_, "TOKENS[" + std::to_string(i) + "]", "a token id in 0.." + std::to_string(config.vocab_size - 1), std::to_string(tokens_[i]));
  }
  const bool logits = !tokens_.empty() && meta_.form != SnapshotForm::recipe;
  check_count(path_, "LOGITS: values", logits ? config.vocab_size : 0, static_cast<int64_t>(logits_->size()));
  check_count(path_, "META: kv.layers", config.layers, meta_.kv.layers);
  check_count(path_, "META: kv.heads", config.kv_heads, meta_.kv.kv_heads);
  check_count(path_, "META: kv.head_dim", config.head_dim, meta_.kv.head_dim);
}

void Snapshot::check_block(int64_t block, const Parents& parents) const {
  const Place at = place(block, parents);
  std::vector<std::byte> bytes(meta_.kv.block_bytes());
  const std::string field = "KV block " + std::to_string(block);
  if (at.file != nullptr) {
    const std::span<const std::byte> stored = at.file->bytes_.subspan(at.extent.offset, at.extent.size);
    if (at.extent.encoding == kRaw) std::ranges::copy(stored, bytes.begin());
    else expand_planes(stored, meta_.kv.element_size(), bytes, at.file->path_, field);
  }
  const std::vector<Digest> found = digests_like_saved(bytes.data());
  const std::span<const Digest> expected = block_digests(block);
  const auto parted = std::ranges::mismatch(expected, found);
  if (parted.in1 == expected.end()) return;
  const std::string layer = version_ == 1 ? "" : ", layer " + std::to_string(parted.in1 - expected.begin());
  snapshot_damaged((at.file != nullptr ? *at.file : *this).path_, field + layer, "digest " + digest_text(*parted.in1), digest_text(*parted.in2));
}

}  // namespace stet

// Restores sessions and states from snapshots.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/snapshot/file.hpp"
#include "src/snapshot/identity.hpp"
#include "src/snapshot/kv_blocks.hpp"
#include "src/snapshot/meta.hpp"
#include "src/snapshot/parents.hpp"
#include "src/snapshot/recurrent.hpp"
#include "src/threads/interrupt_check.hpp"
#include "stet/base/error.hpp"
#include "stet/kv/kv_writer.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/threads/team.hpp"

namespace stet {

// ---------------------------------------------------------- compatibility

namespace {

// Collects the differences between a snapshot and the model it is restored with, for one error.
class Differences {
 public:
  void compare(const std::string& name, const std::string& there, const std::string& here) {
    if (there != here) all_.push_back({name, shown(there), shown(here)});
  }
  void check(const std::string& path) const {
    if (all_.empty()) return;
    if (all_.size() == 1)
      throw Error(ErrorKind::mismatch, path, all_[0].name, all_[0].there, all_[0].here);
    constexpr size_t kMostNamed = 5;
    std::string text;
    for (size_t i = 0; i < std::min(all_.size(), kMostNamed); ++i) {
      text += (i == 0 ? "" : ", ") + all_[i].name + " " + shortened(all_[i].here) + " instead of " +
              shortened(all_[i].there);
    }
    if (all_.size() > kMostNamed)
      text += " and " + std::to_string(all_.size() - kMostNamed) + " more differences";
    throw Error(ErrorKind::mismatch, path, "model", "",
                "the model does not fit the snapshot: " + text);
  }

 private:
  struct Pair {
    std::string name, there, here;
  };
  static std::string shown(const std::string& value) { return value.empty() ? "none" : value; }
  // Several hashes would make the line unreadable, and their first digits tell them apart.
  static std::string shortened(const std::string& value) {
    return value.starts_with("sha256:") ? value.substr(0, 7 + 12) + "..." : value;
  }

  std::vector<Pair> all_;
};

void compare_config(Differences& differences, const std::string& there, const std::string& here) {
  if (there == here) return;
  const nlohmann::json a = nlohmann::json::parse(there), b = nlohmann::json::parse(here);
  const auto value = [](const nlohmann::json& j, const std::string& key) {
    return j.contains(key) ? printable(j.at(key).dump(), 40) : std::string("none");
  };
  std::vector<std::string> keys;
  for (const auto& [key, unused] : a.items()) keys.push_back(key);
  for (const auto& [key, unused] : b.items()) {
    if (!a.contains(key)) keys.push_back(key);
  }
  for (const std::string& key : keys)
    differences.compare(printable(key, 40), value(a, key), value(b, key));
}

// Adds the weights that differ. A single differing group is shown with its own digest; several are
// named together with the digest of the whole model.
void compare_weights(Differences& differences, const SnapshotMeta& meta, const Model& model) {
  std::string groups;
  const auto digest_there = [&](const std::string& name) {
    for (const auto& [there, digest] : meta.fingerprints) {
      if (there == name) return digest;
    }
    return std::string("none");
  };
  size_t count = 0;
  std::string name, here;
  for (const auto& [group, digest] : model.fingerprints()) {
    if (group == "config" || group == "model" || digest_there(group) == digest) continue;
    groups += (count++ == 0 ? "" : "+") + group;
    name = group;
    here = digest;
  }
  if (count == 1)
    differences.compare(groups + " weights", digest_there(name), here);
  else
    differences.compare((count == 0 ? "model" : groups + " weights"), digest_there("model"),
                        model.fingerprint());
}

}  // namespace

void Snapshot::check_compatible(const Model& model, Contract contract,
                                const Tokenizer* tokenizer) const {
  const auto contract_text = [](const std::string& name, int version) {
    return name + " version " + std::to_string(version);
  };
  const SnapshotMeta& meta = file_->meta;
  Differences differences;
  differences.compare("contract", contract_text(meta.contract, meta.contract_version),
                      contract_text(contract_name(model, contract), kContractVersion));
  const ModelConfig& config = model.config();
  // One model may have several class names: with images, without them, and as a GGUF file.
  if (meta.architecture != config.architecture && meta.family != config.family)
    differences.compare("architecture", meta.architecture, config.architecture);
  else
    compare_config(differences, meta.config, config.canonical());
  compare_weights(differences, meta, model);
  if (tokenizer != nullptr && !meta.tokenizer.empty())
    differences.compare("tokenizer", meta.tokenizer, tokenizer->fingerprint());
  differences.check(path());
}

// ----------------------------------------------------------------- blocks

namespace {

SavedBlock saved_block(const SnapshotFile& in, int64_t block, const std::string& from) {
  const std::span<const Digest> digests = in.block_digests(block);
  return {{digests.begin(), digests.end()}, from, nullptr};
}

// Loads the blocks of a snapshot into a cache.
class BlockLoader {
 public:
  BlockLoader(const Snapshot& snapshot, const RestoreOptions& how, KvCache& kv)
      : file_(*snapshot.file()), chain_(snapshot), how_(how), kv_(kv) {
    // One block of zeros stands for every block that was pruned completely.
    zeros_ = KvWriter(kv).fresh_block();
    zeros_->mark_shared();
  }

  // Loads all blocks. Returns the damaged ones, which the cache marks as such.
  std::vector<int64_t> load() {
    std::vector<std::shared_ptr<KvBlock>> blocks(file_.visible.size());
    run_each(threads_or_all(how_.session.compute.threads), blocks.size(), [&](size_t b) {
      check_interrupt();
      try {
        blocks[b] = load_block(static_cast<int64_t>(b));
      } catch (const Error& e) {
        if (e.kind != ErrorKind::format) throw;
      }
    });
    std::vector<int64_t> damaged;
    for (size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b] != nullptr) continue;
      const auto block = static_cast<int64_t>(b);
      damaged.push_back(block);
      blocks[b] =
          std::make_shared<KvBlock>(zeros_->data(), zeros_, saved_block(file_, block, file_.path));
    }
    KvWriter(kv_).adopt(std::move(blocks), file_.visible, file_.meta.positions);
    return damaged;
  }

 private:
  // Throws a format Error for a damaged block, if blocks are verified.
  std::shared_ptr<KvBlock> load_block(int64_t block) const {
    const SnapshotFile* const from = chain_.holder(block);
    if (from == nullptr) return zeros_;
    const BlockExtent& at = from->extent(block);
    if (!is_raw(at) || !how_.map || how_.trust || from->mapping == nullptr)
      return read(*from, block);
    SavedBlock saved = saved_block(file_, block, from->path);
    saved.mapping = from->mapping;
    auto mapped =
        std::make_shared<KvBlock>(from->bytes.data() + at.offset, nullptr, std::move(saved));
    if (how_.check || how_.heal) mapped->check_held(file_.meta.kv, block);
    return mapped;
  }

  // Reads a block into memory of its own. Copying the whole block before computing its digests was
  // measured to be a tenth faster than layer by layer.
  std::shared_ptr<KvBlock> read(const SnapshotFile& from, int64_t block) const {
    const KvShape& shape = file_.meta.kv;
    std::shared_ptr<KvBlock> own = KvWriter(kv_).fresh_block();
    std::byte* const to = const_cast<std::byte*>(own->data());
    read_block(from, block, to);
    SavedBlock saved = saved_block(file_, block, from.path);
    if (is_held(from.extent(block))) {
      saved.held = from.held;
      own = std::make_shared<KvBlock>(to, own, std::move(saved));
      if (!how_.trust || how_.check || how_.heal) own->check_held(shape, block);
    } else if (!how_.trust && layer_digests(shape, to) != saved.digests) {
      throw DamagedBlock(from.path, block, 0);
    }
    return own;
  }

  const SnapshotFile& file_;
  const SnapshotChain chain_;
  const RestoreOptions& how_;
  KvCache& kv_;
  std::shared_ptr<KvBlock> zeros_;
};

// A state with its blocks and arrays, and which of them are damaged.
struct Loaded {
  State state;
  std::vector<int64_t> blocks, layers;
};

void load_recurrent(const Snapshot& snapshot, const RestoreOptions& how, Loaded& to) {
  const SnapshotFile& file = *snapshot.file();
  to.layers = load_arrays(file, to.state.recurrent);
  if (how.trust) to.layers.clear();
  if (to.state.recurrent.empty() || to.state.size() == 0) return;
  const bool map = how.map && !how.check && !how.heal && !how.trust;
  to.state.anchors = load_anchors(SnapshotChain(snapshot), file, map, how.heal || how.trust);
  if (!to.layers.empty()) return;
  const bool by_content = !to.state.edits.empty() || !is_replayable(to.state.origin.contract);
  to.state.anchors.add(
      {to.state.size(), to.state.recurrent.share(), to.state.logits, false, false, by_content});
}

Loaded load(const Snapshot& snapshot, const RestoreOptions& how) {
  check_interrupt();
  const SnapshotFile& file = *snapshot.file();
  const int64_t capacity = how.session.capacity;
  State state = file.recipe();
  state.kv = KvCache(file.meta.kv, capacity == 0 ? file.meta.capacity : capacity,
                     how.session.window.only || snapshot.count_window_only_blocks() > 0);
  if (file.meta.positions > state.kv.capacity()) {
    throw Error(ErrorKind::capacity, file.path, "tokens",
                "at most " + std::to_string(state.kv.capacity()) + " positions (--ctx)",
                std::to_string(file.meta.positions));
  }
  std::vector<int64_t> damaged = BlockLoader(snapshot, how, state.kv).load();
  if (!file.tokens.empty() && !file.logits->empty()) state.logits = file.logits;
  state.kept = file.kept;
  Loaded loaded{std::move(state), std::move(damaged), {}};
  load_recurrent(snapshot, how, loaded);
  return loaded;
}

// Throws an argument Error for options that contradict each other.
void check_options(const RestoreOptions& how) {
  if (how.trust && (how.check || how.heal))
    throw Error(ErrorKind::argument, "", "trust", "",
                std::string("trust, which uses blocks unchecked, excludes ") +
                    (how.check ? "check" : "heal"));
}

void refuse_damage(const Snapshot& snapshot, const Loaded& loaded) {
  if (!loaded.blocks.empty()) {
    snapshot_damaged(
        snapshot.path(), "KV block " + std::to_string(loaded.blocks[0]), "",
        "its bytes are not those that were saved; stet resume --heal computes them again");
  }
  if (!loaded.layers.empty()) refuse_arrays(*snapshot.file(), loaded.layers[0]);
}

// Recomputes damaged recurrent arrays from the last anchor from which that is possible. Returns the
// number of tokens processed.
int64_t heal_arrays(const Snapshot& snapshot, std::shared_ptr<const Model> model,
                    const SessionOptions& options, Loaded& loaded) {
  State& state = loaded.state;
  if (replay_limit(state)) refuse_arrays(*snapshot.file(), loaded.layers[0]);
  const int64_t size = state.size();
  SessionOptions plain = options;
  plain.window = {};
  Session again(std::move(model), state, plain);
  const int64_t cost = size - again.process_again(size);
  const RecurrentState& found = again.recurrent();
  if (array_digests(found.shape(), found.numbers()) != snapshot.file()->arrays)
    snapshot_damaged(snapshot.path(), "recurrent arrays, layer " + std::to_string(loaded.layers[0]),
                     "the saved arrays, when they are computed again from the tokens",
                     "different ones");
  state.recurrent = found;
  state.anchors.add({size, state.recurrent.share(), state.logits});
  return cost;
}

}  // namespace

State Snapshot::state(const RestoreOptions& how) const {
  check_options(how);
  if (meta().form == SnapshotForm::recipe) {
    throw Error(ErrorKind::argument, path(), "form", "",
                "a recipe has no keys and values, and this needs keys and values; restore it with "
                "its model, as stet convert does");
  }
  Loaded loaded = load(*this, how);
  refuse_damage(*this, loaded);
  return std::move(loaded.state);
}

// --------------------------------------------------------------- a session

namespace {

bool is_mapped(const KvCache& kv) {
  for (int64_t b = 0; b < kv.blocks(); ++b) {
    if (kv.block_info(b).saved() != nullptr) return true;
  }
  return false;
}

// Checks that a state recomputed from a recipe equals the saved one.
void check_recomputed(const SnapshotFile& file, Session& session) {
  for (size_t b = 0; b < file.visible.size(); ++b) {
    if (session.kv().visible(static_cast<int64_t>(b)) == file.visible[b]) continue;
    snapshot_damaged(file.path, "VISIBLE[" + std::to_string(b) + "]", "",
                     "the mask is not the one that the prunes leave");
  }
  const std::vector<Digest> found = all_block_digests(session.kv(), session.compute().threads);
  for (size_t i = 0; i < found.size() && i < file.blocks.size(); ++i) {
    if (found[i] == file.blocks[i]) continue;
    const size_t layers = static_cast<size_t>(file.meta.kv.layers);
    throw Error(ErrorKind::mismatch, file.path,
                "KV block " + std::to_string(i / layers) + ", layer " + std::to_string(i % layers),
                "digest " + digest_text(file.blocks[i]), digest_text(found[i]));
  }
  const RecurrentState& recurrent = session.recurrent();
  const std::vector<Digest> arrays = array_digests(recurrent.shape(), recurrent.numbers());
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i] == file.arrays[i]) continue;
    throw Error(ErrorKind::mismatch, file.path,
                "recurrent arrays, layer " + std::to_string(recurrent_layers(recurrent.shape())[i]),
                "digest " + digest_text(file.arrays[i]), digest_text(arrays[i]));
  }
  const Digest logits = digest_of(std::as_bytes(session.logits()));
  if (!(logits == file.digests.logits)) {
    throw Error(ErrorKind::mismatch, file.path, "logits",
                "digest " + digest_text(file.digests.logits), digest_text(logits));
  }
}

}  // namespace

Session Snapshot::restore(std::shared_ptr<const Model> model, const RestoreOptions& how,
                          RestoreReport* report) const {
  if (model == nullptr) throw Error(ErrorKind::argument, "", "model", "a model", "null");
  check_options(how);
  RestoreReport ignored;
  RestoreReport& r = report != nullptr ? *report : ignored;
  RestoreOptions complete = how;
  SessionOptions& o = complete.session;
  const ModelConfig& c = model->config();
  if (o.capacity == 0) o.capacity = std::min(meta().capacity, c.max_positions);
  checked_capacity(c, o.capacity);
  if (!how.replay) {
    o.kv_type = meta().kv.type;
    check_compatible(*model, o.compute.contract, how.tokenizer);
    if (!(detail::kv_shape(c, meta().kv.type) == meta().kv))
      snapshot_damaged(path(), "META: kv", "the shape of the model's config", "another");
  }
  if (how.replay || meta().form == SnapshotForm::recipe) {
    Session session = stet::replay(model, recipe(), o, nullptr, how.append);
    if (!how.replay) check_recomputed(*file_, session);
    r = {0, session.size(), {}, {}, true};
    return session;
  }
  Loaded loaded = load(*this, complete);
  if (!how.heal) refuse_damage(*this, loaded);
  Recomputer recompute(model, o.compute.contract, o.window);
  if (!loaded.blocks.empty()) recompute.heal({loaded.state, o.compute}, loaded.blocks);
  const int64_t again = loaded.layers.empty() ? 0 : heal_arrays(*this, model, o, loaded);
  Session session(model, std::move(loaded.state), o);
  r = {session.size(), 0, {}, {}, how.check || how.heal || !is_mapped(session.kv())};
  if (!loaded.blocks.empty() || !loaded.layers.empty()) {
    for (const HealedBlocks& healed : recompute.take_healed()) r.recomputed += healed.tokens;
    r.recomputed += again;
    r.healed = loaded.blocks, r.healed_layers = loaded.layers;
    r.reused = meta().positions - std::min(meta().positions, r.recomputed);
  }
  return session;
}

}  // namespace stet

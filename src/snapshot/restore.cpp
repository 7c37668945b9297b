// Restoring a session, or a state, from a snapshot.
#include <algorithm>
#include <cstring>

#include "src/snapshot/byte_shuffle.hpp"
#include "src/snapshot/format.hpp"
#include "src/snapshot/state.hpp"
#include "stet/base/error.hpp"
#include "stet/kv/kv_writer.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "stet/threads/team.hpp"

namespace stet {

SavedBlock Snapshot::saved_block(int64_t block, const BlockLocation& at) const {
  const std::span<const Digest> digests = block_digests(block);
  const Snapshot& file = at.file != nullptr ? *at.file : *this;
  return {{digests.begin(), digests.end()}, file.path_, nullptr};
}

// Into memory of the cache; null when damaged.
std::shared_ptr<KvBlock> Snapshot::read_block(KvCache& kv, const BlockLocation& at, int64_t block,
                                              bool trust) const {
  const std::span<const std::byte> stored =
      at.file->bytes_.subspan(at.extent.offset, at.extent.size);
  std::shared_ptr<KvBlock> own = KvWriter(kv).fresh_block();
  std::byte* to = const_cast<std::byte*>(own->data());
  const std::string field = "KV block " + std::to_string(block);
  if (is_held(at.extent.encoding)) {
    std::vector<std::byte> expanded;
    std::span<const std::byte> held = stored;
    if (at.extent.encoding == kHeldShuffle) {
      expanded.resize(at.file->stored_bytes(kHeldShuffle));
      try {
        expand_shuffled(stored, meta_.kv.element_size(), expanded, at.file->path_, field);
      } catch (const Error& e) {
        if (e.kind != ErrorKind::format) throw;
        return nullptr;
      }
      held = expanded;
    }
    const std::span<const std::byte> padding = scatter_held(meta_.kv, *at.file->held_, held, to);
    if (std::ranges::any_of(padding, [](std::byte b) { return b != std::byte{0}; })) return nullptr;
    SavedBlock saved = saved_block(block, at);
    saved.held = at.file->held_;
    auto windowed = std::make_shared<KvBlock>(to, own, std::move(saved));
    if (!trust) windowed->check_held(meta_.kv, block);
    return windowed;
  }
  if (at.extent.encoding == kRaw) {
    // The whole block at once, its digests after it: measured a tenth faster than layer after
    // layer.
    std::memcpy(to, stored.data(), stored.size());
  } else {
    try {
      expand_shuffled(stored, meta_.kv.element_size(), {to, meta_.kv.block_bytes()}, at.file->path_,
                      field);
    } catch (const Error& e) {
      if (e.kind != ErrorKind::format) throw;
      return nullptr;
    }
  }
  return trust || is_block(block, to) ? own : nullptr;
}

// In place, or read and looked at: null when damaged.
std::shared_ptr<KvBlock> Snapshot::load_block(KvCache& kv, const BlockLocation& at, int64_t block,
                                              const RestoreOptions& how) const {
  if (at.extent.encoding != kRaw || !how.map || how.trust || at.file->file_ == nullptr)
    return read_block(kv, at, block, how.trust);
  SavedBlock saved = saved_block(block, at);
  saved.mapping = at.file->file_;
  return std::make_shared<KvBlock>(at.file->bytes_.data() + at.extent.offset, nullptr,
                                   std::move(saved));
}

// The state with its blocks. Those that are damaged are listed, and stand in the cache as such.
State Snapshot::load(const RestoreOptions& how, std::vector<int64_t>* damaged) const {
  const int64_t capacity = how.session.capacity;
  State state;
  state.origin = origin();
  state.kv = KvCache(meta_.kv, capacity == 0 ? meta_.capacity : capacity,
                     how.session.window.only || windowed_blocks() > 0);
  if (meta_.positions > state.kv.capacity()) {
    throw Error(ErrorKind::capacity, path_, "tokens",
                "at most " + std::to_string(state.kv.capacity()) + " positions (--ctx)",
                std::to_string(meta_.positions));
  }
  const Parents parents = parents_or_find();
  // One block stands for all that were pruned as a whole.
  const std::shared_ptr<KvBlock> zeros = KvWriter(state.kv).fresh_block();
  zeros->mark_shared();
  std::vector<std::shared_ptr<KvBlock>> blocks(visible_.size());
  run_each(threads_or_all(how.session.compute.threads), blocks.size(), [&](size_t b) {
    try {
      const BlockLocation at = locate(static_cast<int64_t>(b), parents);
      blocks[b] =
          at.file == nullptr ? zeros : load_block(state.kv, at, static_cast<int64_t>(b), how);
      if (blocks[b] != nullptr && (how.check || how.heal))
        blocks[b]->check_held(meta_.kv, static_cast<int64_t>(b));
    } catch (const Error& e) {
      if (e.kind != ErrorKind::format) throw;
      blocks[b] = nullptr;
    }
  });
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b] != nullptr) continue;
    damaged->push_back(static_cast<int64_t>(b));
    blocks[b] =
        std::make_shared<KvBlock>(zeros->data(), zeros, saved_block(static_cast<int64_t>(b), {}));
  }
  KvWriter(state.kv).adopt(std::move(blocks), visible_, meta_.positions);
  state.tokens = tokens_;
  if (!tokens_.empty() && !logits_->empty()) state.logits = logits_;
  state.generation = meta_.generation;
  state.prunes = meta_.prunes;
  state.edits = meta_.edits;
  state.interventions = meta_.interventions;
  state.chat = meta_.chat;
  state.kept = kept_;
  return state;
}

void Snapshot::refuse_damage(const std::vector<int64_t>& damaged) const {
  if (damaged.empty()) return;
  snapshot_damaged(path_, "KV block " + std::to_string(damaged[0]),
                   "the bytes that were saved (--heal computes them again)", "others");
}

State Snapshot::state(const RestoreOptions& how) const {
  if (meta_.form == SnapshotForm::recipe) {
    throw Error(ErrorKind::argument, path_, "form", "full or delta: this needs keys and values",
                "recipe");
  }
  std::vector<int64_t> damaged;
  State state = load(how, &damaged);
  refuse_damage(damaged);
  return state;
}

namespace {

bool is_mapped(const KvCache& kv) {
  for (int64_t b = 0; b < kv.blocks(); ++b) {
    if (kv.block_info(b).saved() != nullptr) return true;
  }
  return false;
}

}  // namespace

Session Snapshot::restore(std::shared_ptr<const Model> model, const RestoreOptions& how,
                          RestoreReport* report) const {
  RestoreReport ignored;
  RestoreReport& r = report != nullptr ? *report : ignored;
  RestoreOptions complete = how;
  SessionOptions& o = complete.session;
  if (o.capacity == 0) o.capacity = std::min(meta_.capacity, model->config().max_positions);
  checked_capacity(model->config(), o.capacity);
  if (!how.replay) o.kv_type = meta_.kv.type;
  if (!how.replay) {
    check_compatible(*model, o.compute.contract, how.tokenizer);
    const KvShape shape{model->config().layers, model->config().kv_heads, model->config().head_dim,
                        meta_.kv.type};
    if (!(shape == meta_.kv))
      snapshot_damaged(path_, "META: kv", "the shape of the model's config", "another");
  }
  if (how.replay || meta_.form == SnapshotForm::recipe) {
    Session session = stet::replay(model, recipe(), o, nullptr, how.append);
    if (!how.replay) prove(session);
    r = {0, session.size(), {}, true};
    return session;
  }
  std::vector<int64_t> damaged;
  Session session(model, load(complete, &damaged), o);
  if (!how.heal) refuse_damage(damaged);
  r = {session.size(), 0, {}, how.check || how.heal || !is_mapped(session.kv())};
  if (how.heal && !damaged.empty()) {
    session.heal(damaged);
    for (const HealedBlocks& healed : session.take_healed()) r.recomputed += healed.tokens;
    r.healed = damaged;
    r.reused = meta_.positions - std::min(meta_.positions, r.recomputed);
  }
  return session;
}

// What was computed again from a recipe is what was saved.
void Snapshot::prove(Session& session) const {
  for (size_t b = 0; b < visible_.size(); ++b) {
    if (session.kv().visible(static_cast<int64_t>(b)) == visible_[b]) continue;
    snapshot_damaged(path_, "VISIBLE[" + std::to_string(b) + "]", "what the prunes leave",
                     "another mask");
  }
  const std::vector<Digest> found = all_block_digests(session.kv(), session.compute().threads);
  for (size_t i = 0; i < found.size() && i < blocks_.size(); ++i) {
    if (found[i] == blocks_[i]) continue;
    const size_t layers = static_cast<size_t>(meta_.kv.layers);
    throw Error(ErrorKind::mismatch, path_,
                "KV block " + std::to_string(i / layers) + ", layer " + std::to_string(i % layers),
                "digest " + digest_text(blocks_[i]), digest_text(found[i]));
  }
  const Digest logits = digest_of(std::as_bytes(session.logits()));
  if (!(logits == digests_.logits)) {
    throw Error(ErrorKind::mismatch, path_, "logits", "digest " + digest_text(digests_.logits),
                digest_text(logits));
  }
}

}  // namespace stet

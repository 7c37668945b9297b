#include "src/store/recurrent.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/snapshot/identity.hpp"
#include "src/snapshot/recurrent.hpp"
#include "src/store/fetch.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/kv/kv_writer.hpp"

namespace stet {
namespace {

// Returns the identities of the blocks of a state of full blocks, and of its anchor behind them.
std::vector<Sha256> parts_of(const State& state, const Sha256& anchor) {
  std::vector<Sha256> identities;
  for (const BlockIdentity& b : block_identities(state)) identities.push_back(b.id);
  identities.push_back(anchor);
  return identities;
}

// Sets the keys, values and arrays of a state of full blocks whose tokens are known. Returns false,
// and may have changed the state, if the store lacks a part. `places` are those of parts_of().
bool fetch_parts(Store& store, const ModelConfig& config, std::span<const Sha256> places,
                 State& state) {
  const int64_t size = state.size();
  const KvShape shape = state.kv.shape();
  state.recurrent = RecurrentState(recurrent_shape(config));
  const StoredBlock anchor = store.blocks_at(places.last(1))[0];
  if (anchor.kind != RecordKind::anchor || anchor.bytes.size() != state.recurrent.shape().bytes())
    return false;
  const std::vector<StoredBlock> found = store.blocks_at(places.first(places.size() - 1));
  std::vector<std::shared_ptr<KvBlock>> blocks;
  for (const StoredBlock& b : found) {
    if (b.kind != RecordKind::block || b.bytes.size() != shape.block_bytes()) return false;
    std::shared_ptr<KvBlock> own = KvWriter(state.kv).fresh_block();
    copy_bytes(b.bytes, const_cast<std::byte*>(own->data()));
    blocks.push_back(std::move(own));
  }
  KvWriter(state.kv).adopt(std::move(blocks), std::vector<uint64_t>(found.size(), ~uint64_t{0}),
                           size);
  auto arrays = std::make_shared<RecurrentBuffer>(anchor.bytes.size());
  std::memcpy(arrays->memory.data(), anchor.bytes.data(), anchor.bytes.size());
  state.recurrent.set(arrays);
  state.anchors.add({size, std::move(arrays)});
  return true;
}

State front_of(const StateOrigin& origin, const KvShape& shape, int64_t capacity,
               std::span<const int32_t> ids) {
  State state;
  state.origin = origin;
  state.tokens.assign(ids.begin(), ids.end());
  state.kv = KvCache(shape, capacity);
  return state;
}

}  // namespace

std::optional<StoredAnchor> anchor_to_store(const State& state) {
  const int64_t end = state.size() / kBlockPositions * kBlockPositions;
  const Anchor* const anchor = state.anchors.find(end);
  if (end == 0 || anchor == nullptr || anchor->by_content || !is_intact(*anchor))
    return std::nullopt;
  return StoredAnchor{anchor, anchor_names(state, state.kv.shape(), {&end, 1}).front()};
}

std::optional<Session> restore_from_anchor(Store& store, const Snapshot& snapshot,
                                           const std::shared_ptr<const Model>& model,
                                           const RestoreOptions& how, const SessionOptions& options,
                                           const StateRecord* record, StoreRestoreReport& report) {
  const State recipe = snapshot.recipe();
  const int64_t end = recipe.size() / kBlockPositions * kBlockPositions;
  if (end == 0 || !recipe.interventions.empty()) return std::nullopt;
  const Sha256 name = anchor_names(recipe, snapshot.meta().kv, {&end, 1}).front();
  const std::span<const int32_t> ids = recipe.tokens;
  State front = front_of(recipe.origin, snapshot.meta().kv, options.capacity,
                         ids.first(static_cast<size_t>(end)));
  const std::vector<Sha256> places = places_of(store, parts_of(front, name), record);
  if (!fetch_parts(store, model->config(), places, front)) return std::nullopt;
  Session session(model, std::move(front), options);
  const std::span<const int32_t> rest = ids.subspan(static_cast<size_t>(end));
  if (how.append)
    how.append(session, rest);
  else
    session.append(rest);
  session.generation() = recipe.generation;
  session.chat() = recipe.chat;
  if (all_block_digests(session.kv(), options.compute.threads) != snapshot.file()->blocks ||
      array_digests(session.recurrent().shape(), session.recurrent().numbers()) !=
          snapshot.file()->arrays)
    return std::nullopt;
  report.fetched = static_cast<size_t>(end / kBlockPositions);
  report.restored = {end, recipe.size() - end, {}, {}, true};
  return session;
}

std::optional<Session> fetch_to_anchor(Store& store, const std::shared_ptr<const Model>& model,
                                       const SessionOptions& options, std::span<const int32_t> ids,
                                       int64_t more_than) {
  const ModelConfig& c = model->config();
  const int64_t capacity = checked_capacity(c, options.capacity);
  const KvShape shape = detail::kv_shape(c, options.kv_type);
  const StateOrigin origin = origin_of(*model, options.compute.contract);
  std::vector<int64_t> ends;
  for (int64_t end = kBlockPositions; end <= std::min(std::ssize(ids), capacity);
       end += kBlockPositions)
    ends.push_back(end);
  if (ends.empty() || ends.back() <= more_than) return std::nullopt;
  State all = front_of(origin, shape, capacity, ids);
  const std::vector<Sha256> names = anchor_names(all, shape, ends);
  const std::vector<bool> there = store.has_blocks(names);
  for (size_t i = ends.size(); i-- > 0 && ends[i] > more_than;) {
    if (!there[i]) continue;
    State front = front_of(origin, shape, capacity, ids.first(static_cast<size_t>(ends[i])));
    const std::vector<Sha256> places = places_of(store, parts_of(front, names[i]), nullptr);
    if (!fetch_parts(store, c, places, front)) return std::nullopt;
    return Session(model, std::move(front), options);
  }
  return std::nullopt;
}

}  // namespace stet

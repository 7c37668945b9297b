#include "stet/snapshot/verify.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/snapshot/identity.hpp"
#include "stet/base/error.hpp"

namespace stet {

namespace {

Difference block_difference(const Snapshot& snapshot, int64_t block, size_t layer,
                            const std::string& expected, const std::string& found) {
  return {fmt::format("keys and values of block {} (positions {} .. {})", block,
                      block * kBlockPositions,
                      std::min(snapshot.meta().positions, (block + 1) * kBlockPositions) - 1),
          -1,
          snapshot.version() == 1 ? -1 : static_cast<int64_t>(layer),
          -1,
          -1,
          expected,
          found};
}

// Of one block's bytes, in those layers that it holds, from what the snapshot says of it.
// `computed`: they are what was expected, else what was found.
std::optional<Difference> digest_difference(const Snapshot& snapshot, const KvCache& kv,
                                            int64_t block, bool computed) {
  const std::vector<Digest> own = snapshot.digests_like_saved(kv.block(block));
  const std::span<const Digest> saved = snapshot.block_digests(block);
  for (size_t layer = 0; layer < own.size(); ++layer) {
    if (own[layer] == saved[layer] || !kv.block_info(block).holds(static_cast<int64_t>(layer)))
      continue;
    const std::string of_bytes = "digest " + digest_text(own[layer]),
                      of_file = digest_text(saved[layer]);
    return computed ? block_difference(snapshot, block, layer, of_bytes, of_file)
                    : block_difference(snapshot, block, layer, "digest " + of_file, of_bytes);
  }
  return std::nullopt;
}

// The keys and values that the file has, or that its parents have; nothing where these are not at
// hand, as for a recipe.
std::optional<State> stored_state(const Snapshot& snapshot) {
  if (snapshot.meta().form == SnapshotForm::recipe) return std::nullopt;
  try {
    return snapshot.state({.trust = true});
  } catch (const Error& e) {
    if (snapshot.meta().form == SnapshotForm::delta && e.kind == ErrorKind::io) return std::nullopt;
    throw;
  }
}

// Of blocks that tokens give, and logits if they give all. The bytes of all blocks that are at hand
// are compared with their digests, too: digests alone would prove bytes that are not there any
// more.
std::optional<Difference> first_digest_difference(const Snapshot& snapshot, Session& again) {
  const std::vector<bool> given = replayable_blocks(snapshot);
  const std::optional<State> stored = stored_state(snapshot);
  for (int64_t b = 0; b < again.kv().blocks(); ++b) {
    std::optional<Difference> found;
    if (given[static_cast<size_t>(b)]) found = digest_difference(snapshot, again.kv(), b, true);
    if (!found && stored) found = digest_difference(snapshot, stored->kv, b, false);
    if (found) return found;
  }
  const Digest logits = digest_of(std::as_bytes(again.logits()));
  if (logits == snapshot.digests().logits || !snapshot.meta().edits.empty()) return std::nullopt;
  return Difference{"logits",
                    -1,
                    -1,
                    -1,
                    -1,
                    "digest " + digest_text(logits),
                    digest_text(snapshot.digests().logits)};
}

}  // namespace

std::vector<bool> replayable_blocks(const Snapshot& snapshot) {
  const State recipe = snapshot.recipe();
  std::vector<bool> given(static_cast<size_t>(blocks_of(recipe.size())), true);
  if (recipe.edits.empty()) return given;
  for (const int64_t b : Lineage{recipe, snapshot.meta().kv}.blocks_by_content())
    given[static_cast<size_t>(b)] = false;
  return given;
}

std::optional<Difference> verify(const Snapshot& snapshot, std::shared_ptr<const Model> model,
                                 const SessionOptions& options, bool bisect,
                                 const Progress& progress) {
  SessionOptions o = options;
  o.kv_type = snapshot.meta().kv.type;
  o.capacity = std::min(snapshot.meta().capacity, model->config().max_positions);
  const ModelConfig& c = model->config();
  if (!(KvShape{c.layers, c.kv_heads, c.head_dim, o.kv_type} == snapshot.meta().kv)) {
    throw Error(ErrorKind::mismatch, snapshot.path(), "META: kv",
                "keys and values of the model's shape", "others");
  }
  State recipe = snapshot.recipe();
  recipe.edits.clear();
  Session again = replay(std::move(model), recipe, o, progress);
  if (bisect || snapshot.meta().form == SnapshotForm::recipe || !snapshot.meta().edits.empty())
    return first_digest_difference(snapshot, again);
  const bool blas =
      o.compute.contract == Contract::f32_blas || snapshot.meta().contract == "f32-blas";
  return first_difference(again.state(), snapshot.state({.trust = true}),
                          blas ? kBlasTolerance : 0);
}

}  // namespace stet

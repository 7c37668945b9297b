#include "stet/snapshot/verify.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/snapshot/identity.hpp"
#include "stet/base/error.hpp"

namespace stet {

namespace {

// Of blocks that tokens give, and logits if they give all.
std::optional<Difference> first_digest_difference(const Snapshot& snapshot, Session& again) {
  const std::vector<bool> given = replayable_blocks(snapshot);
  for (int64_t b = 0; b < again.kv().blocks(); ++b) {
    if (!given[static_cast<size_t>(b)]) continue;
    const std::vector<Digest> found = snapshot.digests_like_saved(again.kv().block(b));
    const std::span<const Digest> saved = snapshot.block_digests(b);
    for (size_t layer = 0; layer < found.size(); ++layer) {
      if (found[layer] == saved[layer]) continue;
      return Difference{
          fmt::format("keys and values of block {} (positions {} .. {})", b, b * kBlockPositions,
                      std::min(snapshot.meta().positions, (b + 1) * kBlockPositions) - 1),
          -1,
          snapshot.version() == 1 ? -1 : static_cast<int64_t>(layer),
          -1,
          -1,
          "digest " + digest_text(found[layer]),
          digest_text(saved[layer])};
    }
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

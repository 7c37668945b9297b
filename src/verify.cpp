#include "stet/verify.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "stet/error.hpp"

namespace stet {

// Undoing the prunes from the last to the first gives the tokens that there were before each.
Session replay(std::shared_ptr<const Model> model, const State& state, const SessionOptions& options, const Progress& progress) {
  if (!state.edits.empty()) {
    throw Error(ErrorKind::argument, "", "edits", "none: a state whose keys or values were edited cannot be computed again",
                std::to_string(state.edits.size()));
  }
  std::vector<std::vector<int32_t>> before(state.prunes.size() + 1);
  before.back() = state.tokens;
  for (size_t i = state.prunes.size(); i > 0; --i) {
    const Prune& p = state.prunes[i - 1];
    before[i - 1] = before[i];
    before[i - 1].insert(before[i - 1].begin() + p.begin, p.removed.begin(), p.removed.end());
  }
  Session session(model, options);
  const auto append_to = [&](const std::vector<int32_t>& tokens, int64_t end) {
    const int64_t from = session.size();
    session.append(std::span(tokens).subspan(static_cast<size_t>(from), static_cast<size_t>(end - from)), nullptr, nullptr,
                   progress ? [&](int64_t done) { progress(from + done); } : Progress());
  };
  for (size_t i = 0; i < state.prunes.size(); ++i) {
    const Prune& p = state.prunes[i];
    append_to(before[i], p.at);
    session.prune_range(p.begin, p.end, p.shift);
  }
  append_to(state.tokens, state.size());
  session.generation() = state.generation;
  session.dialogue() = state.dialogue;
  return session;
}

namespace {

std::optional<Difference> first_digest_difference(const Snapshot& snapshot, Session& again) {
  for (int64_t b = 0; b < again.kv().blocks(); ++b) {
    const std::vector<Digest> found = snapshot.digests_like_saved(again.kv().block(b));
    const std::span<const Digest> saved = snapshot.block_digests(b);
    for (size_t layer = 0; layer < found.size(); ++layer) {
      if (found[layer] == saved[layer]) continue;
      return Difference{fmt::format("keys and values of block {} (positions {} .. {})", b, b * kBlockPositions,
                                    std::min(snapshot.meta().positions, (b + 1) * kBlockPositions) - 1),
                        -1, snapshot.version() == 1 ? -1 : static_cast<int64_t>(layer), -1, -1,
                        "digest " + digest_text(found[layer]), digest_text(saved[layer])};
    }
  }
  const Digest logits = digest_of(std::as_bytes(again.logits()));
  if (logits == snapshot.digests().logits) return std::nullopt;
  return Difference{"logits", -1, -1, -1, -1, "digest " + digest_text(logits), digest_text(snapshot.digests().logits)};
}

}  // namespace

std::optional<Difference> verify(const Snapshot& snapshot, std::shared_ptr<const Model> model, const SessionOptions& options,
                                 bool bisect, const Progress& progress) {
  SessionOptions o = options;
  o.kv_type = snapshot.meta().kv.type;
  o.capacity = std::min(snapshot.meta().capacity, model->config().max_positions);
  Session again = replay(std::move(model), snapshot.recipe(), o, progress);
  if (bisect || snapshot.meta().form == SnapshotForm::recipe) return first_digest_difference(snapshot, again);
  const bool blas = o.compute.contract == Contract::f32_blas || snapshot.meta().contract == "f32-blas";
  return first_difference(again.state(), snapshot.state(0, {.trust = true}), blas ? kBlasTolerance : 0);
}

}  // namespace stet

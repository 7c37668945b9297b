#include "stet/snapshot/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/compare.hpp"
#include "src/snapshot/parents.hpp"
#include "src/snapshot/recurrent.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/float_environment.hpp"

namespace stet {

namespace {

std::string reason_of(const KvEdit& e) {
  switch (e.what) {
    case KvEdit::What::kv_type:
      return "keys and values were rounded to another type";
    case KvEdit::What::callback:
      return fmt::format("a callback changed activations from position {} on", e.position);
    case KvEdit::What::splice:
      return fmt::format("positions {} .. {} were put together from other states", e.position,
                         e.end - 1);
    case KvEdit::What::arrays:
      return fmt::format("recurrent arrays of layer {} were set after position {}", e.layer,
                         e.position);
    default:
      break;
  }
  static constexpr const char* kDone[] = {"set", "scaled", "copied from another state"};
  const auto one_of = [](const char* name, int64_t i) {
    return i < 0 ? fmt::format("all {}s", name) : fmt::format("{} {}", name, i);
  };
  const bool one = e.end < 0;
  return fmt::format(
      "the {}{} of position{}, {}, {} {} {}", kv_edit_name(e.what), one ? "" : "s",
      one ? fmt::format(" {}", e.position) : fmt::format("s {} .. {}", e.position, e.end - 1),
      one_of("layer", e.layer), one_of("head", e.head), one ? "was" : "were",
      kDone[static_cast<int>(e.how)]);
}

}  // namespace

std::optional<ReplayLimit> replay_limit(const State& state) {
  if (state.size() > 0 && !is_replayable(state.origin.contract))
    return ReplayLimit{0, "OpenBLAS computed it (contract " + state.origin.contract + ")"};
  if (state.edits.empty()) return std::nullopt;
  const KvEdit& first = state.edits.front();
  ReplayLimit limit{first.at, reason_of(first)};
  for (const KvEdit& e : state.edits)
    limit.position = std::min({limit.position, e.at, std::max<int64_t>(e.position, 0)});
  for (size_t k = static_cast<size_t>(first.prunes); k < state.prunes.size(); ++k)
    limit.position = std::min(limit.position, state.prunes[k].begin);
  if (state.edits.size() > 1)
    limit.reason += fmt::format(", and {} more edit{}", state.edits.size() - 1,
                                state.edits.size() == 2 ? "" : "s");
  return limit;
}

namespace {

// The state to verify, as recorded in its file.
struct Claim {
  std::string file;  // names it in errors
  const State& recipe;
  const State* stored;  // with keys and values; null if only digests exist
  // Returns the layer digests of a block as it was saved.
  std::function<std::vector<Digest>(int64_t)> digests;
  std::function<uint64_t(int64_t)> visible;
  Digest logits;
  std::vector<Digest> arrays;  // digests of the recurrent layers' arrays
  bool bisect = false;
};

// Compares the blocks of a state, in order, with those recomputed from its tokens.
class Proof {
 public:
  Proof(const Claim& claim, const KvCache& again, std::vector<bool> given)
      : claim_(claim), again_(again), given_(std::move(given)) {}

  void run(VerifyReport& report) {
    const FloatEnvironment contract;
    for (size_t b = 0; b < given_.size() && !report.difference; ++b) {
      by_digests_ = claim_.bisect, equal_ = true;
      report.difference = compare(static_cast<int64_t>(b));
      if (report.difference || !given_[b]) continue;
      ++report.blocks;
      report.by_digests += by_digests_;
    }
  }

 private:
  bool is_given(int64_t block) const { return given_[static_cast<size_t>(block)]; }
  const KvBlock* stored(int64_t block) const {
    return claim_.stored != nullptr ? &claim_.stored->kv.block_info(block) : nullptr;
  }

  std::optional<Difference> compare(int64_t block) {
    if (auto found = compare_visibility(block)) return found;
    const std::vector<Digest> saved = claim_.digests(block);
    if (is_given(block)) {
      if (auto found = compare_bytes(block)) return found;
      const std::vector<Digest> computed = digests_of(again_, block);
      for (size_t layer = 0; layer < saved.size(); ++layer) {
        if (!(computed[layer] == saved[layer]))
          return digest_difference(block, layer, computed[layer], saved[layer], "");
      }
    }
    if (auto found = compare_with_digests(block, saved)) return found;
    if (equal_) return std::nullopt;
    return digest_difference(block, 0, digests_of(again_, block)[0], saved[0], "other bytes of ");
  }

  // Compares visibility with the result of the prunes. A state without prunes need not be
  // recomputed to its end.
  std::optional<Difference> compare_visibility(int64_t block) const {
    const uint64_t expected = block < again_.blocks() ? again_.visible(block) : ~uint64_t{0},
                   parted = expected ^ claim_.visible(block);
    if (parted == 0) return std::nullopt;
    const int slot = __builtin_ctzll(parted);
    const bool seen = (expected >> slot & 1) != 0;
    return Difference{.what = "visibility",
                      .position = block * kBlockPositions + slot,
                      .expected = seen ? "visible" : "pruned",
                      .found = seen ? "pruned" : "visible"};
  }

  // Compares the layers that both sides hold. A difference in an edited state is named by its
  // block.
  std::optional<Difference> compare_bytes(int64_t block) {
    const KvShape& shape = again_.shape();
    const KvBlock& computed = again_.block_info(block);
    const KvBlock* const found = stored(block);
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      if (found == nullptr || !found->holds(layer) || !computed.holds(layer)) {
        by_digests_ = true;
        continue;
      }
      const bool whole = found->holds_all() && computed.holds_all();
      const size_t from = shape.layer_offset(layer),
                   to = whole ? shape.part_end(layer) : from + shape.layer_bytes(layer);
      if (from == to) continue;
      equal_ = equal_ && std::memcmp(computed.data() + from, found->data() + from, to - from) == 0;
    }
    if (equal_ || claim_.bisect || !claim_.recipe.edits.empty()) return std::nullopt;
    try {
      return first_of(compare_kv(again_, claim_.stored->kv, 0, block, block + 1));
    } catch (const DamagedBlock&) {  // compared by digests instead
      return std::nullopt;
    }
  }

  // Compares the saved digests with the stored bytes, whether or not tokens determine them.
  std::optional<Difference> compare_with_digests(int64_t block, const std::vector<Digest>& saved) {
    const KvBlock* const found = stored(block);
    if (found == nullptr) return std::nullopt;
    const std::vector<Digest> own = layer_digests(again_.shape(), found->data());
    for (size_t layer = 0; layer < saved.size(); ++layer) {
      if (!(own[layer] == saved[layer]) && found->holds(static_cast<int64_t>(layer)))
        return digest_difference(block, layer, saved[layer], own[layer], "digest ");
    }
    return std::nullopt;
  }

  static std::vector<Digest> digests_of(const KvCache& kv, int64_t block) {
    const KvBlock& info = kv.block_info(block);
    return info.holds_all() ? layer_digests(kv.shape(), info.data()) : info.digests(kv.shape());
  }

  Difference digest_difference(int64_t block, size_t layer, const Digest& expected,
                               const Digest& found, const char* of_bytes) const {
    return {.what = fmt::format("keys and values of block {} (positions {} .. {})", block,
                                block * kBlockPositions,
                                std::min(claim_.recipe.size(), (block + 1) * kBlockPositions) - 1),
            .layer = static_cast<int64_t>(layer),
            .expected = "digest " + digest_text(expected),
            .found = of_bytes + digest_text(found)};
  }

  const Claim& claim_;
  const KvCache& again_;
  const std::vector<bool> given_;           // true: tokens determine the block
  bool by_digests_ = false, equal_ = true;  // for the block being compared
};

// Returns the part of the recipe that must be recomputed for the blocks that its tokens determine.
State needed_recipe(const State& recipe, const std::vector<bool>& given) {
  State needed = recipe;
  needed.edits.clear();
  if (tokens_give_logits(recipe) || !recipe.prunes.empty()) return needed;
  const auto last = std::find(given.rbegin(), given.rend(), true);
  const int64_t size = std::min(recipe.size(), (given.rend() - last) * kBlockPositions);
  needed.tokens.resize(static_cast<size_t>(size));
  std::erase_if(needed.interventions, [&](const Intervention& w) { return w.at > size; });
  needed.generation.rewind(size);
  needed.chat.rewind(size);
  return needed;
}

void compare_logits(const Claim& claim, Session& again, VerifyReport& report) {
  if (report.difference || again.size() != claim.recipe.size()) return;
  const std::span<const float> computed = again.logits();
  const Digest digest = digest_of(std::as_bytes(computed));
  report.logits = digest == claim.logits && tokens_give_logits(claim.recipe);
  if (report.logits || !claim.recipe.edits.empty()) return;
  if (claim.stored != nullptr && claim.stored->logits != nullptr && !claim.bisect)
    report.difference = first_logit(computed, *claim.stored->logits, 0);
  if (report.difference) return;
  report.difference = Difference{.what = "logits",
                                 .expected = "digest " + digest_text(digest),
                                 .found = digest_text(claim.logits)};
}

// Compares the recurrent arrays after the last token.
void compare_arrays(const Claim& claim, const Session& again, VerifyReport& report) {
  report.arrays = !report.recurrent;
  if (report.arrays || report.difference || again.size() != claim.recipe.size()) return;
  const bool set = std::ranges::any_of(
      claim.recipe.edits, [](const KvEdit& e) { return e.what == KvEdit::What::arrays; });
  if (set || !tokens_give_logits(claim.recipe)) return;
  const RecurrentShape& shape = again.recurrent().shape();
  const std::vector<Digest> computed = array_digests(shape, again.recurrent().numbers());
  const auto differ = std::ranges::mismatch(computed, claim.arrays);
  report.arrays = differ.in1 == computed.end();
  if (report.arrays) return;
  const auto which = static_cast<size_t>(differ.in1 - computed.begin());
  report.difference = Difference{.what = "recurrent arrays",
                                 .position = claim.recipe.size() - 1,
                                 .layer = recurrent_layers(shape)[which],
                                 .expected = "digest " + digest_text(*differ.in1),
                                 .found = digest_text(*differ.in2)};
}

// Compares the stored arrays with their digests.
void compare_stored_arrays(const Claim& claim, VerifyReport& report) {
  if (claim.stored == nullptr || claim.arrays.empty() || report.difference) return;
  const RecurrentState& stored = claim.stored->recurrent;
  const std::vector<Digest> own = array_digests(stored.shape(), stored.numbers());
  const auto differ = std::ranges::mismatch(own, claim.arrays);
  if (differ.in1 == own.end()) return;
  report.arrays = false;
  const auto which = static_cast<size_t>(differ.in1 - own.begin());
  report.difference = Difference{.what = "recurrent arrays",
                                 .position = claim.recipe.size() - 1,
                                 .layer = recurrent_layers(stored.shape())[which],
                                 .expected = "digest " + digest_text(*differ.in2),
                                 .found = "digest " + digest_text(*differ.in1)};
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// Returns a difference of an anchor, which names the digests of both.
Difference number_difference(const char* what, int64_t anchor, std::span<const float> expected,
                             std::span<const float> found) {
  return {.what = fmt::format("{} of the anchor at position {}", what, anchor),
          .position = anchor - 1,
          .expected = "digest " + digest_text(digest_of(std::as_bytes(expected))),
          .found = "digest " + digest_text(digest_of(std::as_bytes(found)))};
}

// Compares what an anchor holds of its last token, the row of hidden state or the logits, with the
// replay. `computed` holds the row.
std::optional<Difference> compare_last(const Anchor& stored, const Anchor& computed,
                                       const Session& again) {
  if (stored.last == nullptr) return std::nullopt;
  std::vector<float> expected = *computed.last;
  if (!stored.hidden) {
    Session there = again.fork();
    there.rewind(stored.position);
    expected.assign(there.logits().begin(), there.logits().end());
  }
  if (same_bits(expected, *stored.last)) return std::nullopt;
  return number_difference(stored.hidden ? "hidden state" : "logits", stored.position, expected,
                           *stored.last);
}

// Compares the anchors that tokens determine with those that the replay made at their positions.
// Of a file, damaged_anchor_of() reports those that are damaged.
void compare_anchors(const Claim& claim, const Session& again, VerifyReport& report) {
  if (claim.stored == nullptr || report.difference) return;
  const size_t numbers = again.recurrent().shape().numbers;
  for (const auto& a : claim.stored->anchors.all()) {
    const Anchor* const computed = again.anchors().find(a->position);
    if (computed == nullptr || !computed->hidden ||
        !detail::gives_arrays_again(*claim.stored, 0, a->position))
      continue;
    if (!is_intact(*a)) continue;  // counts as missing, as for a rewind
    const std::span expected(computed->arrays->numbers(), numbers),
        found(a->arrays->numbers(), numbers);
    report.difference = same_bits(expected, found)
                            ? compare_last(*a, *computed, again)
                            : number_difference("recurrent arrays", a->position, expected, found);
    if (report.difference) return;
    ++report.anchors;
  }
}

// Compares states that are only approximately equal.
void compare_within_tolerance(const Claim& claim, Session& again, VerifyReport& report) {
  report.tolerance = kBlasTolerance;
  if (claim.stored == nullptr)
    throw Error(
        ErrorKind::argument, claim.file, "form", "",
        "BLAS does not give the same digests, and the file holds no keys and values to compare");
  report.difference = first_difference(again.state(), *claim.stored, kBlasTolerance);
  report.logits = !report.difference;
  report.blocks = report.difference ? 0 : report.of;
}

VerifyReport prove(const Claim& claim, std::vector<bool> given,
                   const std::function<Session(const State&)>& compute, bool blas) {
  VerifyReport report;
  if (!claim.recipe.edits.empty()) report.limit = replay_limit(claim.recipe);
  State needed = needed_recipe(claim.recipe, given);
  if (claim.stored != nullptr) needed.anchors = claim.stored->anchors;
  Session again = compute(needed);
  report.tokens = again.transcript_size();
  report.recurrent = !claim.arrays.empty();
  // Without keys and values, blocks hold nothing that could be proved.
  report.of = again.kv().shape().block_bytes() > 0 ? std::ssize(given) : 0;
  if (blas) {
    Proof(claim, again.kv(), std::vector<bool>(given.size(), false)).run(report);
    if (!report.difference) compare_within_tolerance(claim, again, report);
    return report;
  }
  again.logits();
  Proof(claim, again.kv(), std::move(given)).run(report);
  report.blocks = std::min(report.blocks, report.of);
  compare_arrays(claim, again, report);
  compare_stored_arrays(claim, report);
  compare_anchors(claim, again, report);
  compare_logits(claim, again, report);
  return report;
}

// Returns the keys and values of the file and its parents. Returns nothing if a parent is missing
// and `bisect` can do without.
std::optional<State> stored_state(const Snapshot& snapshot, bool bisect) {
  if (snapshot.meta().form == SnapshotForm::recipe) return std::nullopt;
  try {
    return snapshot.state({.trust = true});
  } catch (const Error& e) {
    if (!bisect || snapshot.meta().form != SnapshotForm::delta || e.kind != ErrorKind::io) throw;
    snapshot.check_own_blocks();
    return std::nullopt;
  }
}

// Returns the first anchor of the file, and of its parents if `with_parents`, that is damaged.
std::optional<Difference> damaged_anchor_of(const Snapshot& snapshot, bool with_parents) {
  if (snapshot.file()->anchors.empty()) return std::nullopt;
  std::optional<SnapshotChain> chain;
  if (with_parents) chain.emplace(snapshot);
  return damaged_anchor(chain ? &*chain : nullptr, *snapshot.file());
}

}  // namespace

std::string VerifyReport::how() const {
  if (tolerance > 0) return fmt::format("within {} (BLAS)", tolerance);
  if (by_digests == 0) return "byte for byte";
  if (blocks == 0) return "by digests";
  if (by_digests == blocks) return "by digests of every layer of every block";
  return fmt::format("byte for byte, {} of {} blocks in part by digests", by_digests, blocks);
}

std::string VerifyReport::text() const {
  if (difference) return "different: " + difference->text();
  const bool keys = of > 0 || !recurrent;
  if (whole())
    return fmt::format("{}{} and logits are equal, {}", keys ? "keys, values" : "",
                       !recurrent ? ""
                       : keys     ? ", recurrent arrays"
                                  : "recurrent arrays",
                       how());
  const std::string rest =
      limit ? fmt::format("; not proved, from position {} on: {}", limit->position, limit->reason)
            : "";
  if (!keys)
    return (logits ? "the logits were recomputed from the tokens and are equal, " + how()
                   : "nothing is proved") +
           rest;
  if (blocks == 0)
    return fmt::format(
        "nothing is proved: none of the {} blocks can be recomputed from the tokens{}", of, rest);
  return fmt::format("{} of {} blocks{} were recomputed from the tokens and are equal, {}{}",
                     blocks, of, logits ? " and the logits" : "", how(), rest);
}

std::vector<bool> replayable_blocks(const Snapshot& snapshot) {
  return replayable_blocks(snapshot.recipe());
}

VerifyReport verify(const Snapshot& snapshot, std::shared_ptr<const Model> model,
                    const SessionOptions& options, bool bisect, const Progress& progress) {
  SessionOptions o = options;
  o.kv_type = snapshot.meta().kv.type;
  o.capacity = std::min(snapshot.meta().capacity, model->config().max_positions);
  o.anchor_bytes = std::numeric_limits<int64_t>::max();  // as many as the file has
  const ModelConfig& c = model->config();
  if (!(detail::kv_shape(c, o.kv_type) == snapshot.meta().kv)) {
    throw Error(ErrorKind::mismatch, snapshot.path(), "META: kv",
                "keys and values of the model's shape", "others");
  }
  const State recipe = snapshot.recipe();
  const std::optional<State> stored = stored_state(snapshot, bisect);
  const Claim claim{snapshot.path(),
                    recipe,
                    stored ? &*stored : nullptr,
                    [&](int64_t b) {
                      const std::span<const Digest> saved = snapshot.block_digests(b);
                      return std::vector<Digest>(saved.begin(), saved.end());
                    },
                    [&](int64_t b) { return snapshot.visible(b); },
                    snapshot.digests().logits,
                    snapshot.file()->arrays,
                    bisect};
  const bool blas =
      o.compute.contract == Contract::f32_blas || snapshot.meta().contract == "f32-blas";
  VerifyReport report = prove(
      claim, replayable_blocks(recipe),
      [&](const State& needed) { return replay(model, needed, o, progress); }, blas);
  // The comparison leaves out damaged anchors, because they can be computed again.
  if (!report.difference) report.difference = damaged_anchor_of(snapshot, stored.has_value());
  return report;
}

VerifyReport verify(Session& session, const Progress& progress, const Appender& append) {
  const State state = session.state();
  const KvShape& shape = state.kv.shape();
  const Claim claim{"",
                    state,
                    &state,
                    [&](int64_t b) { return state.kv.block_info(b).digests(shape); },
                    [&](int64_t b) { return state.kv.visible(b); },
                    digest_of(std::as_bytes(session.logits())),
                    array_digests(state.recurrent.shape(), state.recurrent.numbers())};
  SessionOptions o{session.capacity(), shape.type, session.compute()};
  o.anchor_bytes = std::numeric_limits<int64_t>::max();  // as many as the session has
  for (int64_t b = 0; b < state.kv.blocks(); ++b)
    o.window.only = o.window.only || !state.kv.block_info(b).holds_all();
  return prove(
      claim, replayable_blocks(state),
      [&](const State& needed) {
        return replay(session.shared_model(), needed, o, progress, append);
      },
      o.compute.contract == Contract::f32_blas);
}

}  // namespace stet

#include "stet/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/snapshot_meta.hpp"
#include "src/snapshot_state.hpp"
#include "stet/error.hpp"
#include "stet/matrix.hpp"

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

std::string Difference::text() const {
  std::string where;
  const auto add = [&](const std::string& part) { where += (where.empty() ? "" : ", ") + part; };
  if (position >= 0) add(fmt::format("position {}", position));
  if (layer >= 0) add(fmt::format("layer {}", layer));
  add(what);
  if (head >= 0) add(fmt::format("head {}", head));
  if (element >= 0) add(fmt::format("element {}", element));
  return where + ": expected " + expected + ", found " + found;
}

namespace {

struct Element {
  float value;
  uint32_t bits;
};

Element element(KvType type, const std::byte* at) {
  Element e{read_element(type, at), 0};
  std::memcpy(&e.bits, at, type == KvType::f32 ? 4 : 2);  // the lower half, on a little-endian machine
  return e;
}

bool differ(Element a, Element b, double tolerance) {
  if (a.bits == b.bits) return false;
  const double x = a.value, y = b.value;
  return !(std::abs(x - y) <= tolerance * std::max(1.0, std::abs(x)));
}

std::string number(Element e) { return fmt::format("{} (bits {:x})", e.value, e.bits); }

// The first difference of one position of a block.
std::optional<Difference> in_slot(const KvShape& s, const std::byte* a, const std::byte* b, int64_t position, double tolerance) {
  const int64_t slot = position % kBlockPositions;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    for (const bool key : {true, false}) {
      for (int64_t head = 0; head < s.kv_heads; ++head) {
        const size_t base = key ? s.k_offset(layer, head) : s.v_offset(layer, head);
        for (int64_t d = 0; d < s.head_dim; ++d) {
          const size_t at = base + static_cast<size_t>(key ? d * kBlockPositions + slot : slot * s.head_dim + d) * s.element_size();
          const Element x = element(s.type, a + at), y = element(s.type, b + at);
          if (differ(x, y, tolerance)) return Difference{key ? "key" : "value", position, layer, head, d, number(x), number(y)};
        }
      }
    }
  }
  return std::nullopt;
}

std::optional<Difference> in_tokens(const State& a, const State& b) {
  const size_t common = std::min(a.tokens.size(), b.tokens.size());
  for (size_t i = 0; i < common; ++i) {
    if (a.tokens[i] != b.tokens[i]) {
      return Difference{"token", static_cast<int64_t>(i), -1, -1, -1, std::to_string(a.tokens[i]), std::to_string(b.tokens[i])};
    }
  }
  if (a.tokens.size() == b.tokens.size()) return std::nullopt;
  return Difference{"number of tokens", -1, -1, -1, -1, std::to_string(a.tokens.size()), std::to_string(b.tokens.size())};
}

std::optional<Difference> in_cache(const KvCache& a, const KvCache& b, double tolerance) {
  const KvShape& shape = a.shape();
  for (int64_t block = 0; block < a.blocks(); ++block) {
    if (a.visible(block) != b.visible(block)) {
      const int64_t at = block * kBlockPositions + __builtin_ctzll(a.visible(block) ^ b.visible(block));
      const auto seen = [&](const KvCache& kv) { return (kv.visible(block) >> (at % kBlockPositions) & 1) != 0 ? "visible" : "pruned"; };
      return Difference{"visibility", at, -1, -1, -1, seen(a), seen(b)};
    }
    if (a.unchecked_block(block) == b.unchecked_block(block) || std::memcmp(a.block(block), b.block(block), shape.block_bytes()) == 0) continue;
    for (int64_t i = 0; i < kBlockPositions; ++i) {
      if (auto d = in_slot(shape, a.block(block), b.block(block), block * kBlockPositions + i, tolerance)) return d;
    }
  }
  return std::nullopt;
}

std::optional<Difference> in_logits(std::span<const float> a, std::span<const float> b, double tolerance) {
  if (a.size() != b.size()) return Difference{"number of logits", -1, -1, -1, -1, std::to_string(a.size()), std::to_string(b.size())};
  for (size_t i = 0; i < a.size(); ++i) {
    const Element x = element(KvType::f32, reinterpret_cast<const std::byte*>(&a[i]));
    const Element y = element(KvType::f32, reinterpret_cast<const std::byte*>(&b[i]));
    if (differ(x, y, tolerance)) return Difference{"logit", -1, -1, -1, static_cast<int64_t>(i), number(x), number(y)};
  }
  return std::nullopt;
}

std::span<const float> logits_of(const State& s) {
  return s.logits != nullptr ? std::span<const float>(*s.logits) : std::span<const float>();
}

// Where the text of two settings parts.
std::optional<Difference> in_text(const std::string& what, const std::string& a, const std::string& b) {
  if (a == b) return std::nullopt;
  const size_t at = static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin()).first - a.begin());
  const size_t from = a.rfind(",\"", at) == std::string::npos ? 0 : a.rfind(",\"", at) + 1;
  const auto part = [&](const std::string& s) { return s.substr(std::min(from, s.size()), s.find(",\"", std::max(from, at)) - from); };
  return Difference{what, -1, -1, -1, -1, part(a), part(b)};
}

}  // namespace

std::optional<Difference> first_difference(const State& a, const State& b, double tolerance) {
  a.kv.check_all();
  b.kv.check_all();
  if (auto d = in_text("prunes", encode_prunes(a.prunes), encode_prunes(b.prunes))) return d;
  if (auto d = in_text("edits", encode_edits(a.edits), encode_edits(b.edits))) return d;
  if (auto d = in_tokens(a, b)) return d;
  if (!(a.kv.shape() == b.kv.shape())) {
    const auto text = [](const KvShape& s) { return fmt::format("{} {} x {} x {}", kv_type_name(s.type), s.layers, s.kv_heads, s.head_dim); };
    return Difference{"keys and values", -1, -1, -1, -1, text(a.kv.shape()), text(b.kv.shape())};
  }
  if (auto d = in_cache(a.kv, b.kv, tolerance)) return d;
  if (auto d = in_logits(logits_of(a), logits_of(b), tolerance)) return d;
  if (auto d = in_text("generation", encode_generation(a.generation), encode_generation(b.generation))) return d;
  return in_text("messages", encode_dialogue(a.dialogue), encode_dialogue(b.dialogue));
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

std::optional<Difference> different_origin(const Snapshot& a, const Snapshot& b) {
  const auto differ_in = [](const std::string& what, const std::string& x, const std::string& y) -> std::optional<Difference> {
    if (x == y) return std::nullopt;
    return Difference{what, -1, -1, -1, -1, x.empty() ? "none" : x, y.empty() ? "none" : y};
  };
  const SnapshotMeta &x = a.meta(), &y = b.meta();
  if (auto d = differ_in("contract", x.contract + " version " + std::to_string(x.contract_version), y.contract + " version " + std::to_string(y.contract_version))) return d;
  if (auto d = differ_in("architecture", x.architecture, y.architecture)) return d;
  if (auto d = in_text("config", x.config, y.config)) return d;
  for (const auto& [name, digest] : x.fingerprints) {
    for (const auto& [other, theirs] : y.fingerprints) {
      if (name != other) continue;
      if (auto d = differ_in(name + " weights", digest, theirs)) return d;
    }
  }
  if (x.tokenizer.empty() || y.tokenizer.empty()) return std::nullopt;
  return differ_in("tokenizer", x.tokenizer, y.tokenizer);
}

std::optional<Difference> different_digests(const Snapshot& a, const Snapshot& b) {
  const State x = a.recipe(), y = b.recipe();
  if (auto d = in_text("prunes", encode_prunes(x.prunes), encode_prunes(y.prunes))) return d;
  if (auto d = in_text("edits", encode_edits(x.edits), encode_edits(y.edits))) return d;
  if (auto d = in_tokens(x, y)) return d;
  for (int64_t block = 0; block < blocks_of(a.meta().positions); ++block) {
    const std::span<const Digest> mine = a.block_digests(block), theirs = b.block_digests(block);
    for (size_t layer = 0; layer < mine.size() && mine.size() == theirs.size(); ++layer) {
      if (mine[layer] == theirs[layer]) continue;
      return Difference{fmt::format("keys and values of block {}", block), -1, static_cast<int64_t>(layer), -1, -1,
                        "digest " + digest_text(mine[layer]), digest_text(theirs[layer])};
    }
  }
  if (!(a.digests().logits == b.digests().logits)) {
    return Difference{"logits", -1, -1, -1, -1, "digest " + digest_text(a.digests().logits), digest_text(b.digests().logits)};
  }
  if (auto d = in_text("generation", encode_generation(x.generation), encode_generation(y.generation))) return d;
  return in_text("messages", encode_dialogue(x.dialogue), encode_dialogue(y.dialogue));
}

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

// Compares states and snapshots part by part; kernels/compare.cpp compares keys and values.
#include "stet/snapshot/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <nlohmann/json.hpp>
#include <tuple>

#include "kernels/compare.hpp"
#include "src/snapshot/meta.hpp"
#include "src/snapshot/recurrent.hpp"
#include "stet/kernels/float_environment.hpp"

namespace stet {

std::string Difference::where() const {
  std::string where;
  const auto add = [&](const std::string& part) { where += (where.empty() ? "" : ", ") + part; };
  if (position >= 0) add(fmt::format("position {}", position));
  if (layer >= 0) add(fmt::format("layer {}", layer));
  add(what);
  if (head >= 0) add(fmt::format("head {}", head));
  if (element >= 0) add(fmt::format("element {}", element));
  return where;
}

std::string Difference::text() const {
  return where() + ": expected " + expected + ", found " + found;
}

const Comparison::Part* Comparison::first_difference() const {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [](const Part& part) { return part.difference.has_value(); });
  return found == parts.end() ? nullptr : &*found;
}

bool Comparison::equal() const { return first_difference() == nullptr; }

namespace {

using Part = Comparison::Part;

Difference counts(const std::string& what, int64_t position, int64_t a, int64_t b) {
  return {.what = what,
          .position = position,
          .expected = std::to_string(a),
          .found = std::to_string(b),
          .expected_number = static_cast<double>(a),
          .found_number = static_cast<double>(b)};
}

int64_t common_tokens(const State& a, const State& b) {
  return std::ranges::mismatch(a.tokens, b.tokens).in1 - a.tokens.begin();
}

std::optional<Difference> in_tokens(const State& a, const State& b) {
  const int64_t common = common_tokens(a, b);
  const size_t at = static_cast<size_t>(common);
  if (common < std::min(a.size(), b.size()))
    return counts("token", common, a.tokens[at], b.tokens[at]);
  if (a.size() == b.size()) return std::nullopt;
  return counts("number of tokens", -1, a.size(), b.size());
}

// Compares the positions that both states have. `a` and `b` return the visibility mask of a block.
template <class Mask>
std::optional<Difference> in_visibility(const Mask& a, const Mask& b, int64_t positions) {
  for (int64_t block = 0; block < blocks_of(positions); ++block) {
    const uint64_t parted = (a(block) ^ b(block)) & positions_of_block(block, positions);
    if (parted == 0) continue;
    const int slot = __builtin_ctzll(parted);
    const auto seen = [&](uint64_t mask) { return (mask >> slot & 1) != 0 ? "visible" : "pruned"; };
    return Difference{.what = "visibility",
                      .position = block * kBlockPositions + slot,
                      .expected = seen(a(block)),
                      .found = seen(b(block))};
  }
  return std::nullopt;
}

std::optional<Difference> in_visibility(const State& a, const State& b) {
  const auto mask = [](const State& s) {
    return std::function([&s](int64_t block) { return s.kv.visible(block); });
  };
  return in_visibility(mask(a), mask(b), std::min(a.size(), b.size()));
}

std::optional<Difference> in_text(const std::string& what, const std::string& a,
                                  const std::string& b) {
  if (a == b) return std::nullopt;
  return Difference{
      .what = what, .expected = a.empty() ? "none" : a, .found = b.empty() ? "none" : b};
}

// Returns the first member or element in which two JSON texts differ.
std::optional<Difference> in_json(const std::string& what, const std::string& a,
                                  const std::string& b) {
  if (a == b) return std::nullopt;
  const nlohmann::json from = nlohmann::json::parse(a),
                       step = nlohmann::json::diff(from, nlohmann::json::parse(b)).at(0);
  const std::string path = step.at("path");
  const std::string name =
      path.ends_with("/-") ? path.substr(0, path.size() - 2) : path;  // "-": past the last element
  const auto shown = [&](const nlohmann::json& value) {
    return (name.empty() ? "" : name.substr(1) + " ") + value.dump();
  };
  const bool added = step.at("op") == "add";
  return Difference{.what = what,
                    .expected = added ? "none" : shown(from.at(nlohmann::json::json_pointer(path))),
                    .found = step.contains("value") ? shown(step.at("value")) : "none"};
}

// Returns the first prune of a log as text.
std::string first_prune(std::span<const Prune> log) {
  if (log.empty()) return "none";
  std::string text;
  encode_prunes({log[0]}, [&](std::string_view piece) { text += piece; });
  return printable(text, 200);
}

std::optional<Difference> in_prunes(const State& a, const State& b) {
  const size_t same =
      static_cast<size_t>(std::ranges::mismatch(a.prunes, b.prunes).in1 - a.prunes.begin());
  if (same == a.prunes.size() && same == b.prunes.size()) return std::nullopt;
  return in_text(fmt::format("prunes[{}]", same), first_prune(std::span(a.prunes).subspan(same)),
                 first_prune(std::span(b.prunes).subspan(same)));
}
std::optional<Difference> in_edits(const State& a, const State& b) {
  return in_json("edits", encode_edits(a.edits), encode_edits(b.edits));
}

// Returns a text such as "add at hook_resid_post, layers 3, positions 12..20, attached at 12,
// amount 2, 64 values".
std::string intervention_text(const Intervention& w) {
  std::string text = fmt::format("{} at {}", intervention_op_name(w.op), point_info(w.point).name);
  if (!w.layers.empty()) text += fmt::format(", layers {}", fmt::join(w.layers, ","));
  if (!w.heads.empty()) text += fmt::format(", heads {}", fmt::join(w.heads, ","));
  text += ", positions " + range_text(w.begin, w.end);
  if (w.key_begin != 0 || w.key_end >= 0) text += ", keys " + range_text(w.key_begin, w.key_end);
  text += fmt::format(", attached at {}", w.at);
  if (w.prunes > 0) text += fmt::format(" after {} prunes", w.prunes);
  const bool clamp = w.op == Intervention::Op::clamp;
  if (clamp || w.op == Intervention::Op::add || w.op == Intervention::Op::scale)
    text += fmt::format(", amount {}", w.amount);
  if (clamp) text += fmt::format(", bias {}, threshold {}", w.bias, w.threshold);
  if (w.values) text += fmt::format(", {} values", w.values->size());
  return text;
}

// Returns the first intervention that differs. If only its values differ, returns the first of
// those.
std::optional<Difference> in_interventions(const State& a, const State& b) {
  const auto [x, y] = std::ranges::mismatch(a.interventions, b.interventions);
  if (x == a.interventions.end() && y == b.interventions.end()) return std::nullopt;
  std::string from = x == a.interventions.end() ? "" : intervention_text(*x),
              to = y == b.interventions.end() ? "" : intervention_text(*y);
  if (from == to) {
    const std::vector<float> none, &p = x->values ? *x->values : none,
                                   &q = y->values ? *y->values : none;
    const auto bits = [](float v) { return std::bit_cast<uint32_t>(v); };
    const auto [v, w] = std::ranges::mismatch(p, q, {}, bits, bits);
    if (v == p.end() || w == q.end())  // in a field that the operation does not use
      return in_json("interventions", encode_interventions(a.interventions),
                     encode_interventions(b.interventions));
    from += fmt::format(": value[{}] {}", v - p.begin(), *v);
    to += fmt::format(": value[{}] {}", v - p.begin(), *w);
  }
  return in_text(fmt::format("interventions[{}]", x - a.interventions.begin()), from, to);
}
std::optional<Difference> in_generation(const State& a, const State& b) {
  return in_json("generation", encode_generation(a.generation), encode_generation(b.generation));
}
std::optional<Difference> in_messages(const State& a, const State& b) {
  return in_json("messages", encode_chat(a.chat), encode_chat(b.chat));
}

std::optional<Difference> in_shape(const KvShape& a, const KvShape& b) {
  const auto text = [&](const KvShape& s) {
    std::string shape =
        fmt::format("{} {} x {} x {}", kv_type_name(s.type), s.layers, s.kv_heads, s.head_dim);
    for (const KvLayer& l : a.table == b.table ? std::vector<KvLayer>() : s.table)
      shape += fmt::format(", {}: {} x {}+{}", l.owner, l.kv_heads, l.key_dim, l.value_dim);
    return shape;
  };
  return in_text("keys and values", text(a), text(b));
}

std::span<const float> logits_of(const State& s) {
  return s.logits != nullptr ? std::span<const float>(*s.logits) : std::span<const float>();
}

std::optional<Difference> in_logits(const State& a, const State& b, double tolerance) {
  const std::span<const float> x = logits_of(a), y = logits_of(b);
  if (x.size() != y.size())
    return counts("number of logits", -1, static_cast<int64_t>(x.size()),
                  static_cast<int64_t>(y.size()));
  return first_logit(x, y, tolerance);
}

// Returns the first number in which the arrays of recurrent layers differ.
std::optional<Difference> in_arrays(const State& a, const State& b, double tolerance) {
  const RecurrentShape &x = a.recurrent.shape(), &y = b.recurrent.shape();
  if (!(x == y)) return counts("recurrent arrays", -1, std::ssize(x.layers), std::ssize(y.layers));
  for (size_t l = 0; l < x.layers.size(); ++l) {
    for (size_t i = 0; i < x.layers[l].size(); ++i) {
      const auto layer = static_cast<int64_t>(l);
      auto d = first_logit(a.recurrent.array(layer, i), b.recurrent.array(layer, i), tolerance);
      if (!d) continue;
      d->what = x.layers[l][i].name, d->layer = layer;
      return d;
    }
  }
  return std::nullopt;
}

std::optional<Difference> in_kv(const State& a, const State& b, double tolerance) {
  return first_of(compare_kv(a.kv, b.kv, tolerance));
}

}  // namespace

std::optional<Difference> first_of(const KvDifferences& kv) {
  if (!kv.key || !kv.value) return kv.key ? kv.key : kv.value;
  return std::tie(kv.value->position, kv.value->layer) < std::tie(kv.key->position, kv.key->layer)
             ? kv.value
             : kv.key;
}

std::optional<Difference> first_difference(const State& a, const State& b, double tolerance) {
  const FloatEnvironment contract;
  a.kv.check_all();
  b.kv.check_all();
  if (auto d = in_prunes(a, b)) return d;
  if (auto d = in_edits(a, b)) return d;
  if (auto d = in_interventions(a, b)) return d;
  if (auto d = in_tokens(a, b)) return d;
  if (auto d = in_shape(a.kv.shape(), b.kv.shape())) return d;
  if (auto d = in_visibility(a, b)) return d;
  if (auto d = in_kv(a, b, tolerance)) return d;
  if (auto d = in_arrays(a, b, tolerance)) return d;
  if (auto d = in_logits(a, b, tolerance)) return d;
  if (auto d = in_generation(a, b)) return d;
  return in_messages(a, b);
}

namespace {

bool same_extents(const KvShape& a, const KvShape& b) {
  KvShape other = b;
  other.type = a.type;
  return a == other;
}

void add_settings(Comparison& c, const State& a, const State& b) {
  c.parts.push_back({"generation", in_generation(a, b)});
  c.parts.push_back({"messages", in_messages(a, b)});
  c.parts.push_back({"prunes", in_prunes(a, b)});
  c.parts.push_back({"edits", in_edits(a, b)});
  if (!a.interventions.empty() || !b.interventions.empty())
    c.parts.push_back({"interventions", in_interventions(a, b)});
}

int64_t position_or(const std::optional<Difference>& difference, int64_t otherwise) {
  return difference ? difference->position : otherwise;
}

void add_kv(Comparison& c, const State& a, const State& b) {
  if (!same_extents(a.kv.shape(), b.kv.shape())) {
    for (const char* name : {"keys", "values"})
      c.parts.push_back({name, std::nullopt, false, "their shapes differ"});
    return;
  }
  a.kv.check_all();
  b.kv.check_all();
  KvDifferences kv = compare_kv(a.kv, b.kv, 0);
  const int64_t both = std::min(a.size(), b.size());
  c.equal_positions = std::min({both, position_or(in_visibility(a, b), both),
                                position_or(kv.key, both), position_or(kv.value, both)});
  c.layers = std::move(kv.layers);
  const std::string note = a.kv.shape().block_bytes() == 0 ? "none: no layer has any"
                           : a.size() == b.size()
                               ? ""
                               : fmt::format("of the {} positions that both have", both);
  c.parts.push_back({"keys", std::move(kv.key), true, note});
  c.parts.push_back({"values", std::move(kv.value), true, note});
}

void add_logits(Comparison& c, const State& a, const State& b) {
  const std::span<const float> x = logits_of(a), y = logits_of(b);
  c.parts.push_back({"logits", in_logits(a, b, 0)});
  if (x.empty() || x.size() != y.size()) return;
  c.a_from_b = divergence(x, y);
  c.b_from_a = divergence(y, x);
}

// Adds a part for each layer with recurrent arrays, if the shapes are equal.
void add_arrays(Comparison& c, const State& a, const State& b) {
  const RecurrentShape &x = a.recurrent.shape(), &y = b.recurrent.shape();
  if (x.empty() && y.empty()) return;
  if (!(x == y)) {
    c.parts.push_back({"recurrent arrays", std::nullopt, false, "their shapes differ"});
    return;
  }
  for (size_t l = 0; l < x.layers.size(); ++l) {
    for (size_t i = 0; i < x.layers[l].size(); ++i) {
      const auto layer = static_cast<int64_t>(l);
      Part part{fmt::format("layers.{}.{}", l, x.layers[l][i].name)};
      part.difference = first_logit(a.recurrent.array(layer, i), b.recurrent.array(layer, i), 0);
      if (part.difference) part.difference->what = x.layers[l][i].name;
      if (part.difference) part.difference->layer = layer;
      c.parts.push_back(std::move(part));
    }
  }
}

// Compares everything except the model's identity.
void add_state(Comparison& c, const State& a, const State& b) {
  c.parts.push_back({"kv shape", in_shape(a.kv.shape(), b.kv.shape())});
  c.common_tokens = common_tokens(a, b);
  c.parts.push_back({"tokens", in_tokens(a, b)});
  c.parts.push_back({"visibility", in_visibility(a, b)});
  add_kv(c, a, b);
  add_arrays(c, a, b);
  add_logits(c, a, b);
  add_settings(c, a, b);
}

std::string contract_text(const std::string& name, int version) {
  return name + " version " + std::to_string(version);
}

std::optional<Difference> in_model(const StateOrigin& a, const StateOrigin& b) {
  if (auto d = in_text("contract", contract_text(a.contract, a.version),
                       contract_text(b.contract, b.version)))
    return d;
  return in_text("model", a.model, b.model);
}

std::optional<Difference> in_model(const SnapshotMeta& a, const SnapshotMeta& b) {
  if (auto d = in_text("contract", contract_text(a.contract, a.contract_version),
                       contract_text(b.contract, b.contract_version)))
    return d;
  if (a.family != b.family) {
    if (auto d = in_text("architecture", a.architecture, b.architecture)) return d;
  }
  if (auto d = in_json("config", a.config, b.config)) return d;
  for (const auto& [name, digest] : a.fingerprints) {
    for (const auto& [other, theirs] : b.fingerprints) {
      if (name != other) continue;
      if (auto d = in_text(name + " weights", digest, theirs)) return d;
    }
  }
  if (a.tokenizer.empty() || b.tokenizer.empty()) return std::nullopt;
  return in_text("tokenizer", a.tokenizer, b.tokenizer);
}

std::string digest_or(const Digest& d) { return "digest " + digest_text(d); }

// Compares blocks by digest. A digest covers a whole block, so a block is skipped if the two
// snapshots hold different positions of it.
Part kv_by_digests(const Snapshot& a, const Snapshot& b, int64_t* equal_positions) {
  Part part{"keys and values", std::nullopt, true,
            "compared by digest alone; the size of the difference is unknown"};
  if (!(a.meta().kv == b.meta().kv))
    return {part.name, std::nullopt, false, "not compared: the kv types differ"};
  const int64_t both = std::min(a.meta().positions, b.meta().positions);
  std::vector<int64_t> skipped;
  for (int64_t block = 0; block < blocks_of(both); ++block) {
    const uint64_t mine = positions_of_block(block, a.meta().positions),
                   theirs = positions_of_block(block, b.meta().positions);
    if (mine != theirs || a.visible(block) != b.visible(block)) {
      skipped.push_back(block);
      continue;
    }
    const std::span<const Digest> x = a.block_digests(block), y = b.block_digests(block);
    const auto parted = std::ranges::mismatch(x, y);
    if (parted.in1 != x.end()) {
      part.difference = Difference{.what = fmt::format("keys and values of block {}", block),
                                   .layer = parted.in1 - x.begin(),
                                   .expected = digest_or(*parted.in1),
                                   .found = digest_or(*parted.in2)};
      break;
    }
    if (skipped.empty()) *equal_positions = std::min(both, (block + 1) * kBlockPositions);
  }
  if (skipped.empty()) return part;
  part.compared = false;
  part.note =
      fmt::format("by digests of whole blocks: not of blocks {}, which hold other positions",
                  fmt::join(skipped, ","));
  return part;
}

// Adds a part for the recurrent arrays, if there are any.
void add_array_digests(Comparison& c, const Snapshot& a, const Snapshot& b) {
  const std::vector<Digest>&x = a.file()->arrays, &y = b.file()->arrays;
  if (x.empty() && y.empty()) return;
  Part part{"recurrent arrays", std::nullopt, true, "compared by digest alone"};
  const auto parted = std::ranges::mismatch(x, y);
  if (x.size() != y.size()) {
    part = {part.name, std::nullopt, false, "their shapes differ"};
  } else if (parted.in1 != x.end()) {
    const auto layers =
        recurrent_layers(recurrent_shape(ModelConfig::from_canonical(a.meta().config, a.path())));
    part.difference = Difference{.what = part.name,
                                 .layer = layers[static_cast<size_t>(parted.in1 - x.begin())],
                                 .expected = digest_or(*parted.in1),
                                 .found = digest_or(*parted.in2)};
  }
  c.parts.push_back(std::move(part));
}

Comparison compare_by_digests(const Snapshot& a, const Snapshot& b) {
  const State x = a.recipe(), y = b.recipe();
  Comparison c;
  c.parts.push_back({"kv shape", in_shape(a.meta().kv, b.meta().kv)});
  c.common_tokens = common_tokens(x, y);
  c.parts.push_back({"tokens", in_tokens(x, y)});
  const auto mask = [](const Snapshot& s) {
    return std::function([&s](int64_t block) { return s.visible(block); });
  };
  c.parts.push_back({"visibility", in_visibility(mask(a), mask(b), std::min(x.size(), y.size()))});
  c.parts.push_back(kv_by_digests(a, b, &c.equal_positions));
  add_array_digests(c, a, b);
  const Digest &mine = a.digests().logits, &theirs = b.digests().logits;
  c.parts.push_back({"logits", in_text("logits", digest_or(mine), digest_or(theirs)), true,
                     "by digest: their divergence is not known"});
  add_settings(c, x, y);
  return c;
}

}  // namespace

Comparison compare(const State& a, const State& b) {
  const FloatEnvironment contract;
  Comparison c;
  c.parts.push_back({"model", in_model(a.origin, b.origin)});
  add_state(c, a, b);
  return c;
}

Comparison compare(const Snapshot& a, const Snapshot& b) {
  const FloatEnvironment contract;
  const bool bytes = a.meta().form != SnapshotForm::recipe && b.meta().form != SnapshotForm::recipe;
  Comparison c;
  if (bytes)
    add_state(c, a.state({.trust = true}), b.state({.trust = true}));
  else
    c = compare_by_digests(a, b);
  c.parts.insert(c.parts.begin(), {"model", in_model(a.meta(), b.meta())});
  return c;
}

}  // namespace stet

// Implements splice.hpp.
#pragma once

namespace stet {

STET_INL Session truth_of(std::shared_ptr<const Model> model, const State& state,
                          const SessionOptions& options, const Progress& progress) {
  State recipe = state;
  recipe.edits.clear();
  return replay(std::move(model), recipe, options, progress);
}

namespace detail {

STET_INL void check_cuts(const ModelConfig& config, std::span<const Cut> cuts) {
  int64_t size = 0;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const Cut& c = cuts[i];
    const std::string field = "cuts[" + std::to_string(i) + "]";
    check_same_model(*cuts[0].from, *c.from);
    if (c.begin < 0 || c.end <= c.begin || c.end > c.from->size())
      throw Error(ErrorKind::argument, "", field, some_positions(c.from->size()),
                  range_text(c.begin, c.end));
    const KvType ours = cuts[0].from->kv.shape().type, theirs = c.from->kv.shape().type;
    if (ours != theirs)
      throw Error(ErrorKind::mismatch, "", field + ": kv type", kv_type_name(ours),
                  kv_type_name(theirs));
    for (int64_t p = c.begin; p < c.end; ++p) {
      if ((c.from->kv.visible(p / kBlockPositions) >> (p % kBlockPositions) & 1) == 0)
        throw Error(ErrorKind::argument, "", field, "positions that are visible",
                    std::to_string(p) + ", which was pruned");
    }
    check_can_move(config, size - c.begin);
    size += c.end - c.begin;
  }
  if (size == 0) throw Error(ErrorKind::argument, "", "cuts", "at least one", "none");
  if (size > cuts[0].from->kv.capacity())
    throw Error(ErrorKind::capacity, "", "tokens",
                "at most " + std::to_string(cuts[0].from->kv.capacity()) + " positions (--ctx)",
                std::to_string(size));
}

// Takes the beginning of a state; whole blocks are shared. Only those that the next token can see
// need all layers.
STET_INL void take_front(State& to, const Cut& c, const ModelConfig& config) {
  to.kv = whole_kv(*c.from, c.end - widest_window(config), c.end);
  KvWriter(to.kv).truncate(c.end);
}

STET_INL void add_cut(State& to, const Cut& c, const ModelConfig& config) {
  KvCache from = whole_kv(*c.from, c.begin, c.end);
  for (int64_t b = c.begin / kBlockPositions; b < blocks_of(c.end); ++b) KvWriter(from).load(b);
  add_positions(from, c.begin, c.end, to.kv, config);
}

}  // namespace detail

STET_INL State splice(const ModelConfig& config, std::span<const Cut> cuts) {
  if (cuts.empty()) throw Error(ErrorKind::argument, "", "cuts", "at least one", "none");
  for (const Cut& c : cuts) detail::refuse_recurrent("splice", *c.from);
  detail::check_cuts(config, cuts);
  const FloatEnvironment contract;
  const State& first = *cuts[0].from;
  State s;
  s.origin = first.origin;
  s.generation.sampling = first.generation.sampling;
  s.generation.stop_ids = first.generation.stop_ids;
  s.generation.stop_strings = first.generation.stop_strings;
  const bool plain = first.prunes.empty() && first.edits.empty() && first.interventions.empty();
  if (cuts[0].begin == 0)
    detail::take_front(s, cuts[0], config);
  else
    s.kv = KvCache(first.kv.shape(), first.kv.capacity());
  for (const Cut& c : cuts) {
    if (c.begin > 0 || &c != cuts.data()) detail::add_cut(s, c, config);
    s.tokens.insert(s.tokens.end(), c.from->tokens.begin() + c.begin,
                    c.from->tokens.begin() + c.end);
  }
  for (Intervention w : first.interventions) {
    if (reach_of(first, w).end >= 0) continue;
    w.begin = 0, w.at = s.size(), w.prunes = 0;
    s.interventions.push_back(std::move(w));
  }
  KvEdit e = detail::entry(s, KvEdit::What::splice);
  e.position = plain && cuts[0].begin == 0 ? cuts[0].end : 0;
  e.end = s.size();
  for (const Cut& c : cuts)
    e.source += (e.source.empty() ? "" : "+") + std::to_string(c.begin) + ".." +
                std::to_string(c.end) + " of " + sha256_text(state_id(*c.from));
  if (e.position < e.end) s.edits.push_back(std::move(e));
  return s;
}

}  // namespace stet

// Implements prune.hpp.
#pragma once

namespace stet {

namespace detail {

// Copies one position of one head of a layer. If `r` is not null, rotates the key, using `key` as
// scratch. Values are copied with their scales.
STET_INL void move_position(const KvShape& shape, int64_t layer, const Rotation* r,
                            const std::byte* from, size_t slot, std::byte* to, size_t to_slot,
                            std::vector<float>& key) {
  const KvLayer l = shape.layer(layer);
  const size_t row = static_cast<size_t>(l.value_dim) * shape.element_size(),
               scale = shape.type == KvType::q8 ? sizeof(float) : 0,
               keys = shape.part_bytes(l.key_dim);
  const auto copy_column = [&](size_t at, size_t bytes) {  // copies one element of an array [64]
    std::memcpy(to + at + to_slot * bytes, from + at + slot * bytes, bytes);
  };
  if (r != nullptr) {
    key.resize(static_cast<size_t>(l.key_dim));
    read_row(shape, true, from, static_cast<int64_t>(slot), key);
    best_kernels().rope(key.data(), r->cos.data(), r->sin.data(), r->cos.size());
    write_row(shape, true, key, to, static_cast<int64_t>(to_slot));
  } else {
    for (size_t d = 0; d < static_cast<size_t>(l.key_dim); ++d)
      copy_column(d * kBlockPositions * shape.element_size(), shape.element_size());
    copy_column(shape.elements_bytes(l.key_dim), scale);
  }
  copy_column(keys, row);
  copy_column(keys + shape.elements_bytes(l.value_dim), scale);
}

STET_INL void add_positions(const KvCache& old, int64_t begin, int64_t end, KvCache& kv,
                            const ModelConfig& config) {
  const KvShape& shape = old.shape();
  const int64_t first = kv.size(), moved = end - begin;
  std::vector<Rotation> rotations;
  for (const Rope& rope : config.ropes)
    rotations.emplace_back(rope, config.rotated(rope), begin - first);
  std::vector<float> key;
  KvWriter writer(kv);
  writer.prepare(moved);
  for (int64_t i = 0; i < moved; ++i) {
    const int64_t from = begin + i, to = first + i, from_block = from / kBlockPositions,
                  to_block = to / kBlockPositions;
    const size_t slot = static_cast<size_t>(from % kBlockPositions),
                 to_slot = static_cast<size_t>(to % kBlockPositions);
    const bool seen = (old.visible(from_block) >> slot & 1) != 0;
    const uint64_t bit = uint64_t{1} << to_slot, bits = kv.visible(to_block);
    writer.set_visible(to_block, seen ? bits | bit : bits & ~bit);
    for (int64_t layer = 0; seen && layer < shape.layers; ++layer) {
      const int rope = config.layer(layer).rope;
      const Rotation* const r =
          rope < 0 || begin == first ? nullptr : &rotations[static_cast<size_t>(rope)];
      const int64_t heads = shape.owns(layer) ? shape.layer(layer).kv_heads : 0;
      for (int64_t head = 0; head < heads; ++head) {
        const size_t offset = shape.k_offset(layer, head);
        move_position(shape, layer, r, old.unchecked_block(from_block) + offset, slot,
                      writer.writable(to_block) + offset, to_slot, key);
      }
    }
  }
  check_overflow(kv, first, moved);  // a rotation can enlarge one number of a pair
  writer.commit(moved);
}

STET_INL void shift_turns(GenerationState& g, int64_t begin, int64_t end) {
  const auto moved = [&](int64_t at) {
    return at < begin ? at : std::max(begin, at - (end - begin));
  };
  std::vector<Turn> kept;
  for (const Turn& t : g.turns) {
    if (t.prompt >= begin && t.end <= end && t.end > t.prompt && !t.open) continue;
    kept.push_back({moved(t.prompt), moved(t.reply), moved(t.end), t.open});
  }
  g.turns = std::move(kept);
}

}  // namespace detail

STET_INL void check_prune_log(size_t prunes, int64_t removed) {
  const auto check = [](const char* field, size_t most, size_t found) {
    if (found > most)
      throw Error(ErrorKind::capacity, "", field,
                  "at most " + std::to_string(most) + " in a state's log", std::to_string(found));
  };
  check("prunes", kMaxPrunes, prunes);
  check("tokens shifted out", kMaxRemoved, static_cast<size_t>(removed));
}

STET_INL void prune_range(State& state, const ModelConfig& config, int64_t begin, int64_t end,
                          bool shift) {
  const int64_t size = state.size();
  if (begin < 0 || end < begin || end > size) {
    throw Error(ErrorKind::argument, "", "prune", some_positions(size), range_text(begin, end));
  }
  if (begin == end) return;
  if (!state.recurrent.empty())
    throw Error(ErrorKind::unsupported, "", "prune",
                "--recompute, which processes the tokens that stay anew: recurrent layers cannot "
                "forget tokens",
                "a state with recurrent layers");
  if (shift) check_shift_allowed(state);
  if (shift && config.ropes.empty()) {
    throw Error(ErrorKind::unsupported, "", "positions",
                "keep (keys of this model carry no rotary position)", "shift");
  }
  check_prune_log(state.prunes.size() + 1, 0);
  const FloatEnvironment contract;
  Prune entry{size, begin, end, shift, {}};
  KvCache kv = state.kv;
  std::vector<int32_t> tokens;
  GenerationState generation;
  if (shift) {
    tokens = state.tokens;
    generation = state.generation;
    entry.removed.assign(tokens.begin() + begin, tokens.begin() + end);
    tokens.erase(tokens.begin() + begin, tokens.begin() + end);
    KvCache before(state.kv);
    for (int64_t b = end / kBlockPositions; b < before.blocks(); ++b) KvWriter(before).load(b);
    KvWriter(kv).truncate(begin);
    detail::add_positions(before, end, size, kv, config);
    detail::shift_turns(generation, begin, end);
  } else {
    KvWriter(kv).hide(begin, end);
  }
  state.prunes.push_back(std::move(entry));  // the last step that can fail
  state.kv = std::move(kv);
  state.kept.clear();  // all below the floor
  if (!shift) return;
  state.tokens = std::move(tokens);
  state.generation = std::move(generation);
  if (state.tokens.empty()) state.logits.reset();  // there is no last token
}

namespace detail {

STET_INL void check_prune_options(const PruneOptions& options) {
  for (const auto& [name, value] :
       {std::pair{"keep-last", options.keep_last}, std::pair{"sinks", options.sinks}}) {
    if (value < 0) throw Error(ErrorKind::argument, "", name, "0 or more", std::to_string(value));
  }
}

}  // namespace detail

STET_INL int64_t prune(State& state, const ModelConfig& config, const PruneOptions& options) {
  detail::check_prune_options(options);
  const int64_t size = state.size(), begin = std::min(options.sinks, size);
  const int64_t end = std::max(begin, size - std::min(options.keep_last, size));
  if (options.shift) check_prune_log(0, shifted_out(state.prunes) + end - begin);
  prune_range(state, config, begin, end, options.shift);
  return end - begin;
}

}  // namespace stet

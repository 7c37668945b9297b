// Implements edit.hpp.
#pragma once

namespace stet {

STET_INL const char* kv_edit_name(KvEdit::What what) {
  static constexpr const char* kNames[] = {"key",      "value",  "kv type",
                                           "callback", "splice", "arrays"};
  return kNames[static_cast<int>(what)];
}

STET_INL void discard_edits(State& state, int64_t size) {
  std::erase_if(state.edits, [&](const KvEdit& e) {
    return (e.position >= size || size == 0) &&
           e.prunes == static_cast<int64_t>(state.prunes.size());
  });
  for (KvEdit& e : state.edits) {
    if (e.prunes != static_cast<int64_t>(state.prunes.size())) continue;
    e.at = std::min(e.at, size), e.end = std::min(e.end, size);
  }
}

namespace detail {

// Throws an argument Error for a layer or head that does not exist, or a layer without its own keys
// and values.
STET_INL void check_head(const KvShape& shape, int64_t layer, int64_t head) {
  check_index("layer", layer, shape.layers);
  check_owns(shape, "layer", layer);
  check_index("head", head, shape.layer(layer).kv_heads);
}

STET_INL void check_fits(const KvShape& shape, KvEdit::What what, std::span<const float> x) {
  if (shape.type != KvType::f16) return;
  for (const float& one : x) {
    if (!fits_f16({&one, 1}))
      throw Error(ErrorKind::argument, "", kv_edit_name(what),
                  "numbers below 65520 in magnitude for f16", std::to_string(one));
  }
}

STET_INL void check_edit(const State& state, const KvEdit& e, std::span<const float> x) {
  const KvShape& shape = state.kv.shape();
  check_head(shape, e.layer, e.head);
  check_index("position", e.position, state.size());
  if ((state.kv.visible(e.position / kBlockPositions) >> (e.position % kBlockPositions) & 1) == 0) {
    throw Error(ErrorKind::argument, "", "position", "one that is visible",
                std::to_string(e.position) + ", which was pruned");
  }
  const size_t dim = row_dim(shape, e.what == KvEdit::What::key, e.layer);
  if (x.size() != dim) {
    throw Error(ErrorKind::argument, "", kv_edit_name(e.what), std::to_string(dim) + " numbers",
                std::to_string(x.size()));
  }
  if (const std::optional<size_t> bad = find_not_finite(x)) {
    throw Error(ErrorKind::argument, "", kv_edit_name(e.what), "finite numbers",
                std::to_string(x[*bad]));
  }
  check_fits(state.kv.shape(), e.what, x);
}

STET_INL void edit(State& state, const KvEdit& e, std::span<const float> x) {
  check_edit(state, e, x);
  const FloatEnvironment contract;
  const KvShape& shape = state.kv.shape();
  const int64_t block = e.position / kBlockPositions, slot = e.position % kBlockPositions;
  state.edits.reserve(state.edits.size() + 1);
  KvWriter writer(state.kv);
  writer.own(block);
  keep_logits(state);
  const bool key = e.what == KvEdit::What::key;
  write_row(shape, key, x, writer.writable(block) + shape.offset(key, e.layer, e.head), slot);
  state.edits.push_back(e);
}

}  // namespace detail

STET_INL void set_key(State& state, int64_t layer, int64_t head, int64_t position,
                      std::span<const float> x) {
  KvEdit e = detail::entry(state, KvEdit::What::key);
  e.layer = layer, e.head = head, e.position = position;
  detail::edit(state, e, x);
}

STET_INL void set_value(State& state, int64_t layer, int64_t head, int64_t position,
                        std::span<const float> x) {
  KvEdit e = detail::entry(state, KvEdit::What::value);
  e.layer = layer, e.head = head, e.position = position;
  detail::edit(state, e, x);
}

STET_INL void set_array(State& state, int64_t layer, int64_t index, std::span<const float> x) {
  const RecurrentShape& shape = state.recurrent.shape();
  detail::check_index("layer", layer, std::ssize(shape.layers));
  detail::check_index("array", index, std::ssize(shape.layers[static_cast<size_t>(layer)]));
  if (state.size() == 0) throw Error(ErrorKind::argument, "", "tokens", "at least one", "none");
  const RecurrentArray& array =
      shape.layers[static_cast<size_t>(layer)][static_cast<size_t>(index)];
  if (x.size() != array.count())
    throw Error(ErrorKind::argument, "", array.name, std::to_string(array.count()) + " numbers",
                std::to_string(x.size()));
  if (const std::optional<size_t> bad = find_not_finite(x))
    throw Error(ErrorKind::argument, "", array.name, "finite numbers", std::to_string(x[*bad]));
  KvEdit e = detail::entry(state, KvEdit::What::arrays);
  e.layer = layer, e.head = index, e.position = state.size() - 1;
  state.edits.reserve(state.edits.size() + 1);
  auto changed = std::make_shared<RecurrentBuffer>(shape.bytes());
  copy_bytes(std::as_bytes(state.recurrent.numbers()), changed->memory.data());
  std::ranges::copy(x, changed->memory.as<float>() + array.offset);
  detail::keep_logits(state);
  // The arrays become an anchor, because the tokens do not give them.
  state.anchors.add({state.size(), changed, state.logits, false, false, true});
  state.recurrent.set(changed);
  state.edits.push_back(std::move(e));
}

namespace detail {

STET_INL std::vector<float> read_kv(const State& state, bool key, int64_t layer, int64_t head,
                                    int64_t position) {
  const KvShape& shape = state.kv.shape();
  check_head(shape, layer, head);
  check_index("position", position, state.size());
  std::vector<float> x(row_dim(shape, key, layer));
  read_row(shape, key, state.kv.block(position / kBlockPositions) + shape.offset(key, layer, head),
           position % kBlockPositions, x);
  return x;
}

// Converts the keys and values of a block to another type.
STET_INL void convert_block(const KvShape& from, const std::byte* in, const KvShape& to,
                            std::byte* out) {
  for (int64_t layer = 0; layer < from.layers; ++layer) {
    if (!from.owns(layer)) continue;
    for (int64_t head = 0; head < from.layer(layer).kv_heads; ++head) {
      for (const bool key : {true, false}) {
        std::vector<float> x(row_dim(from, key, layer));
        for (int64_t slot = 0; slot < kBlockPositions; ++slot) {
          read_row(from, key, in + from.offset(key, layer, head), slot, x);
          write_row(to, key, x, out + to.offset(key, layer, head), slot);
        }
      }
    }
  }
}

STET_INL KvCache whole_kv(const State& state, int64_t begin, int64_t end) {
  for (int64_t b = std::max<int64_t>(0, begin) / kBlockPositions; b < blocks_of(end); ++b) {
    if (state.kv.block_info(b).holds_all()) continue;
    if (state.whole_kv != nullptr) return (*state.whole_kv)(state, begin, end);
    throw Error(ErrorKind::argument, "", "KV block " + std::to_string(b),
                "keys and values of all layers (Session::state() of a restored session computes "
                "them again, and so does stet resume --replay)",
                "a block whose layers outside its window were dropped (--window-only)");
  }
  return KvCache(state.kv);
}

}  // namespace detail

STET_INL State with_kv_type(const State& state, KvType type, int64_t capacity) {
  const FloatEnvironment contract;
  const KvShape from = state.kv.shape();
  KvShape to = from;
  to.type = type;
  KvCache source = detail::whole_kv(state, 0, state.size());
  State changed = state;
  if (from.type != type && state.size() > 0 && from.block_bytes() > 0) {
    detail::keep_logits(changed);
    changed.edits.push_back(detail::entry(state, KvEdit::What::kv_type));
    changed.anchors.keep_by_content();  // keys and values of the other type gave them
  }
  changed.kv = KvCache(to, capacity == 0 ? state.kv.capacity() : capacity);
  KvWriter writer(changed.kv);
  writer.prepare(state.kv.size());
  for (int64_t b = 0; b < state.kv.blocks(); ++b) {
    KvWriter(source).load(b);
    detail::convert_block(from, source.block(b), to, writer.writable(b));
    writer.set_visible(b, state.kv.visible(b));
  }
  check_overflow(changed.kv, 0, state.kv.size());
  writer.commit(state.kv.size());
  return changed;
}

namespace detail {

// Returns true if an edit was made after the last token had been processed.
STET_INL bool is_later(const KvEdit& e, const State& state) {
  return std::pair(e.prunes, e.at) >
         std::pair(static_cast<int64_t>(state.prunes.size()), state.size() - 1);
}

STET_INL bool cache_gives_logits(const State& state) {
  return std::ranges::all_of(state.edits, [&](const KvEdit& e) {
    return e.what == KvEdit::What::splice ||
           (e.what != KvEdit::What::callback && !is_later(e, state));
  });
}

}  // namespace detail

STET_INL bool tokens_give_logits(const State& state) {
  if (state.edits.empty()) return true;
  return is_replayable(state.origin.contract) &&
         std::ranges::all_of(state.edits, [&](const KvEdit& e) {
           return detail::is_later(e, state) && e.what != KvEdit::What::kv_type &&
                  (e.what != KvEdit::What::splice || e.position >= state.size());
         });
}

}  // namespace stet

// Implements kv_range.hpp.
#pragma once

namespace stet {

namespace detail {

STET_INL void refuse_recurrent(const char* call, const State& state) {
  if (state.recurrent.empty()) return;
  throw Error(ErrorKind::unsupported, "", call,
              "states without recurrent layers, whose arrays depend on every token before",
              "a state with recurrent layers");
}

STET_INL std::vector<int64_t> check_some(const char* field, const std::vector<int64_t>& some,
                                         int64_t count) {
  std::vector<int64_t> all = some;
  for (int64_t i = 0; some.empty() && i < count; ++i) all.push_back(i);
  for (size_t i = 0; i < all.size(); ++i) {
    check_index(field, all[i], count);
    if (std::count(all.begin(), all.end(), all[i]) > 1)
      throw Error(ErrorKind::argument, "", field, "each once", std::to_string(all[i]) + " twice");
  }
  return all;
}

STET_INL KvRange checked_range(const State& state, KvRange r) {
  const KvShape& shape = state.kv.shape();
  if (r.layers.empty()) {
    for (int64_t l = 0; l < shape.layers; ++l) {
      if (shape.owns(l)) r.layers.push_back(l);
    }
    if (r.layers.empty())
      throw Error(ErrorKind::argument, "", "layers", "layers with keys and values",
                  "a model without any");
  }
  check_some("layers", r.layers, shape.layers);
  for (const int64_t l : r.layers) {
    check_owns(shape, "layers", l);
    check_some("heads", r.heads, shape.layer(l).kv_heads);
  }
  if (r.end == -1) r.end = state.size();
  if (r.begin < 0 || r.end <= r.begin || r.end > state.size())
    throw Error(ErrorKind::argument, "", "positions", some_positions(state.size()),
                range_text(r.begin, r.end));
  if (!r.keys && !r.values)
    throw Error(ErrorKind::argument, "", "range", "keys, values or both", "neither");
  return r;
}

}  // namespace detail

STET_INL void zero_kv(State& state, const KvRange& range) {
  detail::change_range(
      state, range, detail::entry(state, KvEdit::What::key),
      [](const KvEdit&, std::vector<float>& x) { std::fill(x.begin(), x.end(), 0.0f); });
}

STET_INL void scale_kv(State& state, const KvRange& range, float factor) {
  KvEdit log = detail::entry(state, KvEdit::What::key);
  log.how = KvEdit::How::scale;
  if (find_not_finite({&factor, 1}))
    throw Error(ErrorKind::argument, "", "factor", "a finite number", std::to_string(factor));
  detail::change_range(state, range, log, [&](const KvEdit&, std::vector<float>& x) {
    steer_scale(x.data(), factor, x.size());
  });
}

STET_INL void set_kv(State& state, const KvRange& range, std::span<const float> x) {
  const KvRange r = detail::checked_range(state, range);
  const KvShape& shape = state.kv.shape();
  const std::vector<int64_t> heads = detail::heads_of(shape, r, r.layers[0]);
  const size_t dim = detail::row_dim(shape, r.keys, r.layers[0]),
               all = static_cast<size_t>(r.end - r.begin) * heads.size() * dim;
  for (const int64_t l : r.layers) {
    const bool same = (!r.keys || detail::row_dim(shape, true, l) == dim) &&
                      (!r.values || detail::row_dim(shape, false, l) == dim) &&
                      detail::heads_of(shape, r, l) == heads;
    if (!same)
      throw Error(ErrorKind::argument, "", "layers",
                  "layers with heads of one shape, as layer " + std::to_string(r.layers[0]),
                  std::to_string(l));
  }
  if (x.size() != dim && x.size() != all)
    throw Error(ErrorKind::argument, "", "values",
                std::to_string(dim) + " numbers, or " + std::to_string(all),
                std::to_string(x.size()));
  detail::change_range(
      state, range, detail::entry(state, KvEdit::What::key),
      [&](const KvEdit& e, std::vector<float>& to) {
        const auto head = std::find(heads.begin(), heads.end(), e.head) - heads.begin();
        const size_t row = x.size() == dim
                               ? 0
                               : static_cast<size_t>(e.position - r.begin) * heads.size() +
                                     static_cast<size_t>(head);
        std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(row * dim), dim, to.begin());
      });
}

namespace detail {

STET_INL void check_same_model(const State& a, const State& b) {
  const auto text = [](const StateOrigin& o) {
    return o.model + " under " + o.contract + " version " + std::to_string(o.version);
  };
  if (!(a.origin == b.origin))
    throw Error(ErrorKind::mismatch, "", "model", text(a.origin), text(b.origin));
}

STET_INL void check_can_move(const ModelConfig& config, int64_t distance) {
  if (distance != 0 && config.ropes.empty())
    throw Error(ErrorKind::unsupported, "", "positions",
                "unchanged ones (keys of this model carry no rotary position)",
                "a move by " + std::to_string(distance));
}

}  // namespace detail

STET_INL void copy_kv(State& state, const ModelConfig& config, const KvRange& range,
                      const State& from, int64_t from_position) {
  detail::refuse_recurrent("copy_kv", state);
  const KvRange r = detail::checked_range(state, range);
  const int64_t away = from_position - r.begin, count = r.end - r.begin;
  detail::check_same_model(state, from);
  detail::check_can_move(config, away);
  if (count > from.size())
    throw Error(ErrorKind::argument, "", "range",
                "at most the " + std::to_string(from.size()) + " positions of the other session",
                std::to_string(count));
  if (from_position < 0 || from_position > from.size() - count)
    throw Error(ErrorKind::argument, "", "from position",
                "0.." + std::to_string(from.size() - count), std::to_string(from_position));
  std::vector<detail::Rotation> rotations;
  for (const Rope& rope : config.ropes) rotations.emplace_back(rope, config.rotated(rope), away);
  State source = from;  // with private blocks, which no other process can change
  KvWriter writer(source.kv);
  for (int64_t b = from_position / kBlockPositions; b < blocks_of(from_position + count); ++b)
    writer.own(b);
  KvEdit log = detail::entry(state, KvEdit::What::key);
  log.how = KvEdit::How::copy;
  log.source = sha256_text(state_id(from));
  detail::change_range(state, range, log, [&](const KvEdit& e, std::vector<float>& x) {
    const bool key = e.what == KvEdit::What::key;
    const int64_t position = e.position + away;
    if ((source.kv.visible(position / kBlockPositions) >> (position % kBlockPositions) & 1) == 0)
      throw Error(ErrorKind::argument, "", "from position", "positions that are visible",
                  std::to_string(position) + ", which was pruned");
    x = detail::read_kv(source, key, e.layer, e.head, position);
    const int rope = config.layer(e.layer).rope;
    if (!key || away == 0 || rope < 0) return;
    const detail::Rotation& turn = rotations[static_cast<size_t>(rope)];
    best_kernels().rope(x.data(), turn.cos.data(), turn.sin.data(), turn.cos.size());
  });
}

}  // namespace stet

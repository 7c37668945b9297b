// Interventions: changes of activations that are declared in a state and are part of it.
#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/kernels/steer.hpp"
#include "stet/session/state.hpp"

namespace stet {

const char* intervention_op_name(Intervention::Op op);  // "set", "add", "scale", "project_out", ...

// Throws an argument Error if models of this family cannot have the intervention.
void check_intervention(const ModelConfig& config, const Intervention& w);
// Attaches an intervention at the current position; see Session::attach.
void attach(State& state, const ModelConfig& config, Intervention w);
// Ends intervention `index` at position `from`, as if attached with that end: it changes nothing
// from there on. Removes it if it has changed nothing until then. Throws an argument Error for an
// invalid index or position.
void detach(State& state, const ModelConfig& config, size_t index, int64_t from);
// Removes interventions that were attached after position `size`, as a rewind does.
void discard_interventions(State& state, int64_t size);
// Throws an argument Error if an intervention that is still in force names positions that a shift
// would renumber.
void check_shift_allowed(const State& state);

// The positions [from, end) to which an intervention applies from now on; end -1: unbounded. After
// a shift, original position numbers are no longer valid. An open intervention was already in force
// and applies to all further positions; the others had ended (check_shift_allowed).
struct Reach {
  int64_t from, end;
};
inline Reach reach_of(const std::vector<Prune>& prunes, const Intervention& w) {
  const auto moved_since = [&](int64_t count) {
    const auto later = prunes.begin() + std::min<std::ptrdiff_t>(count, std::ssize(prunes));
    return std::any_of(later, prunes.end(), [](const Prune& p) { return p.shift; });
  };
  const bool moved = moved_since(w.prunes);
  const int64_t from = moved ? 0 : std::max(w.begin, w.at);
  if (w.end < 0 || std::ssize(prunes) < w.ended) return {from, -1};
  return {from, moved_since(std::max(w.prunes, w.ended)) ? 0 : w.end};
}

inline Reach reach_of(const State& state, const Intervention& w) {
  return reach_of(state.prunes, w);
}

inline const char* intervention_op_name(Intervention::Op op) {
  static constexpr const char* kNames[] = {"set", "add", "scale", "project_out", "clamp"};
  return kNames[static_cast<int>(op)];
}

namespace detail {

[[noreturn]] inline void refuse_intervention(const char* field, const std::string& expected,
                                             const std::string& found) {
  throw Error(ErrorKind::argument, "", std::string("intervention: ") + field, expected, found);
}

inline void check_indices(const char* field, const std::vector<int64_t>& all, int64_t count) {
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] < 0 || all[i] >= count)
      refuse_intervention(field, "0.." + std::to_string(count - 1), std::to_string(all[i]));
    if (std::find(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i), all[i]) !=
        all.begin() + static_cast<std::ptrdiff_t>(i))
      refuse_intervention(field, "each once", std::to_string(all[i]) + " twice");
  }
}

// Returns the intervention's point in its first layer that has it.
inline PointAt first_point(const ModelConfig& c, const Intervention& w) {
  PointAt at{w.point, w.layers.empty() ? 0 : w.layers.front()};
  while (w.layers.empty() && !has_point(c, at)) ++at.layer;
  return at;
}

// Throws unless a snapshot can hold the range.
inline void check_range(const char* field, int64_t begin, int64_t end) {
  if (begin >= 0 && begin <= kMaxPositions && end >= -1 && end <= kMaxPositions) return;
  refuse_intervention(field, "positions in " + range_text(0, kMaxPositions),
                      range_text(begin, end));
}

// Throws unless all of the intervention's layers have its point, in one width.
inline void check_layers(const ModelConfig& c, const Intervention& w) {
  check_indices("layers", w.layers, c.layers);
  if (!point_info(w.point).of_layer) return;
  const PointAt first = first_point(c, w);
  for (int64_t l = 0; l < c.layers; ++l) {
    const PointAt at{w.point, l};
    const bool named = std::ranges::find(w.layers, l) != w.layers.end();
    if (named && !has_point(c, at)) {
      if (is_of_recurrence(w.point))
        refuse_intervention("layers", "recurrent layers",
                            std::to_string(l) + ", which has attention");
      if (c.layer(l).recurrent)
        refuse_intervention("layers", "layers with attention",
                            std::to_string(l) + ", which is recurrent");
      refuse_intervention(
          "layers", "layers with keys and values of their own",
          std::to_string(l) + ", which reads those of layer " + std::to_string(c.layer(l).owner));
    }
    if ((!named && !w.layers.empty()) || !has_point(c, at)) continue;
    if (w.op == Intervention::Op::scale && w.heads.empty()) continue;
    if (point_width(c, at, 1) != point_width(c, first, 1) ||
        point_heads(c, at) != point_heads(c, first))
      refuse_intervention(
          "layers",
          "layers of one width, as " + std::to_string(point_width(c, first, 1)) +
              " numbers of layer " + std::to_string(first.layer),
          "layer " + std::to_string(l) + " of " + std::to_string(point_width(c, at, 1)));
  }
}

// Returns the number of values that an intervention needs.
inline size_t values_of(const ModelConfig& c, const Intervention& w, size_t found) {
  if (is_attention(w.point)) {
    const auto keys = static_cast<size_t>(std::max<int64_t>(0, w.key_end - w.key_begin));
    return w.op == Intervention::Op::scale ? 0 : found == keys ? std::max<size_t>(1, keys) : 1;
  }
  const PointAt at = first_point(c, w);
  const auto width =
      static_cast<size_t>(point_width(c, at, 0) / (w.heads.empty() ? 1 : point_heads(c, at)));
  if (w.op == Intervention::Op::scale) return 0;
  if (w.op == Intervention::Op::clamp) return 2 * width;
  const bool open = w.end < 0 || w.ended >= 0;
  const size_t each = open ? width : static_cast<size_t>(w.end - w.begin) * width;
  return w.op == Intervention::Op::set && found == each ? each : width;
}

// Checks the key positions and the operation of interventions on scores and patterns.
inline void check_keys(const Intervention& w) {
  const std::string found = range_text(w.key_begin, w.key_end);
  if (!is_attention(w.point)) {
    if (w.key_begin != 0 || w.key_end != -1)
      refuse_intervention("keys", "none: the point is neither scores nor a pattern", found);
    return;
  }
  check_range("keys", w.key_begin, w.key_end);
  if (w.key_end != -1 && w.key_end <= w.key_begin)
    refuse_intervention("keys", "positions from 0 on", found);
  if (w.op != Intervention::Op::set && w.op != Intervention::Op::add &&
      w.op != Intervention::Op::scale)
    refuse_intervention("op", "set, add or scale of scores and patterns",
                        intervention_op_name(w.op));
}

// Throws if a product of the values alone overflows: with the amount or, for project_out, with
// themselves. Such a change would write NaN or infinity, whatever the activations are.
inline void check_products(const Intervention& w, std::span<const float> values) {
  using Op = Intervention::Op;
  if (w.op == Op::clamp) values = values.subspan(values.size() / 2);  // the decoder
  if ((w.op == Op::add || w.op == Op::clamp) &&
      !steer_products_finite(values.data(), w.amount, values.size()))
    refuse_intervention("values", "numbers whose products with the amount are finite in float32",
                        "a product that is not");
  if (w.op == Op::project_out && !steer_length_finite(values.data(), values.size()))
    refuse_intervention("values", "numbers whose squares have a finite sum in float32",
                        "an infinite sum");
}

}  // namespace detail

inline void check_intervention(const ModelConfig& config, const Intervention& w) {
  using detail::refuse_intervention;
  const PointInfo& info = point_info(w.point);
  if (!info.changes && !is_attention(w.point) && w.point != Point::state)
    refuse_intervention("point", "one that can be changed", info.name);
  if (!has_point(config, w.point))
    refuse_intervention("point", "one of family " + config.family, info.name);
  if (!info.of_layer && !w.layers.empty())
    refuse_intervention("layers", "none: the point has no layer", std::to_string(w.layers.front()));
  detail::check_layers(config, w);
  if (w.point == Point::state && w.op != Intervention::Op::set && w.op != Intervention::Op::scale)
    refuse_intervention("op", "set or scale of hook_state", intervention_op_name(w.op));
  const int64_t heads = point_heads(config, detail::first_point(config, w));
  if (heads == 0 && !w.heads.empty())
    refuse_intervention("heads", "none: the point has no heads", std::to_string(w.heads.front()));
  detail::check_indices("heads", w.heads, heads);
  detail::check_range("positions", w.begin, w.end);
  if (w.end >= 0 && w.ended < 0 && w.end <= w.begin)
    refuse_intervention("positions", "positions from 0 on", range_text(w.begin, w.end));
  detail::check_keys(w);
  const std::span<const float> values =
      w.values ? std::span<const float>(*w.values) : std::span<const float>();
  const size_t expected = detail::values_of(config, w, values.size());
  if (values.size() != expected)
    refuse_intervention("values", std::to_string(expected) + " numbers",
                        std::to_string(values.size()));
  const float scalars[] = {w.amount, w.bias, w.threshold};
  const bool unseen = w.point == Point::scores && w.op == Intervention::Op::set;
  if ((unseen ? std::any_of(values.begin(), values.end(),
                            [](float x) { return !(x < std::numeric_limits<float>::infinity()); })
              : find_not_finite(values).has_value()) ||
      find_not_finite(scalars))
    refuse_intervention("values", "finite numbers", "NaN or infinity");
  detail::check_products(w, values);
}

inline void attach(State& state, const ModelConfig& config, Intervention w) {
  check_intervention(config, w);
  w.at = state.size();
  w.prunes = static_cast<int64_t>(state.prunes.size());
  if (w.end >= 0 && w.end <= w.at && w.ended < 0)
    detail::refuse_intervention("positions", "positions from " + std::to_string(w.at) + " on",
                                range_text(w.begin, w.end));
  state.interventions.push_back(std::move(w));
}

inline void detach(State& state, const ModelConfig& config, size_t index, int64_t from) {
  if (index >= state.interventions.size())
    detail::refuse_intervention("index", "one below " + std::to_string(state.interventions.size()),
                                std::to_string(index));
  if (from < state.size() || from > kMaxPositions)
    detail::refuse_intervention("position",
                                std::to_string(state.size()) + ".." + std::to_string(kMaxPositions),
                                std::to_string(from));
  const Intervention& w = state.interventions[index];
  const Reach reach = reach_of(state, w);
  if (reach.end >= 0 && reach.end <= from) return;  // it has already ended
  const bool moved = std::any_of(state.prunes.begin() + w.prunes, state.prunes.end(),
                                 [](const Prune& p) { return p.shift; });
  if (!moved && from <= reach.from) {
    state.interventions.erase(state.interventions.begin() + static_cast<std::ptrdiff_t>(index));
    return;
  }
  Intervention shorter = w;
  shorter.end = from;
  if (moved) shorter.ended = std::ssize(state.prunes);
  const size_t each = detail::values_of(config, w, 0);  // of one row
  if (!is_attention(w.point) && w.op == Intervention::Op::set && w.values->size() > each) {
    const auto rows = static_cast<size_t>(from - w.begin);
    shorter.values = std::make_shared<const std::vector<float>>(
        w.values->begin(), w.values->begin() + static_cast<std::ptrdiff_t>(rows * each));
  }
  state.interventions[index] = std::move(shorter);
}

inline void discard_interventions(State& state, int64_t size) {
  std::erase_if(state.interventions, [&](const Intervention& w) {
    return w.prunes == static_cast<int64_t>(state.prunes.size()) && w.at > size;
  });
}

inline void check_shift_allowed(const State& state) {
  for (const Intervention& w : state.interventions) {
    if ((w.key_begin != 0 || w.key_end >= 0) && (w.end < 0 || w.end > state.size()))
      throw Error(ErrorKind::argument, "", "prune",
                  "no shift while an intervention names key positions",
                  range_text(w.key_begin, w.key_end));
    if (w.end >= 0 ? w.end > state.size() : w.begin > state.size())
      throw Error(ErrorKind::argument, "", "prune",
                  "no shift while an intervention names later positions",
                  range_text(w.begin, w.end));
  }
}

}  // namespace stet

// The building blocks of recurrent layers: causal convolutions, the gated delta rule and Mamba-2.
// Each computes token by token, so that no result depends on how tokens were divided into passes.
//
// A span's arrays before its first token and after its last are separate buffers. One thread
// computes all tokens of a head, or of a range of channels, from the one to the other. Drafted
// tokens come last. Their inputs are recorded, and the state after them is computed in scratch.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "stet/base/limits.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/layer.hpp"
#include "stet/model/recurrent_inputs.hpp"
#include "stet/model/weight_loader.hpp"

namespace stet {

// Offsets, in numbers, of a layer's arrays among those of all layers (RecurrentShape).
struct RecurrentOffsets {
  RecurrentOffsets() = default;
  RecurrentOffsets(const ModelConfig& c, int64_t layer);
  explicit RecurrentOffsets(const std::vector<RecurrentArray>& arrays);

  size_t state = 0, conv = 0;
};

// A depthwise causal convolution.
struct Convolution {
  Vector weight;  // [taps][channels], the oldest input's first
  Vector bias;    // [channels], or empty
};
// Loads NAME.weight [channels taps] and, if the recurrence has them, NAME.bias [channels].
Convolution load_convolution(WeightLoader& w, const std::string& name, const Recurrence& r);

// The numbers of each head that a gated delta rule or Mamba-2 reads.
struct StateGates {
  Vector a;        // [heads]: -exp(A_log)
  Vector dt_bias;  // [heads]
};

// The inputs of a recurrence over a pass: columns of the rows. q, k and v have one stride, and so
// have decay and rate.
struct StateInputs {
  Rows q, k;           // [groups][key_dim]; Mamba-2 calls them C and B
  Rows v;              // [heads][value_dim]
  Rows decay, rate;    // [heads]
  Rows out;            // [heads][value_dim]
  const Vector* skip;  // [heads], of Mamba-2; otherwise null
};

// Replaces each row of x by the convolution of it and the rows before it, followed by SiLU if
// `activate`. Writes the last inputs to the layer's array "conv". Runs the hooks of Point::conv.
void convolve(const LayerPass& at, const Convolution& c, const RecurrentOffsets& arrays, Rows x,
              bool activate);
// y = a x, element by element.
void multiply(Team t, const Pass& p, Rows a, Rows x, Rows y);
// Applies the limits of Mamba's time step.
void limit_steps(const Recurrence& r, std::span<float> steps);
// Divides each head of x by its length and multiplies it by `factor`.
void l2_norm_heads(const LayerPass& at, size_t dim, float factor, Rows x);
// Computes the outputs of all tokens, head by head, and the layer's array "state". Then calls
// finish(row, head, out) for each, on the thread that computed it. Runs the hooks of Point::beta,
// decay and state.
template <class Finish>
void update_states(const LayerPass& at, const RecurrentOffsets& arrays, const StateInputs& in,
                   Finish finish);
// Runs the recurrence of all layers for recorded rows begin .. end-1: computes the arrays after them
// in `to` from those before them in `from`, another buffer. The bits are those of a pass.
void advance_arrays(Team t, const Kernels& kernels, const Recurrence& r,
                    const RecurrentShape& shape, RecurrentInputs& inputs, Range rows,
                    const float* from, float* to);

inline RecurrentOffsets::RecurrentOffsets(const std::vector<RecurrentArray>& arrays) {
  for (const RecurrentArray& a : arrays) (a.name == "state" ? state : conv) = a.offset;
}
inline RecurrentOffsets::RecurrentOffsets(const ModelConfig& c, int64_t layer)
    : RecurrentOffsets(recurrent_shape(c).layers[static_cast<size_t>(layer)]) {}

inline Convolution load_convolution(WeightLoader& w, const std::string& name, const Recurrence& r) {
  const auto channels = static_cast<size_t>(r.channels), taps = static_cast<size_t>(r.taps);
  const Vector stored = w.vector("attention", name + ".weight", r.channels * r.taps);
  Convolution c;
  c.weight.resize(stored.size());
  for (size_t i = 0; i < channels; ++i) {
    for (size_t t = 0; t < taps; ++t) c.weight[t * channels + i] = stored[i * taps + t];
  }
  if (r.conv_bias) c.bias = w.vector("attention", name + ".bias", r.channels);
  return c;
}

namespace detail {

constexpr size_t kConvChannels = 256;  // channels that a thread convolves at a time

// Convolves channels [begin, begin + n) of one span in place. Overwrites the last row first and the
// first row last, so that each row still finds the inputs before it.
inline void convolve_span(const Pass& p, size_t layer, const Span& span, const Convolution& c,
                          size_t offset, Rows x, bool activate, size_t begin, size_t n) {
  const size_t channels = x.width, past = c.weight.size() / channels - 1;
  const float* const before = span.recurrent_before + offset + begin;
  const auto input = [&](size_t i) -> const float* {
    return i < past ? before + i * channels : x.row(span.row + i - past) + begin;
  };
  for (size_t i = 0; i < past; ++i)
    std::memcpy(span.recurrent_after + offset + begin + i * channels, input(span.kept() + i),
                n * sizeof(float));
  for (size_t i = 0; i < span.drafted; ++i)
    std::memcpy(span.inputs->row(layer, i).conv + begin, input(past + span.kept() + i),
                n * sizeof(float));
  if (span.drafted > 0 && begin == 0) span.inputs->recorded_conv(layer);
  const float* inputs[kMaxTaps];
  for (size_t row = span.count; row-- > 0;) {
    for (size_t i = 0; i <= past; ++i) inputs[i] = input(row + i);
    float* const y = x.row(span.row + row) + begin;
    p.kernels->convolve(inputs, c.weight.data() + begin, channels,
                        c.bias.empty() ? nullptr : c.bias.data() + begin, past + 1, y, n);
    if (activate) p.kernels->silu(y, y, n);
  }
}

}  // namespace detail

inline void convolve(const LayerPass& at, const Convolution& c, const RecurrentOffsets& arrays,
                     Rows x, bool activate) {
  const Pass& p = at.p;
  const size_t parts = (x.width + detail::kConvChannels - 1) / detail::kConvChannels;
  at.t.each(p.spans.size() * parts, [&](size_t i) {
    const size_t begin = i % parts * detail::kConvChannels;
    detail::convolve_span(p, at.index, p.spans[i / parts], c, arrays.conv, x, activate, begin,
                          std::min(detail::kConvChannels, x.width - begin));
  });
  point(at.t, p, Point::conv, at.index, x);
}

inline void multiply(Team t, const Pass& p, Rows a, Rows x, Rows y) {
  detail::each_part(t, y, [&](size_t r, size_t begin, size_t n) {
    p.kernels->multiply(x.row(r) + begin, a.row(r) + begin, y.row(r) + begin, n);
  });
}

inline void limit_steps(const Recurrence& r, std::span<float> steps) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  limit(steps, static_cast<float>(r.least_step),
        r.most_step > 0 ? static_cast<float>(r.most_step) : kInfinity);
}

inline void l2_norm_heads(const LayerPass& at, size_t dim, float factor, Rows x) {
  constexpr float kEps = 1e-6f;
  const size_t heads = x.width / dim;
  detail::each_row(at.t, x.count * heads, [&](size_t i) {
    float* const head = x.row(i / heads) + i % heads * dim;
    at.p.kernels->l2_norm(head, kEps, factor, head, dim);
  });
}

namespace detail {

// Returns tokens [begin, begin + count) of `all`. `from` is the state before the first of them.
inline StateTokens some_tokens(const StateTokens& all, size_t begin, size_t count,
                               const float* from) {
  StateTokens some = all;
  some.from = from;
  some.rows = count;
  some.q += begin * all.stride;
  some.k += begin * all.stride;
  some.v += begin * all.stride;
  some.decay += begin * all.factor_stride;
  some.rate += begin * all.factor_stride;
  some.out += begin * all.out_stride;
  return some;
}

// Computes the output of a token again, from the state in `to`, which an intervention has changed.
// With these factors, the update keeps every number of the state but may turn -0 to +0, so it
// writes to `scratch`. The output does not depend on the sign of a zero in the state.
inline void read_again(void (*update)(const StateTokens&), StateTokens token, float* scratch) {
  static constexpr float kKeep = 1, kNothing = 0;
  token.from = token.to;
  token.to = scratch;
  token.decay = &kKeep;
  token.rate = &kNothing;
  update(token);
}

// Computes the tokens of a head whose state hooks read or change after some tokens.
inline void update_hooked_state(const LayerPass& at, const StateTokens& all, size_t row,
                                size_t head, void (*update)(const StateTokens&)) {
  const Hooks& hooks = *at.p.hooks;
  const HeadState state{all.to, head, all.key_dim, all.value_dim,
                        at.config.recurrence.kind == Recurrence::Kind::mamba2};
  const float* from = all.from;
  for (size_t begin = 0, end = 0; begin < all.rows; begin = end, from = all.to) {
    bool hooked = false;
    while (end < all.rows && !hooked) hooked = hooks.wants_state(at.index, row + end++, head);
    update(some_tokens(all, begin, end - begin, from));
    if (hooked && hooks.visit_state(at.index, row + end - 1, state))
      read_again(update, some_tokens(all, end - 1, 1, all.to), hooks.state_scratch(row, head));
  }
}

// Computes the tokens of a head, of which the last are drafted, and records these. `group` is the
// head's group if the head is its first, otherwise -1. `scratch` has room for a state.
inline void update_drafted_state(const StateTokens& all, const Span& span, size_t layer,
                                 size_t head, int64_t group, void (*update)(const StateTokens&),
                                 float* scratch) {
  update(some_tokens(all, 0, span.kept(), all.from));
  StateTokens drafted = some_tokens(all, span.kept(), span.drafted, all.to);
  drafted.to = scratch;
  update(drafted);
  for (size_t i = 0; i < span.drafted; ++i) {
    const RecurrentInputs::Row row = span.inputs->row(layer, i);
    if (group >= 0)
      std::copy_n(drafted.k + i * all.stride, all.key_dim,
                  row.k + static_cast<size_t>(group) * all.key_dim);
    std::copy_n(drafted.v + i * all.stride, all.value_dim, row.v + head * all.value_dim);
    row.decay[head] = drafted.decay[i * all.factor_stride];
    row.rate[head] = drafted.rate[i * all.factor_stride];
  }
  if (head == 0) span.inputs->recorded_state(layer);
}

inline auto update_of(const Kernels& k, const Recurrence& r) {
  return r.kind == Recurrence::Kind::delta_net ? k.delta_rule : k.mamba2;
}

}  // namespace detail

template <class Finish>
void update_states(const LayerPass& at, const RecurrentOffsets& arrays, const StateInputs& in,
                   Finish finish) {
  const Pass& p = at.p;
  point(at.t, p, Point::beta, at.index, in.rate);
  point(at.t, p, Point::decay, at.index, in.decay);
  const bool hooked = p.hooks != nullptr && p.hooks->wants(Point::state, at.index);
  const Recurrence& r = at.config.recurrence;
  const auto heads = static_cast<size_t>(r.heads), groups = static_cast<size_t>(r.groups),
             key_dim = static_cast<size_t>(r.key_dim), value_dim = static_cast<size_t>(r.value_dim);
  at.t.each(p.spans.size() * heads, [&](size_t i) {
    const Span& span = p.spans[i / heads];
    const size_t head = i % heads, group = head / (heads / groups),
                 offset = arrays.state + head * key_dim * value_dim;
    StateTokens tokens = {};
    tokens.from = span.recurrent_before + offset;
    tokens.to = span.recurrent_after + offset;
    tokens.key_dim = key_dim;
    tokens.value_dim = value_dim;
    tokens.rows = span.count;
    tokens.q = in.q.row(span.row) + group * key_dim;
    tokens.k = in.k.row(span.row) + group * key_dim;
    tokens.v = in.v.row(span.row) + head * value_dim;
    tokens.stride = in.v.stride;
    tokens.decay = in.decay.row(span.row) + head;
    tokens.rate = in.rate.row(span.row) + head;
    tokens.factor_stride = in.decay.stride;
    tokens.out = in.out.row(span.row) + head * value_dim;
    tokens.out_stride = in.out.stride;
    tokens.skip = in.skip == nullptr ? 0 : (*in.skip)[head];
    const auto update = detail::update_of(*p.kernels, r);
    if (span.drafted > 0)
      detail::update_drafted_state(tokens, span, at.index, head,
                                   head % (heads / groups) == 0 ? static_cast<int64_t>(group) : -1,
                                   update,
                                   p.scratch->local[static_cast<size_t>(at.t.rank)].as<float>());
    else if (hooked)
      detail::update_hooked_state(at, tokens, span.row, head, update);
    else
      update(tokens);
    for (size_t row = span.row; row < span.row + span.count; ++row)
      finish(row, head, in.out.row(row) + head * value_dim);
  });
}

namespace detail {

// Moves a layer's last convolution inputs on by some recorded rows.
inline void advance_conv(const Recurrence& r, RecurrentInputs& inputs, size_t layer, Range rows,
                         const float* from, float* to) {
  const auto channels = static_cast<size_t>(r.channels), past = static_cast<size_t>(r.taps) - 1;
  for (size_t i = 0; i < past; ++i) {
    const size_t at = i + rows.size();
    std::copy_n(at < past ? from + at * channels : inputs.row(layer, rows.begin + at - past).conv,
                channels, to + i * channels);
  }
}

// Updates the state of a head by some recorded rows.
inline void advance_state(const Kernels& kernels, const Recurrence& r, RecurrentInputs& inputs,
                          size_t layer, Range rows, size_t head, const float* from, float* to) {
  const auto key_dim = static_cast<size_t>(r.key_dim), value_dim = static_cast<size_t>(r.value_dim),
             group = head / static_cast<size_t>(r.heads / r.groups);
  const RecurrentInputs::Row row = inputs.row(layer, rows.begin);
  StateTokens tokens = {};
  tokens.from = from;
  tokens.to = to;
  tokens.key_dim = key_dim;
  tokens.value_dim = value_dim;
  tokens.rows = rows.size();
  tokens.q = tokens.k = row.k + group * key_dim;
  tokens.v = row.v + head * value_dim;
  tokens.stride = tokens.factor_stride = tokens.out_stride = row.next;
  tokens.decay = row.decay + head;
  tokens.rate = row.rate + head;
  tokens.out = row.out + head * value_dim;
  update_of(kernels, r)(tokens);
}

}  // namespace detail

inline void advance_arrays(Team t, const Kernels& kernels, const Recurrence& r,
                           const RecurrentShape& shape, RecurrentInputs& inputs, Range rows,
                           const float* from, float* to) {
  const auto heads = static_cast<size_t>(r.heads), parts = heads + 1;
  t.each(shape.layers.size() * parts, [&](size_t i) {
    const size_t layer = i / parts, part = i % parts;
    if (shape.layers[layer].empty()) return;
    const RecurrentOffsets at(shape.layers[layer]);
    if (part == heads)
      return detail::advance_conv(r, inputs, layer, rows, from + at.conv, to + at.conv);
    const size_t state = at.state + part * static_cast<size_t>(r.key_dim * r.value_dim);
    detail::advance_state(kernels, r, inputs, layer, rows, part, from + state, to + state);
  });
}

}  // namespace stet

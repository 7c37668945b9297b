// Hooks of a forward pass: interventions, callbacks, and captured copies of activations.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/kernels/steer.hpp"
#include "stet/model/pass.hpp"
#include "stet/model/points.hpp"
#include "stet/threads/team.hpp"

namespace stet {

// A declared change of activations, which is part of the state (State::interventions). It applies
// to positions processed after it was attached.
struct Intervention {
  enum class Op : uint8_t {
    set,          // x = values
    add,          // x += amount values
    scale,        // x *= amount
    project_out,  // x minus its projection onto values
    clamp,        // sets a feature of a sparse autoencoder to amount; values are its encoder's
                  // column, then its decoder's
  };
  Point point = Point::resid_post;
  std::vector<int64_t> layers;  // empty: all
  std::vector<int64_t> heads;   // empty: all columns
  int64_t begin = 0, end = -1;  // positions; end -1: unbounded
  // Scores and patterns are changed at these key positions alone; key_end -1: unbounded.
  int64_t key_begin = 0, key_end = -1;
  Op op = Op::add;
  float amount = 1, bias = 0, threshold = 0;  // bias and threshold: for clamp
  // [width], or [positions][width] for `set`; width is that of the point or of one head. Empty for
  // scale. Forks share it.
  //
  // Scores and patterns accept set, add and scale: one number, or one per key position. A score may
  // be set to -inf, which hides the position.
  std::shared_ptr<const std::vector<float>> values;
  // Set by attach(): the number of positions and prunes at that time.
  int64_t at = 0, prunes = 0;
  // If positions moved between attach() and detach(), detach() sets this to the number of prunes so
  // far. `end` then counts positions after those prunes, and for states with fewer prunes the
  // intervention has no end. -1: `end` counts positions as `begin` does.
  int64_t ended = -1;

  bool operator==(const Intervention& o) const {
    const auto same = [](const auto& a, const auto& b) {
      return a == b || (a && b && a->size() == b->size() &&
                        std::memcmp(a->data(), b->data(), a->size() * sizeof(float)) == 0);
    };
    return std::tie(point, layers, heads, begin, end, key_begin, key_end, op, amount, bias,
                    threshold, at, prunes, ended) ==
               std::tie(o.point, o.layers, o.heads, o.begin, o.end, o.key_begin, o.key_end, o.op,
                        o.amount, o.bias, o.threshold, o.at, o.prunes, o.ended) &&
           same(values, o.values);
  }
};

// A function of the program that changes activations. Every pass calls `change` at each of `points`
// with the rows of consecutive positions from `first` on; it may write to them and may throw.
//
// Calls do not overlap, and any of the computing threads may make them. If a mapped file changes
// during a pass, the pass restarts and the call repeats for the same rows. No file records the
// effect, so an affected state is marked (KvEdit::What::callback) and cannot be recomputed.
struct Callback {
  std::vector<PointAt> points;  // each once; only points that can be changed
  std::function<void(const PointAt& at, int64_t first, Rows rows)> change;
};

// The state of one head after a token, [rows][columns]. Interventions and captures have it
// transposed if `transposed` (PublishedArray).
struct HeadState {
  float* numbers;
  size_t head, rows, columns;
  bool transposed;

  size_t count() const { return rows * columns; }
  // set() copies `published` to the state; copy_to() copies the state to `published`. If transposed,
  // `published` is [columns][rows].
  void set(const float* published) const {
    if (!transposed) return void(std::memcpy(numbers, published, count() * sizeof(float)));
    for (size_t i = 0; i < count(); ++i) numbers[i] = published[i % columns * rows + i / columns];
  }
  void copy_to(float* published) const {
    if (!transposed) return void(std::memcpy(published, numbers, count() * sizeof(float)));
    for (size_t i = 0; i < count(); ++i) published[i % columns * rows + i / columns] = numbers[i];
  }
};

// The hooks of one pass. All threads of its team call them. They do not allocate.
class Hooks {
 public:
  // Rows [row, row + count) of the pass hold positions from `first` on of a state with this
  // intervention. It applies to positions [from, end) there; end -1 is unbounded.
  struct Change {
    const Intervention* what;
    size_t row, count;
    int64_t first, from, end;
  };

  explicit Hooks(const ModelConfig& config)
      : config_(&config), slots_(static_cast<size_t>(config.layers) * kPoints) {}

  void change(const Change& change) {
    if (change.what->point == Point::state) allocate_state(change.row);
    const int64_t layers = point_info(change.what->point).of_layer ? config_->layers : 1;
    for (int64_t l = 0; l < layers; ++l) {
      const auto& chosen = change.what->layers;
      if (chosen.empty() || std::find(chosen.begin(), chosen.end(), l) != chosen.end())
        slot(change.what->point, static_cast<size_t>(l)).changes.push_back(change);
    }
  }
  // Calls `what` for rows [row, row + count) of the pass, which hold positions from `first` on.
  void call(const Callback& what, size_t row, size_t count, int64_t first) {
    for (const PointAt& at : what.points)
      slot(at.point, static_cast<size_t>(at.layer)).calls.push_back({&what, at, row, count, first});
  }
  // Copies to `to` when the pass reaches the point: as many rows of the pass as `to` has, beginning
  // with `row`.
  void copy(const PointAt& at, size_t row, Rows to) {
    slot(at.point, static_cast<size_t>(at.layer)).copies.push_back({row, to});
  }

  // Copies the states of all heads after the token of row `row` to `to`, [heads][...].
  void copy_states(size_t layer, size_t row, float* to) {
    slot(Point::state, layer).states.push_back({row, to});
  }

  bool wants(Point point, size_t layer) const {
    const Slot& s = slots_[layer * kPoints + static_cast<size_t>(point)];
    return !s.changes.empty() || !s.calls.empty() || !s.copies.empty() || !s.states.empty();
  }
  // Returns true if visit_state() does anything for a head after the token of a row.
  bool wants_state(size_t layer, size_t row, size_t head) const {
    const Slot& s = slots_[layer * kPoints + static_cast<size_t>(Point::state)];
    return std::ranges::any_of(s.states, [&](const StateCopy& c) { return c.row == row; }) ||
           std::ranges::any_of(s.changes,
                               [&](const Change& c) { return changes_state(c, row, head); });
  }
  // Runs interventions and copies on a head's state after the token of a row. Returns true if an
  // intervention applies.
  bool visit_state(size_t layer, size_t row, const HeadState& state) const {
    const Slot& s = slots_[layer * kPoints + static_cast<size_t>(Point::state)];
    bool changed = false;
    for (const Change& c : s.changes) {
      if (!changes_state(c, row, state.head)) continue;
      change_state(*c.what, c.first + static_cast<int64_t>(row - c.row), state);
      changed = true;
    }
    for (const StateCopy& c : s.states) {
      if (c.row == row) state.copy_to(c.to + state.head * state.count());
    }
    return changed;
  }
  // Returns true if visit() may change x.
  bool may_change(Point point, size_t layer) const {
    const Slot& s = slots_[layer * kPoints + static_cast<size_t>(point)];
    return !s.changes.empty() || !s.calls.empty();
  }
  // Returns true if visit() may change one head's columns.
  bool may_change(Point point, size_t layer, int64_t head) const {
    const Slot& s = slots_[layer * kPoints + static_cast<size_t>(point)];
    return !s.calls.empty() || std::ranges::any_of(s.changes, [&](const Change& c) {
      const std::vector<int64_t>& heads = c.what->heads;
      return heads.empty() || std::ranges::find(heads, head) != heads.end();
    });
  }
  // Runs changes, callbacks and copies on x, which holds the rows of the pass from `begin` on.
  void visit(Team t, Point point, size_t layer, Rows x, size_t begin = 0) const {
    const Slot& s = slots_[layer * kPoints + static_cast<size_t>(point)];
    visit_changes(t, point, layer, x, begin);
    for (const Call& c : s.calls) {
      const Range some = common(c.row, c.count, x, begin);
      if (some.size() > 0)
        t.each(1, [&](size_t) {
          run(c, c.first + static_cast<int64_t>(some.begin),
              x.rows(c.row + some.begin - begin, some.size()));
        });
    }
    for (const Copy& c : s.copies) {
      each_common(t, c.row, c.to.count, x, begin, [&](size_t i, float* row) {
        std::memcpy(c.to.row(i), row, x.width * sizeof(float));
      });
    }
  }
  // Runs the interventions only.
  void visit_changes(Team t, Point point, size_t layer, Rows x, size_t begin) const {
    const int64_t heads = point_heads(*config_, {point, static_cast<int64_t>(layer)});
    for (const Change& c : slots_[layer * kPoints + static_cast<size_t>(point)].changes) {
      each_common(t, c.row, c.count, x, begin, [&](size_t i, float* row) {
        apply(c, c.first + static_cast<int64_t>(i), heads, row, x.width);
      });
    }
  }
  // Returns memory for the state of a head of the span that starts at row `row`. An intervention on
  // states must apply to the span.
  float* state_scratch(size_t row, size_t head) const {
    const auto at = std::ranges::find(state_scratch_, row, &StateScratch::row);
    const Recurrence& r = config_->recurrence;
    return at->memory.as<float>() + head * static_cast<size_t>(r.key_dim * r.value_dim);
  }
  // Scratch rows for hooks of q_input, k_input and v_input. head_inputs() holds each head's own
  // input, [kHeadInputRows][heads][hidden]. head_products() is as wide as queries, keys and values
  // together. Both are empty unless such a point is hooked.
  static constexpr size_t kHeadInputRows = 16;
  const Rows& head_inputs() const { return head_inputs_; }
  const Rows& head_products() const { return head_products_; }
  // Rethrows, after the pass, the first exception of a callback. Throws an argument Error if a
  // callback left numbers that are not finite. After a failure, the remaining rows are zeros and
  // the pass must be discarded.
  void rethrow() const {
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
  }
  // Returns true if interventions change this point. Used for scores and patterns, which visit()
  // does not change.
  bool changes(Point point, size_t layer) const {
    return !slots_[layer * kPoints + static_cast<size_t>(point)].changes.empty();
  }
  template <class F>
  void each_change(Point point, size_t layer, F f) const {
    for (const Change& c : slots_[layer * kPoints + static_cast<size_t>(point)].changes) f(c);
  }
  // Calls f(row, destination) for each requested copy. Used for scores and patterns, which are
  // computed only on request.
  template <class F>
  void each_copy(Point point, size_t layer, F f) const {
    for (const Copy& c : slots_[layer * kPoints + static_cast<size_t>(point)].copies)
      f(c.row, c.to);
  }

 private:
  struct Copy {
    size_t row;
    Rows to;
  };
  struct StateCopy {
    size_t row;
    float* to;
  };
  struct Call {
    const Callback* what;
    PointAt at;
    size_t row, count;
    int64_t first;
  };
  struct StateScratch {
    size_t row;     // the first row of a span
    Memory memory;  // [heads][key_dim][value_dim]
  };
  struct Slot {
    std::vector<Change> changes;
    std::vector<Call> calls;
    std::vector<Copy> copies;
    std::vector<StateCopy> states;
  };

  // Returns the rows of [row, row + count) that x contains, as a range relative to `row`. The first
  // row of x is row `begin`.
  static Range common(size_t row, size_t count, Rows x, size_t begin) {
    const size_t from = std::max(row, begin), end = std::min(row + count, begin + x.count);
    return {from - row, std::max(from, end) - row};
  }
  // Calls f(i, row of x) for each common row.
  template <class F>
  static void each_common(Team t, size_t row, size_t count, Rows x, size_t begin, F f) {
    const Range rows = common(row, count, x, begin);
    t.each_range(rows.size(), 1, [&](Range some) {
      for (size_t k = some.begin; k < some.end; ++k) {
        const size_t i = rows.begin + k;
        f(i, x.row(row + i - begin));
      }
    });
  }

  Slot& slot(Point point, size_t layer) {
    if (is_head_input(point) && head_inputs_.data == nullptr) allocate_head_rows();
    return slots_[layer * kPoints + static_cast<size_t>(point)];
  }
  void allocate_state(size_t row) {
    const Recurrence& r = config_->recurrence;
    if (std::ranges::find(state_scratch_, row, &StateScratch::row) != state_scratch_.end()) return;
    const auto count = static_cast<size_t>(r.heads * r.key_dim * r.value_dim);
    state_scratch_.push_back({row, Memory(count * sizeof(float), false)});
  }
  void allocate_head_rows() {
    const ModelConfig& c = *config_;
    const auto make = [&](Memory& memory, int64_t width) {
      const auto n = static_cast<size_t>(width),
                 stride = (n + kQuantStrip - 1) / kQuantStrip * kQuantStrip;
      memory = Memory(kHeadInputRows * stride * sizeof(float), false);
      return Rows{memory.as<float>(), stride, n, kHeadInputRows};
    };
    head_inputs_ = make(head_memory_[0], c.heads * c.hidden_size);
    head_products_ =
        make(head_memory_[1],
             c.widest([](const LayerShape& l) { return l.queries() + l.keys() + l.values(); }));
  }
  // No exception may leave a pass, so the first one is kept until the pass is over.
  void run(const Call& c, int64_t first, Rows rows) const {
    try {
      if (failure_ == nullptr) {
        c.what->change(c.at, first, rows);
        for (size_t i = 0; i < rows.count; ++i)
          check_finite(c.at, first + static_cast<int64_t>(i), {rows.row(i), rows.width});
        return;
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
    for (size_t i = 0; i < rows.count; ++i) std::fill_n(rows.row(i), rows.width, 0.0f);
  }
  static void check_finite(const PointAt& at, int64_t position, std::span<const float> row) {
    if (const auto bad = find_not_finite(row)) {
      throw Error(ErrorKind::argument, "",
                  "callback: " + point_name(at) + ", position " + std::to_string(position),
                  "finite numbers", std::to_string(row[*bad]));
    }
  }
  // Returns true if an intervention on states applies to this head after the token of this row.
  static bool changes_state(const Change& c, size_t row, size_t head) {
    if (row < c.row || row - c.row >= c.count) return false;
    const int64_t position = c.first + static_cast<int64_t>(row - c.row);
    if (position < c.from || (c.end >= 0 && position >= c.end)) return false;
    const std::vector<int64_t>& heads = c.what->heads;
    return heads.empty() || std::ranges::find(heads, static_cast<int64_t>(head)) != heads.end();
  }
  void change_state(const Intervention& w, int64_t position, const HeadState& s) const {
    if (w.op == Intervention::Op::scale) return steer_scale(s.numbers, w.amount, s.count());
    const auto heads = static_cast<size_t>(config_->recurrence.heads);
    const size_t row = s.count() * (w.heads.empty() ? heads : 1);
    const float* v = w.values->data() + (w.heads.empty() ? s.head * s.count() : 0);
    if (w.values->size() > row) v += static_cast<size_t>(position - w.begin) * row;
    s.set(v);
  }
  static void apply(const Change& c, int64_t position, int64_t heads, float* x, size_t width) {
    const Intervention& w = *c.what;
    if (position < c.from || (c.end >= 0 && position >= c.end)) return;
    if (w.heads.empty()) return apply_to(w, position, x, width);
    const size_t each = width / static_cast<size_t>(heads);
    for (const int64_t h : w.heads) apply_to(w, position, x + static_cast<size_t>(h) * each, each);
  }
  static void apply_to(const Intervention& w, int64_t position, float* x, size_t n) {
    const float* v = w.values ? w.values->data() : nullptr;
    switch (w.op) {
      case Intervention::Op::set:
        if (w.values->size() > n) v += static_cast<size_t>(position - w.begin) * n;
        std::memcpy(x, v, n * sizeof(float));
        break;
      case Intervention::Op::add:
        steer_add(x, v, w.amount, n);
        break;
      case Intervention::Op::scale:
        steer_scale(x, w.amount, n);
        break;
      case Intervention::Op::project_out:
        steer_project_out(x, v, n);
        break;
      case Intervention::Op::clamp:
        steer_clamp(x, v, v + n, w.bias, w.threshold, w.amount, n);
        break;
    }
  }

  const ModelConfig* config_;
  std::vector<Slot> slots_;
  std::vector<StateScratch> state_scratch_;
  Memory head_memory_[2];
  Rows head_inputs_, head_products_;
  mutable std::exception_ptr failure_;  // written during the pass, rethrown after it
};

}  // namespace stet

// What happens at points of a forward pass beside the pass itself: changes that states declare, and
// copies for whoever looks.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "stet/kernels/steer.hpp"
#include "stet/model/pass.hpp"
#include "stet/model/points.hpp"
#include "stet/threads/team.hpp"

namespace stet {

// A change of activations, declared: part of what a state is (State::interventions). It holds for
// the positions that are processed after it was attached.
struct Intervention {
  enum class Op : uint8_t {
    set,          // x = values
    add,          // x += amount values
    scale,        // x *= amount
    project_out,  // x -= its part in the direction of values
    clamp,        // a feature of a sparse autoencoder is set to amount: values are its encoder's
                  // column and, behind it, its decoder's
  };
  Point point = Point::resid_post;
  std::vector<int64_t> layers;  // empty: all
  std::vector<int64_t> heads;   // empty: all columns
  int64_t begin = 0, end = -1;  // positions; -1: from `begin` on for ever
  Op op = Op::add;
  float amount = 1, bias = 0, threshold = 0;  // the last two: of clamp
  // [width], or [positions][width] for `set`, where width is that of the point or of one head;
  // empty for scale. Shared by forks.
  std::shared_ptr<const std::vector<float>> values;
  // Made by attach(): the positions and prunes that were there.
  int64_t at = 0, prunes = 0;

  bool operator==(const Intervention& o) const {
    const auto same = [](const auto& a, const auto& b) {
      return a == b || (a && b && a->size() == b->size() &&
                        std::memcmp(a->data(), b->data(), a->size() * sizeof(float)) == 0);
    };
    return std::tie(point, layers, heads, begin, end, op, amount, bias, threshold, at, prunes) ==
               std::tie(o.point, o.layers, o.heads, o.begin, o.end, o.op, o.amount, o.bias,
                        o.threshold, o.at, o.prunes) &&
           same(values, o.values);
  }
};

// The hooks of one pass. Called by all threads of its team; nothing is allocated.
class Hooks {
 public:
  // Rows [row, row + count) of the pass are positions `first` .. of a state with this intervention,
  // which reaches positions [from, end) there (end -1: for ever).
  struct Change {
    const Intervention* what;
    size_t row, count;
    int64_t first, from, end;
  };

  explicit Hooks(const ModelConfig& config)
      : config_(&config), slots_(static_cast<size_t>(config.layers) * kPoints) {}

  void change(const Change& change) {
    const int64_t layers = point_info(change.what->point).of_layer ? config_->layers : 1;
    for (int64_t l = 0; l < layers; ++l) {
      const auto& chosen = change.what->layers;
      if (chosen.empty() || std::find(chosen.begin(), chosen.end(), l) != chosen.end())
        slot(change.what->point, static_cast<size_t>(l)).changes.push_back(change);
    }
  }
  // The rows of the pass from `row` on are copied there when they come by.
  void copy(const PointAt& at, size_t row, Rows to) {
    slot(at.point, static_cast<size_t>(at.layer)).copies.push_back({row, to});
  }

  bool wants(Point point, size_t layer) const {
    const Slot& s = slots_[layer * kPoints + static_cast<size_t>(point)];
    return !s.changes.empty() || !s.copies.empty();
  }
  void visit(Team t, Point point, size_t layer, Rows x) const {
    const Slot& s = slots_[layer * kPoints + static_cast<size_t>(point)];
    const int64_t heads = point_heads(*config_, point);
    for (const Change& c : s.changes) {
      t.each_range(c.count, 1, [&](Range some) {
        for (size_t i = some.begin; i < some.end; ++i)
          apply(c, c.first + static_cast<int64_t>(i), heads, x.row(c.row + i), x.width);
      });
    }
    for (const Copy& c : s.copies) {
      t.each_range(c.to.count, 1, [&](Range some) {
        for (size_t i = some.begin; i < some.end; ++i)
          std::memcpy(c.to.row(i), x.row(c.row + i), x.width * sizeof(float));
      });
    }
  }
  // Of points that are computed for whoever looks (scores, pattern): where their rows go.
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
  struct Slot {
    std::vector<Change> changes;
    std::vector<Copy> copies;
  };

  Slot& slot(Point point, size_t layer) {
    return slots_[layer * kPoints + static_cast<size_t>(point)];
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
};

}  // namespace stet

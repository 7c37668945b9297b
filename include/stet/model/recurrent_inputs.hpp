// The inputs of recurrent layers for some tokens, recorded during a pass. From them, the recurrence of
// these tokens runs again without the rest of the pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stet/base/memory.hpp"
#include "stet/kernels/kernels.hpp"
#include "stet/kv/recurrent_state.hpp"
#include "stet/model/config.hpp"

namespace stet {

// The inputs of the recurrent layers for the drafted rows of a pass (Span::drafted).
class RecurrentInputs {
 public:
  // One row of a layer. `next` numbers separate it from the next row.
  struct Row {
    float* conv;          // [channels]: the input of the convolution
    float *k, *v;         // [groups][key_dim], [heads][value_dim]
    float *decay, *rate;  // [heads]
    float* out;           // [heads][value_dim]: room for outputs, which are not read
    size_t next;
  };

  // Prepares for `rows` rows of a pass through a model of this config. Throws std::bad_alloc.
  void begin(const ModelConfig& c, size_t rows) {
    r_ = c.recurrence;
    rows_ = rows;
    const auto heads = static_cast<size_t>(r_.heads);
    channels_ = static_cast<size_t>(r_.channels);
    keys_ = static_cast<size_t>(r_.groups * r_.key_dim);
    values_ = heads * static_cast<size_t>(r_.value_dim);
    stride_ = (channels_ + keys_ + 2 * values_ + 2 * heads + kLanes - 1) / kLanes * kLanes;
    recorded_.assign(static_cast<size_t>(c.layers), {});
    const size_t bytes = recorded_.size() * rows * stride_ * sizeof(float);
    if (memory_.size() < bytes) memory_ = Memory(bytes, false);
  }
  Row row(size_t layer, size_t i) {
    float* const at = memory_.as<float>() + (layer * rows_ + i) * stride_;
    float *const k = at + channels_, *const v = k + keys_, *const out = v + values_,
                 *const decay = out + values_;
    return {at, k, v, decay, decay + r_.heads, out, stride_};
  }

  // Report that a layer has recorded its convolution's or its state's inputs. One thread calls each.
  void recorded_conv(size_t layer) { recorded_[layer].conv = 1; }
  void recorded_state(size_t layer) { recorded_[layer].state = 1; }
  // Returns true if every layer that has arrays has recorded all that it reads.
  bool complete(const RecurrentShape& shape) const {
    for (size_t l = 0; l < recorded_.size(); ++l) {
      if (shape.layers[l].empty()) continue;
      if (recorded_[l].conv == 0 || (r_.heads > 0 && recorded_[l].state == 0)) return false;
    }
    return true;
  }

 private:
  struct Recorded {
    char conv = 0, state = 0;
  };

  Recurrence r_;
  size_t rows_ = 0, channels_ = 0, keys_ = 0, values_ = 0, stride_ = 0;
  std::vector<Recorded> recorded_;
  Memory memory_;  // [layers][rows][stride]
};

}  // namespace stet

// The state of recurrent layers: float32 arrays of fixed shape, which every token changes. All
// arrays of a model are one run of memory, layer by layer.
//
// A pass reads the arrays before it and writes those after it to another buffer. A pass that is
// repeated, and an append that fails, therefore find the arrays as they were.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/base/memory.hpp"

namespace stet {

// One array of a layer.
struct RecurrentArray {
  std::string name;           // "state" or "conv"
  std::vector<int64_t> dims;  // the last varies fastest
  size_t offset = 0;          // in numbers, from the start of all arrays of the model

  size_t count() const {
    size_t n = 1;
    for (const int64_t d : dims) n *= static_cast<size_t>(d);
    return n;
  }
  bool operator==(const RecurrentArray&) const = default;
};

// The arrays of each layer. Layers with keys and values have none.
struct RecurrentShape {
  std::vector<std::vector<RecurrentArray>> layers;
  size_t numbers = 0;  // numbers in all arrays together

  // Returns the shape of these arrays, with offsets filled in.
  static RecurrentShape of(std::vector<std::vector<RecurrentArray>> layers);
  bool empty() const { return numbers == 0; }
  size_t bytes() const { return numbers * sizeof(float); }
  bool operator==(const RecurrentShape& other) const {
    return numbers == other.numbers && (empty() || layers == other.layers);
  }
};

// Memory for all arrays of a model. Arrays of a mapped file are read when they are first used.
struct RecurrentBuffer {
  // Writes all arrays. Throws a format Error if they are not those that were saved.
  using Read = std::function<void(std::span<std::byte> to)>;

  explicit RecurrentBuffer(size_t bytes) : memory(bytes, bytes >= kHugeFrom) {}
  RecurrentBuffer(size_t bytes, Read from)
      : memory(bytes, bytes >= kHugeFrom), size_(bytes), read_(std::move(from)), unread_(true) {}

  // Reads the arrays unless they have been read. Any thread may call it. After a format Error, the
  // next call tries again.
  void load() const;
  const float* numbers() const {
    load();
    return memory.as<float>();
  }

  static constexpr size_t kHugeFrom = size_t{1} << 21;
  Memory memory;
  std::atomic<bool> shared{false};  // set once something else holds the buffer; never reset

 private:
  size_t size_ = 0;
  mutable std::mutex mutex_;  // guards read_
  mutable Read read_;
  mutable std::atomic<bool> unread_{false};
};
// Immutable arrays.
using RecurrentArrays = std::shared_ptr<const RecurrentBuffer>;

// The arrays after the tokens of a session. Copies share them until one of the two computes.
class RecurrentState {
 public:
  RecurrentState() = default;  // for models without recurrent layers
  // Creates the arrays before the first token: zeros.
  explicit RecurrentState(RecurrentShape shape);
  RecurrentState(const RecurrentState& other);
  RecurrentState& operator=(const RecurrentState& other);
  RecurrentState(RecurrentState&&) noexcept = default;
  RecurrentState& operator=(RecurrentState&&) noexcept = default;

  const RecurrentShape& shape() const;
  bool empty() const { return shape_ == nullptr; }
  // Returns all arrays, in the order of RecurrentShape.
  std::span<const float> numbers() const {
    return {empty() ? nullptr : current_->numbers(), shape().numbers};
  }
  std::span<const float> array(int64_t layer, size_t index) const {
    const RecurrentArray& a = shape().layers[static_cast<size_t>(layer)][index];
    return numbers().subspan(a.offset, a.count());
  }
  // Returns the arrays. The next pass then writes to another buffer.
  RecurrentArrays share() const;
  // Replaces the arrays by others of this shape. Null: those before the first token.
  void set(const RecurrentArrays& arrays);

  // Keeps the arrays, so that undo_append() can restore them.
  void begin_append() { before_ = current_; }
  // Returns the buffer for the arrays after the next pass, which must write all of them. The same
  // buffer is returned until commit_pass(). Throws std::bad_alloc.
  float* next();
  // Makes the buffer of next() the current arrays.
  void commit_pass();
  void finish_append() { reuse(std::exchange(before_, nullptr)); }
  void undo_append();

 private:
  using Buffer = RecurrentBuffer;
  void reuse(std::shared_ptr<Buffer> buffer);

  std::shared_ptr<const RecurrentShape> shape_;  // null: no arrays
  std::shared_ptr<Buffer> current_, next_, before_;
};

inline void RecurrentBuffer::load() const {
  if (!unread_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  if (!unread_.load(std::memory_order_relaxed)) return;
  read_({memory.data(), size_});
  read_ = nullptr;  // it keeps the file mapped
  unread_.store(false, std::memory_order_release);
}

inline RecurrentShape RecurrentShape::of(std::vector<std::vector<RecurrentArray>> layers) {
  RecurrentShape shape{std::move(layers), 0};
  for (std::vector<RecurrentArray>& arrays : shape.layers) {
    for (RecurrentArray& a : arrays) {
      a.offset = shape.numbers;
      shape.numbers += a.count();
    }
  }
  return shape;
}

inline RecurrentState::RecurrentState(RecurrentShape shape) {
  if (shape.empty()) return;
  shape_ = std::make_shared<const RecurrentShape>(std::move(shape));
  current_ = std::make_shared<Buffer>(shape_->bytes());
}

inline const RecurrentShape& RecurrentState::shape() const {
  static const RecurrentShape none;
  return empty() ? none : *shape_;
}

inline RecurrentArrays RecurrentState::share() const {
  if (current_ != nullptr) current_->shared.store(true, std::memory_order_relaxed);
  return current_;
}

// A shared buffer is never written, so casting away its constness is safe.
inline void RecurrentState::set(const RecurrentArrays& arrays) {
  if (empty()) return;
  current_ = arrays != nullptr ? std::const_pointer_cast<Buffer>(arrays)
                               : std::make_shared<Buffer>(shape_->bytes());
  if (arrays != nullptr) current_->shared.store(true, std::memory_order_relaxed);
}

inline RecurrentState::RecurrentState(const RecurrentState& other)
    : shape_(other.shape_), current_(other.current_) {
  other.share();
}

inline RecurrentState& RecurrentState::operator=(const RecurrentState& other) {
  RecurrentState copy(other);
  return *this = std::move(copy);
}

inline float* RecurrentState::next() {
  if (empty()) return nullptr;
  if (next_ == nullptr) next_ = std::make_shared<Buffer>(shape_->bytes());
  return next_->memory.as<float>();
}

inline void RecurrentState::commit_pass() {
  if (empty()) return;
  std::swap(current_, next_);
  reuse(std::exchange(next_, nullptr));
}

inline void RecurrentState::undo_append() {
  if (before_ == nullptr) return;
  std::swap(current_, before_);
  if (before_ != current_) reuse(std::move(before_));
  before_ = nullptr;
}

// Keeps a buffer for the next pass, unless something else still reads it.
inline void RecurrentState::reuse(std::shared_ptr<Buffer> buffer) {
  if (buffer == nullptr || buffer == current_ || buffer == before_) return;
  if (!buffer->shared.load(std::memory_order_relaxed)) next_ = std::move(buffer);
}

}  // namespace stet

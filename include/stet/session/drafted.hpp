// Drafted rows: the pass that processed a session's last token also processed guesses of the tokens
// that follow. They are part of the session only once they are accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "stet/model/recurrent_inputs.hpp"
#include "stet/threads/team.hpp"

namespace stet::detail {

// The drafted rows of a session, in order. Row i belongs to position size() + i. Its keys and
// values are in the cache's prepared slots.
class DraftedRows {
 public:
  struct Row {
    int32_t id = 0;
    std::shared_ptr<std::vector<float>> logits;  // logits after the row, [vocab_size]
    std::vector<float> hidden;  // the head's input, [hidden_size]; empty unless it is kept
  };

  bool empty() const { return next_ >= rows_.size(); }  // also after a move
  size_t size() const { return empty() ? 0 : rows_.size() - next_; }
  std::span<Row> rows() { return std::span(rows_).last(size()); }
  const Row& front() const { return rows_[next_]; }
  // Replaces all rows by those of `ids`, with room for their logits.
  void begin(std::span<const int32_t> ids, size_t vocab) {
    clear();
    rows_.reserve(ids.size());
    free_.reserve(kMostFree);
    for (const int32_t id : ids) rows_.push_back({id, room(vocab), {}});
  }
  // Removes the first row and returns its logits. Does not fail.
  std::shared_ptr<std::vector<float>> pop() { return std::move(rows_[next_++].logits); }
  // Keeps an unshared buffer of logits for later rows. Does not fail.
  void recycle(std::shared_ptr<std::vector<float>> buffer) {
    if (buffer != nullptr && free_.size() < free_.capacity()) free_.push_back(std::move(buffer));
  }
  void clear() {
    for (Row& row : rows()) recycle(std::move(row.logits));
    rows_.clear();
    next_ = settled_ = 0;
  }

  // The inputs of recurrent layers for all rows.
  RecurrentInputs& inputs() { return inputs_; }
  // Returns the rows that were accepted since the last call of settle(): the recurrent arrays do not
  // contain them yet.
  Range unsettled() const { return {settled_, next_}; }
  void settle() { settled_ = next_; }

 private:
  static constexpr size_t kMostFree = 32;

  std::shared_ptr<std::vector<float>> room(size_t vocab) {
    if (free_.empty()) {
      auto made = std::make_shared<std::vector<float>>();
      made->reserve(vocab);
      return made;
    }
    std::shared_ptr<std::vector<float>> found = std::move(free_.back());
    free_.pop_back();
    return found;
  }

  std::vector<Row> rows_;
  size_t next_ = 0, settled_ = 0;  // next_: the first row that was not accepted
  RecurrentInputs inputs_;
  std::vector<std::shared_ptr<std::vector<float>>> free_;
};

}  // namespace stet::detail

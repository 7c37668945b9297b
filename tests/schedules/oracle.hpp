// What a session must be: a plain list of tokens, processed at once on one thread and pruned where it was pruned.
#pragma once

#include <map>

#include "stet/snapshot.hpp"
#include "support.hpp"

namespace stet::test {

// Token `position` of text `text`: few texts, so that schedules have many states in common.
inline int32_t token_of(const Model& m, uint32_t text, int64_t position) {
  return static_cast<int32_t>((position * position * 31 + position * 7 + text * 101 + 3) % m.config().vocab_size);
}

class Timeline {
 public:
  int64_t size() const;
  int64_t floor() const;  // how far a rewind may go
  void append(std::span<const int32_t> ids);
  void rewind(int64_t size);
  void prune(int64_t begin, int64_t end, bool shift);

  void replay(Session& session) const;
  std::string text() const;     // the calls that make it
  std::string name() const;     // equal for equal timelines alone

 private:
  // Tokens appended, and then a range taken out (none in the last stage).
  struct Stage {
    std::vector<int32_t> tokens;
    int64_t begin = 0, end = 0;
    bool shift = false;
  };
  std::vector<Stage> stages_ = {{}};
  int64_t size_ = 0;
};

struct Truth {
  std::vector<int32_t> tokens;
  Digest logits, kv, state;

  friend bool operator==(const Truth&, const Truth&) = default;
};

// Looks at every block.
Truth truth_of(Session& session);

// Of one model, contract and kv type. Remembers.
class Oracle {
 public:
  Oracle(std::shared_ptr<const Model> model, const SessionOptions& plain) : model_(std::move(model)), plain_(plain) {}
  const Truth& truth(const Timeline& timeline);

 private:
  std::shared_ptr<const Model> model_;
  SessionOptions plain_;
  std::map<std::string, Truth> known_;
};

}  // namespace stet::test

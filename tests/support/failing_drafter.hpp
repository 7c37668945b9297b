// A drafter whose calls throw.
#pragma once

#include <new>
#include <span>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/generate/drafter.hpp"

namespace stet::test {

// Throws exceptions of several kinds, both where it is asked for an offer and where it drafts.
class FailingDrafter : public Drafter {
 public:
  Offer offer(const Session&, int32_t, size_t most) override {
    fail();
    return {most, {}, 0, 0};
  }
  std::span<const int32_t> draft(const Session&, int32_t, size_t count) override {
    fail();
    draft_.assign(count, 1);
    return draft_;
  }
  size_t failures() const { return failures_; }

 private:
  // Fails in two of three calls: an offer, then a draft.
  void fail() {
    if (++calls_ % 3 == 2) return;
    switch (failures_++ % 3) {
      case 0:
        throw Error(ErrorKind::argument, "", "logits[0]", "a finite number", "nan");
      case 1:
        throw std::bad_alloc();
      default:
        throw 1;
    }
  }

  std::vector<int32_t> draft_;
  size_t calls_ = 0, failures_ = 0;
};

}  // namespace stet::test

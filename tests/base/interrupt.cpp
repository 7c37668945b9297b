// An interrupted run skips its remaining pieces, with teams of every size and backend. Only the
// thread that waits for the run is asked, and only during that run.
#include "stet/threads/interrupt.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "stet/threads/team.hpp"

namespace stet::test::interrupt_tests {
namespace {

// An interrupt callback that answers no this many times, and yes afterwards.
struct Question {
  int no;
  std::atomic<int> asked{0};
  std::thread::id by = {};
};

int ask(void* context) {
  Question& q = *static_cast<Question*>(context);
  q.by = std::this_thread::get_id();
  return ++q.asked > q.no ? 1 : 0;
}

// Installs a Question as the interrupt for the lifetime of this object.
class Asking {
 public:
  explicit Asking(Question& q) : before_(set_interrupt({ask, &q})) {}
  ~Asking() { set_interrupt(before_); }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

 private:
  Interrupt before_;
};

constexpr size_t kOperations = 50, kPieces = 64;

// Runs all operations. Returns the number of pieces done, or SIZE_MAX if the run was interrupted
// after the last one.
size_t run(const TeamOptions& options) {
  std::atomic<size_t> done{0};
  try {
    run_interruptible(options, [&](Team t) {
      for (size_t op = 0; op < kOperations; ++op)
        t.each_range(kPieces, 1, [&](Range r) { done += r.size(); });
    });
  } catch (const Interrupted&) {
    return done < kOperations * kPieces ? done.load() : SIZE_MAX;
  }
  EXPECT_EQ(done, kOperations * kPieces);
  return done;
}

class Interrupts : public testing::TestWithParam<std::string> {
 protected:
  TeamOptions of(int threads) const { return {threads, *team_backend_of(GetParam())}; }
};
INSTANTIATE_TEST_SUITE_P(Backends, Interrupts, testing::ValuesIn(team_backends()),
                         [](const auto& info) { return info.param; });

TEST_P(Interrupts, EndARunOfAnySize) {
  for (const int threads : {1, 2, 7}) {
    Question yes{0};
    const Asking asking(yes);
    EXPECT_EQ(run(of(threads)), 0u) << threads;
    EXPECT_EQ(yes.asked, 1);
    EXPECT_EQ(yes.by, std::this_thread::get_id());
  }
}

TEST_P(Interrupts, AreAskedInEachRunAndLeaveItAlone) {
  for (const int threads : {1, 2, 7}) {
    Question no{1 << 30};
    const Asking asking(no);
    for (int i = 1; i <= 3; ++i) {
      const int before = no.asked;
      EXPECT_EQ(run(of(threads)), kOperations * kPieces);
      EXPECT_GT(no.asked, before);
    }
  }
}

TEST_P(Interrupts, AreOfOneThreadAndOfRunsThatMayEnd) {
  Question yes{0};
  const Asking asking(yes);
  std::thread other([&] { EXPECT_EQ(run(of(2)), kOperations * kPieces); });
  other.join();
  size_t done = 0;
  run_operations(of(1), [&](Team t) { t.each(9, [&](size_t) { ++done; }); });
  EXPECT_EQ(done, 9u);
  EXPECT_EQ(yes.asked, 0);
}

TEST(Interrupt, ReturnsTheOneBefore) {
  Question a{0}, b{0};
  const Interrupt none = set_interrupt({ask, &a});
  EXPECT_EQ(none.ask, nullptr);
  EXPECT_EQ(set_interrupt({ask, &b}).context, &a);
  EXPECT_EQ(set_interrupt({}).context, &b);
  EXPECT_STREQ(Interrupted().what(), "interrupted");
}

}  // namespace
}  // namespace stet::test::interrupt_tests

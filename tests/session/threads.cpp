// Passes use as many threads as pay, of those that the program allows.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "stet/threads/team.hpp"
#include "tests/support/models.hpp"

namespace stet::test::threads_tests {
namespace {

// An executor that runs all members on the calling thread, and notes the size of each team.
class Noting : public Executor {
 public:
  void run(int size, const std::function<void(int)>& member) override {
    sizes.push_back(size);
    for (int rank = 0; rank < size; ++rank) member(rank);
  }
  std::vector<int> sizes;
};

class PassThreads : public testing::Test {
 protected:
  ~PassThreads() override {
    set_executor(nullptr);
    use_all_threads(before_);
  }
  // Returns the sizes of the teams of passes over a prompt and one more token.
  std::vector<int> sizes(const char* name, bool all) {
    use_all_threads(all);
    SessionOptions options;
    options.compute.threads = 64;
    Session session(model(data_path(std::string("models/") + name)), options);
    Noting executor;
    set_executor(&executor);
    session.append(std::vector<int32_t>{5, 6, 7, 8});
    session.append(std::vector<int32_t>{9});
    set_executor(nullptr);
    return executor.sizes;
  }

 private:
  const bool before_ = use_all_threads(true);
};

TEST_F(PassThreads, ATinyModelUsesOneThread) {
  for (const char* name : {"gemma3-tiny-bf16", "qwen35-tiny", "olmoe-tiny"})
    EXPECT_TRUE(sizes(name, false).empty()) << name << ": a team of one needs no executor";
}

TEST_F(PassThreads, ATestUsesAllThatItAsksFor) {
  const std::vector<int> found = sizes("gemma3-tiny-bf16", true);
  EXPECT_FALSE(found.empty());
  EXPECT_EQ(std::ranges::count(found, 64), std::ssize(found));
}

}  // namespace
}  // namespace stet::test::threads_tests

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
    options.compute.threads = kMaxThreads;
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

TEST_F(PassThreads, AreNoMoreThanTheProcessors) {
  const int processors = default_threads();
  for (const char* name : {"gemma3-tiny-bf16", "qwen35-tiny", "olmoe-tiny"}) {
    for (const int size : sizes(name, false)) EXPECT_LE(size, processors) << name;
  }
}

TEST_F(PassThreads, ATestUsesAllThatItAsksFor) {
  const std::vector<int> found = sizes("gemma3-tiny-bf16", true);
  EXPECT_FALSE(found.empty());
  EXPECT_EQ(std::ranges::count(found, kMaxThreads), std::ssize(found));
}

}  // namespace
}  // namespace stet::test::threads_tests

// A save leaves the whole new file behind, or, if it fails or is interrupted, the old one.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "stet/snapshot/snapshot.hpp"
#include "stet/threads/interrupt.hpp"
#include "tests/support/models.hpp"

namespace stet::test::saving_tests {
namespace {

std::vector<int32_t> some_ids(int64_t n) { return stepped_ids(n, 97, 300, 5); }

class Saving : public testing::Test {
 protected:
  Session session(int64_t tokens = 5) const {
    SessionOptions o = options(1);
    o.capacity = 200;
    Session s(m, o);
    s.append(some_ids(tokens));
    return s;
  }

  std::shared_ptr<const Model> m = model(data_path("models/llama31-tiny"));
  TemporaryDirectory scratch;
  std::string file = scratch / "s.stet";
};

TEST_F(Saving, AFailedWriteLeavesTheOldFile) {
  Session s = session(), t = session(70);
  Snapshot::save(s, file);
  const std::string old = read_text(file);
  EXPECT_EQ(error_of([&] { Snapshot::save(s, scratch.path()); }),
            "io: " + scratch.path() + ": expected a regular file to write, found a directory");
  EXPECT_EQ(error_of([&] { Snapshot::save(s, scratch / "no/s.stet"); }),
            "io: " + (scratch / "no/s.stet") +
                ": no file can be made in its directory: No such file or directory");
  t.generation().stop_ids = {-1};
  EXPECT_TRUE(error_of([&] { Snapshot::save(t, file); }).starts_with("argument: stop_ids[0]: "));
  t.generation() = {};
  t.generation().turns = {{0, 3, 71, false}};
  EXPECT_EQ(error_of([&] { Snapshot::save(t, file); }),
            "argument: turns[0]: expected positions in order, up to 70, found 0, 3, 71");
  EXPECT_EQ(read_text(file), old);
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"s.stet"});
  t.generation() = {};
  Snapshot::save(t, file);  // over the same file
  EXPECT_EQ(Snapshot::open(file).tokens(), some_ids(70));
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"s.stet"});
}

// Calls with an interrupt that ends the call at its question number `last`. Returns false if the call
// asked fewer questions and came to its end.
bool is_interrupted(const std::function<void()>& call, int last) {
  const auto ask = [](void* left) { return --*static_cast<int*>(left) == 0 ? 1 : 0; };
  const Interrupt none = set_interrupt({ask, &last, 0});
  bool interrupted = false;
  try {
    call();
  } catch (const Interrupted&) {
    interrupted = true;
  }
  set_interrupt(none);
  return interrupted;
}

TEST_F(Saving, AnInterruptEndsASaveAndLeavesTheFile) {
  Session s = session(130);
  Snapshot::save(s, scratch / "source.stet");
  const Snapshot source = Snapshot::open(scratch / "source.stet");
  const Digest before = digests_of(s).state;
  const std::function<void()> calls[] = {
      [&] { Snapshot::save(s, file, {.threads = 1}); },
      [&] { Snapshot::save(s, file, {.compress = have_zlib() ? 9 : 0, .threads = 2}); },
      [&] { Snapshot::save(source.state(), source, file, {.threads = 1}); },
      [&] { source.check(1); }};
  for (const auto& call : calls) {
    int questions = 0;
    for (;; ++questions) {
      write_file(file, "before");
      if (!is_interrupted(call, questions + 1)) break;
      EXPECT_EQ(read_text(file), "before");
      EXPECT_EQ(digests_of(s).state, before);
    }
    // The other one of two threads may take all blocks.
    EXPECT_GE(questions, &call == &calls[1] ? 1 : 1 + 3) << "the start and three blocks";
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch / ""), {}), 2);
  }
  calls[0]();
  EXPECT_EQ(Snapshot::open(file).digests().state, before);
}

// Readers of the path see the whole old snapshot or the whole new one.
TEST_F(Saving, OverASnapshotIsAtomic) {
  Session a = session(5), b = session(130);
  const Digest states[] = {Snapshot::save(a, file).state, digests_of(b).state};
  const pid_t writer = ::fork();
  if (writer == 0) {
    for (int i = 0; i < 60; ++i) Snapshot::save(i % 2 == 0 ? b : a, file);
    ::_exit(0);
  }
  int status = 0, reads = 0;
  for (; ::waitpid(writer, &status, WNOHANG) == 0; ++reads) {
    const Digest state = Snapshot::open(file).digests().state;
    ASSERT_TRUE(state == states[0] || state == states[1]);
  }
  EXPECT_EQ(status, 0);
  EXPECT_GT(reads, 0);
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"s.stet"});
}

}  // namespace
}  // namespace stet::test::saving_tests

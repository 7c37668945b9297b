// Saves a snapshot over another while calls fail or the process dies. Afterwards the name holds the
// whole old file or the whole new one. fault_shim.cpp, loaded into the built command, injects the
// faults.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <sstream>

#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::crash_tests {
namespace {

using Clock = std::chrono::steady_clock;

// Sets environment variables for commands that are started during the lifetime of this object.
class Environment {
 public:
  explicit Environment(std::map<std::string, std::string> variables)
      : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const auto& [name, value] : variables_) ::unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::string> variables_;
};

struct LoggedCall {
  size_t number;
  std::string name;
  size_t size;
  std::string path;
};

std::vector<LoggedCall> read_log(const std::string& path) {
  std::istringstream lines(read_text(path));
  std::vector<LoggedCall> calls;
  for (LoggedCall c;
       lines >> c.number >> c.name >> c.size && std::getline(lines >> std::ws, c.path);)
    calls.push_back(c);
  return calls;
}

size_t only(const std::vector<LoggedCall>& calls, const std::string& name) {
  size_t found = 0;
  for (const LoggedCall& c : calls) {
    if (c.name != name) continue;
    EXPECT_EQ(found, 0u) << name << " twice";
    found = c.number;
  }
  EXPECT_NE(found, 0u) << "no " << name;
  return found;
}

// The parameter is the subcommand that makes the new snapshot.
class Crash : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_EQ(::mkdir(directory.c_str(), 0755), 0);
    write_file(scratch / "new.ids", ids_text(200));
    write_file(scratch / "old.ids", ids_text(70));
    ASSERT_EQ(save(scratch / "old.ids").status, 0);
    before = read_text(target);
    ASSERT_EQ(save(scratch / "new.ids").status, 0);
    after = read_text(target);
    ASSERT_NE(before, after);
    put_old();
  }

  static std::string ids_text(size_t count) {
    std::string text;
    for (const int32_t id : random_tokens(*model(kModel), count))
      text += (text.empty() ? "[" : ",") + std::to_string(id);
    return text + "]";
  }
  Args command(const std::string& ids, const std::string& to) const {
    Args args = {GetParam(), "-m", kModel, "--threads", "1", "--ids-file", ids};
    if (GetParam() == "save")
      args.insert(args.end(), {"-o", to});
    else
      args.insert(args.end(), {"-n", "3", "--ignore-eos", "--save", to});
    return args;
  }
  Outcome save(const std::string& ids) const { return run_stet(command(ids, target)); }
  void put_old() const { write_file(target, before); }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory))
      names.push_back(entry.path().filename());
    return names;
  }
  std::map<std::string, std::string> shim(const std::string& fault, int delay = 0) const {
    return {{"LD_PRELOAD", STET_FAULT_SHIM},
            {"STET_FAULT_DIR", directory},
            {"STET_FAULT_LOG", log},
            {"STET_FAULT", fault},
            {"STET_FAULT_DELAY", std::to_string(delay)},
            {"ASAN_OPTIONS", "verify_asan_link_order=0"}};  // ASan must be the first library
  }
  // Saves the new snapshot over the old one with a fault.
  Outcome run(const std::string& fault) const {
    put_old();
    std::filesystem::remove(log);
    const Environment environment(shim(fault));
    return save(scratch / "new.ids");
  }
  // Returns the calls of a save without faults.
  std::vector<LoggedCall> calls() const {
    const Outcome o = run("none@0");
    EXPECT_EQ(o.status, 0) << o.err;
    return read_log(log);
  }
  // Checks the result of a killed save: the name holds a whole snapshot, and the next save works
  // and removes leftovers.
  void expect_recovery(bool* is_new) const {
    const std::string found = read_text(target);
    ASSERT_TRUE(found == before || found == after) << found.size() << " bytes";
    *is_new = found == after;
    ASSERT_LE(names().size(), 2u);
    Session session = Snapshot::open(target).restore(model(kModel), {.session = options(1)});
    EXPECT_EQ(session.size(), *is_new ? new_size() : old_size());
    ASSERT_EQ(save(scratch / "new.ids").status, 0);
    ASSERT_EQ(read_text(target), after);
    ASSERT_EQ(names(), std::vector<std::string>{"s.stet"});
  }
  static int64_t old_size() { return GetParam() == "save" ? 70 : 73; }
  static int64_t new_size() { return GetParam() == "save" ? 200 : 203; }

  static inline const std::string kModel = data_path("models/llama31-tiny");
  TemporaryDirectory scratch;
  const std::string directory = std::filesystem::canonical(scratch.path()).string() + "/snapshots";
  const std::string target = directory + "/s.stet", log = scratch / "log";
  std::string before, after;
};

INSTANTIATE_TEST_SUITE_P(Command, Crash, testing::Values("save", "generate"),
                         [](const auto& info) { return info.param; });

// The order must survive a loss of power: data reaches the disk before the name, and the name
// before the command reports success.
TEST_P(Crash, DataThenNameThenDirectory) {
  const std::vector<LoggedCall> all = calls();
  ASSERT_EQ(read_text(target), after);
  const size_t renamed = only(all, "rename");
  std::string temporary;
  size_t written = 0, data_synced = 0, directory_synced = 0;
  for (const LoggedCall& c : all) {
    if (c.name == "write") {
      temporary = c.path;
      written += c.size;
      EXPECT_EQ(data_synced, 0u) << "a write after the data was synced";
      EXPECT_NE(c.path, target);
    }
    if (c.name == "fsync" || c.name == "fdatasync") {
      if (c.path == directory)
        directory_synced = c.number;
      else
        data_synced = c.number;
      EXPECT_TRUE(c.path == directory || c.path == temporary) << c.path;
    }
    if (c.name == "rename") {
      EXPECT_EQ(c.path, target);
    }
  }
  EXPECT_GE(written, after.size());  // no byte bypassed the shim
  EXPECT_GT(data_synced, 0u);
  EXPECT_LT(data_synced, renamed);
  EXPECT_LT(renamed, directory_synced);
}

TEST_P(Crash, EveryCallFailsInTurn) {
  const std::vector<LoggedCall> all = calls();
  const size_t renamed = only(all, "rename");
  size_t failures = 0;
  for (const char* kind : {"short", "eintr", "enospc", "eio"}) {
    for (const LoggedCall& c : all) {
      SCOPED_TRACE(std::string(kind) + " at call " + std::to_string(c.number) + ", " + c.name);
      const Outcome o = run(std::string(kind) + "@" + std::to_string(c.number));
      const bool harmless =
          kind == std::string("short") || kind == std::string("eintr") || c.name == "close";
      ASSERT_EQ(o.status, harmless ? 0 : 1) << o.err;
      ASSERT_TRUE(read_text(target) == (o.status == 0 || c.number > renamed ? after : before));
      ASSERT_EQ(names(), std::vector<std::string>{"s.stet"});
      if (o.status == 0) continue;
      ++failures;
      ASSERT_EQ(o.err.find(target), 6u) << o.err;  // "stet: TARGET: ..."
      ASSERT_EQ(o.err.find('\n'), o.err.size() - 1) << o.err;
      const std::string reason =
          std::generic_category().message(kind == std::string("eio") ? EIO : ENOSPC);
      ASSERT_NE(o.err.find(reason), std::string::npos) << o.err;
      // After the rename, an error says that the new file is in place.
      ASSERT_EQ(
          o.err.find("durability: the new file is in place, but a loss of power may undo that: ") !=
              std::string::npos,
          c.number > renamed)
          << o.err;
    }
  }
  // close reports nothing that fsync has not reported; every other call fails twice.
  size_t must_fail = 0;
  for (const LoggedCall& c : all) must_fail += c.name == "close" ? 0 : 2;
  EXPECT_EQ(failures, must_fail);
}

TEST_P(Crash, ManyShortWritesDoNoHarm) {
  for (int seed = 1; seed <= 10; ++seed) {
    ASSERT_EQ(run("short%" + std::to_string(seed)).status, 0);
    ASSERT_EQ(read_text(target), after);
  }
}

TEST_P(Crash, KilledBeforeAndAfterEveryCall) {
  const std::vector<LoggedCall> all = calls();
  const size_t renamed = only(all, "rename");
  for (const LoggedCall& c : all) {
    for (const bool done : {false, true}) {
      SCOPED_TRACE((done ? "killed after call " : "killed before call ") +
                   std::to_string(c.number) + ", " + c.name);
      const Outcome o = run((done ? "killed@" : "kill@") + std::to_string(c.number));
      ASSERT_EQ(o.status, -SIGKILL) << o.err;
      bool is_new = false;
      ASSERT_NO_FATAL_FAILURE(expect_recovery(&is_new));
      EXPECT_EQ(is_new, c.number > renamed || (c.number == renamed && done));
    }
  }
}

TEST_P(Crash, KilledAtRandomMoments) {
  const char* given = std::getenv("STET_KILLS");
  const int kills = given != nullptr ? std::atoi(given) : 40;
  std::mt19937 random(7);
  std::optional<Clock::duration> latest;  // the signal comes at a random time up to this
  for (int runs = 0, killed = 0; killed < kills; ++runs) {
    SCOPED_TRACE("run " + std::to_string(runs));
    ASSERT_LT(runs, 20 * kills + 20) << "only " << killed << " killed";
    put_old();
    std::filesystem::remove(log);
    const Environment environment(shim("none@0", 500));
    const CommandRun process(command(scratch / "new.ids", target), "/dev/null", "/dev/null",
                             scratch / "err");
    const Clock::time_point start = Clock::now();
    while (!std::filesystem::exists(log) && Clock::now() - start < std::chrono::seconds(60))
      ::usleep(100);
    const Clock::time_point first = Clock::now();
    if (latest) {
      ::usleep(static_cast<unsigned>(
          random() % static_cast<unsigned>(1 + *latest / std::chrono::microseconds(1))));
      process.send(SIGKILL);
    }
    const int status = process.wait();
    ASSERT_TRUE(status == 0 || status == -SIGKILL) << status;
    killed += status != 0;
    // On a busy machine the signal comes late, on a fast one the command ends early. A completed
    // run narrows the range and a killed one widens it, so the range ends about when the command
    // does.
    if (!latest)
      latest = Clock::now() - first;
    else
      latest = status == 0 ? *latest * 9 / 10 : *latest * 21 / 20;
    const std::string found = read_text(target);
    ASSERT_TRUE(found == after || (found == before && status != 0)) << found.size() << " bytes";
    ASSERT_LE(names().size(), 2u);  // leftovers are removed before the next save begins
  }
  bool is_new = false;
  expect_recovery(&is_new);
}

// A file system that is really full.
TEST_P(Crash, AFullFileSystem) {
  const std::string small = scratch / "small", path = small + "/s.stet";
  const std::string size =
      "size=" + std::to_string((before.size() + after.size() / 2) / 4096 * 4096);
  ASSERT_EQ(::mkdir(small.c_str(), 0755), 0);
  if (::mount("stet-test", small.c_str(), "tmpfs", 0, size.c_str()) != 0) {
    GTEST_SKIP() << "cannot mount a small file system: " << std::generic_category().message(errno);
  }
  write_file(path, before);
  const Outcome full = run_stet(command(scratch / "new.ids", path));
  const std::string found = read_text(path);
  const auto left = std::distance(std::filesystem::directory_iterator(small),
                                  std::filesystem::directory_iterator());
  std::filesystem::remove(path);
  const Outcome empty = run_stet(command(scratch / "new.ids", path));
  const std::string whole = read_text(path);
  ASSERT_EQ(::umount2(small.c_str(), MNT_DETACH), 0);

  EXPECT_EQ(full.status, 1);
  EXPECT_EQ(full.err.find("stet: " + path + ": cannot write "), 0u) << full.err;
  EXPECT_NE(full.err.find(": No space left on device\n"), std::string::npos) << full.err;
  EXPECT_TRUE(found == before);
  EXPECT_EQ(left, 1);
  EXPECT_EQ(empty.status, 0) << empty.err;
  EXPECT_TRUE(whole == after);
}

}  // namespace
}  // namespace stet::test::crash_tests

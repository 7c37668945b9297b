// Mapped files are truncated, overwritten, touched or replaced under running sessions. Nothing is
// lost, every bit equals that of a session without a file, and SIGBUS never ends the process.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "stet/generate/generate.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/models.hpp"

namespace stet::test::healing_tests {
namespace {

constexpr off_t kKv = 65536;  // offset of KV in the files of these tests

void overwrite(const std::string& path, off_t at, const std::string& bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::pwrite(fd, bytes.data(), bytes.size(), at), static_cast<ssize_t>(bytes.size()));
  ::close(fd);
}

void touch(const std::string& path) {
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), nullptr, 0), 0);
}

class Healing : public testing::Test {
 protected:
  Session straight(size_t tokens) const {
    SessionOptions o = options(1);
    o.capacity = 600;
    Session s(m, o);
    s.append(std::span(ids).first(tokens));
    return s;
  }
  void save(size_t tokens, const SaveOptions& options = {}) const {
    Session s = straight(tokens);
    Snapshot::save(s, file, options);
    block = s.kv().shape().block_bytes();
  }
  Session restore(RestoreOptions how = {}) const {
    how.session = options(1);
    return Snapshot::open(file).restore(m, how);
  }
  // Truncates the file in the middle of block `b`.
  void cut_off(int64_t b) const {
    std::filesystem::resize_file(file,
                                 static_cast<size_t>(kKv) + block * static_cast<size_t>(b) + 100);
  }

  // In this model every token sees every block.
  std::shared_ptr<const Model> m = model(data_path("models/llama31-tiny"));
  const std::vector<int32_t> ids = random_tokens(*m, 600);
  TemporaryDirectory scratch;
  const std::string file = scratch / "s.stet";
  mutable size_t block = 0;
};

std::string healed_text(Session& s) {
  std::string text;
  for (const HealedBlocks& healed : s.take_healed()) text += healed.text() + "\n";
  return text;
}

// Damage to a file of 300 tokens (blocks 0 to 4), and the blocks that it destroys.
struct Damage {
  const char* name;
  std::function<void(const std::string& file, size_t block)> act;
  std::vector<int64_t> lost;  // empty if the bytes are unchanged
};

std::vector<Damage> damages() {
  const auto at = [](size_t block, int64_t b) { return kKv + static_cast<off_t>(block) * b; };
  return {
      {"touched", [](const std::string& f, size_t) { touch(f); }, {}},
      {"made read-only",
       [](const std::string& f, size_t) { ASSERT_EQ(::chmod(f.c_str(), 0400), 0); },
       {}},
      {"replaced", [](const std::string& f, size_t) { write_file(f, "something else"); }, {}},
      {"removed", [](const std::string& f, size_t) { ASSERT_EQ(::unlink(f.c_str()), 0); }, {}},
      {"rewritten as it was",
       [](const std::string& f, size_t) { overwrite(f, 0, read_text(f)); },
       {}},
      {"one byte", [at](const std::string& f, size_t b) { overwrite(f, at(b, 2) + 77, "x"); }, {2}},
      {"two blocks",
       [at](const std::string& f, size_t b) {
         overwrite(f, at(b, 1), "xx"), overwrite(f, at(b, 3), "yy");
       },
       {1, 3}},
      {"cut off in a block",
       [at](const std::string& f, size_t b) {
         std::filesystem::resize_file(f, static_cast<size_t>(at(b, 3)) + 5);
       },
       {3, 4}},
      {"cut off to nothing",
       [](const std::string& f, size_t) { std::filesystem::resize_file(f, 0); },
       {0, 1, 2, 3, 4}},
      {"cut off and grown again",
       [](const std::string& f, size_t) {
         const auto size = std::filesystem::file_size(f);
         std::filesystem::resize_file(f, 0);
         std::filesystem::resize_file(f, size);
       },
       {0, 1, 2, 3, 4}},
  };
}

// Returns the operations that a session may perform next.
using Use = std::function<void(Session& s, std::span<const int32_t> more)>;
const std::vector<std::pair<const char*, Use>>& uses() {
  static const std::vector<std::pair<const char*, Use>> all = {
      {"append", [](Session& s, std::span<const int32_t> more) { s.append(more.first(1)); }},
      {"append many", [](Session& s, std::span<const int32_t> more) { s.append(more); }},
      {"rewind into a block",
       [](Session& s, std::span<const int32_t> more) { s.rewind(200), s.append(more.first(3)); }},
      {"rewind and logits",
       [](Session& s, std::span<const int32_t>) { s.rewind(129), s.logits(); }},
      {"rewind to a border",
       [](Session& s, std::span<const int32_t> more) { s.rewind(128), s.append(more.first(70)); }},
      {"fork",
       [](Session& s, std::span<const int32_t> more) { s = s.fork(), s.append(more.first(2)); }},
      {"prune",
       [](Session& s, std::span<const int32_t> more) {
         s.prune_range(70, 140, false), s.append(more.first(2));
       }},
      {"shift",
       [](Session& s, std::span<const int32_t> more) {
         s.prune_range(70, 140, true), s.append(more.first(2));
       }},
      {"batch",
       [](Session& s, std::span<const int32_t> more) {
         Session other = s.fork();
         const BatchEntry batch[] = {{&other, more.first(5)}, {&s, more.first(1)}};
         append(batch);
       }},
  };
  return all;
}

TEST_F(Healing, WhateverHappensToTheFileTheSessionGoesOn) {
  const std::span<const int32_t> more = std::span(ids).subspan(300, 140);
  for (const Damage& damage : damages()) {
    for (const auto& [use_name, use] : uses()) {
      for (const bool used_before : {false, true}) {
        SCOPED_TRACE(std::string(damage.name) + ", " + use_name +
                     (used_before ? ", used before" : ""));
        save(300);
        Session s = restore(), plain = straight(300);
        if (used_before) s.append(more.first(10)), plain.append(more.first(10));
        damage.act(file, block);
        use(s, more);
        use(plain, more);
        ASSERT_TRUE(same_state(s, plain));
        ASSERT_EQ(digests_of(s).state, digests_of(plain).state);
        std::filesystem::remove(file);
      }
    }
  }
}

TEST_F(Healing, SaysWhichBlocksWereLostOnce) {
  for (const Damage& damage : damages()) {
    SCOPED_TRACE(damage.name);
    save(300);
    Session s = restore();
    damage.act(file, block);
    s.append({&ids[300], 1});
    std::vector<int64_t> lost;
    for (const HealedBlocks& healed : s.take_healed()) {
      EXPECT_EQ(healed.file, file);
      lost.insert(lost.end(), healed.blocks.begin(), healed.blocks.end());
    }
    std::sort(lost.begin(), lost.end());
    EXPECT_EQ(lost, damage.lost);
    EXPECT_EQ(healed_text(s), "");
    s.append({&ids[301], 1});
    EXPECT_EQ(healed_text(s), "");
    std::filesystem::remove(file);
  }
}

// Size and modification time are restored. Only the change time, which no program can set, differs.
TEST_F(Healing, AFileRewrittenWithItsSizeAndTimeIsNoticed) {
  save(300);
  Session s = restore(), plain = straight(300);
  s.append({&ids[300], 1}), plain.append({&ids[300], 1});  // all blocks were read
  struct stat before = {};
  ASSERT_EQ(::stat(file.c_str(), &before), 0);
  overwrite(file, kKv + 11, "zzzz");
  const struct timespec times[] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  s.append({&ids[301], 1}), plain.append({&ids[301], 1});
  EXPECT_TRUE(same_state(s, plain));
  EXPECT_EQ(healed_text(s),
            file + ": KV block 0 was not what was saved: computed again from 64 tokens\n");
}

TEST_F(Healing, SavingWorksAsLongAsTheTokensAreThere) {
  for (const Damage& damage : damages()) {
    for (const SnapshotForm form : {SnapshotForm::full, SnapshotForm::recipe}) {
      for (const int compress : have_zlib() ? std::vector{0, 1} : std::vector{0}) {
        SCOPED_TRACE(damage.name);
        save(300);
        Session s = restore(), plain = straight(300);
        damage.act(file, block);
        const StateDigests digests =
            Snapshot::save(s, scratch / "t.stet", {.form = form, .compress = compress});
        EXPECT_EQ(digests.state, digests_of(plain).state);
        Session back =
            Snapshot::open(scratch / "t.stet").restore(m, {.session = options(1), .check = true});
        EXPECT_TRUE(same_state(back, plain));
        std::filesystem::remove(file);
      }
    }
  }
}

TEST_F(Healing, APrunedSessionHealsByReplay) {
  Session plain = straight(300);
  plain.prune_range(10, 100, false);
  plain.append(std::span(ids).subspan(300, 30));
  plain.prune_range(64, 130, true);
  plain.append(std::span(ids).subspan(330, 30));
  Snapshot::save(plain, file);
  Session s = restore();
  std::filesystem::resize_file(file, kKv + 10);
  s.append({&ids[400], 1}), plain.append({&ids[400], 1});
  EXPECT_TRUE(same_state(s, plain));
  EXPECT_EQ(digests_of(s).state, digests_of(plain).state);
  EXPECT_NE(healed_text(s), "");
}

// Sessions restored from one file run on their own threads. Some have read their blocks before.
TEST_F(Healing, SessionsOfOneFileHealApart) {
  save(300);
  const Snapshot snapshot = Snapshot::open(file);
  std::vector<Session> sessions;
  for (int i = 0; i < 4; ++i) sessions.push_back(snapshot.restore(m, {.session = options(1)}));
  sessions.push_back(sessions[0].fork());
  sessions[0].append({&ids[300], 1});
  cut_off(1);
  std::vector<std::thread> threads;
  for (Session& s : sessions) {
    threads.emplace_back([this, &s] {
      s.append(std::span(ids).subspan(static_cast<size_t>(s.size()),
                                      310 - static_cast<size_t>(s.size())));
    });
  }
  for (std::thread& t : threads) t.join();
  Session plain = straight(310);
  for (Session& s : sessions) EXPECT_TRUE(same_state(s, plain));
}

TEST_F(Healing, DamageBetweenOpeningAndRestoringIsHealedOrRefused) {
  for (const int compress : have_zlib() ? std::vector{0, 1} : std::vector{0}) {
    for (const bool map : {true, false}) {
      for (const bool check : {true, false}) {
        SCOPED_TRACE(compress + 2 * map + 4 * check);
        save(300, {.compress = compress});
        const Snapshot snapshot = Snapshot::open(file);
        std::filesystem::resize_file(file, kKv + 100);
        Session plain = straight(300);
        if (!map || check || compress != 0) {
          EXPECT_EQ(error_of([&] {
                      snapshot.restore(m, {.session = options(1), .map = map, .check = check});
                    }),
                    "format: " + file +
                        ": KV block 0: its bytes are not those that were saved; stet resume --heal "
                        "computes "
                        "them again");
        } else {
          Session s = snapshot.restore(m, {.session = options(1), .map = map, .check = check});
          EXPECT_TRUE(same_state(s, plain));
        }
        RestoreReport report;
        Session healed = snapshot.restore(
            m, {.session = options(1), .map = map, .check = check, .heal = true}, &report);
        EXPECT_EQ(report.healed.size(), 5u);
        EXPECT_EQ(report.recomputed, 300);
        EXPECT_TRUE(same_state(healed, plain));
        std::filesystem::remove(file);
      }
    }
  }
}

// A state read into memory does not depend on the file any more.
TEST_F(Healing, AFileThatWasReadMayBecomeAnything) {
  save(300);
  Session s = restore({.map = false}), plain = straight(320);
  std::filesystem::resize_file(file, 0);
  s.append(std::span(ids).subspan(300, 20));
  EXPECT_TRUE(same_state(s, plain));
  EXPECT_EQ(healed_text(s), "");
}

// A delta's blocks come from several files, each of which may be lost.
TEST_F(Healing, AChainOfFilesHeals) {
  save(130);
  Session plain = straight(300);
  {
    const Snapshot parent = Snapshot::open(file);
    Snapshot::save(plain, scratch / "d.stet", {.form = SnapshotForm::delta, .parent = &parent});
  }
  Session s = Snapshot::open(scratch / "d.stet").restore(m, {.session = options(1)});
  std::filesystem::resize_file(file, 0);
  s.append({&ids[300], 1}), plain.append({&ids[300], 1});
  EXPECT_TRUE(same_state(s, plain));
  EXPECT_EQ(healed_text(s),
            file + ": KV blocks 0, 1 were not what was saved: computed again from 128 tokens\n");
  std::filesystem::resize_file(scratch / "d.stet", 70000);
  s.append({&ids[301], 1}), plain.append({&ids[301], 1});
  EXPECT_TRUE(same_state(s, plain));
  EXPECT_NE(healed_text(s), "");
}

// If recomputing cannot give the saved bytes, the call fails and the session is unchanged.
TEST_F(Healing, WhatItsTokensDoNotGiveIsAnError) {
  Session s = straight(300);
  const std::vector<float> x(static_cast<size_t>(m->config().head_dim), 0.5f);
  s.set_key(0, 0, 70, x);
  Snapshot::save(s, file);
  Session back = restore();
  overwrite(file, kKv + static_cast<off_t>(s.kv().shape().block_bytes()) + 3, "damage");
  EXPECT_EQ(error_of([&] {
              back.append({&ids[300], 1});
            }),
            "format: " + file +
                ": KV block 1: expected the bytes that were saved (keys or values were edited: "
                "they cannot be computed again), "
                "found others");
  EXPECT_EQ(back.size(), 300);
  EXPECT_EQ(back.tokens(), s.tokens());
}

// Blocks computed before the first edit are recomputed, without the edit's values.
TEST_F(Healing, WhatLiesBeforeAnEditIsComputedAgain) {
  Session s = straight(300);
  block = s.kv().shape().block_bytes();
  const std::vector<float> x(static_cast<size_t>(m->config().head_dim), 0.5f);
  s.set_key(0, 0, 70, x);
  s.append(std::span(ids).subspan(300, 40));
  Snapshot::save(s, file);
  const std::string sound = read_text(file);
  EXPECT_EQ(replayable_blocks(s.state()),
            (std::vector<bool>{true, false, true, true, false, false}));
  for (const int64_t b : {0, 2, 3}) {
    Session back = restore(), expected = restore({.map = false});
    overwrite(file, kKv + static_cast<off_t>(block) * b + 99, "damage");
    Session healed = restore({.heal = true});
    for (Session* each : {&back, &healed, &expected}) each->append({&ids[340], 1});
    EXPECT_TRUE(same_state(back, expected)) << b;
    EXPECT_TRUE(same_state(healed, expected)) << b;
    EXPECT_NE(healed_text(back), "") << b;
    write_file(file, sound);
  }
}

TEST_F(Healing, OfAPrunedStateWithAnInterventionAtItsEnd) {
  for (const bool shift : {true, false}) {
    Session s = straight(150);
    block = s.kv().shape().block_bytes();
    s.prune_range(10, 40, shift);
    Intervention w;
    w.point = Point::resid_pre, w.op = Intervention::Op::scale, w.layers = {0}, w.amount = 0.5f;
    s.append(std::span(ids).subspan(150, 2));
    s.attach(w);
    Snapshot::save(s, file);
    Session back = restore(), expected = s.fork();
    for (Session* each : {&back, &expected}) {
      each->append({&ids[152], 1});
      each->rewind(each->size() - 1);
    }
    overwrite(file, kKv + 99, "damage");
    EXPECT_TRUE(same_bytes(back.logits(), expected.logits())) << shift;
    EXPECT_TRUE(same_state(back, expected)) << shift;
    EXPECT_NE(healed_text(back), "") << shift;
    EXPECT_EQ(back.interventions().size(), 1u);
  }
}

// ---------------------------------------------------------------- the signal

TEST(CutMappedFile, ReadsBehindACutAreZerosAndCounted) {
  const TemporaryDirectory scratch;
  write_file(scratch / "a", std::string(5 * 4096, 'a'));
  const auto mapped = MappedFile::open(scratch / "a");
  const auto other = MappedFile::open(scratch / "a");
  const FileStamp before = mapped->stamp();
  EXPECT_EQ(before, mapped->opened());
  std::filesystem::resize_file(scratch / "a", 4096 + 10);
  EXPECT_EQ(mapped->bytes()[4096 + 9], std::byte{'a'});
  EXPECT_EQ(mapped->stamp().read_failures, 0u);
  for (const size_t at : {3 * 4096 + 1, 2 * 4096, 5 * 4096 - 1})
    EXPECT_EQ(mapped->bytes()[at], std::byte{0});
  EXPECT_EQ(mapped->bytes()[0], std::byte{'a'});
  EXPECT_EQ(mapped->stamp().read_failures, 2u);  // the second cut begins before the first
  EXPECT_EQ(other->stamp().read_failures, 0u);
  EXPECT_EQ(error_of([&] { mapped->check_unchanged(); }),
            "io: " + scratch / "a" +
                ": the file changed while it was in use: it had 20480 bytes and has 4106");
  std::filesystem::resize_file(scratch / "a", 5 * 4096);
  EXPECT_EQ(error_of([&] { mapped->check_unchanged(); }),
            "io: " + scratch / "a" +
                ": the file changed while it was in use: some pages could not be read");
  EXPECT_EQ(error_of([&] { other->check_unchanged(); }),
            "io: " + scratch / "a" + ": the file changed while it was in use: it was written to");
}

// A handler that the program installed before the first mapping gets the faults of other mappings.
void program_handler(int) { _exit(77); }

int fault_of_another(bool handler) {
  const pid_t child = fork();
  if (child == 0) {
    const TemporaryDirectory scratch;
    write_file(scratch / "a", std::string(8192, 'a'));
    if (handler) std::signal(SIGBUS, program_handler);
    const auto ours = MappedFile::open(scratch / "a");
    const int fd = ::open((scratch / "a").c_str(), O_RDONLY);
    const auto* theirs =
        static_cast<const volatile char*>(::mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE, fd, 0));
    std::filesystem::resize_file(scratch / "a", 0);
    if (ours->bytes()[5000] != std::byte{0}) _exit(1);
    std::filesystem::remove_all(scratch.path());
    _exit(theirs[5000] == 0 ? 2 : 3);  // the process dies before this
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(CutMappedFile, PassesOnSignalsThatAreNotAboutItsMappings) {
#if defined(STET_SANITIZED)
  GTEST_SKIP() << "the sanitizers' handlers are there first";
#endif
  // Runs in processes that have not made a mapping yet.
  const int with = fault_of_another(true), without = fault_of_another(false);
  EXPECT_TRUE(WIFEXITED(with) && WEXITSTATUS(with) == 77) << with;
  EXPECT_TRUE(WIFSIGNALED(without) && WTERMSIG(without) == SIGBUS) << without;
}

}  // namespace
}  // namespace stet::test::healing_tests

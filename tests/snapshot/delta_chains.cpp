// Chains of deltas: their files are found once, before anything is read, and any number of threads
// can use one snapshot.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "stet/snapshot/encode.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"

namespace stet::test::delta_chains_tests {
namespace {

class DeltaChains : public testing::TestWithParam<int> {
 protected:
  std::string name(int i) const { return scratch / (std::to_string(i) + ".stet"); }

  // Writes files 0 .. length-1. Each but the first is a delta of the previous one, `step` tokens
  // longer. Every third is compressed.
  Session make(int length, size_t step) const {
    SessionOptions o = options(1);
    o.capacity = 512;
    Session s(m, o);
    std::unique_ptr<const Snapshot> parent;
    for (int i = 0; i < length; ++i) {
      s.append(std::span(ids).subspan(static_cast<size_t>(i) * step, step));
      SaveOptions how;
      how.compress = have_zlib() && i % 3 == 1 ? 1 : 0;
      if (i > 0) how.form = SnapshotForm::delta, how.parent = parent.get();
      Snapshot::save(s, name(i), how);
      parent = std::make_unique<const Snapshot>(Snapshot::open(name(i)));
    }
    return s;
  }

  std::shared_ptr<const Model> m = model(data_path("models/gemma3-tiny-bf16"));
  const std::vector<int32_t> ids = random_tokens(*m, 512);
  TemporaryDirectory scratch;
};

TEST_P(DeltaChains, AreRestoredByManyThreadsAtOnce) {
  const int length = GetParam();
  Session whole = make(length, length > 100 ? 1 : 90);
  const StateDigests digests = digests_of(whole);
  for (const bool found_before : {false, true}) {
    Snapshot opened = Snapshot::open(name(length - 1));
    if (found_before) opened.find_parents();
    EXPECT_EQ(opened.parents().size(), found_before ? static_cast<size_t>(length - 1) : 0);
    const Snapshot& snapshot = opened;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const RestoreOptions how = {.session = options(2), .map = t % 2 == 0, .check = t == 2};
        Session back = snapshot.restore(m, how);
        EXPECT_TRUE(digests_of(back).state == digests.state);
        const State state = snapshot.state({.session = options(2), .map = t % 2 != 0});
        EXPECT_EQ(state.tokens, back.tokens());
      });
    }
    for (std::thread& t : threads) t.join();
  }
}
INSTANTIATE_TEST_SUITE_P(Lengths, DeltaChains, testing::Values(2, 3, 257),
                         [](const auto& info) { return std::to_string(info.param); });

// Records the largest team size requested.
class Largest : public Executor {
 public:
  void run(int size, const std::function<void(int rank)>& member) override {
    largest = std::max(largest, size);
    for (int rank = 0; rank < size; ++rank) member(rank);
  }
  int largest = 1;
};

// Restoring uses exactly the threads of the restored session.
TEST_F(DeltaChains, RestoringUsesTheThreadsOfItsSession) {
  if (!have_zlib()) GTEST_SKIP() << "built without zlib";
  make(2, 200);  // the second is compressed
  const Snapshot snapshot = Snapshot::open_with_parents(name(1));
  for (const int threads : {1, 2, 4}) {
    for (const bool map : {true, false}) {
      Largest executor;
      Executor* const before = set_executor(&executor);
      const Session back = snapshot.restore(m, {.session = options(threads), .map = map});
      set_executor(before);
      EXPECT_EQ(executor.largest, threads) << map;
    }
  }
}

constexpr const char* kTooLong =
    ": parent: expected at most 256 deltas in a chain, found more; make a delta in its middle "
    "full: "
    "stet convert FILE -o FILE";

TEST_F(DeltaChains, ALongerOneIsRefused) {
  Session s = make(257, 1);
  s.append(std::span(ids).subspan(257, 1));
  const auto save = [&](bool found_before) {
    Snapshot parent = Snapshot::open(name(256));
    if (found_before) parent.find_parents();
    Snapshot::save(s, name(257), {.form = SnapshotForm::delta, .parent = &parent});
  };
  for (const bool found_before : {false, true}) {
    EXPECT_EQ(error_of([&] { save(found_before); }), "capacity: " + name(257) + kTooLong);
    EXPECT_FALSE(std::filesystem::exists(name(257)));
  }
  const Snapshot last = Snapshot::open(name(256));
  StateDigests digests;
  EXPECT_EQ(error_of([&] {
              encode_snapshot(s, {.form = SnapshotForm::delta, .parent = &last}, &digests);
            }),
            std::string("capacity") + kTooLong);
  // The message says how to go on.
  const Snapshot middle = Snapshot::open_with_parents(name(100));
  Snapshot::save(middle.state(), middle, name(100), {});
  save(false);
  EXPECT_EQ(Snapshot::open_with_parents(name(257)).parents().size(), size_t{157});
}

// Versions before wrote longer chains. A delta of them does not make them longer.
TEST_F(DeltaChains, ALongerOneThatExistsIsRefused) {
  Session s = make(257, 1);
  // The first file, which was full, becomes a delta of another.
  Snapshot::save(s, scratch / "base.stet");
  const Snapshot base = Snapshot::open(scratch / "base.stet");
  const Snapshot first = Snapshot::open(name(0));
  Snapshot::save(first.state(), first, name(0), {.form = SnapshotForm::delta, .parent = &base});
  EXPECT_EQ(error_of([&] { Snapshot::open_with_parents(name(256)); }),
            "format: " + name(256) + kTooLong);
  const Snapshot last = Snapshot::open(name(256));
  EXPECT_EQ(error_of([&] {
              Snapshot::save(s, name(257), {.form = SnapshotForm::delta, .parent = &last});
            }),
            "format: " + name(256) + kTooLong);
  EXPECT_FALSE(std::filesystem::exists(name(257)));
}

// The parent's file is replaced with a delta of the child's state, which makes a cycle.
TEST_F(DeltaChains, ACircleIsRefused) {
  Session s = make(2, 90);
  const Snapshot last = Snapshot::open_with_parents(name(1));
  Snapshot::save(s, scratch / "same.stet", {.form = SnapshotForm::delta, .parent = &last});
  std::filesystem::rename(scratch / "same.stet", name(1));
  for (const std::optional<std::string>& parent : {std::optional<std::string>(), {name(1)}}) {
    EXPECT_EQ(error_of([&] { Snapshot::open_with_parents(name(1), parent); }),
              "format: " + name(1) +
                  ": parent: expected a file that is no delta of this one, found " + name(1));
  }
}

// Deltas of a state that did not change have the id of their parent.
TEST_F(DeltaChains, AFullParentIsFoundAmongDeltasOfItsState) {
  Session s = make(1, 90);
  const auto save = [&](const std::string& file, const std::string& parent) {
    const Snapshot of = Snapshot::open(scratch / parent);
    Snapshot::save(s, scratch / file, {.form = SnapshotForm::delta, .parent = &of});
  };
  for (int i = 1; i < 9; ++i) save(std::to_string(i) + ".stet", std::to_string(i - 1) + ".stet");
  Snapshot::save(s, scratch / "recipe.stet", {.form = SnapshotForm::recipe});
  write_file(scratch / "cut.stet", read_text(name(0)).substr(0, 4096));
  const std::string moved = scratch / "moved.stet";
  std::filesystem::rename(name(0), moved);
  for (int i = 1; i < 9; ++i) {
    const auto parents = Snapshot::open_with_parents(name(i)).parents();
    ASSERT_EQ(parents.size(), static_cast<size_t>(i));
    EXPECT_EQ(parents.back()->path(), moved);
  }
  // A file of that name that has no keys and values, or is cut, does not end the search.
  for (const char* instead : {"recipe.stet", "cut.stet"}) {
    std::filesystem::copy_file(scratch / instead, name(0),
                               std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(Snapshot::open_with_parents(name(1)).parents().back()->path(), moved) << instead;
  }
}

TEST_F(DeltaChains, NamesOfFilesNeedNotBeUtf8) {
  Session s = make(1, 90);
  const std::string odd = scratch / "p\xff.stet";
  std::filesystem::rename(name(0), odd);
  const Snapshot parent = Snapshot::open(odd);
  Snapshot::save(s, name(1), {.form = SnapshotForm::delta, .parent = &parent});
  const Snapshot delta = Snapshot::open_with_parents(name(1));
  EXPECT_EQ(delta.parents().front()->path(), odd);
  EXPECT_EQ(delta.meta().parent_file, "p\xEF\xBF\xBD.stet");
}

// A parent is recognized by its own name, a symbolic link and a hard link.
TEST_F(DeltaChains, ADeltaIsNotWrittenOverItsParents) {
  Session s = make(3, 90);
  const Snapshot parent = Snapshot::open(name(2));
  std::filesystem::create_symlink(name(1), scratch / "link.stet");
  std::filesystem::create_hard_link(name(0), scratch / "hard.stet");
  s.append({&ids[300], 1});
  const SaveOptions delta = {.form = SnapshotForm::delta, .parent = &parent};
  const std::vector<std::pair<std::string, std::string>> needed = {
      {name(2), name(2)},
      {name(1), name(1)},
      {name(0), name(0)},
      {scratch / "link.stet", name(1)},
      {scratch / "hard.stet", name(0)}};
  for (const auto& [path, file] : needed) {
    const std::string refused =
        "argument: " + path + ": the delta needs its parent " + file + "; save to another file";
    EXPECT_EQ(error_of([&, &path = path] { Snapshot::save(s, path, delta); }), refused);
    EXPECT_EQ(error_of([&, &path = path] { Snapshot::save(s.state(), parent, path, delta); }),
              refused);
  }
  Session back =
      Snapshot::open_with_parents(name(2)).restore(m, {.session = options(1), .check = true});
  EXPECT_EQ(back.size(), 270);
  Snapshot::save(s, scratch / "next.stet", delta);
  Session next =
      Snapshot::open_with_parents(scratch / "next.stet").restore(m, {.session = options(1)});
  EXPECT_TRUE(same_state(next, s));
  Snapshot::save(s, name(2));  // a whole snapshot needs no parent
  Session whole = Snapshot::open(name(2)).restore(m, {.session = options(1)});
  EXPECT_TRUE(same_state(whole, s));
}

// A file made from a delta, in any form, leaves the delta whole.
TEST_F(DeltaChains, WhatIsMadeFromADeltaDoesNotReplaceItsParents) {
  const Session s = make(4, 90);
  const Snapshot delta = Snapshot::open(name(3)), other = Snapshot::open(name(0));
  const State state = delta.state();
  for (const SaveOptions& o : {SaveOptions{}, SaveOptions{.form = SnapshotForm::recipe},
                               SaveOptions{.form = SnapshotForm::delta, .parent = &other}}) {
    for (const int parent : {1, 2}) {
      EXPECT_EQ(error_of([&] { Snapshot::save(state, delta, name(parent), o); }),
                "argument: " + name(parent) + ": the delta needs its parent " + name(parent) +
                    "; save to another file");
    }
  }
  EXPECT_EQ(delta.check().blocks, Snapshot::open_with_parents(name(3)).check().blocks);
  Snapshot::save(state, delta, name(3), {});  // the delta itself may become a whole snapshot
  EXPECT_EQ(Snapshot::open(name(3)).meta().form, SnapshotForm::full);
  Snapshot::save(state, Snapshot::open(name(3)), name(2), {});
}

TEST_F(DeltaChains, OneInMemoryUsesTheParentsThatItIsGiven) {
  Session s = make(3, 90);
  std::vector<std::string> files;
  for (int i = 0; i < 3; ++i) files.push_back(read_text(name(i)));
  const auto parsed = [&](size_t i) {
    return Snapshot::parse(std::as_bytes(std::span(files[i])), name(static_cast<int>(i)));
  };
  Snapshot middle = parsed(1), last = parsed(2);
  // Files beside the name of a snapshot in memory are not searched for.
  const std::string none = "; a delta in memory has to be opened with its parent";
  EXPECT_EQ(error_of([&] { last.find_parents(); }),
            "io: " + name(2) + ": parent: the delta needs the snapshot of state " +
                middle.state_name() + none);
  EXPECT_EQ(error_of([&] { last.set_parent(middle); }),
            "io: " + name(1) + ": parent: the delta needs the snapshot of state " +
                parsed(0).state_name() + none);
  EXPECT_EQ(error_of([&] { last.set_parent(parsed(0)); }),
            "io: " + name(2) + ": parent: the delta needs the snapshot of state " +
                middle.state_name() + "; the one named holds state " + parsed(0).state_name());
  EXPECT_EQ(error_of([&] { parsed(0).set_parent(middle); }),
            "argument: " + name(0) +
                ": parent: expected none, since the snapshot is not a delta, found one");
  EXPECT_EQ(error_of([&] { parsed(0).find_parents(name(1)); }),
            "argument: " + name(0) +
                ": parent: expected none, since the snapshot is not a delta, found one");
  middle.set_parent(parsed(0));
  last.set_parent(middle);
  ASSERT_EQ(last.parents().size(), 2u);
  Session back = last.restore(m, {.session = options(1)});
  EXPECT_TRUE(same_state(back, s));
  // A parent in memory serves a delta in a file, too.
  Snapshot mapped = Snapshot::open(name(2));
  mapped.set_parent(middle);
  Session again = mapped.restore(m, {.session = options(1)});
  EXPECT_TRUE(same_state(again, s));
}

TEST_F(DeltaChains, ParentsNeverChangeOnceFound) {
  make(3, 90);
  Snapshot snapshot = Snapshot::open_with_parents(name(2), name(1));
  const auto parents = snapshot.parents();
  ASSERT_EQ(parents.size(), 2u);
  EXPECT_EQ(parents[0]->path(), name(1));
  EXPECT_EQ(parents[1]->path(), name(0));
  std::filesystem::copy_file(name(1), scratch / "copy.stet");
  snapshot.find_parents(scratch / "copy.stet");
  snapshot.restore(m, {.session = options(1)});
  EXPECT_EQ(snapshot.parents(), parents);
}

}  // namespace
}  // namespace stet::test::delta_chains_tests

// Snapshots of every format version and form, as they were written by the stet of that time.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "stet/snapshot/compare.hpp"
#include "tests/build/programs/open_snapshots.hpp"
#include "tests/support/models.hpp"

namespace stet::test::old_snapshots_tests {
namespace {

std::vector<std::string> names() { return test::snapshots_in(data_path("snapshots")); }
std::string path_of(const std::string& name) { return data_path("snapshots/" + name + ".stet"); }

class OldSnapshot : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Files, OldSnapshot, testing::ValuesIn(names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(OldSnapshot, IsWhatItWasAndGoesOn) {
  if (GetParam().ends_with("compressed") && !have_zlib()) GTEST_SKIP() << "built without zlib";
  std::ifstream file(data_path("snapshots/expected.txt"));
  std::string expected;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(GetParam() + " ")) expected = line;
  }
  EXPECT_EQ(test::opened(STET_ROOT, GetParam()), expected);
}

// Converted, which needs no model, it is the same state of the present version.
TEST_P(OldSnapshot, IsConverted) {
  const Snapshot old = Snapshot::open(path_of(GetParam()));
  if (old.meta().form == SnapshotForm::recipe ||
      (GetParam().ends_with("compressed") && !have_zlib()))
    GTEST_SKIP() << "without keys and values";
  const TemporaryDirectory scratch;
  const StateDigests saved = Snapshot::save(old.state(), old, scratch / "new.stet", {});
  const Snapshot converted = Snapshot::open(scratch / "new.stet");
  EXPECT_EQ(converted.version(), kSnapshotVersion);
  EXPECT_EQ(converted.digests().id, saved.id);
  EXPECT_EQ(saved.id, old.digests().id == Sha256() ? saved.id : old.digests().id);
  EXPECT_EQ(saved.state, old.version() == 1
                             ? saved.state
                             : old.digests().state);  // version 1 had digests of whole blocks
  converted.check(1);
  const auto m = model(data_path("models/" + old.meta().checkpoint));
  Session a = old.restore(m, {.session = options(1)}),
          b = converted.restore(m, {.session = options(1)});
  EXPECT_EQ(digests_of(a).state, digests_of(b).state);
  EXPECT_EQ(digests_of(a).id, digests_of(b).id);
}

// A file of version 3 was made by the same commands as one of version 2: their states have one
// name.
TEST(OldSnapshots, OfOneStateHaveOneNameWhateverTheVersion) {
  std::map<std::string, std::vector<std::string>> found;  // by what follows the version
  std::ifstream file(data_path("snapshots/expected.txt"));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("v1")) continue;
    const size_t name = line.find('-'), version = line.find(' ');
    found[line.substr(name, version - name)].push_back(line.substr(version + 2));
  }
  EXPECT_EQ(found.size(), 10u);
  for (const auto& [name, lines] : found) {
    ASSERT_EQ(lines.size(), 2u) << name;
    EXPECT_EQ(lines[0], lines[1]) << name;
  }
}

TEST(OldSnapshots, AreComparedWithNewOnes) {
  for (const char* form : {"full", "recipe", "shifted", "edited"}) {
    const Snapshot old = Snapshot::open(path_of(std::string("v2-") + form)),
                   now = Snapshot::open(path_of(std::string("v3-") + form));
    const Comparison c = compare(old, now);
    EXPECT_TRUE(c.equal()) << form << ": "
                           << (c.first_difference() == nullptr ? "" : c.first_difference()->name);
    EXPECT_FALSE(c.parts[0].compared) << form;
    EXPECT_EQ(c.equal_positions, old.meta().positions) << form;
  }
}

// A delta of the present version over a parent of an older one, which is found beside it.
TEST(OldSnapshots, AreParentsOfDeltas) {
  const TemporaryDirectory scratch;
  std::filesystem::copy(path_of("v2-full"), scratch / "old.stet");
  const auto m = model(data_path("models/llama2-tiny-f16"));
  const Snapshot parent = Snapshot::open(scratch / "old.stet");
  Session s = parent.restore(m, {.session = options(1)});
  s.append(std::vector<int32_t>(50, 7));
  Snapshot::save(s, scratch / "delta.stet", {.form = SnapshotForm::delta, .parent = &parent});
  std::filesystem::rename(scratch / "old.stet", scratch / "renamed.stet");
  Session back =
      Snapshot::open_with_parents(scratch / "delta.stet").restore(m, {.session = options(1)});
  EXPECT_TRUE(same_state(back, s));
  EXPECT_LT(Snapshot::open(scratch / "delta.stet").stored_kv_bytes(), parent.stored_kv_bytes() + 1);
  // The parent becomes a file of the present version: it is still the parent, of deltas of either
  // version.
  for (const char* delta : {"delta.stet", "v2-delta.stet"}) {
    std::filesystem::copy(path_of("v2-delta"), scratch / "v2-delta.stet",
                          std::filesystem::copy_options::overwrite_existing);
    const Snapshot old = Snapshot::open(path_of("v2-full"));
    std::filesystem::remove(scratch / "renamed.stet");
    Snapshot::save(old.state(), old, scratch / "v2-full.stet", {});
    EXPECT_EQ(error_of([&] { Snapshot::open_with_parents(scratch / delta).check(1); }), kNoError)
        << delta;
  }
}

}  // namespace
}  // namespace stet::test::old_snapshots_tests

// Snapshots of every form, written by earlier versions of stet.
#include <algorithm>
#include <fstream>

#include "tests/build/programs/open_snapshots.hpp"
#include "tests/support/models.hpp"

namespace stet::test::committed_snapshots_tests {
namespace {

std::vector<std::string> names() { return test::snapshots_in(data_path("snapshots")); }
std::string path_of(const std::string& name) { return data_path("snapshots/" + name + ".stet"); }

class CommittedSnapshot : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Files, CommittedSnapshot, testing::ValuesIn(names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(CommittedSnapshot, OpensAndContinuesAsExpected) {
  if (GetParam().ends_with("compressed") && !have_zlib()) GTEST_SKIP() << "built without zlib";
  std::ifstream file(data_path("snapshots/expected.txt"));
  std::string expected;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(GetParam() + " ")) expected = line;
  }
  EXPECT_EQ(test::opened(STET_ROOT, GetParam()), expected);
}

// Converting needs no model and gives the same state.
TEST_P(CommittedSnapshot, IsConverted) {
  const Snapshot old = Snapshot::open(path_of(GetParam()));
  if (old.meta().form == SnapshotForm::recipe ||
      (GetParam().ends_with("compressed") && !have_zlib()))
    GTEST_SKIP() << "without keys and values";
  const TemporaryDirectory scratch;
  const StateDigests saved = Snapshot::save(old.state(), old, scratch / "new.stet", {});
  const Snapshot converted = Snapshot::open(scratch / "new.stet");
  EXPECT_EQ(converted.digests().id, saved.id);
  EXPECT_EQ(saved.id, old.digests().id);
  EXPECT_EQ(saved.state, old.digests().state);
  converted.check(1);
  const auto m = model(data_path("models/" + old.meta().checkpoint));
  Session a = old.restore(m, {.session = options(1)}),
          b = converted.restore(m, {.session = options(1)});
  EXPECT_EQ(digests_of(a).state, digests_of(b).state);
  EXPECT_EQ(digests_of(a).id, digests_of(b).id);
}

}  // namespace
}  // namespace stet::test::committed_snapshots_tests

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

// Rewinds begin at the anchors of the file, which have the arrays that its tokens give.
TEST(CommittedAnchors, AreThoseOfTheTokens) {
  const auto m = model(data_path("models/qwen35-vl-tiny"));
  SessionOptions o = options(1);
  o.kv_type = KvType::f16;
  for (const auto& [name, positions] : {std::pair{"v4-recurrent", std::vector<int64_t>{64, 100}},
                                        {"v4-recurrent-delta", {64, 100, 120}}}) {
    SCOPED_TRACE(name);
    Session s = Snapshot::open(path_of(name)).restore(m, {.session = o});
    std::vector<int64_t> found;
    for (const auto& a : s.anchors().all()) found.push_back(a->position);
    EXPECT_EQ(found, positions);
    const std::vector<int32_t> ids = s.tokens();
    const std::vector<BlockIdentity> blocks = s.block_identities();
    const std::vector<float> arrays(s.recurrent().numbers().begin(), s.recurrent().numbers().end());
    for (size_t i = positions.size(); i-- > 0;) {
      EXPECT_EQ(s.rewind_cost(positions[i]), 0);
      s.rewind(positions[i]);
      Session fresh(m, o);
      fresh.append(std::span(ids).first(static_cast<size_t>(positions[i])));
      EXPECT_TRUE(same_bytes(s.recurrent().numbers(), fresh.recurrent().numbers())) << positions[i];
      EXPECT_TRUE(same_bytes(s.logits(), fresh.logits())) << positions[i];
    }
    s.append(std::span(ids).subspan(64));
    EXPECT_EQ(s.block_identities(), blocks);
    EXPECT_TRUE(same_bytes(s.recurrent().numbers(), arrays));
  }
}

}  // namespace
}  // namespace stet::test::committed_snapshots_tests

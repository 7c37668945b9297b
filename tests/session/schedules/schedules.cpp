// Random schedules on several sessions and files. Each step is compared with a plain list of tokens
// replayed from scratch, and no two states or blocks may share a name. A failing schedule is shrunk
// and printed as a program. STET_SCHEDULES=N runs N of them, STET_SEED=S begins with seed S.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/session/schedules/shrink.hpp"
#include "tests/session/schedules/world.hpp"
#include "tests/support/recurrent_family.hpp"

namespace stet::test::schedules_tests {
namespace {

constexpr size_t kSteps = 12;

uint64_t setting(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

// The small checkpoints of transformers under every contract they support, with every type of keys and values.
class AllSubjects {
 public:
  explicit AllSubjects(std::vector<Subject> all = small()) : all_(std::move(all)) {}

  Subjects& of(uint64_t seed) {
    const size_t subject = seed % all_.size(), type = seed / all_.size() % std::size(kKvTypes);
    std::unique_ptr<Subjects>& made = made_[{subject, type}];
    if (made == nullptr) made = std::make_unique<Subjects>(all_[subject], kKvTypes[type], names_);
    return *made;
  }

 private:
  static std::vector<Subject> small() {
    std::vector<Subject> all = subjects_and_contracts();
    std::erase_if(all, [](const Subject& s) { return s.name.starts_with("pocket"); });
    return all;
  }

  const std::vector<Subject> all_ = small();
  Names names_;
  std::map<std::pair<size_t, size_t>, std::unique_ptr<Subjects>> made_;
};

// Returns the checkpoints with recurrent layers, and a family whose other layers have windows.
std::vector<Subject> small_and_recurrent() {
  std::vector<Subject> all = recurrent_subjects();
  std::erase_if(all, [](const Subject& s) { return s.name.starts_with("granite-dense"); });
  for (const Subject& s : subjects_without_attention()) all.push_back(s);
  for (int i = 0; i < 3; ++i)
    all.insert(all.begin() + i * 6, {"recurrent_test", recurrent_model_directory(), Contract::f32});
  return all;
}

// Returns the failure with its shrunk steps as a program.
std::string report(Subjects& subjects, const Steps& steps,
                   PlantedFault planted = PlantedFault::none,
                   int64_t anchor_bytes = Anchors::kDefaultBytes) {
  const Steps few = shrunk(steps, [&](const Steps& tried) {
    return !World(subjects, planted, anchor_bytes).run(tried).empty();
  });
  World world(subjects, planted, anchor_bytes);
  const std::string failure = world.run(few);
  return failure + "\n" + world.program();
}

TEST(Schedules, EqualTheSameTokensProcessedAtOnce) {
  AllSubjects all;
  const uint64_t count = setting("STET_SCHEDULES", 400), first = setting("STET_SEED", 1);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Subjects& subjects = all.of(seed);
    const Steps steps = draw_steps(static_cast<uint32_t>(seed), kSteps);
    const std::string failure = World(subjects).run(steps);
    ASSERT_EQ(failure, "") << "repeat with STET_SCHEDULES=1 STET_SEED=" << seed << "\n"
                           << report(subjects, steps);
  }
}

// Returns a budget for anchors: none, enough for three, or plenty.
int64_t anchor_bytes_of(const Model& m, uint64_t seed) {
  const auto each = static_cast<int64_t>(recurrent_shape(m.config()).bytes());
  return seed % 5 == 1 ? 0 : seed % 5 == 3 ? 3 * each : Anchors::kDefaultBytes;
}

// STET_RECURRENT_SCHEDULES=N runs N of them.
TEST(Schedules, OfRecurrentLayersEqualTheSameTokensProcessedAtOnce) {
  AllSubjects all(small_and_recurrent());
  const uint64_t count = setting("STET_RECURRENT_SCHEDULES", 150), first = setting("STET_SEED", 1);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Subjects& subjects = all.of(seed);
    const int64_t anchors = anchor_bytes_of(*subjects.model, seed);
    const Steps steps = draw_steps(static_cast<uint32_t>(seed), kSteps, true);
    const std::string failure = World(subjects, PlantedFault::none, anchors).run(steps);
    ASSERT_EQ(failure, "") << "repeat with STET_RECURRENT_SCHEDULES=1 STET_SEED=" << seed << "\n"
                           << report(subjects, steps, PlantedFault::none, anchors);
  }
}

// ---------------------------------------------------------------- tests of the shrinking

TEST(Shrinking, LeavesTheStepsThatMatterWithSmallNumbers) {
  Steps steps = draw_steps(5, 40);
  steps[11] = {Action::convert, 9, 100, 7}, steps[30] = {Action::touch, 3, 8, 1};
  int runs = 0;
  const Steps few = shrunk(steps, [&](const Steps& tried) {
    ++runs;
    size_t at = 0;
    while (at < tried.size() && !(tried[at].action == Action::convert && tried[at].x >= 77)) ++at;
    return std::any_of(tried.begin() + static_cast<long>(at), tried.end(),
                       [](const Step& s) { return s.action == Action::touch; });
  });
  ASSERT_EQ(few.size(), 2u);
  EXPECT_EQ(few[0].action, Action::convert);
  EXPECT_EQ(few[0].x, 77u);
  EXPECT_EQ(few[1].action, Action::touch);
  EXPECT_EQ(few[0].who + few[0].y + few[1].who + few[1].x + few[1].y, 0u);
  EXPECT_LT(runs, 500);
}

TEST(Shrinking, FindsAPlantedFaultAndPrintsAShortProgram) {
  AllSubjects all;
  Subjects& subjects = all.of(3);
  const PlantedFault fault = PlantedFault::rewind_to_a_border_keeps_a_token;
  Steps steps;
  for (uint32_t seed = 1; steps.empty(); ++seed) {
    ASSERT_LT(seed, 200u);
    const Steps tried = draw_steps(seed, 40);
    if (!World(subjects, fault).run(tried).empty()) steps = tried;
  }
  const std::string text = report(subjects, steps, fault);
  EXPECT_TRUE(text.starts_with("s0 has 0 positions, not 1\n")) << text;
  EXPECT_NE(text.find("  Session s0(m, o);\n  s0.append(std::vector<int32_t>{3});\n  "
                      "s0.rewind(0);\n  // s0 ought to be:\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(World(subjects).run(steps), "");
}

}  // namespace
}  // namespace stet::test::schedules_tests

// A caller may have set another rounding mode or flushed denormals, as a program linked with
// -ffast-math does from its start. The bits must not change, and the caller's modes must be
// restored.
#include <cfenv>
#include <limits>

#include "stet/sampling/sampler.hpp"
#include "tests/support/kernel_testing.hpp"
#include "tests/support/models.hpp"

namespace stet::test::float_environment_tests {
namespace {

// Returns this thread's rounding and denormal modes as the machine stores them.
uint64_t modes() {
#if defined(__x86_64__)
  uint16_t x87;
  __asm__ volatile("fnstcw %0" : "=m"(x87));
  // Excludes the sticky exception flags.
  return uint64_t{x87} << 32 | (__builtin_ia32_stmxcsr() & 0xFFC0u);
#elif defined(__aarch64__)
  uint64_t value;
  __asm__ volatile("mrs %0, fpcr" : "=r"(value));
  return value;
#else
  return static_cast<uint64_t>(std::fegetround());
#endif
}

void set_modes(int rounding, bool flush) {
  std::fesetround(rounding);
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr((__builtin_ia32_stmxcsr() & ~0x8040u) | (flush ? 0x8040u : 0u));
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0"
                   :
                   : "r"((modes() & ~(uint64_t{1} << 24)) | (uint64_t{flush} << 24)));
#endif
}

bool honours_denormals() {
  volatile float smallest = std::numeric_limits<float>::min();
  volatile float half = smallest * 0.5f;
  return half != 0;
}
bool rounds_to_nearest() {
  volatile float one = 1.0f, little = 0x1p-30f;
  volatile float up = one + little, down = one - little;
  return up == 1.0f && down == 1.0f;
}

struct Mode {
  int rounding;
  bool flush;
};
constexpr Mode kModes[] = {
    {FE_TONEAREST, true}, {FE_UPWARD, false}, {FE_DOWNWARD, true}, {FE_TOWARDZERO, true}};

// Restores the thread's modes however a test ends.
class FloatEnvironmentTest : public testing::Test {
 protected:
  ~FloatEnvironmentTest() override { set_modes(FE_TONEAREST, false); }
  const std::string directory = asset_path("pocket-llama3");
  const std::vector<int32_t> ids = {1, 17, 300, 42, 5, 99, 256, 7, 64, 23, 11, 2, 400, 31};
};

std::vector<float> logits_of(const std::shared_ptr<const Model>& m, const std::vector<int32_t>& ids,
                             int threads, Contract contract = Contract::f32) {
  Session s(m, options(threads, "", 5, contract));
  return all_logits(s, ids);
}

TEST_F(FloatEnvironmentTest, TheModesOfThisTestTake) {
  EXPECT_TRUE(honours_denormals() && rounds_to_nearest());
#if defined(__x86_64__) || defined(__aarch64__)
  set_modes(FE_TONEAREST, true);
  EXPECT_FALSE(honours_denormals());
#endif
  set_modes(FE_UPWARD, false);
  EXPECT_FALSE(rounds_to_nearest());
}

TEST_F(FloatEnvironmentTest, ACallersModesChangeNoBitAndComeBack) {
  const auto m = model(directory);
  for (Contract contract : {Contract::f32, Contract::bf16}) {
    const std::vector<float> expected = logits_of(m, ids, 1, contract);
    for (const Mode& mode : kModes) {
      for (int threads : {1, 3}) {
        set_modes(mode.rounding, mode.flush);
        const uint64_t before = modes();
        const std::vector<float> got = logits_of(m, ids, threads, contract);
        const uint64_t after = modes();
        set_modes(FE_TONEAREST, false);
        EXPECT_EQ(after, before);
        EXPECT_TRUE(equal_bits(got, expected)) << mode.rounding << ", " << threads << " threads";
      }
    }
  }
}

// Loading also computes: rotary frequencies, norm weights, the numbers of config.json.
TEST_F(FloatEnvironmentTest, LoadingUnderOtherModesGivesTheSameModel) {
  for (const char* name : {"pocket-llama3", "pocket-gemma3"}) {
    const auto expected = model(asset_path(name));
    const std::vector<float> logits = logits_of(expected, ids, 1);
    for (const Mode& mode : kModes) {
      set_modes(mode.rounding, mode.flush);
      const uint64_t before = modes();
      const auto loaded = Model::load(asset_path(name), 1);
      const uint64_t after = modes();
      set_modes(FE_TONEAREST, false);
      EXPECT_EQ(after, before);
      EXPECT_EQ(loaded->fingerprints(), expected->fingerprints());
      EXPECT_TRUE(equal_bits(logits_of(loaded, ids, 1), logits)) << name << " " << mode.rounding;
    }
  }
}

TEST_F(FloatEnvironmentTest, SamplingUnderOtherModesDrawsTheSameTokens) {
  const std::vector<float> logits = numbers(500, 3);
  SamplingSettings settings;
  settings.greedy = false;
  settings.temperature = 0.7;
  settings.top_p = 0.9;
  settings.typical_p = 0.95;
  settings.repetition_penalty = 1.3;
  Sampler sampler(500);
  const auto draw = [&] {
    std::vector<float> p(500);
    sampler.probabilities(settings, logits, ids, p);
    for (uint64_t at = 0; at < 50; ++at)
      p.push_back(static_cast<float>(sampler.sample(settings, logits, ids, at)));
    return p;
  };
  const std::vector<float> expected = draw();
  for (const Mode& mode : kModes) {
    set_modes(mode.rounding, mode.flush);
    const uint64_t before = modes();
    const std::vector<float> got = draw();
    const uint64_t after = modes();
    set_modes(FE_TONEAREST, false);
    EXPECT_EQ(after, before);
    EXPECT_TRUE(equal_bits(got, expected)) << mode.rounding;
  }
}

TEST_F(FloatEnvironmentTest, WorkOfATeamRunsUnderTheContract) {
  set_modes(FE_UPWARD, true);
  std::vector<int> good(4, -1);
  run_team(4, [&](Team t) {
    good[static_cast<size_t>(t.rank)] = honours_denormals() && rounds_to_nearest();
  });
  const uint64_t after = modes();
  EXPECT_NE(after, (set_modes(FE_TONEAREST, false), modes()));
  EXPECT_EQ(good, std::vector<int>(4, 1));
}

}  // namespace
}  // namespace stet::test::float_environment_tests

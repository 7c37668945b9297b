// What a user says to the OpenMP runtime, in variables and by --team: obeyed, or refused in one
// line, and without a trace in any bit.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "src/threads/processors.hpp"

namespace stet::test::team_tests {
namespace {

// A command line of the shell, with variables of its own: a runtime that this process has used
// reads them again when it forks.
struct Said {
  int status;
  std::string out;
};
Said shell(const std::string& line) {
  FILE* const pipe = popen(("exec 2>&1; " + line).c_str(), "r");
  std::string out;
  for (int c; (c = std::fgetc(pipe)) != EOF;) out.push_back(static_cast<char>(c));
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), out};
}
const std::string kGenerate = STET_BUILD "/tools/stet generate --prompt '1 2' -n 2 --team ";

// What a runtime would end the process for is an error before it is asked, or not asked at all.
TEST(OpenMpEnvironment, WithoutANumberOfThreadsIsRefused) {
#if !defined(STET_HAVE_OPENMP)
  GTEST_SKIP() << "built without OpenMP";
#endif
  const Said expected = shell(kGenerate + "own");
  EXPECT_EQ(expected.status, 0) << expected.out;
  for (const std::string bad : {"0", "-1", "abc", "", "1,", "2,x", "99999999999", "8193"}) {
    const std::string variable = "OMP_NUM_THREADS='" + bad + "' ";
    const Said refused = shell(variable + kGenerate + "openmp");
    EXPECT_EQ(refused.status, 1) << bad;
    EXPECT_EQ(refused.out, "stet: OMP_NUM_THREADS: expected 1 .. 8192, found " +
                               (bad.empty() ? "nothing" : bad) + "\n");
    const Said own = shell(variable + kGenerate + "own");
    EXPECT_EQ(own.out, expected.out) << bad;
  }
}

TEST(OpenMpEnvironment, IsObeyedAndNoBitDependsOnIt) {
#if !defined(STET_HAVE_OPENMP)
  GTEST_SKIP() << "built without OpenMP";
#endif
  const Said expected = shell(kGenerate + "own");
  for (const char* variable :
       {"OMP_NUM_THREADS=1", "OMP_NUM_THREADS=3", "OMP_NUM_THREADS=' 2 '", "OMP_NUM_THREADS=2,4",
        "OMP_STACKSIZE=100T", "OMP_DYNAMIC=true", "OMP_PROC_BIND=true", "OMP_PLACES=cores",
        "KMP_BLOCKTIME=0", "OMP_WAIT_POLICY=active"}) {
    const Said found = shell(std::string(variable) + " " + kGenerate + "openmp");
    EXPECT_EQ(found.status, 0) << variable;
    EXPECT_TRUE(found.out.ends_with(expected.out)) << variable << ": " << found.out;
  }
}

TEST(OpenMpEnvironment, SaysHowManyThreadsThereAre) {
#if !defined(STET_HAVE_OPENMP)
  GTEST_SKIP() << "built without OpenMP";
#endif
  const auto bench = [](const std::string& team) {
    return shell("OMP_NUM_THREADS=3 " STET_BUILD
                 "/tools/stet bench --no-probes -n 1 -p 8 --repeat 1 --team " +
                 team)
        .out;
  };
  EXPECT_TRUE(bench("openmp").starts_with("machine   3 threads, OpenMP (lib"));
  EXPECT_TRUE(bench("own").starts_with("machine   " + std::to_string(count_processors()) +
                                       " threads, own threads,"));
}

// One that this build lacks is refused with what it has.
TEST(TeamOption, OfAnUnknownKindIsRefused) {
  const Said refused = shell(kGenerate + "tbb");
  EXPECT_EQ(refused.status, 2);
#if defined(STET_HAVE_OPENMP)
  EXPECT_TRUE(refused.out.starts_with("stet: --team: expected openmp or own, found tbb"))
      << refused.out;
#else
  EXPECT_TRUE(refused.out.starts_with("stet: --team: expected own, found tbb")) << refused.out;
#endif
}

}  // namespace
}  // namespace stet::test::team_tests

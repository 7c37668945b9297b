// Settings of the OpenMP runtime, in variables and by --team, are obeyed or refused in one line.
// They never change a bit.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "src/threads/openmp.hpp"
#include "src/threads/processors.hpp"

namespace stet::test::team_tests {
namespace {

// The result of a shell command that sets its own variables. The OpenMP runtime of this process
// would read them again when it forks.
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

// Settings at which a runtime would end the process give an error first, or are never passed to it.
TEST(OpenMpEnvironment, AMissingNumberOfThreadsIsRefused) {
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

TEST(OpenMpEnvironment, IsObeyedAndChangesNoBit) {
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

// A killed process may leave the file in which LLVM's runtime registers it. `$$` is the number of the
// shell, and then of the command.
TEST(OpenMpEnvironment, AnEmptyRegistrationOfAKilledProcessIsHarmless) {
  if (!openmp_is_tunable()) GTEST_SKIP() << "built without LLVM's OpenMP";
  const Said expected = shell(kGenerate + "own");
  for (const std::string& option : {kGenerate + "openmp", kGenerate + "openmp --threads 2"}) {
    const Said found =
        shell("file=/dev/shm/__KMP_REGISTERED_LIB_$$_$(id -u); : > $file && exec " + option);
    EXPECT_EQ(found.status, 0) << found.out;
    EXPECT_EQ(found.out, expected.out);
  }
}

TEST(OpenMpEnvironment, SetsTheNumberOfThreads) {
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

// A kind that this build lacks is refused with the list of those it has.
TEST(TeamOption, AnUnknownKindIsRefused) {
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

// Subcommands that work on snapshots, and what all subcommands have in common beside their results.
#include <nlohmann/json.hpp>

#include "run_command.hpp"
#include "support.hpp"

namespace stet::test {
namespace {

using Json = nlohmann::json;

const std::string kGemma = asset_path("pocket-gemma3");

std::string text_of(const std::string& path) { return read_text_file(path, size_t{1} << 30); }

Args operator+(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct SnapshotCommand : testing::Test {
  // A snapshot of `ids`.
  std::string saved(const std::string& name, const std::string& ids = "1,2,3", const Args& more = {}) const {
    const std::string path = scratch / name;
    const Outcome o = run_stet(Args{"save", "-m", kGemma, "--ids", ids, "-o", path} + more);
    EXPECT_EQ(o.status, 0) << o.err;
    return path;
  }

  stet_test::ScratchDir scratch;
};

// Where stderr goes makes no difference: neither closed nor full.
TEST_F(SnapshotCommand, StderrIsNoReasonToFail) {
  const std::string s = saved("s.stet");
  stet_test::write_file(scratch / "damaged", text_of(s).substr(0, 1000));
  const std::vector<Args> runs = {
      {"generate", "-m", kGemma, "--ids", "1,2,3", "-n", "4", "--save", scratch / "g.stet"},
      {"resume", s, "-n", "2", "--save", scratch / "r.stet"},
      {"save", "-m", kGemma, "--ids", "1,2,3", "-o", scratch / "t.stet"},
      {"prune", s, "--keep-last", "1", "-o", scratch / "p.stet"},
      {"convert", s, "--form", "recipe", "-o", scratch / "c.stet"},
      {"tokenize", "-m", kGemma, "a", "--stats"},
      {"inspect", scratch / "damaged"},
      {"inspect", scratch / "missing"},
      {"inspect", "--no-such-option"},
      {"verify", s, "--isa", "none"},
  };
  for (const Args& args : runs) {
    const Outcome seen = run_stet(args);
    for (const std::string& err : {std::string(), std::string("/dev/full")}) {
      const int status = CommandRun(args, "/dev/null", scratch / "out", err).wait();
      EXPECT_EQ(status, seen.status) << args[0] << " with stderr to \"" << err << '"';
      EXPECT_EQ(text_of(scratch / "out"), seen.out) << args[0] << " with stderr to \"" << err << '"';
    }
  }
}

}  // namespace
}  // namespace stet::test

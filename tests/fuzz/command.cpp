// Runs the whole command on a forged snapshot. Its output must be text without control characters,
// an error must be one line, and its exit status must be a documented one.
#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "stet/base/error.hpp"
#include "tests/fuzz/forged_snapshot.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tools/command/run.hpp"

using namespace stet;

namespace {

// Redirects a standard stream for the lifetime of this object.
class Redirected {
 public:
  Redirected(int stream, int to) : stream_(stream), before_(::fcntl(stream, F_DUPFD_CLOEXEC, 10)) {
    ::dup2(to, stream);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;
  ~Redirected() {
    ::dup2(before_, stream_);
    ::close(before_);
  }

 private:
  int stream_, before_;
};

struct Printed {
  int status;
  std::string out, err;
};

Printed run(std::vector<std::string> words) {
  words.insert(words.begin(), "stet");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const fuzz::MemoryFile in(""), out(""), err("");
  int status = 0;
  {
    const Redirected input(0, in.descriptor()), output(1, out.descriptor()),
        errors(2, err.descriptor());
    status = tool::run_command(static_cast<int>(words.size()), argv.data());
  }
  return {status, out.content(), err.content()};
}

bool has_controls(const std::string& text) {
  std::string plain;
  for (const char c : text) {
    if (c != '\n' && c != '\t') plain += c;
  }
  return printable(plain, plain.size()) != plain;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const fuzz::MemoryFile memory(fuzz::text_of(data, size));
  const std::string file = memory.path(), made = fuzz::scratch_path(),
                    model = fuzz::model_directory();
  std::vector<std::vector<std::string>> lines = {
      {"inspect", file},
      {"inspect", "--json", file},
      {"check", file},
      {"diff", file, file},
      {"convert", file, "-o", made},
      {"convert", file, "-o", made, "--form", "recipe"},
      {"prune", file, "-o", made, "--keep-last", "8"},
      {"prune", file, "-o", made, "--keep-last", "8", "--positions", "shift"}};
  // Loading a model takes longer than all other commands, and fuzz_snapshot uses a model for every
  // input anyway.
  if (data[size - 1] % 16 == 0) {
    lines.push_back({"verify", file, "-m", model, "--threads", "1"});
    lines.push_back({"verify", file, "-m", model, "--threads", "1", "--bisect"});
    lines.push_back({"resume", file, "-m", model, "--threads", "1", "-n", "2"});
  }
  for (const std::vector<std::string>& line : lines) {
    const Printed p = run(line);
    if (p.status == 0) ++fuzz::tally.accepted;
    fuzz::must(p.status >= 0 && p.status <= 2, "a status that is documented");
    fuzz::must(!has_controls(p.err), "no control characters on stderr");
    fuzz::must(line[0] == "resume" || !has_controls(p.out),
               "no control characters in what is said of a file");
  }
  return 0;
}

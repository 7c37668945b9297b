// Loads a checkpoint, its tokenizer and a self-contained snapshot from bytes in memory, as a
// program without a file system does. No file can be opened while they are loaded and run.
// Arguments: the repository, a file to write. Prints the state after a reply, which must be the
// same without a stop and resumed.
#include <sys/resource.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/files/file.hpp"
#include "stet/files/file_source.hpp"
#include "stet/generate/generate.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/text/tokenizer.hpp"
#include "stet/threads/team.hpp"

namespace {

using namespace stet;
using Ids = std::vector<int32_t>;
using Json = nlohmann::json;

constexpr size_t kMost = size_t{64} << 20;

template <class T>
void expect(const char* what, const T& expected, const T& found) {
  if (found != expected)
    throw Error(ErrorKind::mismatch, "", what, Json(expected).dump(), Json(found).dump());
}

// Prevents this process from opening files for the lifetime of this object.
class NoFiles {
 public:
  NoFiles() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const struct rlimit none = {0, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
    std::FILE* file = std::fopen("/", "r");
    expect("a file opened where none can be", false, file != nullptr);
  }
  ~NoFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  struct rlimit before_ = {};
};

Reply reply_of(Session& session, const Tokenizer& tokenizer, int64_t tokens) {
  return generate(session, &tokenizer, {.max_tokens = tokens});
}

void run(const std::string& root, const std::string& path) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/assets/pocket-llama3"))
    files.emplace_back(entry.path().filename(), read_text_file(entry.path(), kMost));
  const Json golden = Json::parse(
      read_text_file(root + "/tests/data/pocket/golden-llama3/conversations.json", kMost))[0];
  const Ids prompt = golden["prompt_ids"], greedy = golden["greedy"];

  std::string state;
  const auto finish = [&](Session& session, const Tokenizer& tokenizer) {
    const Reply reply = reply_of(session, tokenizer, 256);
    Ids drawn = session.tokens();
    drawn.erase(drawn.begin(), drawn.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
    expect("reply", greedy, drawn);
    const StateDigests digests = digests_of(session);
    const std::string found = sha256_text(digests.id) + " " + digest_text(digests.kv);
    if (state.empty()) state = found;
    expect("state", state, found);
    return reply.text;
  };

  set_team_backend(TeamBackend::own);  // LLVM's OpenMP runtime opens a file
  std::optional<NoFiles> none(std::in_place);
  const auto source = memory_source(std::move(files), "memory");
  auto model = Model::load(source);
  auto tokenizer = Tokenizer::load(*source);
  const std::string fingerprint = tokenizer->fingerprint();
  const Ids ids = tokenizer->encode(tokenizer->decode(prompt), Tokenizer::Bos::off);
  expect("ids", prompt, ids);
  Session session(model);
  session.generation() = default_generation(*model);
  session.generation().sampling.greedy = true;
  append_prompt(session, ids);
  const std::string begin = reply_of(session, *tokenizer, 4).text;
  Session other = session.fork();
  const std::string end = finish(other, *tokenizer);
  expect("text", golden["greedy_text"].get<std::string>(), begin + end);

  // Snapshots can only be written to files.
  none.reset();
  Snapshot::save(session, path,
                 {.tokenizer = tokenizer.get(),
                  .weights_files = source.get(),
                  .tokenizer_files = source.get()});
  const std::string bytes = read_text_file(path, kMost);
  std::filesystem::remove(path);

  none.emplace();
  const Snapshot snapshot = Snapshot::parse(std::as_bytes(std::span(bytes)), "memory.stet");
  expect("files in the snapshot", true, snapshot.check().files >= 4);
  model = Model::load(snapshot.weights());
  tokenizer = Tokenizer::load(*snapshot.tokenizer_files());
  expect("fingerprint", fingerprint, tokenizer->fingerprint());
  for (const bool map : {true, false}) {
    Session resumed = snapshot.restore(model, {.tokenizer = tokenizer.get(), .map = map});
    expect("end of the reply", end, finish(resumed, *tokenizer));
  }
  std::printf("%s\n", state.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::runtime_error("run_in_memory: expected the repository and a file");
    run(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

// Files that commands write: none replaces an input, and none stays in part.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::outputs_tests {
namespace {

namespace fs = std::filesystem;

const std::string kTiny = data_path("models/llama31-tiny");  // has no tokenizer

struct Outputs : testing::Test {
  void SetUp() override {
    fs::copy(kTiny, model);
    succeed({"save", "-m", model, "--ids", "1,2,3", "-o", snapshot});
    succeed({"export", snapshot, "-o", tensors});
  }
  // Expects the command to be refused because it reads `file`, which stays as it was.
  static void refuses(const Args& command, const std::string& option, const std::string& file) {
    const std::string before = read_text(file);
    const std::string error = failure(command, 2);
    EXPECT_NE(error.find(": expected a file that is not read, found "), std::string::npos) << error;
    EXPECT_NE(error.find(", which " + option + " reads; name another file"), std::string::npos)
        << error;
    EXPECT_EQ(read_text(file), before);
  }

  // Runs a command, which gets SIGINT before the N-th file operation below `out`.
  Outcome interrupted(const Args& command, int call) const {
    fs::remove_all(out);
    const std::vector<std::pair<const char*, std::string>> variables = {
        {"LD_PRELOAD", STET_FAULT_SHIM},
        {"STET_FAULT_DIR", out},
        {"STET_FAULT_LOG", scratch / "log"},
        {"STET_FAULT", "int@" + std::to_string(call)},
        {"ASAN_OPTIONS", "verify_asan_link_order=0"}};
    for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
    const Outcome o = run_stet(command);
    for (const auto& [name, value] : variables) ::unsetenv(name);
    return o;
  }

  TemporaryDirectory scratch;
  const std::string out = scratch / "out", model = scratch / "model", snapshot = scratch / "s.stet",
                    tensors = scratch / "t.safetensors";
};

TEST_F(Outputs, AnInputIsNotReplaced) {
  const std::string gguf = scratch / "m.gguf", link = scratch / "link.gguf", ids = scratch / "ids";
  succeed({"convert-model", model, "-o", gguf});
  fs::create_symlink(gguf, link);
  write_file(ids, "[1,2,3]");
  refuses({"convert-model", gguf, "-o", gguf}, "IN", gguf);
  refuses({"convert-model", "-m", gguf, "-o", link}, "--model", gguf);
  refuses({"convert-model", "-m", link, "-o", gguf}, "--model", gguf);
  refuses({"save", "-m", model, "--ids", "1", "-o", model + "/model.safetensors"}, "--model",
          model + "/model.safetensors");
  refuses({"save", "-m", model, "--ids-file", ids, "-o", ids}, "--ids-file", ids);
  refuses({"logits", "-m", model, "--ids-file", ids, "-o", ids}, "--ids-file", ids);
  refuses({"export", snapshot, "-o", snapshot}, "snapshot", snapshot);
  refuses({"import", snapshot, tensors, "-o", tensors}, "tensors", tensors);
  refuses(
      {"capture", "-m", model, "--from", snapshot, "--ids", "1", "--points", "*", "-o", snapshot},
      "--from", snapshot);
  const std::string part = scratch / "m-00002-of-00002.gguf";
  write_file(part, "the second part");
  refuses({"convert-model", scratch / "m-00001-of-00002.gguf", "-o", part}, "IN", part);
  // The state that continues another may take its file.
  succeed({"resume", snapshot, "-m", model, "--ids", "4", "-n", "0", "--save", snapshot});
  succeed({"convert", snapshot, "-o", snapshot, "--form", "recipe"});
}

TEST_F(Outputs, AnEmptyNameIsRefused) {
  const Args generate = {"generate", "-m", model, "--ids", "1"};
  for (const char* option : {"--save", "-o", "--against", "--store-key"})
    EXPECT_NE(failure(generate + Args{option, ""}, 2).find("expected a name, found \"\""),
              std::string::npos)
        << option;
  for (const char* option : {"--resume", "--script", "--save", "-o", "--chat-template", "--tools"})
    EXPECT_NE(failure({"chat", option, ""}, 2).find("expected a name, found \"\""),
              std::string::npos)
        << option;
}

TEST_F(Outputs, AnInterruptedCommandLeavesNoPartOfItsFiles) {
  for (const Args& command : std::vector<Args>{
           {"quantize", "-m", model, "--to", "q8", "-o", out},
           {"prepare", "-m", model, "-o", out},
           {"convert-model", model, "-o", out},
           {"export", snapshot, "-o", out},
           {"export", snapshot, "-o", out + "/"},
           {"capture", "-m", model, "--ids", "1,2", "--points", "*hook_resid_post", "-o", out},
           {"logits", "-m", model, "--ids", "1,2", "-o", out},
           {"convert", snapshot, "-o", out}}) {
    // The first file that `convert` makes is a probe.
    const Outcome o = interrupted(command, command[0] == "convert" ? 3 : 1);
    EXPECT_EQ(o.status, -SIGINT) << command[0] << ": " << o.err;
    const std::vector<std::string> names = scratch.names();
    for (const std::string& name : names) EXPECT_FALSE(name.starts_with("out")) << command[0];
    fs::remove_all(out);
    succeed(command);
  }
}

// The command inherits the ignored signal, as under nohup.
TEST_F(Outputs, AnIgnoredSignalStaysIgnored) {
  std::signal(SIGINT, SIG_IGN);
  const Outcome o = interrupted({"quantize", "-m", model, "--to", "q8", "-o", out}, 1);
  std::signal(SIGINT, SIG_DFL);
  EXPECT_EQ(o.status, 0) << o.err;
  succeed({"generate", "-m", out, "--ids", "1", "-n", "1"});
}

}  // namespace
}  // namespace stet::test::outputs_tests

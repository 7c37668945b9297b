// `stet quantize` and `stet prepare`, and the other subcommands with the files that they write.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "stet/checkpoint/packed.hpp"
#include "tests/support/checkpoint_parts.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::packed_tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kLlama = asset_path("pocket-llama3");

Json json_of(const Args& args) { return Json::parse(succeed(args + Args{"--json"}).out); }

struct PackedCommand : testing::Test {
  std::string quantized(const std::string& to) const {
    const std::string directory = scratch / to;
    succeed({"quantize", "-m", kLlama, "--to", to, "-o", directory});
    return directory;
  }
  std::string prepared() const {
    const std::string directory = scratch / "f32";
    succeed({"prepare", "-m", kLlama, "-o", directory});
    return directory;
  }
  // Returns the generated output and the digests of the state after it.
  Json generated(const Args& more) const {
    Json j = json_of(Args{"generate", "--ids", "1,2,3", "-n", "8", "--ignore-eos", "--save",
                          scratch / "g.stet"} +
                     more);
    j.erase("timings");
    return j;
  }
  std::string contract_of(const std::string& snapshot) const {
    return json_of({"inspect", snapshot})["contract"];
  }

  TemporaryDirectory scratch;
  std::string snapshot = scratch / "s.stet";
};

TEST_F(PackedCommand, ReportsTheWrittenFile) {
  for (const auto& [args, what] : {std::pair(Args{"quantize", "--to", "q8"}, " rounded to q8"),
                                   std::pair(Args{"quantize", "--to", "q4"}, " rounded to q4"),
                                   std::pair(Args{"prepare"}, "")}) {
    const std::string directory = scratch / "d",
                      out =
                          succeed(args + Args{"-m", kLlama, "-o", directory, "--threads", "1"}).out;
    EXPECT_TRUE(out.starts_with(directory + ": ") &&
                out.find(std::string(" MB of weights") + what + " in ") != out.npos &&
                out.ends_with(" s\n"))
        << out;
    for (const char* file : {kPackedName, "config.json", "generation_config.json", "tokenizer.json",
                             "tokenizer_config.json"}) {
      EXPECT_TRUE(fs::exists(directory + "/" + file)) << file;
    }
    fs::remove_all(directory);
  }
}

TEST_F(PackedCommand, AWrongCommandLineIsStatus2) {
  const std::string d = scratch / "d";
  const std::vector<std::pair<Args, std::string>> wrong = {
      {{"quantize", "--to", "q8"}, "--output is required"},
      {{"quantize", "-o", d}, "--to is required"},
      {{"quantize", "--to", "q5", "-o", d},
       "--to: expected q8, q4, q4k, q5k, q6k or mxfp4, found q5"},
      {{"quantize", "--to", "q8", "-o", d, "--threads", "-1"},
       "--threads: expected an integer in 0..8192, found -1"},
      {{"quantize", "--to", "q8", "-o", d, "more"},
       "The following argument was not expected: more"},
      {{"prepare"}, "--output is required"},
      {{"prepare", "-o", d, "--to=q8"}, "unknown option --to"}};
  for (const auto& [args, error] : wrong) EXPECT_EQ(failure(args, 2), error + " (stet --help)");
  EXPECT_FALSE(fs::exists(d));
}

TEST_F(PackedCommand, BadInputIsStatus1AndNothingIsWritten) {
  const std::string none = scratch / "none", used = scratch / "used", d = scratch / "d";
  fs::create_directory(used);
  write_file(used + "/notes", "mine");
  const std::string packed = prepared();
  for (const Args& command : {Args{"quantize", "--to", "q4"}, Args{"prepare"}}) {
    EXPECT_EQ(failure(command + Args{"-o", used}),
              used + ": the directory is not empty; name a new one");
    EXPECT_EQ(failure(command + Args{"-o", used + "/notes"}),
              used + "/notes: a file has this name; name a new or an empty directory");
    EXPECT_EQ(failure(command + Args{"-o", none + "/d"}),
              none + "/d: the directory cannot be made: No such file or directory");
    EXPECT_EQ(
        failure(command + Args{"-m", none, "-o", d}),
        none + ": expected a checkpoint directory or a .gguf file, found nothing of that name");
    EXPECT_EQ(failure(command + Args{"-m", packed, "-o", d}),
              packed +
                  "/packed.safetensors: the weights are packed already; take the checkpoint that "
                  "they were packed from");
    EXPECT_FALSE(fs::exists(d));
  }
}

TEST_F(PackedCommand, APackedDirectoryHasItsOwnContract) {
  for (const char* contract : {"q8", "q4"}) {
    const std::string directory = quantized(contract);
    const Json packed = generated({"-m", directory});
    EXPECT_EQ(contract_of(scratch / "g.stet"), std::string(contract) + " version 1");
    EXPECT_EQ(generated({"-m", directory, "--compute", contract}), packed);
    EXPECT_EQ(generated({"-m", kLlama, "--compute", contract}), packed);
    EXPECT_EQ(failure({"generate", "-m", directory, "--ids", "1", "--compute", "f32"}),
              directory + ": weights: expected weights for the contract f32, found weights for " +
                  contract);
  }
  const std::string directory = prepared();
  EXPECT_EQ(generated({"-m", directory}), generated({"-m", kLlama}));
  EXPECT_EQ(contract_of(scratch / "g.stet"), "f32 version 1");
  EXPECT_EQ(generated({"-m", directory, "--compute", "bf16"}),
            generated({"-m", kLlama, "--compute", "bf16"}));
  EXPECT_EQ(failure({"generate", "-m", directory, "--ids", "1", "--compute", "q8"}),
            directory + ": weights: expected weights for the contract q8, found weights for f32");
}

TEST_F(PackedCommand, ASnapshotGoesOnUnderItsContract) {
  const std::string q8 = quantized("q8"), q4 = quantized("q4");
  const Args more = {"-n", "6", "--ignore-eos"};
  const Json straight = json_of(Args{"generate", "-m", q8, "--ids", "1,2,3"} + more);
  succeed({"save", "-m", q8, "--ids", "1,2,3", "-o", snapshot});
  // Both the packed weights and those rounded at load continue the snapshot.
  for (const std::string& from : {q8, kLlama}) {
    EXPECT_EQ(json_of(Args{"resume", snapshot, "-m", from} + more)["ids"], straight["ids"]);
    EXPECT_TRUE(succeed({"verify", snapshot, "-m", from}).out.starts_with("verified: "));
  }
  const std::string refused = failure({"resume", snapshot, "-m", q4, "-n", "1"});
  EXPECT_EQ(refused, q4 + ": weights: expected weights for the contract q8, found weights for q4");
  const std::string other =
      failure({"resume", snapshot, "-m", kLlama, "--compute", "q4", "-n", "1"});
  EXPECT_TRUE(other.starts_with(snapshot + ": contract: expected q8 version 1, found q4 version 1"))
      << other;
  const std::string migrated = scratch / "m.stet", made = scratch / "q4.stet";
  succeed({"resume", snapshot, "-m", q4, "--compute", "q4", "--replay", "-n", "0", "--ignore-eos",
           "--save", migrated});
  succeed({"save", "-m", q4, "--ids", "1,2,3", "-o", made});
  succeed({"diff", migrated, made});
  fs::remove(migrated);
  succeed({"resume", snapshot, "-m", q4, "--replay", "-n", "0", "--ignore-eos", "--save",
           migrated});  // weights for one contract
  succeed({"diff", migrated, made});
}

TEST_F(PackedCommand, ASnapshotBringsPackedWeightsAlong) {
  const std::string q4 = quantized("q4");
  const Json straight =
      json_of({"generate", "-m", q4, "--ids", "1,2,3", "-n", "6", "--ignore-eos"});
  succeed({"save", "-m", q4, "--ids", "1,2,3", "-o", snapshot, "--with-weights"});
  fs::remove_all(q4);
  EXPECT_EQ(json_of({"resume", snapshot, "-n", "6", "--ignore-eos"})["ids"], straight["ids"]);
  // The state has no tokenizer, and none is substituted.
  for (const Args& text :
       {Args{"resume", snapshot, "-p", "Hi"}, Args{"experiment", snapshot, "-p", "Hi"}}) {
    EXPECT_EQ(failure(text), snapshot +
                                 ": WEIGHTS: tokenizer: expected a snapshot saved "
                                 "--with-tokenizer, or -m with a directory that has one "
                                 "(or use --ids), found none");
  }
}

TEST_F(PackedCommand, InspectDescribesTheWeights) {
  const Json plain = json_of({"inspect", kLlama});
  EXPECT_EQ(plain["contract"], "f32");
  EXPECT_EQ(plain["weights"], "packed while loading");
  EXPECT_FALSE(plain.contains("checked_file_bytes"));
  for (const auto& [directory, contract] :
       {std::pair(quantized("q8"), "q8"), std::pair(quantized("q4"), "q4"),
        std::pair(prepared(), "f32")}) {
    const Json j = json_of({"inspect", directory, "--check"});
    EXPECT_EQ(j["contract"], contract);
    EXPECT_EQ(j["weights"], "packed in the file, used in place");
    EXPECT_EQ(j["fingerprints"], plain["fingerprints"]);
    EXPECT_EQ(j["checked_file_bytes"], check_packed(*directory_source(directory)));
    EXPECT_NE(succeed({"inspect", directory, "--check"})
                  .out.find(fmt::format("\nchecked_file_bytes    {}\n",
                                        j["checked_file_bytes"].get<size_t>())),
              std::string::npos);
  }
}

TEST_F(PackedCommand, LeftOutTensorsAreNamed) {
  CheckpointParts parts("llama31-tiny");
  const std::string one = scratch / "one", many = scratch / "many",
                    at = "model.layers.0.self_attn.";
  parts.add(at + "q_proj.bias", {64}, 1);
  parts.write(one);
  for (const char* const name : {"k_proj.bias", "o_proj.bias", "v_proj.bias"})
    parts.add(at + name, {64}, 1);
  parts.write(many);
  const std::vector<Args> commands = {
      {"prepare"}, {"quantize", "--to", "q4"}, {"convert-model", "--tokenizer", "none"}};
  for (size_t i = 0; i < commands.size(); ++i) {
    const auto said = [&](const std::string& model) {
      const std::string to =
          fmt::format("{}/{}-{}", scratch.path(), fs::path(model).filename().string(), i);
      return succeed(commands[i] + Args{"-m", model, "-o", to}).err;
    };
    EXPECT_EQ(said(one), "warning: the model does not use 1 of the tensors, which are left out: " +
                             at + "q_proj.bias\n");
    EXPECT_EQ(said(many), "warning: the model does not use 4 of the tensors, which are left out: " +
                              at + "k_proj.bias, " + at + "o_proj.bias, " + at +
                              "q_proj.bias, ...; stet inspect lists all (passed_over)\n");
    EXPECT_EQ(said(data_path("models/llama31-tiny")), "");
  }
}

TEST_F(PackedCommand, CheckNamesTheDamagedTensor) {
  const std::string directory = quantized("q8"), path = directory + "/" + kPackedName;
  std::string file = read_text(path);
  file[file.size() / 2] = static_cast<char>(file[file.size() / 2] ^ 1);
  write_file(path, file);
  const std::string error = failure({"inspect", directory, "--check"});
  EXPECT_TRUE(error.starts_with(path + ": model.layers.")) << error;
  EXPECT_NE(error.find(".weight: expected xxh3:"), error.npos) << error;
  EXPECT_EQ(failure({"inspect", kLlama, "--check"}),
            kLlama + ": packed.safetensors: the checkpoint has no packed weights");
  EXPECT_EQ(failure({"inspect", path, "--check"}),
            path + ": expected a checkpoint directory or a .gguf file, here " + directory +
                ", found one file of a checkpoint");
}

// --check reads all weights before the first token; --no-mmap loads them into memory.
TEST_F(PackedCommand, WeightsAreCheckedOrReadOnRequest) {
  const std::string directory = quantized("q8"), file = directory + "/packed.safetensors";
  const Json expected = generated({"-m", directory});
  EXPECT_EQ(generated({"-m", directory, "--check"}), expected);
  EXPECT_EQ(generated({"-m", directory, "--no-mmap"}), expected);
  std::string bytes = read_text(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file(file, bytes);
  for (const Args& how : {Args{"--check"}, Args{"--check", "--no-mmap"}}) {
    const std::string error = failure(Args{"generate", "-m", directory, "--ids", "1"} + how);
    EXPECT_TRUE(error.starts_with(file + ": ") &&
                error.find(": expected xxh3:") != std::string::npos)
        << error;
  }
  EXPECT_EQ(failure({"generate", "-m", kLlama, "--ids", "1", "--check"}, 2),
            "--check compares digests, and " + kLlama +
                " has none; stet prepare writes a checkpoint that has them (stet --help)");
}

}  // namespace
}  // namespace stet::test::packed_tests

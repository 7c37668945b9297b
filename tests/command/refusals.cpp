// Wrong command lines and bad input: the error, the status, and nothing that is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::refusals_tests {
namespace {

using Json = nlohmann::json;

const std::string kTiny = data_path("models/gemma3-tiny");  // has no tokenizer

struct Refusals : testing::Test {
  TemporaryDirectory scratch;
  std::string snapshot = scratch / "s.stet";
};

TEST_F(Refusals, WeightsThatBf16CannotTakeAreRefused) {
  EXPECT_EQ(failure({"generate", "-m", kTiny, "--ids", "1,2", "--compute", "bf16"}),
            kTiny +
                "/model.safetensors: model.embed_tokens.weight: expected dtype BF16 for the "
                "contract bf16, found F32");
}

TEST_F(Refusals, AWrongCommandLineIsStatus2) {
  const std::vector<std::pair<Args, std::string>> wrong = {
      {{"frobnicate"}, "unknown subcommand frobnicate"},
      {{"generate"}, "--prompt, --prompt-file, --ids, --ids-file or --say is required"},
      {{"generate", "-p", "a", "--ids", "1"}, "--prompt excludes --ids"},
      {{"generate", "-p", "a", "--temperature", "warm"},
       "--temperature: expected 0 (greedy) or a number in 1e-30..1e30, found warm"},
      {{"generate", "-p", "a", "-n", "-1"},
       "--max-tokens: expected an integer in 0..9223372036854775807, found -1"},
      {{"generate", "-p", "a", "--seed", "-1"},
       "--seed: expected random, or an integer in 0..18446744073709551615, found -1"},
      {{"generate", "-p", "a", "--seed", "18446744073709551616"},
       "--seed: expected random, or an integer in 0..18446744073709551615, found "
       "18446744073709551616"},
      {{"generate", "-p", "a", "--threads", "0x2"},
       "--threads: expected an integer in 0..8192, found 0x2"},
      {{"generate", "-p", "a", "--chunk", "0"},
       "--chunk: expected an integer in 1..65536, found 0"},
      {{"generate", "-p", "a", "--stop-id", "4294967301"},
       "--stop-id: expected an integer in 0..2147483647, found 4294967301"},
      {{"generate", "-p", "a", "--kv", "f8"}, "--kv: expected f32, bf16, f16 or q8, found f8"},
      {{"generate", "-p", "a", "--compute", "f64"},
       "--compute: expected f32, bf16, q8, q4 or ggml, found f64"},
      {{"generate", "-p", "a", "--gemm", "mkl"}, "--gemm: expected own or blas, found mkl"},
      {{"generate", "-p", "a", "--bos", "maybe"}, "--bos: expected auto, on or off, found maybe"},
      {{"save", "-p", "a"}, "--output is required"},
      {{"resume"}, "resume needs snapshot, the state to continue: stet resume snapshot"},
      {{"logits", "--ids", "1"}, "-o, --digest or --nll is required"},
      {{"tokenize"}, "text, --prompt-file or --jsonl is required"},
      {{"detokenize"}, "ids or --jsonl is required"},
      {{"diff", "a"}, "diff needs b, the snapshot to compare it with: stet diff a b"},
      {{"inspect"},
       "inspect needs path, a snapshot, a directory of a checkpoint, or a .gguf file: stet inspect "
       "path"}};
  for (const auto& [args, error] : wrong) EXPECT_EQ(failure(args, 2), error + " (stet --help)");
}

TEST_F(Refusals, OptionsOutOfRangeAreStatus2AndNothingIsWritten) {
  const Args ids = {"generate", "--ids", "1,2,3", "--save", snapshot};
  const std::string scale = "1e-30..1e30",
                    temperature =
                        "--temperature: expected 0 (greedy) or a number in " + scale + ", found ";
  const std::vector<std::pair<Args, std::string>> bad = {
      {ids + Args{"--temperature", "nan"}, temperature + "nan"},
      {ids + Args{"--temperature", "inf"}, temperature + "inf"},
      {ids + Args{"--temperature", "-1"}, temperature + "-1"},
      {ids + Args{"--temperature", "1e31"}, temperature + "1e31"},
      {ids + Args{"--temperature", ""}, temperature + "nothing"},
      {ids + Args{"--repetition-penalty", "nan"},
       "--repetition-penalty: expected a number in " + scale + " (1: none), found nan"},
      {ids + Args{"--frequency-penalty", "2.1"},
       "--frequency-penalty: expected a number in -2..2 (0: none), found 2.1"},
      {ids + Args{"--presence-penalty", "-3"},
       "--presence-penalty: expected a number in -2..2 (0: none), found -3"},
      {ids + Args{"--logit-bias", "17"},
       "--logit-bias: expected ID=X with X in -100..100 (17=-100), found 17"},
      {ids + Args{"--logit-bias", "17=1,18=101"},
       "--logit-bias: expected ID=X with X in -100..100 (17=-100), found 18=101"},
      {ids + Args{"--logit-bias", "-1=1"},
       "--logit-bias: expected ID=X with X in -100..100 (17=-100), found -1=1"},
      {ids + Args{"--logit-bias", "17=1", "--logit-bias", "17=2"},
       "--logit-bias: expected each token once, found a second bias of logit_bias[17]"},
      {ids + Args{"--logit-bias", "1620=1"},
       "--logit-bias: expected token ids in 0..1619, found 1620"},
      {ids + Args{"--top-k", "1.5"},
       "--top-k: expected an integer in 0..2147483647 (0: all), found 1.5"},
      {ids + Args{"--top-p", "nan"}, "--top-p: expected a number in 0..1 (1: all), found nan"},
      {ids + Args{"--min-p", "inf"}, "--min-p: expected a number in 0..1 (0: all), found inf"},
      {ids + Args{"--typical", "0"},
       "--typical: expected a number above 0, up to 1 (1: all), found 0"},
      {ids + Args{"--stop", ""}, "--stop: expected 1 to 65536 bytes, found 0"},
      {ids + Args{"--stop", "\xff"}, "--stop: expected UTF-8, found \\xff"},
      {ids + Args{"--stop-id", "1,1620"}, "--stop-id: expected token ids in 0..1619, found 1620"},
      {ids + Args{"--compress", "lz4"}, "--compress: expected zlib or zlib:1 .. zlib:9, found lz4"},
      {ids + Args{"--form", "delta"},
       "--form delta needs --against FILE, the snapshot that it is made against"},
      {ids + Args{"--against", snapshot}, "--against is for --form delta only"},
      {ids + Args{"--sample", "--temperature", "0"},
       "--sample: expected a temperature above 0, found --temperature 0, which is greedy"},
      {ids + Args{"--bos", "on"}, "--bos: expected --prompt or --prompt-file, found --ids"},
      {{"generate", "--ids", "1,-2", "--save", snapshot},
       "--ids: [1]: expected a token id, found -2"},
      {{"generate", "--ids", "1;2", "--save", snapshot},
       "--ids: expected token ids: 1,2,3 or [1,2,3], found 1;2"},
      {{"generate", "--ids", "1,2.5", "--save", snapshot},
       "--ids: [1]: expected a token id, found 2.5"},
      {{"generate", "--ids", "99999999999", "--save", snapshot},
       "--ids: [0]: expected a token id, found 99999999999"},
      {{"generate", "--ids", "", "--save", snapshot},
       "--ids: expected at least one token, found none"},
      {{"generate", "--say", "", "--save", snapshot}, "--say: expected a message, found nothing"},
      {{"generate", "--ids", std::string(100'000, '['), "--save", snapshot},
       "--ids: expected token ids: 1,2,3 or [1,2,3], found " + std::string(60, '[') + "..."},
      {{"generate", "--ids", "1," + std::string(50'000, '[') + std::string(50'000, ']'), "--save",
        snapshot},
       "--ids: expected token ids: 1,2,3 or [1,2,3], found 1," + std::string(58, '[') + "..."},
      {{"chat", "--var", "x", "--script", "/dev/null"}, "--var: expected NAME=JSON, found x"},
      {{"chat", "--var", "x=[1,", "--script", "/dev/null"},
       "--var x: expected valid JSON at line 1, column 4, found the end of the text"},
      {{"chat", "--var", "x=" + std::string(50'000, '[') + std::string(50'000, ']'), "--script",
        "/dev/null"},
       "--var x: expected JSON at most 64 levels deep, found more levels"}};
  for (const auto& [args, error] : bad) EXPECT_EQ(failure(args, 2), error + " (stet --help)");
  EXPECT_TRUE(failure(ids + Args{"--isa", "sse9"}, 2).starts_with("--isa: expected portable"));
  EXPECT_FALSE(std::filesystem::exists(snapshot));
}

TEST_F(Refusals, BadInputIsStatus1AndNothingIsWritten) {
  const std::string out = scratch / "out.stet", none = scratch / "none", empty = scratch / "empty";
  write_file(empty, "");
  write_file(scratch / "bad.json", "[1, 2");
  std::filesystem::create_directory(scratch / "dir");
  const Args ids = {"generate", "--ids", "1,2,3", "--save", out};
  const std::vector<std::pair<Args, std::string>> bad = {
      {ids + Args{"-m", none},
       none + ": expected a checkpoint directory or a .gguf file, found nothing of that name"},
      {ids + Args{"-m", empty},
       empty + ": expected a checkpoint directory or a .gguf file, found an empty file"},
      {ids + Args{"-m", scratch / "dir"},
       scratch / "dir/config.json: cannot be read: No such file or directory"},
      {ids + Args{"--ctx", "2049"},
       "ctx: expected 1 .. 2048 (max_position_embeddings), found 2049"},
      {ids + Args{"--ctx", "2"},
       "3 tokens do not fit: 0 of 2 positions are used (--ctx sets the number)"},
      {{"generate", "--ids", "1,1620", "--save", out},
       "ids[1]: expected a token id in 0..1619, found 1620"},
      {{"generate", "--ids-file", none, "--save", out},
       none + ": cannot be read: No such file or directory"},
      {{"generate", "--ids-file", scratch / "bad.json", "--save", out},
       scratch /
           "bad.json: line 1, column 6: expected token ids: 1,2,3 or [1,2,3], found the end of "
           "the text"},
      {{"generate", "--prompt-file", scratch / "dir", "--save", out},
       scratch / "dir: cannot be read: Is a directory"},
      {{"resume", none, "--save", out}, none + ": cannot be read: No such file or directory"},
      {{"resume", empty, "--save", out}, empty + ": expected a file with content, found 0 bytes"},
      {{"resume", scratch / "bad.json", "--save", out},
       scratch / "bad.json: magic: expected a stet snapshot, found another file"},
      {{"inspect", scratch / "bad.json"},
       scratch / "bad.json: expected a checkpoint directory or a .gguf file, found a JSON file"},
      {{"logits", "--ids", "1,1620", "-o", out},
       "ids[1]: expected a token id in 0..1619, found 1620"},
      {{"logits", "--ids", "1,2,3", "--ctx", "2", "-o", out},
       "tokens: expected at most 2 positions (--ctx), found 0 + 3"},
      {{"save", "--ids", "1", "-o", scratch / "dir"},
       scratch / "dir: expected a regular file to write, found a directory"},
      {{"save", "--ids", "1", "-o", none + "/s"},
       none + "/s: no file can be made in its directory: No such file or directory"},
      {{"logits", "--ids", "1", "-o", none + "/s"},
       none + "/s: no file can be made in its directory: No such file or directory"},
      {{"generate", "--ids", "1", "--save", none + "/s"},
       none + "/s: no file can be made in its directory: No such file or directory"}};
  for (const auto& [args, error] : bad) {
    const std::string found = failure(args);
    EXPECT_EQ(error.ends_with(": ") ? found.substr(0, error.size()) : found, error);
    EXPECT_EQ(scratch.names(), (std::vector<std::string>{"bad.json", "dir", "empty"})) << error;
  }
}

TEST_F(Refusals, ResumeRefusesBeforeAnyOutput) {
  succeed({"save", "-m", kTiny, "--ids", "1,2,3", "-o", snapshot, "--ctx", "10"});
  const Args resume = {"resume", snapshot, "-m", kTiny};
  EXPECT_EQ(failure(resume + Args{"--kv", "f16"}),
            snapshot + ": kv type: expected f32, found f16 (--kv; --replay computes it again)");
  EXPECT_EQ(failure(resume + Args{"--ids", "1,2,3,4,5,6,7,8"}),
            "8 tokens do not fit: 3 of 10 positions are used (--ctx sets the number)");
  EXPECT_EQ(failure(resume + Args{"--ids", "1,-1"}, 2),
            "--ids: [1]: expected a token id, found -1 (stet --help)");
  EXPECT_EQ(failure(resume + Args{"--ids", "100000"}).substr(0, 32),
            "ids[0]: expected a token id in 0");
  EXPECT_EQ(
      failure(resume + Args{"--temperature", "nan"}, 2),
      "--temperature: expected 0 (greedy) or a number in 1e-30..1e30, found nan (stet --help)");
  const std::string reply = succeed(resume).out;
  std::string bytes = read_text(snapshot);
  bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 1);
  write_file(snapshot, bytes);
  EXPECT_EQ(failure(resume + Args{"--check"}),
            snapshot +
                ": KV block 0: its bytes are not those that were saved; stet resume --heal "
                "computes them again");
  EXPECT_EQ(succeed(resume).out,
            reply);  // without it, damaged parts are computed again when they are needed
}

TEST_F(Refusals, EditsNameTheOptionOrTheOtherFile) {
  const std::string other = scratch / "other.stet";
  succeed({"save", "-m", kTiny, "--ids", "1,2,3", "-o", snapshot});
  succeed({"save", "-m", asset_path("pocket-gemma3"), "--ids", "1,2,3", "-o", other});
  const Args edit = {"edit", snapshot, "-m", kTiny, "-o", scratch / "e.stet"};
  EXPECT_EQ(failure(edit + Args{"--scale", "nan"}), "--scale: expected a finite number, found nan");
  EXPECT_EQ(failure(edit + Args{"--zero", "--layers", "99"}), "--layers: expected 0..6, found 99");
  EXPECT_EQ(failure(edit + Args{"--zero", "--heads", "99"}), "--heads: expected 0..1, found 99");
  for (const char* option : {"--copy", "--splice"})
    EXPECT_TRUE(failure(edit + Args{option, other})
                    .starts_with(other + ": model: the model does not fit the snapshot: "));
  EXPECT_NE(succeed(edit + Args{"--zero", "--keys"}).err.find(": 3 tokens, 1 edit, state "),
            std::string::npos);
}

// An option that would have no effect is refused.
TEST_F(Refusals, OptionsThatWouldBeIgnoredAreStatus2) {
  succeed({"save", "-m", kTiny, "--ids", "1,2,3", "-o", snapshot, "--ctx", "10"});
  const Args convert = {"convert", snapshot, "-o", scratch / "c.stet"};
  const std::string none = ": this option has no effect, since nothing is computed: " + snapshot +
                           " has its keys and values (stet --help)";
  const std::string included = ": this option is for --with-weights and --with-tokenizer, since " +
                               snapshot + " has its keys and values (stet --help)";
  const std::string no_delta =
      "--parent: this option is for deltas, and " + snapshot + " is none (stet --help)";
  EXPECT_EQ(failure(convert + Args{"--window-only"}, 2), "--window-only" + none);
  EXPECT_EQ(failure(convert + Args{"--anchors", "0"}, 2), "--anchors" + none);
  EXPECT_EQ(failure(convert + Args{"--cache-dir", "x"}, 2), "--cache-dir" + none);
  EXPECT_EQ(failure(convert + Args{"--eos", "1"}, 2), "--eos" + included);
  for (const Args& command :
       {Args{"resume", snapshot}, Args{"export", snapshot, "-o", scratch / "t.safetensors"},
        Args{"measure", "--from", snapshot, "--norms"}, Args{"experiment", snapshot}})
    EXPECT_EQ(failure(command + Args{"--parent", "nobody"}, 2), no_delta);
  EXPECT_EQ(failure({"resume", snapshot, "--heal", "--replay"}, 2),
            "--heal excludes --replay, which computes every block again (stet --help)");
  EXPECT_EQ(failure({"experiment", snapshot, "--heal", "--replay"}, 2),
            "--heal excludes --replay, which computes every block again (stet --help)");
  EXPECT_EQ(failure({"experiment", snapshot, "--save-dir", scratch / "d", "--form", "delta"}, 2),
            "--form delta needs --against FILE, the snapshot that it is made against "
            "(stet --help)");
  EXPECT_EQ(failure({"capture", "-m", kTiny, "--list", "--heads", "1"}, 2),
            "--list excludes --heads (stet --help)");
  EXPECT_EQ(failure({"inspect", kTiny, "--kv-memory", "5", "--check"}, 2),
            "--kv-memory excludes --check (stet --help)");
  EXPECT_EQ(failure({"inspect", snapshot, "--kv-memory", "5"}, 2),
            "--kv-memory: expected a checkpoint's directory or its config.json, found " + snapshot +
                " (stet --help)");
  for (const Args& none : {Args{"convert", "", "-o", scratch / "c.stet"}, Args{"verify", ""}})
    EXPECT_EQ(failure(none, 2), "snapshot: expected a name, found \"\" (stet --help)");
  EXPECT_EQ(failure({"generate", "-m", kTiny, "--ids", "1", "--checkpoint-every", "64"}, 2),
            "--checkpoint-every requires --window-only (stet --help)");
  EXPECT_EQ(failure({"generate", "-m", kTiny, "--ids", "1", "--eos", "320"}, 2),
            "--eos: expected token ids in 0..319, found 320 (stet --help)");
  const std::string requires_state = " requires a state in the store, as store:NAME (stet --help)";
  EXPECT_EQ(failure({"generate", "-m", kTiny, "--ids", "1", "--store", "dir:x"}, 2),
            "--store" + requires_state);
  EXPECT_EQ(failure({"inspect", snapshot, "--store-key", "x"}, 2), "--store-key" + requires_state);
  EXPECT_EQ(failure({"lab", "capture", "--from", snapshot, "--store-fetch", "always"}, 2),
            "--store-fetch" + requires_state);
  EXPECT_EQ(failure({"serve", "-m", kTiny, "--store-compress", "never"}, 2),
            "--store-compress requires --store or STET_STORE (stet --help)");
  EXPECT_EQ(failure({"serve", "-m", kTiny, "--states-in-memory", "5"}, 2),
            "--states-in-memory requires --state-dir (stet --help)");
  EXPECT_EQ(failure({"generate", "-m", kTiny, "--ids", "1", "--anchors", "5"}),
            "--anchors: expected a model with recurrent layers, found family gemma3");
  const Args resume = {"resume", snapshot, "--save", scratch / "r.stet"};
  EXPECT_EQ(
      failure(resume + Args{"--form", "delta"}, 2),
      "--form delta needs --against FILE, the snapshot that it is made against (stet --help)");
  for (const Args& measure : {Args{"--norms"}, Args{"--kl", snapshot}})
    EXPECT_EQ(
        failure(Args{"measure", "-m", kTiny, "--from", snapshot, "--intervene", "x.json"} + measure,
                2),
        "--intervene changes tokens that are processed; give a prompt or leave it out "
        "(stet --help)");
  EXPECT_EQ(failure({"store", "tree", "-o", "x"}, 2),
            "--output: expected stet store get, found stet store tree (stet --help)");
  EXPECT_EQ(failure({"measure", "-m", kTiny, "--kl", snapshot}, 2),
            "--kl compares with a prompt, or with the snapshot of --from (stet --help)");
  const Args patch = {"patch", "-m",       kTiny, "--clean-ids", "1,2", "--corrupt-ids",
                      "1,3",   "--answer", "3",   "--wrong",     "4"};
  EXPECT_EQ(failure(patch + Args{"--clean", "a"}, 2),
            "--clean cannot be used with --clean-ids (stet --help)");
  EXPECT_EQ(failure(patch + Args{"--corrupt", "a"}, 2),
            "--corrupt cannot be used with --corrupt-ids (stet --help)");
  EXPECT_EQ(failure(patch + Args{"--chat"}, 2),
            "--chat: expected texts, which become messages, found token ids (stet --help)");
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"s.stet"});
}

TEST_F(Refusals, AnotherKvTypeThanTheSnapshotsIsRefused) {
  succeed({"save", "-m", kTiny, "--ids", "1,2,3", "-o", snapshot});
  const Args other = {"-m", kTiny, "--ids", "4", "--kv", "q8"};
  for (const Args& command :
       {Args{"resume", snapshot}, Args{"experiment", snapshot}, Args{"score", "--from", snapshot},
        Args{"logits", "--digest", "--from", snapshot},
        Args{"measure", "--norms", "--from", snapshot},
        Args{"capture", "--points", "*", "-o", scratch / "c", "--from", snapshot}})
    EXPECT_EQ(failure(command + other), snapshot +
                                            ": kv type: expected f32, found q8 (--kv; "
                                            "--replay computes it again)")
        << command[0];
}

TEST_F(Refusals, AFullSessionIsReported) {
  const Outcome o =
      succeed({"generate", "-m", kTiny, "--ids", "1,2,3", "--ctx", "5", "--ignore-eos"});
  EXPECT_EQ(std::count(o.out.begin(), o.out.end(), ','), 1);  // two ids
  EXPECT_EQ(o.err, "the session is full: 5 positions (--ctx N allows up to 512)\n");
  EXPECT_EQ(Json::parse(succeed({"generate", "-m", kTiny, "--ids", "1,2,3", "--ctx", "5",
                                 "--ignore-eos", "--json"})
                            .out)["stop"],
            "length");
}

TEST_F(Refusals, OutputThatCannotBeWrittenIsAnError) {
  const auto status = [&](const Args& args, const std::string& out) {
    const CommandRun run(args, "/dev/null", out, scratch / "err");
    return run.wait();
  };
  const Args generate = {"generate", "-m", kTiny, "--ids", "1,2,3", "-n", "3", "--ignore-eos"};
  for (const auto& [out, reason] :
       {std::pair{"/dev/full", "No space left on device"}, std::pair{"", "Bad file descriptor"}}) {
    for (const Args& args : {generate, generate + Args{"--json"}, Args{"inspect", kTiny},
                             Args{"--help"}, Args{"--version"}}) {
      EXPECT_EQ(status(args, out), 1) << args[0];
      EXPECT_EQ(read_text(scratch / "err"),
                std::string("stet: cannot write to standard output: ") + reason + "\n");
    }
  }
  // The state is saved anyway, and the file is not mistaken for the closed standard output.
  EXPECT_EQ(status(generate + Args{"--save", snapshot, "--json"}, ""), 1);
  EXPECT_EQ(Snapshot::open(snapshot).tokens().size(), 6u);
}

}  // namespace
}  // namespace stet::test::refusals_tests

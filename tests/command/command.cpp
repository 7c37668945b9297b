// The `stet` command, run as a program.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/snapshot/kv_blocks.hpp"
#include "stet/generate/generate.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::command_tests {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

#ifdef STET_HAVE_SENTENCEPIECE
constexpr bool kHaveText = true;
#else
constexpr bool kHaveText = false;
#endif
#define NEEDS_TEXT() \
  if (!kHaveText) GTEST_SKIP() << "built without a library for the tokenizers"

const std::string kGemma = asset_path("pocket-gemma3"), kLlama = asset_path("pocket-llama3");
const std::string kTiny = data_path("models/gemma3-tiny");  // has no tokenizer

std::string gemma_turn(const std::string& user, bool first = true) {
  return (first ? "" : "\n") + ("<start_of_turn>user\n" + user) +
         "<end_of_turn>\n<start_of_turn>model\n";
}

std::vector<Json> json_lines(const std::string& out) {
  std::vector<Json> lines;
  std::istringstream in(out);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

Args operator+(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Outcome succeed(const Args& args, const std::string& input = "") {
  Outcome o = run_stet(args, input);
  EXPECT_EQ(o.status, 0) << o.err;
  return o;
}

// Returns the single line of an error without "stet: ".
std::string failure(const Args& args, int status = 1, const std::string& input = "") {
  const Outcome o = run_stet(args, input);
  EXPECT_EQ(o.status, status) << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_TRUE(o.err.starts_with("stet: ")) << o.err;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_TRUE(o.err.ends_with("\n")) << o.err;
  return o.err.size() < 7 ? o.err : o.err.substr(6, o.err.size() - 7);
}

struct Command : testing::Test {
  TemporaryDirectory scratch;
  std::string snapshot = scratch / "s.stet";
};

TEST_F(Command, HelpAndVersion) {
  EXPECT_TRUE(succeed({"--version"}).out.starts_with("stet "));
  const std::string help = succeed({"--help"}).out;
  for (const char* name :
       {"generate", "save", "resume", "logits", "tokenize", "detokenize", "inspect", "bench"}) {
    EXPECT_NE(help.find(std::string("\n  ") + name + " "), std::string::npos) << name;
    const std::string sub = succeed({name, "--help"}).out;
    EXPECT_NE(sub.find(std::string("Usage: stet ") + name + " [OPTIONS]"), std::string::npos)
        << sub;
    std::istringstream lines(sub);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
  }
  const std::string generate = succeed({"generate", "--help"}).out;
  for (const char* group :
       {"\nPrompt:\n", "\nSampling:\n", "\nStopping:\n", "\nOutput:\n", "\nModel:\n"}) {
    EXPECT_NE(generate.find(group), std::string::npos) << group;
  }
}

TEST_F(Command, GenerateGivesTheGoldenReplies) {
  for (const auto& [directory, name] : {std::pair{kGemma, "gemma3"}, std::pair{kLlama, "llama3"}}) {
    const Json golden = Json::parse(
        read_text(data_path(std::string("pocket/golden-") + name + "/conversations.json")));
    for (const size_t i : {0, 7, 23}) {
      write_file(scratch / "ids.json", golden[i]["prompt_ids"].dump());
      const Json j = Json::parse(
          succeed({"generate", "-m", directory, "--ids-file", scratch / "ids.json", "--json"}).out);
      EXPECT_EQ(j["prompt_ids"], golden[i]["prompt_ids"]);
      EXPECT_EQ(j["ids"], golden[i]["greedy"]);  // the stop token included
      if (kHaveText) {
        EXPECT_EQ(j["text"], golden[i]["greedy_text"]);
      }
      EXPECT_EQ(j["stop"], "eos");
      EXPECT_EQ(j["positions"], golden[i]["prompt_ids"].size() + golden[i]["greedy"].size());
      EXPECT_EQ(j["timings"]["prefill_tokens"], golden[i]["prompt_ids"].size());
      EXPECT_EQ(j["timings"]["decode_tokens"], golden[i]["greedy"].size());
      for (const char* time :
           {"load_s", "prefill_s", "decode_s", "prefill_tokens_per_s", "decode_tokens_per_s"}) {
        EXPECT_GT(j["timings"][time].get<double>(), 0) << time;
      }
    }
  }
}

TEST_F(Command, TheScriptedConversationAcrossProcesses) {
  NEEDS_TEXT();
  const Json script = Json::parse(read_text(data_path("pocket/golden-gemma3/script.json")));
  Args all, first, last;
  for (size_t i = 0; i < 8; ++i) {
    const Args p = {"-p", gemma_turn(script["turns"][i]["user"], i == 0)};
    all = all + p;
    (i < 4 ? first : last) = (i < 4 ? first : last) + p;
  }
  const auto unbroken =
      json_lines(succeed(Args{"generate", "--json", "--save", scratch / "all.stet"} + all).out);
  auto parts = json_lines(succeed(Args{"generate", "--json", "--save", snapshot} + first).out);
  const auto rest =
      json_lines(succeed(Args{"resume", snapshot, "--json", "--save", snapshot} + last).out);
  parts.insert(parts.end(), rest.begin(), rest.end());
  ASSERT_EQ(unbroken.size(), 8u);
  ASSERT_EQ(parts.size(), 8u);
  Json ids = Json::array();
  for (size_t i = 0; i < 8; ++i) {
    for (const char* field : {"prompt_ids", "ids", "text", "stop", "positions", "digests"}) {
      EXPECT_EQ(parts[i][field], unbroken[i][field]) << i << " " << field;
    }
    EXPECT_EQ(parts[i]["text"], script["turns"][i]["model"]);
    EXPECT_EQ(parts[i]["stop"], "eos");
    for (const char* field : {"prompt_ids", "ids"})
      ids.insert(ids.end(), parts[i][field].begin(), parts[i][field].end());
  }
  ASSERT_LE(ids.size(), script["ids"].size());
  EXPECT_EQ(ids, Json(std::vector<Json>(script["ids"].begin(),
                                        script["ids"].begin() + static_cast<int64_t>(ids.size()))));
  EXPECT_LE(script["ids"].size() - ids.size(), 1u);  // the newline after the last turn
  EXPECT_EQ(read_text(snapshot), read_text(scratch / "all.stet"));

  // The human-readable output is one reply a line.
  std::string replies;
  for (size_t i = 0; i < 4; ++i) replies += script["turns"][i]["model"].get<std::string>() + "\n";
  EXPECT_EQ(succeed(Args{"generate"} + first).out, replies);
}

TEST_F(Command, ACutReplyGoesOn) {
  NEEDS_TEXT();
  const Args ask = {"generate", "-p", gemma_turn("Set g = 12."), "--json", "--stop", "12.!"};
  const Json whole = Json::parse(succeed(ask + Args{"--save", scratch / "whole.stet"}).out);
  EXPECT_EQ(whole["text"], "OK, g = 12.");
  const int n = static_cast<int>(whole["ids"].size());
  for (int cut = 0; cut < n; ++cut) {
    const Json a =
        Json::parse(succeed(ask + Args{"-n", std::to_string(cut), "--save", snapshot}).out);
    EXPECT_EQ(a["stop"], "length");
    const Json b = Json::parse(succeed({"resume", snapshot, "--json", "--save", snapshot}).out);
    EXPECT_EQ(a["text"].get<std::string>() + b["text"].get<std::string>(), whole["text"]) << cut;
    Json ids = a["ids"];
    ids.insert(ids.end(), b["ids"].begin(), b["ids"].end());
    EXPECT_EQ(ids, whole["ids"]);
    EXPECT_EQ(b["prompt_ids"], Json::array());
    EXPECT_EQ(read_text(snapshot), read_text(scratch / "whole.stet")) << cut;
  }
  // A cut reply that is not saved cannot continue, so the text it held back is printed.
  EXPECT_EQ(Json::parse(succeed(ask + Args{"-n", "7"}).out)["text"], "OK, g = 12");
  EXPECT_EQ(Json::parse(succeed(ask + Args{"-n", "7", "--save", snapshot}).out)["text"],
            "OK, g = ");
}

TEST_F(Command, AReplyThatEndedDoesNotGoOnByItself) {
  NEEDS_TEXT();
  succeed({"generate", "-p", gemma_turn("Set g = 12."), "--save", snapshot});
  EXPECT_EQ(failure({"resume", snapshot}),
            snapshot +
                ": reply: expected an unfinished one (--prompt TEXT "
                "or --ignore-eos continues), found one that has ended");
  EXPECT_EQ(Json::parse(succeed({"resume", snapshot, "-n", "0", "--json"}).out)["ids"],
            Json::array());
  EXPECT_EQ(
      Json::parse(succeed({"resume", snapshot, "-n", "3", "--ignore-eos", "--json"}).out)["ids"]
          .size(),
      3u);
  EXPECT_EQ(succeed({"resume", snapshot, "-p", gemma_turn("What is g?", false)}).out, "g is 12.\n");
}

TEST_F(Command, ResumeTakesOtherSettings) {
  const Args save = {"save", "--ids",
                     "2,5,382,298,16,480,405,277,1552,1566,1578,1558,6,16,5,1565,760,16", "-o",
                     snapshot};
  succeed(save);
  const auto ids = [&](const Args& more) {
    return Json::parse(
        succeed(Args{"resume", snapshot, "--json", "-n", "20", "--ignore-eos"} + more).out)["ids"];
  };
  const Json greedy = ids({});
  EXPECT_EQ(ids({"--temperature", "0"}), greedy);
  EXPECT_EQ(ids({"--greedy", "--temperature", "3"}), greedy);
  const Json drawn = ids({"--temperature", "3", "--seed", "18446744073709551615"});
  EXPECT_NE(drawn, greedy);
  EXPECT_EQ(ids({"--seed", "18446744073709551615", "--temperature", "3", "--threads", "1", "--isa",
                 "portable"}),
            drawn);
  EXPECT_NE(ids({"--temperature", "3", "--seed", "18446744073709551614"}), drawn);
  EXPECT_EQ(ids({"--sample", "--top-k", "1"}), greedy);
  // The saved settings draw the same tokens.
  succeed(save + Args{"--temperature", "3", "--seed", "18446744073709551615"});
  EXPECT_EQ(ids({}), drawn);
  const Json inspected = Json::parse(succeed({"inspect", snapshot, "--json"}).out);
  EXPECT_EQ(inspected["sampling"]["seed"], UINT64_MAX);
  EXPECT_EQ(inspected["sampling"]["temperature"], 3.0);
}

TEST_F(Command, WithoutATokenizerIdsAreEnough) {
  const Golden golden(kTiny + "/golden.safetensors");
  const Ids prompt = golden.ids("input_ids"), greedy = golden.ids("greedy");
  const std::string ids = Json(prompt).dump();
  const Outcome text = succeed({"generate", "-m", kTiny, "--ids", ids, "-n", "24", "--ignore-eos"});
  const std::string list = Json(greedy).dump();
  EXPECT_EQ(text.out, list.substr(1, list.size() - 2) + "\n");
  const Json j = Json::parse(
      succeed({"generate", "-m", kTiny, "--ids", ids, "-n", "24", "--ignore-eos", "--json"}).out);
  EXPECT_EQ(j["ids"], Json(greedy));
  EXPECT_FALSE(j.contains("text"));
  EXPECT_EQ(
      failure({"generate", "-m", kTiny, "-p", "text"}),
      kTiny +
          ": tokenizer: expected tokenizer.json or tokenizer.model (or use --ids), found neither");
  EXPECT_EQ(failure({"tokenize", "-m", kTiny, "text"}),
            kTiny + ": tokenizer: expected tokenizer.json or tokenizer.model, found neither");
  EXPECT_EQ(failure({"generate", "-m", kTiny, "--ids", "1,2", "--stop", "x"}),
            "stop strings: expected a tokenizer to match them in text, found none");
}

TEST_F(Command, DraftsChangeNoReply) {
  const Args generate = {
      "generate", "-m",           kTiny,           "--ids", "1,2,3,4,5,1,2,3,4,5,1,2",
      "-n",       "40",           "--temperature", "0.7",   "--seed",
      "3",        "--ignore-eos", "--json"};
  Json plain = Json::parse(succeed(generate).out);
  EXPECT_FALSE(plain["timings"].contains("drafted_tokens"));
  for (const std::string how : {"off", "suffix", kTiny.c_str()}) {
    Json j = Json::parse(succeed(generate + Args{"--speculate", how}).out);
    EXPECT_EQ(j["timings"].contains("drafted_tokens"), how != "off");
    EXPECT_EQ(j["timings"].contains("accepted_tokens"), how != "off");
    j.erase("timings");
    Json expected = plain;
    expected.erase("timings");
    EXPECT_EQ(j, expected) << how;
  }
#ifdef STET_HAVE_BLAS
  const Outcome blas = succeed(generate + Args{"--speculate", "suffix", "--gemm", "blas"});
  EXPECT_NE(blas.err.find("no effect under f32-blas"), std::string::npos) << blas.err;
#endif
  const Args experiment = {"experiment",      "-m",      kTiny,  "--ids",
                           "1,2,3,1,2,3,1,2", "-n",      "12",   "--temperature",
                           "0,0.7",           "--seeds", "1..3", "--json"};
  const Json runs = Json::parse(succeed(experiment).out),
             drafted = Json::parse(succeed(experiment + Args{"--speculate", "suffix"}).out);
  for (size_t i = 0; i < runs["runs"].size(); ++i)
    EXPECT_EQ(drafted["runs"][i]["state"], runs["runs"][i]["state"]) << i;
  EXPECT_TRUE(drafted.contains("drafted_tokens"));
}

TEST_F(Command, LogitsEqualTheLibrarysForAnySchedule) {
  Ids ids;
  for (int i = 0; i < 90; ++i) ids.push_back((i * 37 + 3) % 900);
  write_file(scratch / "ids.json", Json(ids).dump());
  Session session(model(kLlama), options(1));
  std::vector<std::vector<float>> hidden(static_cast<size_t>(session.model().config().layers) + 1);
  std::vector<float> logits;
  const auto add = [](std::vector<float>& to, Rows rows) {
    for (size_t i = 0; i < rows.count; ++i)
      to.insert(to.end(), rows.row(i), rows.row(i) + rows.width);
  };
  session.append(
      ids, [&](int64_t, Rows r) { add(logits, r); },
      [&](size_t i, int64_t, Rows r) { add(hidden[i], r); });
  const std::string file = scratch / "l.safetensors";
  std::string content;
  for (const Args& schedule :
       {Args{"--threads", "1"}, Args{"--chunk", "1"}, Args{"--chunk", "7", "--threads", "3"},
        Args{"--isa", "portable"}, Args{"--chunk", "64", "--isa", "portable", "--threads", "2"}}) {
    succeed(
        Args{"logits", "-m", kLlama, "--ids-file", scratch / "ids.json", "--hidden", "-o", file} +
        schedule);
    if (content.empty()) content = read_text(file);
    EXPECT_EQ(read_text(file), content) << schedule[1];
  }
  const Golden written(file);
  EXPECT_TRUE(same_bytes(written.floats("logits"), logits));
  EXPECT_EQ(written.view("logits").shape, (std::vector<int64_t>{90, 936}));
  EXPECT_EQ(written.ids("input_ids"), ids);
  for (size_t i = 0; i < hidden.size(); ++i)
    EXPECT_TRUE(same_bytes(written.floats("hidden." + std::to_string(i)), hidden[i])) << i;
  EXPECT_FALSE(written.has("hidden." + std::to_string(hidden.size())));
  const std::string digests =
      succeed({"logits", "-m", kLlama, "--ids-file", scratch / "ids.json", "--digest"}).out;
  EXPECT_EQ(digests, "logits " + digest_text(digest_of(std::as_bytes(std::span(logits)))) +
                         "\nkv " + digest_text(digest_of(kv_bytes(session.kv()))) + "\n");
}

TEST_F(Command, TokenizeAndDetokenizeLines) {
  NEEDS_TEXT();
  const std::vector<std::string> texts = {"",
                                          "k = 5",
                                          " two  spaces\n",
                                          "<start_of_turn>user\nhi<end_of_turn>",
                                          "\xE2\x82\xAC \xF0\x9F\x98\x80",
                                          "quote \" and \\ and \t"};
  std::string input;
  for (const std::string& text : texts) input += Json(text).dump() + "\n";
  for (const std::string& directory : {kGemma, kLlama}) {
    const auto tokenizer = Tokenizer::load(directory);
    for (const auto& [name, bos] :
         {std::pair{"auto", Tokenizer::Bos::automatic}, std::pair{"on", Tokenizer::Bos::on},
          std::pair{"off", Tokenizer::Bos::off}}) {
      const Outcome ids = succeed({"tokenize", "-m", directory, "--jsonl", "--bos", name}, input);
      EXPECT_EQ(ids.err, "");
      const auto lines = json_lines(ids.out);
      ASSERT_EQ(lines.size(), texts.size());
      const auto back =
          json_lines(succeed({"detokenize", "-m", directory, "--jsonl"}, ids.out).out);
      const auto plain = json_lines(
          succeed({"detokenize", "-m", directory, "--jsonl", "--skip-special"}, ids.out).out);
      for (size_t i = 0; i < texts.size(); ++i) {
        const Ids expected = tokenizer->encode(texts[i], bos);
        EXPECT_EQ(lines[i], Json(expected)) << name << " " << i;
        EXPECT_EQ(back[i], tokenizer->decode(expected)) << name << " " << i;
        EXPECT_EQ(plain[i], tokenizer->decode(expected, true)) << name << " " << i;
        if (bos == Tokenizer::Bos::off) {
          EXPECT_EQ(back[i], texts[i]);
        }
      }
    }
  }
  EXPECT_EQ(succeed({"tokenize", "--json", "k = 5"}).out,
            Json(Tokenizer::load(kGemma)->encode("k = 5")).dump() + "\n");
  EXPECT_EQ(succeed({"tokenize", "--json", "--prompt-file", "-"}, "k = 5").out,
            succeed({"tokenize", "--json", "-p", "k = 5"}).out);
  EXPECT_EQ(
      succeed({"detokenize", "--skip-special", succeed({"tokenize", "--json", "k = 5"}).out}).out,
      "k = 5\n");
  EXPECT_EQ(failure({"tokenize", "--jsonl"}, 1, "5\n"),
            "standard input: line 1: expected a JSON string, found 5");
  EXPECT_EQ(failure({"detokenize", "--jsonl"}, 1, "[1,-2]\n"),
            "standard input: line 1: [1]: expected a token id, found -2");
}

TEST_F(Command, ATextThatBeginsWithBosGetsNoSecondOne) {
  NEEDS_TEXT();
  const Json plain = Json::parse(succeed({"tokenize", "--json", "k = 5"}).out),
             marked = Json::parse(succeed({"tokenize", "--json", "<bos>k = 5"}).out);
  EXPECT_EQ(marked.front(), plain.front());
  EXPECT_NE(marked[1], marked[0]);
  const auto count = [&](const std::string& bos) {
    return Json::parse(succeed({"tokenize", "--json", "--bos", bos, "<bos>k = 5"}).out).size();
  };
  EXPECT_EQ(count("off"), marked.size());
  EXPECT_EQ(count("on"), marked.size() + 1);
  EXPECT_EQ(succeed({"tokenize", "--jsonl"}, "\"<bos>k = 5\"\n").out, marked.dump() + "\n");
}

TEST_F(Command, TextsAreTakenAsTheyAre) {
  NEEDS_TEXT();
  const auto tokenizer = Tokenizer::load(kGemma);
  for (const std::string text : {"[1,2]", "{}", "-x", "a,b", "", "%%", "\"q\""}) {
    const Json j = Json::parse(succeed({"generate", "-n", "0", "--json", "-p", text}).out);
    EXPECT_EQ(j["prompt_ids"], Json(tokenizer->encode(text))) << text;
  }
  succeed({"save", "-p", "x", "-o", snapshot});
  succeed({"resume", "-p", "more", snapshot, "-n", "1"});  // the option takes one text only
  EXPECT_EQ(failure({"resume", snapshot, "-p", ""}, 2),
            "--prompt: expected at least one token, found none (stet --help)");
}

TEST_F(Command, InspectDescribesASnapshot) {
  const Json saved = Json::parse(succeed({"save", "-m", kTiny, "--ids", "3,1,4,1,5", "-o", snapshot,
                                          "--json", "--ctx", "100", "--kv", "bf16"})
                                     .out);
  const Json j = Json::parse(succeed({"inspect", snapshot, "--json"}).out);
  EXPECT_EQ(j["snapshot"], snapshot);
  EXPECT_EQ(j["tokens"], Json({3, 1, 4, 1, 5}));
  EXPECT_EQ(j["tokens"], saved["prompt_ids"]);
  EXPECT_EQ(j["digests"], saved["digests"]);
  EXPECT_EQ(j["positions"], 5);
  EXPECT_EQ(j["capacity"], 100);
  EXPECT_EQ(j["kv"]["type"], "bf16");
  EXPECT_EQ(j["contract"], "f32 version 1");
  EXPECT_EQ(j["file_bytes"], std::filesystem::file_size(snapshot));
  EXPECT_EQ(j["turns"], Json::parse(R"([{"prompt":0,"reply":5,"end":5,"open":true}])"));
  std::vector<std::string> names;
  for (const Json& s : j["sections"]) names.push_back(s["name"]);
  EXPECT_EQ(names,
            (std::vector<std::string>{"META", "TOKENS", "VISIBLE", "LOGITS", "BLOCKS", "KV"}));
  const std::string text = succeed({"inspect", snapshot}).out;
  EXPECT_NE(text.find("\npositions             5\n"), std::string::npos) << text;
  EXPECT_NE(
      text.find("\n  state               " + saved["digests"]["state"].get<std::string>() + "\n"),
      std::string::npos)
      << text;

  const Json c = Json::parse(succeed({"inspect", kTiny, "--json"}).out);
  EXPECT_EQ(c["checkpoint"], kTiny);
  EXPECT_EQ(c["fingerprints"]["model"], j["fingerprints"]["model"]);
  EXPECT_NE(succeed({"inspect", kTiny}).out.find("\narchitecture          Gemma3ForCausalLM\n"),
            std::string::npos);
}

TEST_F(Command, TheContractGoesWithTheSnapshot) {
  succeed({"save", "-m", kLlama, "--ids", "1,2,3", "--compute", "bf16", "-o", snapshot});
  EXPECT_EQ(Json::parse(succeed({"inspect", snapshot, "--json"}).out)["contract"],
            "bf16 version 1");
  const std::string refused = ": contract: expected bf16 version 1, found f32 version 1";
  EXPECT_TRUE(
      failure({"resume", snapshot, "--compute", "f32", "-n", "1"}).starts_with(snapshot + refused));
  EXPECT_TRUE(failure({"verify", snapshot, "--compute", "f32"}).starts_with(snapshot + refused));
  // Without an option the state is verified under the contract that it was made with.
  EXPECT_TRUE(succeed({"verify", snapshot}).out.starts_with("verified: "));

  // Resumed, it continues like a session that was never cut. Migrated, it continues like one of the
  // other contract.
  const Args more = {"-n", "6", "--ignore-eos", "--json"};
  const auto ids = [](const Outcome& o) { return Json::parse(o.out)["ids"]; };
  EXPECT_EQ(
      ids(succeed(Args{"resume", snapshot} + more)),
      ids(succeed(Args{"generate", "-m", kLlama, "--ids", "1,2,3", "--compute", "bf16"} + more)));
  const std::string again = scratch / "again.stet", f32 = scratch / "f32.stet";
  succeed({"resume", snapshot, "--compute", "f32", "--replay", "-n", "0", "--ignore-eos", "--save",
           again});
  succeed({"save", "-m", kLlama, "--ids", "1,2,3", "-o", f32});
  EXPECT_EQ(succeed({"inspect", again, "--json"}).out.find("bf16 version"), std::string::npos);
  succeed({"diff", again, f32});
  const Outcome other = run_stet({"diff", snapshot, f32});
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(
      other.out.find(
          "\nmodel             different     contract: bf16 version 1 in a, f32 version 1 in b\n"),
      std::string::npos)
      << other.out;
}

TEST_F(Command, WeightsThatBf16CannotTakeAreRefused) {
  EXPECT_EQ(failure({"generate", "-m", kTiny, "--ids", "1,2", "--compute", "bf16"}),
            kTiny +
                "/model.safetensors: model.embed_tokens.weight: expected dtype BF16 for the "
                "contract bf16, found F32");
}

TEST_F(Command, ASnapshotFindsItsBundledCheckpoint) {
  succeed({"save", "-m", kLlama, "--ids", "1,2,3", "-o", snapshot});
  succeed({"resume", snapshot, "-n", "1"});
  const std::string error = failure({"resume", snapshot, "-m", kTiny, "-n", "1"});
  EXPECT_TRUE(error.starts_with(
      snapshot +
      ": model: the model does not fit the snapshot: architecture Gemma3ForCausalLM instead of "
      "LlamaForCausalLM, embeddings+norms+attention+mlp weights sha256:"))
      << error;
  EXPECT_TRUE(error.ends_with(
      "; the model is " + kTiny +
      "; the snapshot was made with a checkpoint named pocket-llama3; --replay computes it again"))
      << error;
  succeed({"save", "-m", kTiny, "--ids", "1,2,3", "-o", snapshot});
  const std::string unnamed = failure({"resume", snapshot, "-n", "1"});
  EXPECT_TRUE(
      unnamed.ends_with("; the snapshot was made with a checkpoint named gemma3-tiny, give it with "
                        "-m; --replay computes it again"))
      << unnamed;
}

TEST_F(Command, AWrongCommandLineIsStatus2) {
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

TEST_F(Command, OptionsOutOfRangeAreStatus2AndNothingIsWritten) {
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

TEST_F(Command, BadInputIsStatus1AndNothingIsWritten) {
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

TEST_F(Command, ResumeRefusesBeforeAnyOutput) {
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
  EXPECT_EQ(
      failure(resume + Args{"--check"}),
      snapshot +
          ": KV block 0: its bytes are not those that were saved; --heal computes them again");
  EXPECT_EQ(succeed(resume).out,
            reply);  // without it, damaged parts are computed again when they are needed
}

TEST_F(Command, FormsPruneVerifyAndDiff) {
  const std::string longer = scratch / "longer.stet", other = scratch / "other.stet";
  succeed({"save", "-m", kTiny, "--ids", "1,2,3,4,5,6,7,8", "-o", snapshot});
  succeed(
      {"resume", snapshot, "-m", kTiny, "--ids", "9,10", "-n", "5", "--greedy", "--save", longer});
  const Json digests = Json::parse(succeed({"inspect", longer, "--json"}).out)["digests"];
  for (const Args& form : {Args{"--form", "delta", "--against", snapshot}, Args{"--form", "recipe"},
                           Args{"--compress", "zlib:9"}, Args{"--with-weights"}}) {
    if (form[0] == "--compress" && !have_zlib()) continue;
    const Args model = form[0] == "--with-weights" ? Args{"-m", kTiny} : Args{};
    succeed(Args{"convert", longer, "-o", other} + form + model);
    EXPECT_EQ(Json::parse(succeed({"inspect", other, "--json"}).out)["digests"], digests);
    EXPECT_TRUE(succeed({"verify", other, "-m", kTiny}).out.starts_with("verified: ")) << form[0];
    EXPECT_TRUE(succeed({"diff", longer, other})
                    .out.ends_with("\nequal: state " + digests["id"].get<std::string>() + "\n"));
    const Args resume = {"resume", other, "-n", "3", "--greedy", "--ignore-eos", "--json"};
    const Json j =
        Json::parse(succeed(form[0] == "--with-weights" ? resume : resume + Args{"-m", kTiny}).out);
    EXPECT_EQ(j["restored"]["tokens_recomputed"], form[1 % form.size()] == "recipe" ? 15 : 0);
  }
  const Outcome diff = run_stet({"diff", snapshot, longer});
  EXPECT_EQ(diff.status, 1);
  EXPECT_NE(diff.out.find("\ntokens            different     number of tokens: 8 in a, 15 in b\n"),
            std::string::npos)
      << diff.out;
  for (const std::string positions : {"keep", "shift"}) {
    succeed({"prune", longer, "-o", other, "--keep-last", "6", "--sinks", "2", "--positions",
             positions});
    const Json j = Json::parse(succeed({"inspect", other, "--json"}).out);
    EXPECT_EQ(j["prunes"][0]["begin"], 2);
    EXPECT_EQ(j["prunes"][0]["end"], 9);
    EXPECT_EQ(j["positions"], positions == "keep" ? 15 : 8);
    succeed({"verify", other, "-m", kTiny});
    succeed({"verify", other, "-m", kTiny, "--bisect"});
  }
  std::string bytes = read_text(longer);
  bytes[65536 + 2] = static_cast<char>(bytes[65536 + 2] ^ 1);
  write_file(longer, bytes);
  const Outcome found = run_stet({"verify", longer, "-m", kTiny, "--json"});
  EXPECT_EQ(found.status, 1);
  const Json j = Json::parse(found.out);
  EXPECT_EQ(j["equal"], false);
  EXPECT_EQ(j["difference"]["what"], "key");
  EXPECT_EQ(j["difference"]["position"], 0);
  EXPECT_EQ(j["difference"]["layer"], 0);
  EXPECT_EQ(j["difference"]["head"], 0);
  EXPECT_EQ(j["difference"]["element"], 0);
  EXPECT_EQ(run_stet({"resume", longer, "-m", kTiny, "--check", "-n", "1"}).status, 1);
  const Json healed = Json::parse(
      succeed({"resume", longer, "-m", kTiny, "--heal", "-n", "1", "--ignore-eos", "--json"}).out);
  EXPECT_EQ(healed["restored"]["blocks_healed"], Json::parse("[0]"));
  EXPECT_EQ(healed["restored"]["tokens_recomputed"], 15);
}

TEST_F(Command, AFullSessionIsReported) {
  const Outcome o =
      succeed({"generate", "-m", kTiny, "--ids", "1,2,3", "--ctx", "5", "--ignore-eos"});
  EXPECT_EQ(std::count(o.out.begin(), o.out.end(), ','), 1);  // two ids
  EXPECT_EQ(o.err, "the session is full: 5 positions (--ctx)\n");
  EXPECT_EQ(Json::parse(succeed({"generate", "-m", kTiny, "--ids", "1,2,3", "--ctx", "5",
                                 "--ignore-eos", "--json"})
                            .out)["stop"],
            "length");
}

TEST_F(Command, OutputThatCannotBeWrittenIsAnError) {
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

TEST_F(Command, AReaderThatGoesAwayEndsTheReply) {
  NEEDS_TEXT();
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  const CommandRun run({"generate", "-p", "hi", "-n", "2000", "--ignore-eos", "--save", snapshot},
                       "/dev/null", scratch / "pipe", scratch / "err");
  const int reader = ::open((scratch / "pipe").c_str(), O_RDONLY);
  char byte = 0;
  EXPECT_EQ(::read(reader, &byte, 1), 1);
  ::close(reader);
  EXPECT_EQ(run.wait(), 1);
  const std::string err = read_text(scratch / "err");
  EXPECT_EQ(err.find("standard output"), std::string::npos) << err;
  EXPECT_LT(Snapshot::open(snapshot).tokens().size(), 2000u);
}

TEST_F(Command, AnInterruptedReplyIsKeptAndGoesOnExactly) {
  NEEDS_TEXT();
  for (const int signal : {SIGINT, SIGTERM}) {
    ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
    const CommandRun run({"generate", "-p", "hi", "-n", "1500", "--ignore-eos", "--sample",
                          "--seed", "3", "--save", snapshot},
                         "/dev/null", scratch / "pipe", scratch / "err");
    const int reader = ::open((scratch / "pipe").c_str(), O_RDONLY);
    std::string text(1, '\0');
    ASSERT_EQ(::read(reader, text.data(), 1), 1);
    run.send(signal);
    char buffer[4096];
    for (ssize_t n; (n = ::read(reader, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    ::close(reader);
    std::filesystem::remove(scratch / "pipe");
    EXPECT_EQ(run.wait(), -signal);  // a shell expects this
    const size_t cut = Snapshot::open(snapshot).tokens().size();
    ASSERT_LT(cut, 1500u);
    ASSERT_TRUE(text.ends_with("\n"));
    const Json rest =
        Json::parse(succeed({"resume", snapshot, "-n", "5", "--ignore-eos", "--json"}).out);
    const size_t drawn = cut - Tokenizer::load(kGemma)->encode("hi").size() + 5;
    const Json whole = Json::parse(succeed({"generate", "-p", "hi", "-n", std::to_string(drawn),
                                            "--ignore-eos", "--sample", "--seed", "3", "--json"})
                                       .out);
    EXPECT_EQ(text.substr(0, text.size() - 1) + rest["text"].get<std::string>(), whole["text"]);
    EXPECT_EQ(rest["digests"], whole["digests"]);
  }
}

TEST_F(Command, InterruptedWithoutTextToo) {
  // Generation would last for hours, so no machine finishes before the signal.
  const std::string endless = scratch / "endless";
  std::filesystem::copy(data_path("models/llama31-tiny"), endless);
  Json config = Json::parse(read_text(endless + "/config.json"));
  config["max_position_embeddings"] = 2'000'000;
  write_file(endless + "/config.json", config.dump());
  succeed({"save", "-m", endless, "--ids", "1,2,3", "--ctx", "0", "-o", snapshot});
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  const CommandRun run({"resume", snapshot, "-m", endless, "-n", "1000000", "--ignore-eos",
                        "--save", snapshot, "--threads", "1", "--isa", "portable"},
                       "/dev/null", scratch / "out", scratch / "pipe");
  const int reader = ::open((scratch / "pipe").c_str(), O_RDONLY);
  char byte = 0;
  ASSERT_EQ(::read(reader, &byte, 1),
            1);  // notes about the restored state come with the first token
  run.send(SIGINT);
  char rest[4096];
  while (::read(reader, rest, sizeof rest) > 0) {
  }
  ::close(reader);
  EXPECT_EQ(run.wait(), -SIGINT);
  const Json ids = Json::parse("[" + read_text(scratch / "out") + "]");
  EXPECT_GT(ids.size(), 0u);
  Ids expected = {1, 2, 3};
  for (const Json& id : ids) expected.push_back(id);
  EXPECT_EQ(Snapshot::open(snapshot).tokens(), expected);
}

TEST_F(Command, BenchMeasures) {
  const Json j =
      Json::parse(succeed({"bench", "-m", kTiny, "-p", "8", "-n", "2", "--repeat", "1", "--batch",
                           "2,3", "--rows", "2,4", "--speculate", "1,0", "--json"})
                      .out);
  ASSERT_EQ(j["batch"].size(), 2u);
  EXPECT_EQ(j["batch"][1]["sessions"], 3);
  for (const Json& b : j["batch"])
    EXPECT_GT(b["tokens_per_s"].get<double>() * b["of_one_session"].get<double>(), 0);
  for (const Json& r : j["rows"]) {
    EXPECT_GT(r["of_one_row"].get<double>(), 0);
    EXPECT_GE(r["bound"].get<double>(), 1);
  }
  for (const Json& r : j["speculation"]["rates"]) EXPECT_GT(r["of_plain"].get<double>(), 0);
  EXPECT_EQ(j["speculation"]["rates"].size(), 2u);
  EXPECT_EQ(j["prefill"]["tokens"], 8);
  EXPECT_EQ(j["decode"]["tokens"], 2);
  EXPECT_EQ(j["state"]["positions"], 10);
  for (const auto& [part, name] :
       {std::pair{"prefill", "tokens_per_s"}, std::pair{"decode", "weights_gb_per_s"},
        std::pair{"state", "save_s"}}) {
    EXPECT_GT(j[part][name].get<double>(), 0) << part;
  }
}

TEST_F(Command, BenchMeasuresTheModelAlone) {
  const Json j = Json::parse(succeed({"bench", "-m", kTiny, "--no-probes", "-p", "8", "-n", "2",
                                      "--repeat", "1", "--json"})
                                 .out);
  EXPECT_FALSE(j.contains("read_gb_per_s"));
  EXPECT_FALSE(j["prefill"].contains("share_of_peak"));
  EXPECT_GT(j["prefill"]["tokens_per_s"].get<double>(), 0);
  EXPECT_GT(j["first_token_s"].get<double>(), 0);
  EXPECT_GT(j["state"]["restored_token_s"].get<double>(), 0);
  EXPECT_GT(j["peak_bytes"].get<double>(), 1e6);
  EXPECT_LT(j["peak_bytes"].get<double>(), 1e9) << "the probes' buffer";
  failure({"bench", "-m", kTiny, "--no-probes", "--machine"}, 2);
}

TEST_F(Command, BenchPrintsATableByThreads) {
  const Args few = {"bench", "-m", kTiny,      "--no-probes", "-p",        "8",
                    "-n",    "2",  "--repeat", "1",           "--threads", "1,3"};
  const Json j = Json::parse(succeed(few + Args{"--json"}).out);
  ASSERT_EQ(j["by_threads"].size(), 2u);
  EXPECT_FALSE(j.contains("threads"));
  for (const auto& [row, threads] : {std::pair{0, 1}, std::pair{1, 3}}) {
    EXPECT_EQ(j["by_threads"][row]["threads"], threads);
    EXPECT_GT(j["by_threads"][row]["prefill"]["tokens_per_s"].get<double>(), 0);
    EXPECT_GT(j["by_threads"][row]["decode"]["tokens_per_s"].get<double>(), 0);
  }
  const std::string table = succeed(few).out;
  EXPECT_NE(table.find("\n threads     prefill  of peak      decode  of memory\n       1 "),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("\n       3 "), std::string::npos) << table;
  failure(few + Args{"--turns"}, 2);
}

TEST_F(Command, BenchTakesTurns) {
  const Args turns = {"bench", "-m", kTiny, "--turns", "-p", "8", "--repeat", "1"};
  const auto lines =
      json_lines(succeed(turns, "prefill\ndecode 2\ndecode 3\nstate\nprefill\nstate\n").out);
  ASSERT_EQ(lines.size(), 7u);
  for (const char* name : {"load_s", "first_token_s"})
    EXPECT_GT(lines[0][name].get<double>(), 0) << name;
  for (const char* name : {"isa", "contract"})
    EXPECT_NE(lines[0][name].get<std::string>(), "") << name;
  for (const size_t i : {1, 2, 3, 5}) EXPECT_GT(lines[i]["s"].get<double>(), 0) << i;
  EXPECT_EQ(lines[4]["positions"], 8 + 2 + 3);
  EXPECT_EQ(lines[6]["positions"], 8) << "in place of what was there";
  for (const char* name : {"peak_bytes", "bytes", "save_s", "restore_s", "restored_token_s"})
    EXPECT_GT(lines[4][name].get<double>(), 0) << name;
}

TEST_F(Command, BenchRefusesAWrongTurn) {
  for (const char* wrong : {"", "Prefill", "decode", "decode 0", "decode -1", "decode 1 ",
                            "decode 1048577", "decode 99999999999999999999"}) {
    const Outcome o = run_stet({"bench", "-m", kTiny, "--turns", "-p", "8"},
                               std::string("prefill\n") + wrong + "\nprefill\n");
    EXPECT_EQ(o.status, 1) << wrong;
    EXPECT_EQ(json_lines(o.out).size(), 2u) << wrong;
    EXPECT_EQ(
        o.err,
        std::string("stet: standard input: line 2: expected prefill, decode N or state, found \"") +
            wrong + "\"\n");
  }
  for (const Args& other : {Args{"--machine"}, Args{"--snapshot"}, Args{"--batch", "2"}})
    failure(Args{"bench", "--turns"} + other, 2);
}

}  // namespace
}  // namespace stet::test::command_tests

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
#include "tests/command/json_lines.hpp"
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

// White space at a context's end belongs to the continuation, wherever the context came from.
TEST_F(Command, ScoresOfAFileAreThoseOfItsText) {
  NEEDS_TEXT();
  const std::string text = "Let a = 3. What is a? ";
  write_file(scratch / "text", text);
  const Args score = {"score", "--json", "--continuation", "a is 3."};
  EXPECT_EQ(succeed(score + Args{"--prompt-file", scratch / "text"}).out,
            succeed(score + Args{"-p", text}).out);
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

}  // namespace
}  // namespace stet::test::command_tests

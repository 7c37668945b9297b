// `stet generate`, `save` and `resume` with messages, compared with chat; damaged states that heal;
// options without effect.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::generate_tests {
namespace {

using Json = nlohmann::json;

class GenerateCommand : public testing::Test {
 protected:
  void SetUp() override {
#ifndef STET_HAVE_SENTENCEPIECE
    GTEST_SKIP() << "built without a library for the tokenizers";
#endif
  }
  std::string file(const std::string& name, const std::string& text) const {
    write_file(scratch / name, text);
    return scratch / name;
  }
  // Runs a chat with these lines. Returns the path of the snapshot it saves.
  std::string chat(const std::string& name, const std::string& lines, const Args& more = {}) const {
    const std::string path = scratch / name;
    const Outcome o = run_stet(
        Args{"chat", "--script", file("script", lines), "-o", path, "-n", "40"} + one + more);
    EXPECT_EQ(o.status, 0) << o.err;
    return read_text(path);
  }
  Outcome succeed(const Args& args, const std::string& in = "") const {
    Outcome o = run_stet(args + one, in);
    EXPECT_EQ(o.status, 0) << o.err;
    return o;
  }
  std::string refused(const Args& args, int status = 1) const {
    const Outcome o = run_stet(args + one);
    EXPECT_EQ(o.status, status);
    EXPECT_EQ(o.out, "");
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    return o.err;
  }

  const Args one = {"--threads", "1"};
  TemporaryDirectory scratch;
  const std::string s = scratch / "s.stet", t = scratch / "t.stet";
};

// ---------------------------------------------------------------- messages

TEST_F(GenerateCommand, MessagesGiveTheBytesOfAChat) {
  for (const char* name : {"pocket-gemma3", "pocket-llama3"}) {
    const Args model = {"-m", asset_path(name)}, limit = {"-n", "40"};
    const std::string first = chat("c1.stet", "Set k = 5.\n", model),
                      second = chat("c2.stet", "Set k = 5.\nWhat is k?\n", model);
    const Outcome said =
        succeed(Args{"generate", "--say", "Set k = 5.", "--save", s} + limit + model);
    EXPECT_NE(said.out, "\n");
    EXPECT_EQ(read_text(s), first) << name;
    succeed(Args{"resume", s, "--say", "What is k?", "--save", t} + limit + model);
    EXPECT_EQ(read_text(t), second) << name;
    succeed(Args{"generate", "--say", "Set k = 5.", "--say", "What is k?", "--save", t} + limit +
            model);
    EXPECT_EQ(read_text(t), second) << name;
    const Outcome resumed =
        run_stet(Args{"chat", "--resume", s, "--script", file("more", "What is k?\n"), "--save", t,
                      "--overwrite"} +
                 limit + model + one);
    EXPECT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_EQ(read_text(t), second) << name;
  }
}

TEST_F(GenerateCommand, ASystemMessageIsTheChats) {
  const std::string expected = chat("c.stet", "Set k = 5.\n", {"--system", "Be terse."});
  succeed({"generate", "--system", "Be terse.", "--say", "Set k = 5.", "--save", s, "-n", "40"});
  EXPECT_EQ(read_text(s), expected);
  EXPECT_EQ(Snapshot::open(s).meta().chat.messages[0].content, "Be terse.");
  EXPECT_EQ(refused({"generate", "--system", "Be terse.", "-p", "hi"}, 2),
            "stet: --system requires --say (stet --help)\n");
}

TEST_F(GenerateCommand, AReplyThatWasCutGoesOnAsInAChat) {
  const std::string expected = chat("c.stet", "Set k = 5.\n");
  succeed({"generate", "--say", "Set k = 5.", "--save", s, "-n", "3"});
  succeed({"resume", s, "--save", t, "-n", "37"});
  EXPECT_EQ(read_text(t), expected);
  succeed({"save", "--say", "Set k = 5.", "-o", s});
  EXPECT_EQ(Snapshot::open(s).meta().chat.messages.size(), 1u);
  succeed({"resume", s, "--save", t, "-n", "40"});
  EXPECT_EQ(read_text(t), expected);
  EXPECT_NE(refused({"resume", t})
                .find("reply: expected an unfinished one (--say TEXT adds a message), found one "
                      "that has ended"),
            std::string::npos);
}

TEST_F(GenerateCommand, JsonReportsKeptAndRecomputedTokens) {
  succeed({"generate", "--say", "Set k = 5.", "--save", s, "-n", "40"});
  const Json j =
      Json::parse(succeed({"resume", s, "--say", "What is k?", "--json", "-n", "40"}).out);
  EXPECT_EQ(j["text"], "k is 5.");
  EXPECT_EQ(j["tokens"]["kept"], Snapshot::open(s).tokens().size());
  EXPECT_EQ(j["tokens"]["recomputed"], 0);
  EXPECT_EQ(j["tokens"]["added"], j["prompt_ids"].size());
  EXPECT_EQ(j["healed"], Json::array());
}

TEST_F(GenerateCommand, RawTextAndConversationsAreNotMixed) {
  succeed({"generate", "-p", "Once", "-n", "4", "--save", s});
  succeed({"generate", "--say", "Set k = 5.", "-n", "40", "--save", t});
  const std::string tokens = std::to_string(Snapshot::open(s).tokens().size());
  for (const char* command : {"resume", "experiment"}) {
    EXPECT_EQ(refused({command, s, "--say", "hi"}),
              "stet: " + s +
                  ": messages: expected a conversation for --say (-p TEXT continues raw text), "
                  "found " +
                  tokens + " tokens of raw text, and no messages\n");
    EXPECT_EQ(
        refused({command, t, "-p", "hi"}),
        "stet: " + t +
            ": tokens: expected raw text for --prompt (--say TEXT goes on with a conversation), "
            "found a conversation of 2 messages\n");
  }
  for (const Args& raw :
       {Args{"-p", "x"}, Args{"--ids", "1"}, Args{"--prompt-file", s}, Args{"--ids-file", s}}) {
    EXPECT_NE(refused(Args{"generate", "--say", "hi"} + raw, 2).find("excludes"),
              std::string::npos);
  }
}

TEST_F(GenerateCommand, ARenderedTemplateGetsNoSecondBos) {
  for (const char* name : {"pocket-gemma3", "pocket-llama3"}) {
    const Args model = {"-m", asset_path(name)}, reply = {"-n", "8", "--json"};
    const std::string text =
        run_stet(Args{"template", "-p", "Set k = 5.", "--add-generation-prompt"} + model).out;
    const Json said =
        Json::parse(succeed(Args{"generate", "--say", "Set k = 5."} + reply + model).out);
    const Json piped =
        Json::parse(succeed(Args{"generate", "--prompt-file", "-"} + reply + model, text).out);
    EXPECT_EQ(piped["prompt_ids"], said["prompt_ids"]) << name;
    EXPECT_EQ(piped["ids"], said["ids"]) << name;
    EXPECT_EQ(piped["digests"]["kv"], said["digests"]["kv"]) << name;
    const Json twice = Json::parse(
        succeed(Args{"generate", "--bos", "on", "--prompt-file", "-"} + reply + model, text).out);
    EXPECT_EQ(twice["prompt_ids"].size(), said["prompt_ids"].size() + 1) << name;
    const Json plain = Json::parse(succeed(Args{"generate", "-p", "Set"} + reply + model).out);
    EXPECT_EQ(plain["prompt_ids"][0], said["prompt_ids"][0]) << name;
  }
}

// ---------------------------------------------------------------- healing

TEST_F(GenerateCommand, AStateThatIsDamagedHealsWithALine) {
  succeed({"generate", "-p", "Once", "-n", "150", "--ignore-eos", "--save", s});
  const Args go_on = {"resume", s, "-n", "4", "--ignore-eos"};
  const Json sound = Json::parse(succeed(go_on + Args{"--json"}).out);
  ASSERT_EQ(sound["healed"], Json::array());
  const Outcome quiet = succeed(go_on);
  const std::string whole = read_text(s);
  write_file(s, whole.substr(0, whole.size() - 1) + static_cast<char>(whole.back() ^ 1));
  const Outcome told = succeed(go_on);
  EXPECT_EQ(told.out, quiet.out);
  const std::string line = s + ": KV block";
  EXPECT_NE(told.err.find(line), std::string::npos) << told.err;
  EXPECT_EQ(quiet.err.find(line), std::string::npos) << quiet.err;
  const Json j = Json::parse(succeed(go_on + Args{"--json"}).out);
  ASSERT_EQ(j["healed"].size(), 1u);
  EXPECT_EQ(j["healed"][0]["file"], s);
  EXPECT_EQ(j["ids"], sound["ids"]);
  EXPECT_EQ(j["digests"], sound["digests"]);
  const Outcome runs =
      succeed({"experiment", s, "--seeds", "1..3", "--temperature", "1", "-n", "2"});
  EXPECT_NE(runs.err.find(line), std::string::npos) << runs.err;
  const Outcome kept = succeed({"generate", "--say", "Set k = 5.", "-n", "40", "--save", t});
  const std::string talk = read_text(t);
  write_file(t, talk.substr(0, talk.size() - 1) + static_cast<char>(talk.back() ^ 1));
  const Outcome chat =
      run_stet(Args{"chat", "--resume", t, "--script", file("script", "What is k?\n")} + one);
  EXPECT_NE(chat.out.find("k is 5."), std::string::npos);
  EXPECT_NE(chat.err.find(t + ": KV block"), std::string::npos) << chat.err;
}

// ---------------------------------------------------------------- sampling

TEST_F(GenerateCommand, OptionsWithoutEffectAreReported) {
  const std::string told = "no effect while greedy, where the best token is taken: ";
  const std::vector<std::pair<Args, std::string>> cases = {
      {{"--seed", "5"}, "--seed"},
      {{"--greedy", "--seed", "5"}, "--seed"},
      {{"--greedy", "--top-k", "5"}, "--top-k"},
      {{"--greedy", "--temperature", "0.7"}, "--temperature"},
      {{"--greedy", "--top-p", "0.5", "--min-p", "0.1", "--typical", "0.5"},
       "--top-p, --min-p, --typical"},
      {{"--temperature", "0", "--seed", "3"}, "--seed"},
      {{"--temperature", "0", "--top-k", "3"}, "--top-k"},
      {{"--greedy", "--temperature", "0"}, ""},
      {{"--greedy", "--repetition-penalty", "1.5"}, ""},
      {{"--greedy", "--frequency-penalty", "1.5", "--presence-penalty", "1", "--logit-bias", "5=1"},
       ""},
      {{"--top-k", "5", "--seed", "3"}, ""},
      {{"--sample", "--seed", "3"}, ""},
      {{"--temperature", "0.7", "--seed", "3"}, ""}};
  for (const auto& [options, names] : cases) {
    const std::string expected = names.empty() ? "" : told + names + " (--temperature T samples)\n";
    EXPECT_EQ(succeed(Args{"generate", "-p", "Once", "-n", "2"} + options).err, expected);
  }
  EXPECT_EQ(succeed({"save", "-p", "Once", "--seed", "5", "-o", s, "--json"}).err,
            told + "--seed (--temperature T samples)\n");
  EXPECT_EQ(succeed({"resume", s, "--seed", "5", "-n", "1", "--json"}).err,
            told + "--seed (--temperature T samples)\n");
}

TEST_F(GenerateCommand, TokensThatEndNothingAreReported) {
  const std::string told = "no effect under --ignore-eos, which continues past these tokens: ";
  const Args ids = {"--ids", "1,2,3", "-n", "1"},
             all = {"--ignore-eos", "--stop-id", "3", "--eos", "4"};
  for (const Args& command : {Args{"generate"} + ids, Args{"equivalence"} + ids}) {
    EXPECT_EQ(succeed(command + all).err, told + "--stop-id, --eos\n");
    EXPECT_EQ(succeed(command + Args{"--ignore-eos", "--stop", "x"}).err, "");
    EXPECT_EQ(succeed(command + Args{"--stop-id", "3", "--eos", "4"}).err, "");
  }
  succeed(Args{"save", "--ids", "1,2,3", "--stop-id", "3", "-o", s});
  EXPECT_EQ(succeed({"resume", s, "-n", "1", "--ignore-eos", "--json"}).err, "");
  EXPECT_EQ(succeed({"resume", s, "-n", "1", "--ignore-eos", "--stop-id", "4", "--json"}).err,
            told + "--stop-id\n");
  EXPECT_EQ(succeed(Args{"experiment"} + ids + Args{"--ignore-eos", "--eos", "4", "--json"}).err,
            told + "--eos\n");
}

TEST_F(GenerateCommand, PenaltiesAndBiasesArePartOfTheState) {
  const auto reply = [this](const Args& args) {
    return Json::parse(succeed(args + Args{"--json", "--ignore-eos"}).out);
  };
  const Args ask = {"generate", "-p", "Once"};
  const Args options = {"--frequency-penalty", "1.5",        "--presence-penalty", "0.5",
                        "--logit-bias",        "5=2,17=-100"};
  const Json plain = reply(ask + Args{"-n", "40"});
  EXPECT_EQ(reply(ask + Args{"-n", "40", "--frequency-penalty", "0", "--presence-penalty", "-0",
                             "--logit-bias", "5=0"})["digests"]["id"],
            plain["digests"]["id"]);
  const Json whole = reply(ask + options + Args{"-n", "40"});
  EXPECT_NE(whole["ids"], plain["ids"]);
  succeed(ask + options + Args{"-n", "23", "--ignore-eos", "--save", s});
  EXPECT_EQ(reply({"resume", s, "-n", "17"})["digests"]["id"], whole["digests"]["id"]);
  // Options that are given replace the saved ones; a bias of 0 removes a token's bias.
  const std::string other = scratch / "other.stet";
  succeed(
      {"resume", s, "-n", "0", "--logit-bias", "5=0", "--presence-penalty", "0", "--save", other});
  const Json settings = Json::parse(run_stet({"inspect", other, "--json"}).out)["sampling"];
  EXPECT_EQ(settings["logit_bias"], Json::object());
  EXPECT_EQ(settings["presence_penalty"], 0.0);
  EXPECT_EQ(settings["frequency_penalty"], 1.5);
  EXPECT_NE(run_stet({"inspect", s}).out.find("frequency 1.5, presence 0.5, 2 biased tokens"),
            std::string::npos);
}

// The printed seed draws the same reply again.
TEST_F(GenerateCommand, TheSeedOfADrawnReplyIsPrintedUnlessItWasNamed) {
  const Args draw = {"generate", "-p", "Once", "-n", "20", "--temperature", "3", "--json"};
  const Outcome plain = succeed(draw), zero = succeed(draw + Args{"--seed", "0"});
  EXPECT_EQ(plain.err, "seed 0 (--seed random: another)\n");
  EXPECT_EQ(zero.err, "");
  const Json reply = Json::parse(plain.out);
  EXPECT_EQ(reply["seed"], 0);
  EXPECT_EQ(reply["ids"], Json::parse(zero.out)["ids"]);
  const Outcome random = succeed(draw + Args{"--seed", "random"});
  const Json drawn = Json::parse(random.out);
  const uint64_t seed = drawn["seed"];
  EXPECT_LT(seed, (uint64_t{1} << 53) - 1'000'000);
  EXPECT_EQ(random.err, "seed " + std::to_string(seed) + "\n");
  EXPECT_NE(drawn["ids"], reply["ids"]);
  EXPECT_EQ(Json::parse(succeed(draw + Args{"--seed", std::to_string(seed)}).out)["ids"],
            drawn["ids"]);
  EXPECT_NE(Json::parse(succeed(draw + Args{"--seed", "random"}).out)["seed"], drawn["seed"]);
  succeed({"save", "-p", "Once", "--temperature", "3", "--seed", "7", "-o", s, "--json"});
  EXPECT_EQ(succeed({"resume", s, "-n", "1", "--json"}).err, "seed 7 (--seed random: another)\n");
}

TEST_F(GenerateCommand, UnsupportedOptionsAreRefused) {
  const std::vector<Args> wrong = {{"generate", "-p", "a", "--form", "recipe"},
                                   {"generate", "-p", "a", "--compress", "zlib"},
                                   {"generate", "-p", "a", "--with-weights"},
                                   {"resume", s, "--with-tokenizer"},
                                   {"generate", "--ids", "1", "--bos", "off"},
                                   {"generate", "--say", "a", "--bos", "on"},
                                   {"logits", "--ids", "1", "--digest", "--hidden"},
                                   {"experiment", "-p", "a", "--check"},
                                   {"generate", "-p", "a", "--check"},
                                   {"experiment", "-p", "a", "--form", "recipe"},
                                   {"experiment", "-p", "a", "--parent", s},
                                   {"experiment", "-p", "a", "--json", "--csv"}};
  for (const Args& args : wrong) refused(args, 2);
  const std::vector<Args> without_threads = {{"tokenize", "--jsonl", "--json"},
                                             {"detokenize", "--jsonl", "--json"},
                                             {"template", "--jsonl", "--json"},
                                             {"template", "--jsonl", "--var", "a=1"},
                                             {"template", "--jsonl", "--show-ids"},
                                             {"template", "-p", "a", "--json", "--show-ids"},
                                             {"template", "-p", "a", "--plain-special"},
                                             {"template", "--jsonl", "--add-generation-prompt"},
                                             {"bench", "--machine", "-p", "3"},
                                             {"bench", "--machine", "--batch", "2"},
                                             {"bench", "--snapshot", "-n", "3"},
                                             {"bench", "--lengths", "600"},
                                             {"bench", "--directory", "/tmp"},
                                             {"bench", "--turns", "-n", "3"}};
  for (const Args& args : without_threads)
    EXPECT_EQ(run_stet(args).status, 2) << args[0] << " " << args[1] << " " << args[2];
}

}  // namespace
}  // namespace stet::test::generate_tests

// `stet chat`, `experiment` and `equivalence` as programs use them: scripts, pipes, killed
// processes.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "stet/text/tokenizer.hpp"
#include "tests/command/json_lines.hpp"
#include "tests/command/pipe.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::chat_tests {
namespace {

using Json = nlohmann::json;

const std::string kScript = data_path("pocket/golden-gemma3/script.json");

Json script() { return Json::parse(read_text(kScript)); }

class ChatCommand : public testing::Test {
 protected:
  // Writes a file with one message per line. Returns its path.
  std::string lines(const std::vector<std::string>& messages) const {
    std::string text;
    for (const std::string& message : messages) text += message + "\n";
    write_file(scratch / "lines", text);
    return scratch / "lines";
  }
  TemporaryDirectory scratch;
  const std::string snapshot = scratch / "s.stet";
};

TEST_F(ChatCommand, TheScriptedConversationIsAsExpected) {
  const Outcome o =
      run_stet({"chat", "--threads", "1", "--script", kScript, "--json", "--save", snapshot});
  EXPECT_EQ(o.status, 0) << o.err;
  const std::vector<Json> turns = json_lines(o.out);
  const Json expected = script();
  ASSERT_EQ(turns.size(), 8u);
  int64_t before = 0;
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(turns[i]["text"], expected["turns"][i]["model"]);
    EXPECT_EQ(turns[i]["as_expected"], true);
    EXPECT_EQ(turns[i]["tokens"]["kept"], before);
    EXPECT_EQ(turns[i]["tokens"]["recomputed"], 0);
    EXPECT_EQ(turns[i]["tokens"]["added"],
              expected["turns"][i]["reply_starts"].get<int64_t>() - before);
    EXPECT_EQ(turns[i]["prompt_ids"].size(), turns[i]["tokens"]["added"]);
    before = turns[i]["positions"];
  }
  EXPECT_EQ(Json(Snapshot::open(snapshot).tokens()), expected["ids"]);
  // The human-readable transcript is the same; a failed expectation sets the exit status.
  const Outcome text = run_stet({"chat", "--threads", "1", "--script", kScript});
  EXPECT_EQ(text.status, 0);
  EXPECT_NE(text.out.find("model  m was 66.\n"), std::string::npos) << text.out;
  write_file(
      scratch / "wrong.json",
      R"([{"user": "Set k = 5.", "expect": "never"}, {"user": "What is k?", "contains": ["5"]}])");
  const Outcome wrong = run_stet({"chat", "--threads", "1", "--script", scratch / "wrong.json"});
  EXPECT_EQ(wrong.status, 1);
  EXPECT_NE(wrong.out.find("NOT AS EXPECTED: expected \"never\""), std::string::npos);
}

TEST_F(ChatCommand, ScriptsAreCheckedBeforeTheyRun) {
  for (const auto& [text, error] :
       {std::pair{"{", "expected JSON, or lines of text"},
        {"{\"turns\": 3}", "turns: expected an array, found 3"},
        {"[3]", "turns[0]: expected a string, or an object with user, command or tool, found 3"},
        {"[{\"command\": \"x\"}]", "turns[0].command: expected a command that begins with /"}}) {
    write_file(scratch / "bad.json", text);
    const Outcome o = run_stet({"chat", "--threads", "1", "--script", scratch / "bad.json"});
    EXPECT_EQ(o.status, 1);
    EXPECT_NE(o.err.find(error), std::string::npos) << o.err;
  }
  EXPECT_EQ(run_stet({"chat", "--threads", "1", "--json"}).status, 2);
  EXPECT_EQ(run_stet({"chat", "--threads", "1", "--script", lines({"/nonsense"})}).status, 1);
}

class ChatWithTools : public ChatCommand {
 protected:
  ChatWithTools() {
    write_file(
        tools,
        R"([{"type": "function", "function": {"name": "get_weather", "description": "Größe <x>",
      "parameters": {"type": "object", "properties": {"days": {"type": "integer", "maximum": 1e2}}}}},
      {"name": "noop"}])");
  }
  // Runs a chat of Qwen's template with the tools and a script.
  Outcome chat(const std::string& json, Args more = {}) const {
    write_file(scratch / "turns.json", json);
    Args args = {"chat",    "--threads", "1",
                 "-n",      "5",         "--greedy",
                 "--tools", tools,       "--chat-template",
                 qwen,      "--script",  scratch / "turns.json",
                 "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return run_stet(args);
  }
  // Returns what `stet template` prints for messages and the tools.
  Json rendered(const Json& messages) const {
    const Outcome o =
        run_stet({"template", "--messages", messages.dump(), "--add-generation-prompt", "--tools",
                  tools, "--chat-template", qwen, "--plain-special", "--json"});
    EXPECT_EQ(o.status, 0) << o.err;
    return Json::parse(o.out);
  }
  const std::string tools = scratch / "tools.json", qwen = data_path("jinja/qwen3.jinja");
};

TEST_F(ChatWithTools, ThePromptIsThatOfTheTemplate) {
  const Outcome o = chat(R"([{"user": "Which weather?"},
    {"tool": ["18 <|im_end|>", {"content": "{\"rain\": 2}", "name": "get_weather"}]}])");
  EXPECT_EQ(o.status, 0) << o.err;
  const std::vector<Json> turns = json_lines(o.out);
  ASSERT_EQ(turns.size(), 2u) << o.out;
  Json messages = {{{"role", "user"}, {"content", "Which weather?"}}};
  EXPECT_EQ(turns[0]["prompt_ids"], rendered(messages)["ids"]);
  EXPECT_EQ(turns[1]["tool"], Json({"18 <|im_end|>", "{\"rain\": 2}"}));
  EXPECT_EQ(turns[1]["tokens"]["recomputed"], 0);
  // The reply keeps its tokens, so that the text is compared.
  messages.push_back({{"role", "assistant"}, {"content", turns[0]["text"]}});
  messages.push_back({{"role", "tool"}, {"content", "18 <|im_end|>"}});
  messages.push_back({{"role", "tool"}, {"content", "{\"rain\": 2}"}, {"name", "get_weather"}});
  std::vector<int32_t> ids;
  for (const auto& [turn, part] : {std::pair{0, "prompt_ids"}, {0, "ids"}, {1, "prompt_ids"}}) {
    for (const Json& id : turns[static_cast<size_t>(turn)][part]) ids.push_back(id.get<int32_t>());
  }
  const std::string text = rendered(messages)["text"];
  EXPECT_EQ(Tokenizer::load(STET_ROOT "/assets/pocket-gemma3")->decode(ids, false), text);
  EXPECT_NE(text.find("<tool_response>\n{\"rain\": 2}\n</tool_response>"), std::string::npos)
      << text;
}

TEST_F(ChatWithTools, ResultsAreSentByACommandToo) {
  const Outcome by_command = chat(R"([{"user": "Hi"}, {"command": "/tool 18 degrees"}])"),
                by_turn = chat(R"([{"user": "Hi"}, {"tool": "18 degrees"}])");
  EXPECT_EQ(by_command.status, 0) << by_command.err;
  const std::vector<Json> command = json_lines(by_command.out), turn = json_lines(by_turn.out);
  ASSERT_EQ(command.size(), 2u);
  ASSERT_EQ(turn.size(), 2u);
  EXPECT_EQ(command[1]["digests"], turn[1]["digests"]);
}

TEST_F(ChatWithTools, ResumingKeepsThem) {
  ASSERT_EQ(
      chat(R"([{"user": "Hi"}])", {"--save", snapshot, "--var", "a=1", "--var", "b=2"}).status, 0);
  const Outcome o = run_stet({"chat", "--threads", "1", "--resume", snapshot, "-o", snapshot,
                              "--var", "b=3", "--script", lines({"/messages"})});
  ASSERT_EQ(o.status, 0) << o.err;
  Json expected = {{"a", 1}, {"b", 3}, {"tools", Json::parse(read_text(tools))}};
  EXPECT_EQ(Json::parse(Snapshot::open(snapshot).meta().chat.variables), expected);
}

// A process that resumes sees the functions as the one that began: the next turn adds tokens alone.
TEST_F(ChatWithTools, AnotherProcessGoesOnAsIfThereWereNone) {
  const std::string half = scratch / "half.stet", whole = scratch / "whole.stet";
  ASSERT_EQ(chat(R"([{"user": "Hi"}, {"user": "Again"}])", {"--save", whole}).status, 0);
  ASSERT_EQ(chat(R"([{"user": "Hi"}])", {"--save", half}).status, 0);
  write_file(scratch / "rest.json", R"([{"user": "Again"}])");
  const Outcome o = run_stet({"chat", "--threads", "1", "-n", "5", "--resume", half, "--script",
                              scratch / "rest.json", "--json", "-o", half});
  ASSERT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(json_lines(o.out)[0]["tokens"]["recomputed"], 0);
  EXPECT_EQ(Snapshot::open(half).digests().id, Snapshot::open(whole).digests().id);
}

TEST_F(ChatWithTools, GenerateHasThemToo) {
  const Args say = {"--say", "Hi", "--tools", tools, "--chat-template", qwen, "--greedy"};
  Args generate = {"generate", "-n", "5", "--json", "--threads", "1"};
  generate.insert(generate.end(), say.begin(), say.end());
  const Outcome o = run_stet(generate);
  ASSERT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(Json::parse(o.out)["prompt_ids"],
            json_lines(chat(R"([{"user": "Hi"}])").out)[0]["prompt_ids"]);
  EXPECT_EQ(run_stet({"generate", "-p", "Hi", "--tools", tools}).status, 2);
}

TEST_F(ChatWithTools, Refusals) {
  for (const auto& [text, error] :
       {std::pair{R"({"name": "f"})", ": expected a JSON array of functions, [{\"type\""},
        {"[3]", ": [0]: expected an object, found 3"},
        {R"([{"name": "f"}, {"function": {}}])",
         ": [1].function.name: expected the name of a function, found null"},
        {R"([{"name": "f", "parameters": []}])",
         ": [0].parameters: expected a JSON schema, found []"},
        {"[", ": line 1, column 2: expected valid JSON, found the end of the text"}}) {
    write_file(tools, text);
    const Outcome o = chat("[]");
    EXPECT_EQ(o.status, 1) << text;
    EXPECT_NE(o.err.find(tools + error), std::string::npos) << o.err;
  }
  write_file(tools, "[]");
  EXPECT_EQ(chat("[]", {"--var", "tools=[]"}).status, 2);
  EXPECT_NE(chat(R"([{"tool": "18"}])").err.find("/tool: there is no reply that calls a function"),
            std::string::npos);
  EXPECT_NE(
      chat(R"([{"tool": []}])").err.find("turns[0].tool: expected a result, or several, found []"),
      std::string::npos);
  EXPECT_NE(chat(R"([{"tool": {"name": "f"}}])")
                .err.find("turns[0].tool.content: expected a string, found null"),
            std::string::npos);
  const Outcome none = run_stet({"chat", "--tools", tools, "--script", lines({"Hi"})});
  EXPECT_EQ(none.status, 1);
  EXPECT_NE(none.err.find("--tools: expected a chat template that has tools, found one without "
                          "(--chat-template FILE uses another one)"),
            std::string::npos)
      << none.err;
}

// Each turn runs in its own process, which is killed as soon as the state is on disk.
TEST_F(ChatCommand, KilledAfterEverySaveAndResumed) {
  const Json expected = script();
  for (size_t i = 0; i < 8; ++i) {
    const Pipe in(scratch / "in"), err(scratch / "err");
    Args args = {"chat", "--threads", "1", "--save", snapshot, "--autosave"};
    if (i > 0) args.insert(args.end(), {"--resume", snapshot});
    const CommandRun run(args, in.path, scratch / "out", err.path);
    if (i > 0) {
      EXPECT_TRUE(err.read_line().starts_with("resumed "));
    }
    in.write(expected["turns"][i]["user"].get<std::string>() + "\n");
    EXPECT_TRUE(err.read_line().starts_with("saved "));
    run.send(SIGKILL);
    EXPECT_EQ(run.wait(), -SIGKILL);
    EXPECT_EQ(read_text(scratch / "out"), expected["turns"][i]["model"].get<std::string>() + "\n");
    const Snapshot saved = Snapshot::open(snapshot);
    EXPECT_EQ(static_cast<int64_t>(saved.tokens().size()),
              expected["turns"][i]["reply_ends"].get<int64_t>());
  }
  const Snapshot killed = Snapshot::open(snapshot);
  EXPECT_EQ(Json(killed.tokens()), expected["ids"]);
  ASSERT_EQ(
      run_stet({"chat", "--threads", "1", "--script", kScript, "--save", scratch / "unbroken.stet"})
          .status,
      0);
  const Snapshot unbroken = Snapshot::open(scratch / "unbroken.stet");
  EXPECT_EQ(killed.digests().kv, unbroken.digests().kv);
  EXPECT_EQ(killed.digests().logits, unbroken.digests().logits);
  EXPECT_EQ(run_stet({"verify", snapshot}).status, 0);
}

TEST_F(ChatCommand, CommandsInScripts) {
  const Outcome o = run_stet({"chat", "--threads", "1", "--script", lines({"Set k = 5.",
                                                                           "/fork other",
                                                                           "Set k = 9.",
                                                                           "What is k?",
                                                                           "/switch main",
                                                                           "What is k?",
                                                                           "/branches",
                                                                           "/edit Set k = 3.",
                                                                           "/rewind",
                                                                           "/system Be terse.",
                                                                           "What is k?",
                                                                           "/messages",
                                                                           "/verify",
                                                                           "/state",
                                                                           "/set temperature 0.5",
                                                                           "/set",
                                                                           "/prune 20 2 shift",
                                                                           "What is k?",
                                                                           "/verify",
                                                                           "//quit is a word",
                                                                           "/quit",
                                                                           "never said"})});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.out.find("k is 9."), std::string::npos);
  EXPECT_NE(o.out.find("k is 5."), std::string::npos);
  EXPECT_NE(o.out.find("* main"), std::string::npos);
  EXPECT_NE(o.out.find("system: Be terse."), std::string::npos);
  EXPECT_NE(o.out.find("temperature 0.5"), std::string::npos);
  EXPECT_NE(o.out.find("/quit is a word"), std::string::npos);
  EXPECT_EQ(o.out.find("never said"), std::string::npos);
  size_t equal = 0;
  for (size_t at = 0; (at = o.out.find("equal: ", at)) != std::string::npos; ++at) ++equal;
  EXPECT_EQ(equal, 2u) << o.out << o.err;
}

TEST_F(ChatCommand, WithJsonStandardOutputHasObjectsAlone) {
  const Outcome o = run_stet(
      {"chat", "--threads", "1", "--json", "--script",
       lines({"Set k = 5.", "/verify", "/messages", "/state", "/set", "/branches", "/help"})});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(Json::parse(o.out)["user"], "Set k = 5.");  // throws for more than one value
  EXPECT_NE(o.err.find("equal: "), std::string::npos);
  EXPECT_NE(o.err.find("* main"), std::string::npos);
}

TEST_F(ChatCommand, CommandsTakeWhatTheySay) {
  const auto error = [&](const std::string& command) {
    const Outcome o =
        run_stet({"chat", "--threads", "1", "--script", lines({"Set k = 5.", command})});
    EXPECT_EQ(o.status, 1);
    return o.err;
  };
  EXPECT_NE(error("/retry now").find("/retry takes no argument, found now"), std::string::npos);
  EXPECT_NE(error("/quit now").find("/quit takes no argument, found now"), std::string::npos);
  EXPECT_NE(error("/help foo").find("unknown command /foo"), std::string::npos);
  EXPECT_NE(error("/branche").find("did you mean /branches?"), std::string::npos);
}

TEST_F(ChatCommand, ARetryOfTheLikeliestTokensIsTheSameState) {
  const auto id = [&](const std::vector<std::string>& said) {
    EXPECT_EQ(run_stet({"chat", "--threads", "1", "--script", lines(said), "-o", snapshot}).status,
              0);
    return Snapshot::open(snapshot).digests().id;
  };
  EXPECT_EQ(id({"Set k = 5.", "/retry"}), id({"Set k = 5."}));
}

TEST_F(ChatCommand, ASystemMessageSaysHowMuchIsProcessedAgain) {
  const std::string script = lines({"Set k = 5.", "/system", "/system Be terse.", "What is k?"});
  const Outcome o = run_stet({"chat", "--threads", "1", "--stats", "--script", script});
  EXPECT_NE(o.err.find("(used from the next message on)\n"), std::string::npos) << o.err;
  const std::string text = "(used from the next message on: ";
  const size_t at = o.err.find(text);
  ASSERT_NE(at, std::string::npos) << o.err;
  const std::string count = std::to_string(std::stoi(o.err.substr(at + text.size())));
  const std::string stats = o.out + o.err;
  EXPECT_NE(stats.find(" tokens kept, " + count + " recomputed, "), std::string::npos) << stats;
}

TEST_F(ChatCommand, StatisticsAreShownOnceAReply) {
  const std::string script = lines({"/stats on", "Set k = 5.", "/retry", "Hello"});
  const Outcome o = run_stet({"chat", "--threads", "1", "--script", script});
  const std::string all = o.out + o.err;
  size_t count = 0;
  for (size_t at = all.find(" tokens kept, "); at != std::string::npos; ++count)
    at = all.find(" tokens kept, ", at + 1);
  EXPECT_EQ(count, 3u) << all;
}

TEST_F(ChatCommand, TheConversationIsInTheSnapshot) {
  ASSERT_EQ(run_stet({"chat", "--threads", "1", "--system", "Be terse.", "--script",
                      lines({"Set k = 5."}), "--save", snapshot})
                .status,
            0);
  const Snapshot s = Snapshot::open(snapshot);
  ASSERT_EQ(s.meta().chat.messages.size(), 3u);
  EXPECT_EQ(s.meta().chat.messages[0].content, "Be terse.");
  EXPECT_TRUE(s.meta().chat.messages[2].generated);
  EXPECT_EQ(run_stet({"chat", "--threads", "1", "--resume", snapshot, "--script",
                      lines({"What is k?"}), "--json"})
                .status,
            0);
  const Json inspected = Json::parse(run_stet({"inspect", snapshot, "--json"}).out);
  EXPECT_EQ(inspected["messages"].size(), 3u);
}

TEST_F(ChatCommand, ExperimentsBranchFromOneState) {
  ASSERT_EQ(
      run_stet({"chat", "--threads", "1", "--script", lines({"Set k = 5."}), "--save", snapshot})
          .status,
      0);
  const Args args = {"experiment", snapshot, "--threads",     "1",    "--say",   "What is k?",
                     "--seeds",    "1,2,1",  "--temperature", "0,20", "--top-k", "5,50",
                     "-n",         "12",     "--twice"};
  Args json = args, csv = args;
  json.push_back("--json");
  csv.push_back("--csv");
  const Json j = Json::parse(run_stet(json).out);
  ASSERT_EQ(j["runs"].size(), 12u);
  for (size_t i = 0; i < 12; i += 3) {
    EXPECT_EQ(j["runs"][i]["ids"], j["runs"][i + 2]["ids"]);
    EXPECT_EQ(j["runs"][i]["state"], j["runs"][i + 2]["state"]);
    if (j["runs"][i]["temperature"] == 0) {
      EXPECT_EQ(j["runs"][i]["text"], "k is 5.");
    }
  }
  EXPECT_GE(j["distinct"], 2);
  EXPECT_GT(j["tokens_reused"], 12 * 20);
  const std::string table = run_stet(csv).out;
  size_t rows = 0;
  for (size_t at = 0; (at = table.find(",xxh3:", at)) != std::string::npos; ++at) ++rows;
  EXPECT_EQ(rows, 12u);
  EXPECT_TRUE(table.starts_with("run,seed,temperature,top-k,"));
  EXPECT_NE(run_stet(args).out.find("each drawn twice with the same state"), std::string::npos);
  EXPECT_EQ(run_stet({"experiment", snapshot, "--top-p", "7"}).status, 2);
  EXPECT_EQ(run_stet({"experiment"}).status, 2);
}

TEST_F(ChatCommand, EquivalenceIsProvedWayByWay) {
  const Outcome o = run_stet({"equivalence", "--threads", "1", "--say", "Set k = 5.", "--sample",
                              "--temperature", "1.2", "--seed", "4", "-n", "24", "--json"});
  EXPECT_EQ(o.status, 0) << o.err;
  const Json rows = Json::parse(o.out);
  ASSERT_GE(rows.size(), 9u);
  for (const Json& row : rows) {
    EXPECT_EQ(row["equal"], true) << row;
    EXPECT_EQ(row["digests"]["state"], rows[0]["digests"]["state"]);
  }
  EXPECT_EQ(run_stet({"equivalence", "--threads", "1", "-m", data_path("models/gemma3-tiny"),
                      "--ids", "1,2,3,4,5,6,7,8,9,10,11,12"})
                .status,
            0);
}

TEST_F(ChatCommand, AnotherProgramIsAskedWithoutOptionsOfAReply) {
  const auto against = [](const std::string& logits) {
    return Args{"equivalence", "--ids", "1,2,3,4,5", "--against",
                "while read line; do echo '{\"logits\": [" + logits + "]}'; done"};
  };
  EXPECT_NE(succeed(against("1, 2")).out.find("all at once"), std::string::npos);
  for (const Args& option : {Args{"--seed", "3"}, Args{"-n", "5"}, Args{"--threads", "1"},
                             Args{"--kv", "f16"}, Args{"--temperature", "1"}})
    EXPECT_TRUE(failure(against("1, 2") + option, 2)
                    .ends_with(" cannot be used with --against, whose program computes by itself "
                               "(stet --help)"))
        << option[0];
  const Outcome large = run_stet(against("1e40, 2"));
  EXPECT_EQ(large.status, 1);
  EXPECT_NE(large.err.find("expected finite float32 numbers as logits, found 1e+40"),
            std::string::npos)
      << large.err;
}

// ---------------------------------------------------------------- saving

TEST_F(ChatCommand, OnlyTheTargetIsWrittenAtTheEnd) {
  const std::string copy = scratch / "copy.stet";
  ASSERT_EQ(
      run_stet({"chat", "--threads", "1", "--script", lines({"Set k = 5."}), "--save", snapshot})
          .status,
      0);
  const std::string before = read_text(snapshot);
  // A copy holds the conversation at that moment; the resumed file does not change.
  const Outcome o = run_stet({"chat", "--threads", "1", "--resume", snapshot, "--script",
                              lines({"What is k?", "/save " + copy, "Set k = 9."})});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(read_text(snapshot), before);
  EXPECT_EQ(Snapshot::open(copy).meta().chat.messages.size(), 4u);
  EXPECT_NE(o.err.find("this conversation has 2 messages not saved yet: /save FILE or --save "
                       "FILE would have kept them\n"),
            std::string::npos)
      << o.err;
  // Nothing is reported if a file holds the whole conversation.
  EXPECT_EQ(run_stet({"chat", "--threads", "1", "--resume", copy, "--script", lines({"/messages"})})
                .err.find("saved yet"),
            std::string::npos);
  EXPECT_NE(run_stet({"chat", "--threads", "1", "--script", lines({"/save"})})
                .err.find("/save needs a file, since the chat was started without --save"),
            std::string::npos);
}

TEST_F(ChatCommand, BranchesThatWouldBeLostAreNamed) {
  const Args args = {"chat", "--threads", "1", "--save", snapshot, "--overwrite", "--script"};
  const auto run = [&](const std::vector<std::string>& messages) {
    Args all = args;
    all.push_back(lines(messages));
    return run_stet(all);
  };
  const Outcome lost = run({"Set k = 5.", "/fork side", "Set k = 9.", "/switch main"});
  EXPECT_NE(lost.err.find("branch side has 2 messages not saved yet: /switch side, /save FILE "
                          "would have kept them\n"),
            std::string::npos)
      << lost.err;
  EXPECT_EQ(lost.err.find("branch main"), std::string::npos) << lost.err;
  EXPECT_EQ(Snapshot::open(snapshot).meta().chat.messages.size(), 2u);
  EXPECT_EQ(run({"Set k = 5.", "/fork side", "Set k = 9."}).err.find("branch"),
            std::string::npos);  // main is a prefix of side
  EXPECT_EQ(run({"Set k = 5.", "/fork side", "Set k = 9.", "/save " + scratch / "side.stet",
                 "/switch main"})
                .err.find("branch"),
            std::string::npos);
  // A file that was overwritten with another state no longer counts as holding the first.
  const Outcome over = run({"Set k = 5.", "/save " + scratch / "one.stet", "/fork side", "/rewind",
                            "Set k = 9.", "/save " + scratch / "./one.stet"});
  EXPECT_NE(over.err.find("branch main has 2 messages"), std::string::npos) << over.err;
  // A loaded conversation is kept beside the unsaved one.
  const Outcome loaded = run(
      {"Set k = 5.", "/load " + scratch / "one.stet", "/messages", "/switch main-1", "/messages"});
  EXPECT_NE(loaded.err.find("(2 messages not saved yet are kept in branch main-1)"),
            std::string::npos)
      << loaded.err;
  EXPECT_NE(loaded.out.find("user: Set k = 9."), std::string::npos) << loaded.out;
  EXPECT_NE(loaded.out.find("user: Set k = 5."), std::string::npos) << loaded.out;
}

TEST_F(ChatCommand, AFailedScriptKeepsTheConversation) {
  const Outcome o =
      run_stet({"chat", "--threads", "1", "--script",
                lines({"Set k = 5.", "/nonsense", "never said"}), "--save", snapshot});
  EXPECT_EQ(o.status, 1);
  EXPECT_NE(o.err.find("stet: unknown command /nonsense (/help lists them)"), std::string::npos)
      << o.err;
  EXPECT_EQ(Snapshot::open(snapshot).meta().chat.messages.size(), 2u);
  // In a pipe the remaining lines are still said; the exit status reports the failure.
  const Outcome piped =
      run_stet({"chat", "--threads", "1", "-o", snapshot}, "/nonsense\nSet k = 5.\n");
  EXPECT_EQ(piped.status, 1);
  EXPECT_EQ(piped.out, "OK, k = 5.\n");
  EXPECT_EQ(Snapshot::open(snapshot).meta().chat.messages.size(), 2u);
}

TEST_F(ChatCommand, SignalsEndAChatInGoodOrder) {
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    const Pipe in(scratch / "in"), out(scratch / "out"), err(scratch / "err");
    const CommandRun run({"chat", "--threads", "1", "--save", snapshot}, in.path, out.path,
                         err.path);
    in.write("Set k = 5.\n");
    EXPECT_EQ(out.read_line(), "OK, k = 5.");
    run.send(signal);  // while the process waits for the next line
    EXPECT_EQ(run.wait(), -signal);
    EXPECT_TRUE(err.read_line().starts_with("saved 25 tokens to " + snapshot));
    EXPECT_EQ(Snapshot::open(snapshot).meta().chat.messages.size(), 2u);
    std::filesystem::remove(snapshot);
  }
}

TEST_F(ChatCommand, ALongTurnIsPrintedWhole) {
  const std::string text = "/system " + std::string(5000, 'x');
  const Outcome o = run_stet({"chat", "--script", lines({text})});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "       " + text + "\n");
}

TEST_F(ChatCommand, ABlankTurnIsRefused) {
  for (const char* turn : {"\" \"", "{\"user\": \"\"}"}) {
    write_file(scratch / "turns.json", "[\"Set k = 5.\", " + std::string(turn) + "]");
    EXPECT_NE(failure({"chat", "--script", scratch / "turns.json"})
                  .find(": expected a message, not a blank one, found "),
              std::string::npos);
  }
}

TEST_F(ChatCommand, AutosaveNeedsATarget) {
  const Outcome o = run_stet({"chat", "--autosave", "--script", lines({"Set k = 5."})});
  EXPECT_EQ(o.status, 2);
  EXPECT_EQ(o.err, "stet: --autosave needs --save FILE (stet --help)\n");
}

TEST_F(ChatCommand, RawTextIsNoConversation) {
  ASSERT_EQ(
      run_stet({"generate", "--threads", "1", "-p", "Once", "-n", "4", "--save", snapshot}).status,
      0);
  const size_t tokens = Snapshot::open(snapshot).tokens().size();
  const std::string expected = snapshot + ": messages: expected a conversation (stet resume " +
                               snapshot + " -p TEXT continues raw text), found " +
                               std::to_string(tokens) + " tokens of raw text, and no messages\n";
  for (const Args& args : {Args{"chat", "--resume", snapshot, "--script", lines({"Hello"})},
                           Args{"chat", "--script", lines({"/load " + snapshot})}}) {
    const Outcome o = run_stet(args);
    EXPECT_EQ(o.status, 1);
    EXPECT_EQ(o.err, "stet: " + expected);
  }
}

// ---------------------------------------------------------------- input

TEST_F(ChatCommand, ErrorsOfSettingsQuoteTheInput) {
  const auto run = [&](const std::vector<std::string>& commands) {
    return run_stet({"chat", "--threads", "1", "--script", lines(commands)});
  };
  for (const auto& [command, error] :
       {std::pair{"/set temperature -1",
                  "temperature: expected 0 (greedy) or a number in 1e-30..1e30, found -1"},
        {"/set temperature nan",
         "temperature: expected 0 (greedy) or a number in 1e-30..1e30, found nan"},
        {"/set top-k -1", "top-k: expected an integer in 0..2147483647 (0: all), found -1"},
        {"/set top-p 1.5", "top-p: expected a number in 0..1 (1: all), found 1.5"},
        {"/set typical 0", "typical: expected a number above 0, up to 1 (1: all), found 0"},
        {"/set repetition-penalty 0",
         "repetition-penalty: expected a number in 1e-30..1e30 (1: none), found 0"},
        {"/set frequency-penalty 3",
         "frequency-penalty: expected a number in -2..2 (0: none), found 3"},
        {"/set logit-bias 7",
         "logit-bias: expected 17=-100,5=2.5 with ids of tokens and numbers in "
         "-100..100, or nothing, found 7"},
        {"/set logit-bias 99999=1",
         "logit-bias: expected 17=-100,5=2.5 with ids of tokens and "
         "numbers in -100..100, or nothing, found 99999=1"},
        {"/set seed 18446744073709551616",
         "seed: expected an integer in 0..18446744073709551615, found 18446744073709551616"},
        {"/set max-tokens 0", "max-tokens: expected an integer in 1..9223372036854775807, found 0"},
        {"/set greedy perhaps", "greedy: expected on or off, found perhaps"}}) {
    const Outcome o = run({command});
    EXPECT_EQ(o.status, 1);
    EXPECT_EQ(o.err, "stet: " + std::string(error) + "\n");
  }
  const Outcome o = run({"/set top-k 7", "/set temperature 0.7", "/set seed 18446744073709551615",
                         "/set", "/set temperature 0", "/set"});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.err,
            "(top-k has no effect on greedy replies: /set temperature T samples)\n(not greedy: "
            "tokens are "
            "drawn at temperature 0.7)\n"
            "(greedy: always the best token)\n");
  EXPECT_NE(o.out.find("temperature 0.7\ntop-k 7\n"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("seed 18446744073709551615\ngreedy off\n"), std::string::npos) << o.out;
  EXPECT_NE(
      o.out.find("temperature 0.7 (no effect while greedy)\ntop-k 7 (no effect while greedy)\n"),
      std::string::npos)
      << o.out;
}

TEST_F(ChatCommand, MessagesOfSeveralLines) {
  const std::vector<std::string> typed = {"\"\"\"",        "one",       "two\\",
                                          "\"\"\"",        "three\\",   "four",
                                          "\"\"\"/five",   "six\"\"\"", "/system \"\"\"Be terse.",
                                          "Always.\"\"\"", "exit",      "/edit 4 \"\"\"",
                                          "quit",          "\"\"\"",    "/messages"};
  const Outcome o = run_stet({"chat", "--threads", "1", "--script", lines(typed)});
  EXPECT_EQ(o.status, 0) << o.err;
  std::string text;
  for (const std::string& line : typed) text += line + "\n";
  for (const std::string& out : {o.out, run_stet({"chat", "--threads", "1"}, text).out}) {
    EXPECT_NE(out.find("system: Be terse.\n  Always.\n"), std::string::npos) << out;
    EXPECT_NE(out.find("user: one\n  two\\\n"), std::string::npos) << out;
    EXPECT_NE(out.find("user: three\n  four\n"), std::string::npos) << out;
    EXPECT_NE(out.find("user: /five\n  six\n"), std::string::npos) << out;
    // Only on a terminal does the word end a chat.
    EXPECT_NE(out.find("user: quit\n"), std::string::npos) << out;
  }
  const Outcome open =
      run_stet({"chat", "--threads", "1", "--script", lines({"\"\"\"", "never closed"})});
  EXPECT_EQ(open.status, 1);
  EXPECT_NE(open.err.find("expected a line that ends in \"\"\", found the end"), std::string::npos)
      << open.err;
  EXPECT_EQ(run_stet({"chat", "--threads", "1"}, "begun\\\n").status, 1);
  for (const char* word : {"/quit", "/bye", "/exit"}) {
    EXPECT_EQ(run_stet({"chat", "--threads", "1", "--script", lines({word, "/nonsense"})}).status,
              0);
  }
}

}  // namespace
}  // namespace stet::test::chat_tests

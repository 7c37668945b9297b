// `stet chat`, `experiment` and `equivalence` as a user meets them: scripts, processes that are killed, a terminal.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "run_command.hpp"
#include "stet/snapshot.hpp"
#include "stet/verify.hpp"
#include "support.hpp"

namespace stet::test {
namespace {

using Json = nlohmann::json;

const std::string kGemma = asset_path("pocket-gemma3");
const std::string kScript = data_path("pocket/golden-gemma3/script.json");

Json script() { return Json::parse(read_text_file(kScript, size_t{1} << 20)); }

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
  return all;
}

class ChatCommand : public testing::Test {
 protected:
  // A file with messages, one per line.
  std::string lines(const std::vector<std::string>& messages) const {
    std::string text;
    for (const std::string& message : messages) text += message + "\n";
    stet_test::write_file(scratch / "lines", text);
    return scratch / "lines";
  }
  stet_test::ScratchDir scratch;
  const std::string snapshot = scratch / "s.stet";
};

TEST_F(ChatCommand, TheScriptedConversationIsAsExpected) {
  const Outcome o = run_stet({"chat", "--threads", "1", "--script", kScript, "--json", "--save", snapshot});
  EXPECT_EQ(o.status, 0) << o.err;
  const std::vector<Json> turns = lines_of(o.out);
  const Json expected = script();
  ASSERT_EQ(turns.size(), 8u);
  int64_t before = 0;
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(turns[i]["text"], expected["turns"][i]["model"]);
    EXPECT_EQ(turns[i]["as_expected"], true);
    EXPECT_EQ(turns[i]["tokens"]["kept"], before);
    EXPECT_EQ(turns[i]["tokens"]["recomputed"], 0);
    EXPECT_EQ(turns[i]["tokens"]["added"], expected["turns"][i]["reply_starts"].get<int64_t>() - before);
    EXPECT_EQ(turns[i]["prompt_ids"].size(), turns[i]["tokens"]["added"]);
    before = turns[i]["positions"];
  }
  EXPECT_EQ(Json(Snapshot::open(snapshot).tokens()), expected["ids"]);
  // And the transcript for people; an expectation that fails is the exit status.
  const Outcome text = run_stet({"chat", "--threads", "1", "--script", kScript});
  EXPECT_EQ(text.status, 0);
  EXPECT_NE(text.out.find("model  m was 66.\n"), std::string::npos) << text.out;
  stet_test::write_file(scratch / "wrong.json", R"([{"user": "Set k = 5.", "expect": "never"}, {"user": "What is k?", "contains": ["5"]}])");
  const Outcome wrong = run_stet({"chat", "--threads", "1", "--script", scratch / "wrong.json"});
  EXPECT_EQ(wrong.status, 1);
  EXPECT_NE(wrong.out.find("NOT AS EXPECTED: expected \"never\""), std::string::npos);
}

TEST_F(ChatCommand, ScriptsAreCheckedBeforeTheyRun) {
  for (const auto& [text, error] : {std::pair{"{", "expected JSON, or lines of text"}, {"{\"turns\": 3}", "turns: expected an array, found 3"},
                                    {"[3]", "turns[0]: expected a string, or an object with user or command, found 3"},
                                    {"[{\"command\": \"x\"}]", "turns[0].command: expected a command that begins with /"}}) {
    stet_test::write_file(scratch / "bad.json", text);
    const Outcome o = run_stet({"chat", "--threads", "1", "--script", scratch / "bad.json"});
    EXPECT_EQ(o.status, 1);
    EXPECT_NE(o.err.find(error), std::string::npos) << o.err;
  }
  EXPECT_EQ(run_stet({"chat", "--threads", "1", "--json"}).status, 2);
  EXPECT_EQ(run_stet({"chat", "--threads", "1", "--script", lines({"/nonsense"})}).status, 1);
}

// Each turn in a process of its own, which is killed as soon as the state is on disk.
TEST_F(ChatCommand, KilledAfterEverySaveAndResumed) {
  const Json expected = script();
  for (size_t i = 0; i < 8; ++i) {
    const std::string pipe = scratch / "pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const int writer = ::open(pipe.c_str(), O_RDWR);
    Args args = {"chat", "--threads", "1", "--save", snapshot, "--autosave"};
    if (i > 0) args.insert(args.end(), {"--resume", snapshot});
    const CommandRun run(args, pipe, scratch / "out", scratch / "err");
    const std::string line = expected["turns"][i]["user"].get<std::string>() + "\n";
    ASSERT_EQ(::write(writer, line.data(), line.size()), static_cast<ssize_t>(line.size()));
    std::string err;
    for (int wait = 0; wait < 2000 && err.find("saved ") == std::string::npos; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      err = std::filesystem::exists(scratch / "err") ? read_text_file(scratch / "err", 1 << 20) : "";
    }
    run.send(SIGKILL);
    EXPECT_EQ(run.wait(), -SIGKILL);
    ::close(writer);
    std::filesystem::remove(pipe);
    EXPECT_EQ(read_text_file(scratch / "out", 1 << 20), expected["turns"][i]["model"].get<std::string>() + "\n");
    const Snapshot saved = Snapshot::open(snapshot);
    EXPECT_EQ(static_cast<int64_t>(saved.tokens().size()), expected["turns"][i]["reply_ends"].get<int64_t>());
  }
  const Snapshot killed = Snapshot::open(snapshot);
  EXPECT_EQ(Json(killed.tokens()), expected["ids"]);
  ASSERT_EQ(run_stet({"chat", "--threads", "1", "--script", kScript, "--save", scratch / "unbroken.stet"}).status, 0);
  const Snapshot unbroken = Snapshot::open(scratch / "unbroken.stet");
  EXPECT_EQ(killed.digests().kv, unbroken.digests().kv);
  EXPECT_EQ(killed.digests().logits, unbroken.digests().logits);
  EXPECT_EQ(run_stet({"verify", snapshot}).status, 0);
}

TEST_F(ChatCommand, CommandsInScripts) {
  const Outcome o = run_stet({"chat", "--threads", "1", "--script",
                              lines({"Set k = 5.", "/fork other", "Set k = 9.", "What is k?", "/switch main", "What is k?", "/branches",
                                     "/edit Set k = 3.", "/rewind", "/system Be terse.", "What is k?", "/messages", "/verify", "/state",
                                     "/set temperature 0.5", "/set", "/prune 20 2 shift", "What is k?", "/verify", "//quit is a word", "/quit", "never said"})});
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

TEST_F(ChatCommand, TheConversationIsInTheSnapshot) {
  ASSERT_EQ(run_stet({"chat", "--threads", "1", "--system", "Be terse.", "--script", lines({"Set k = 5."}), "--save", snapshot}).status, 0);
  const Snapshot s = Snapshot::open(snapshot);
  ASSERT_EQ(s.meta().dialogue.messages.size(), 3u);
  EXPECT_EQ(s.meta().dialogue.messages[0].content, "Be terse.");
  EXPECT_TRUE(s.meta().dialogue.messages[2].drawn);
  EXPECT_EQ(run_stet({"chat", "--threads", "1", "--resume", snapshot, "--script", lines({"What is k?"}), "--json"}).status, 0);
  const Json inspected = Json::parse(run_stet({"inspect", snapshot, "--json"}).out);
  EXPECT_EQ(inspected["messages"].size(), 3u);
}

TEST_F(ChatCommand, ExperimentsBranchFromOneState) {
  ASSERT_EQ(run_stet({"chat", "--threads", "1", "--script", lines({"Set k = 5."}), "--save", snapshot}).status, 0);
  const Args args = {"experiment", snapshot, "--threads", "1", "--say", "What is k?", "--seeds", "1,2,1", "--temperature", "0,20", "--top-k", "5,50", "-n", "12", "--twice"};
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
  EXPECT_EQ(run_stet({"experiment", snapshot, "--top-p", "7"}).status, 1);
  EXPECT_EQ(run_stet({"experiment"}).status, 2);
}

TEST_F(ChatCommand, EquivalenceIsProvedWayByWay) {
  const Outcome o = run_stet({"equivalence", "--threads", "1", "--say", "Set k = 5.", "--sample", "--temperature", "1.2", "--seed", "4", "-n", "24", "--json"});
  EXPECT_EQ(o.status, 0) << o.err;
  const Json rows = Json::parse(o.out);
  ASSERT_GE(rows.size(), 9u);
  for (const Json& row : rows) {
    EXPECT_EQ(row["equal"], true) << row;
    EXPECT_EQ(row["digests"]["state"], rows[0]["digests"]["state"]);
  }
  EXPECT_EQ(run_stet({"equivalence", "--threads", "1", "-m", data_path("models/gemma3-tiny"), "--ids", "1,2,3,4,5,6,7,8,9,10,11,12"}).status, 0);
}

// ---------------------------------------------------------------- a terminal

class Terminal {
 public:
  explicit Terminal(const Args& args, const std::string& home) {
    std::vector<std::string> words = {STET_BUILD "/tools/stet"};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    winsize size{};
    size.ws_col = 200;
    size.ws_row = 50;
    pid_ = ::forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ != 0) return;
    ::setenv("HOME", home.c_str(), 1);
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("STET_HISTORY");
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~Terminal() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(fd_);
  }
  void type(const std::string& keys) const { ASSERT_EQ(::write(fd_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size())); }
  // Reads until the screen has shown `text`, escape sequences left out, after what the last call waited for.
  void until(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    size_t found;
    while ((found = plain(shown_).find(text, seen_)) == std::string::npos && std::chrono::steady_clock::now() < end) {
      pollfd p{fd_, POLLIN, 0};
      if (::poll(&p, 1, 100) <= 0) continue;
      char buffer[4096];
      const ssize_t n = ::read(fd_, buffer, sizeof buffer);
      if (n <= 0) break;
      shown_.append(buffer, static_cast<size_t>(n));
    }
    ASSERT_NE(found, std::string::npos) << "waited for \"" << text << "\", saw: " << plain(shown_).substr(seen_);
    seen_ = found + text.size();
  }
  // The exit status; minus a signal's number; -1000 when it does not end.
  int wait() {
    int status = 0;
    for (int i = 0; ::waitpid(pid_, &status, WNOHANG) == 0; ++i) {
      if (i == 6000) return -1000;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  static std::string plain(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\033') {
        out += text[i];
        continue;
      }
      if (i + 1 < text.size() && text[i + 1] == '[') {
        i += 2;
        while (i < text.size() && (text[i] < '@' || text[i] > '~')) ++i;
      } else {
        ++i;
      }
    }
    return out;
  }
  int fd_ = -1;
  pid_t pid_ = 0;
  std::string shown_;
  size_t seen_ = 0;  // of plain(shown_)
};

#ifdef STET_HAVE_LIBEDIT
TEST_F(ChatCommand, OnATerminal) {
  Terminal t({"chat", "-m", kGemma, "--stats", "--threads", "1"}, scratch.path());
  t.until("you> ");
  t.type("Set k = 5.\r");
  t.until("new; first token after");
  t.until("you> ");
  // The line before the last comes back, is edited (5 becomes 7) and sent.
  t.type("What is k?\r");
  t.until("k is 5.");
  t.until("you> ");
  t.type("\033[A\033[A\x7f\x7f" "7.\r");
  t.until("OK, k = 7.");
  t.until("you> ");
  // Completion of a command, of a branch; a line that is given up.
  t.type("/ver\t\r");
  t.until("equal: ");
  t.until("you> ");
  t.type("/fork side\r");
  t.until("you (side)> ");
  t.type("/switch ma\t\r");
  t.until("you> ");
  t.type("/no such thing\x03");
  t.until("you> ");
  t.type("/nonsense\r");
  t.until("expected one that /help lists, found /nonsense");
  t.until("you> ");
  t.type("one\\\r");
  t.until("... ");
  t.type("two\r");
  t.until("you> ");
  t.type("/messages\r");
  t.until("one\\ntwo");
  t.until("you> ");
  t.type("\x04");
  EXPECT_EQ(t.wait(), 0);
  // History outlives the process, and is its owner's alone.
  const std::string history = scratch / ".stet_history";
  EXPECT_EQ(std::filesystem::status(history).permissions() & std::filesystem::perms::others_read, std::filesystem::perms::none);
  Terminal again({"chat", "-m", kGemma, "--threads", "1"}, scratch.path());
  again.until("you> ");
  again.type("\033[A\033[A\r");
  again.until("two");
  again.until("you> ");
  again.type("/quit\r");
  EXPECT_EQ(again.wait(), 0);
}
#endif

TEST_F(ChatCommand, CtrlCStopsAReplyAndTheStateStaysWhole) {
  // No stop token: the reply goes on until it is stopped.
  Terminal t({"chat", "-m", kGemma, "--stop-id", "3", "-n", "1900", "--threads", "1", "--isa", "portable"}, scratch.path());
  t.until("you> ");
  t.type("Set k = 5.\r");
  t.until("OK");
  t.type("\x03");
  t.until("(stopped; /continue goes on)");
  t.until("you> ");
  t.type("/verify\r");
  t.until("equal: ");
  t.until("you> ");
  t.type("/continue\r");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  t.type("\x03");
  t.until("you> ");
  t.type("/verify\r");
  t.until("equal: ");
  t.type("/save " + snapshot + "\r");
  t.until("saved ");
  t.until("you> ");
  t.type("/quit\r");
  EXPECT_EQ(t.wait(), 0);
  EXPECT_EQ(run_stet({"verify", snapshot}).status, 0);
  EXPECT_TRUE(Snapshot::open(snapshot).generation().turns.back().open);
}

}  // namespace
}  // namespace stet::test

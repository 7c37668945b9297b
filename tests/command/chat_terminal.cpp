// `stet chat` on a terminal: keys, colours, a closed window.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/terminal.hpp"

namespace stet::test::chat_terminal_tests {
namespace {

const std::string kGemma = asset_path("pocket-gemma3");

class ChatTerminal : public testing::Test {
 protected:
  TemporaryDirectory scratch;
  const std::string snapshot = scratch / "s.stet";
};

#ifdef STET_HAVE_LIBEDIT
TEST_F(ChatTerminal, OnATerminal) {
  Terminal t({"chat", "-m", kGemma, "--stats", "--threads", "1"}, scratch.path());
  t.until("you> ");
  t.type("Set k = 5.\r");
  t.until("new; first token after");
  t.until("you> ");
  // Recalls the line before the last, edits it (5 becomes 7) and sends it.
  t.type("What is k?\r");
  t.until("k is 5.");
  t.until("you> ");
  t.type(
      "\033[A\033[A\x7f\x7f"
      "7.\r");
  t.until("OK, k = 7.");
  t.until("you> ");
  // Completes a command, then a branch, then abandons a line.
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
  t.until("unknown command /nonsense (/help lists them)");
  t.until("you> ");
  t.type("/swich side\r");
  t.until("unknown command /swich: did you mean /switch? (/help lists them)");
  t.until("you> ");
  t.type("one\\\r");
  t.until("... ");
  t.type("two\r");
  t.until("you> ");
  t.type("/messages\r");
  t.until("user: one\r\n  two");
  t.until("you> ");
  t.type("\x04");
  t.until("branch side has ");
  t.until("you> ");
  t.type("\x04");
  EXPECT_EQ(t.wait(), 0);
  // The history outlives the process, and only its owner can read it.
  const std::string history = scratch / ".stet_history";
  EXPECT_EQ(std::filesystem::status(history).permissions() & std::filesystem::perms::others_read,
            std::filesystem::perms::none);
  Terminal again({"chat", "-m", kGemma, "--threads", "1"}, scratch.path());
  again.until("you> ");
  again.type("\033[A\033[A\r");
  again.until("two");
  again.until("you> ");
  again.type("/save " + snapshot + "\r");
  again.until("saved ");
  again.until("you> ");
  again.type("/quit\r");
  EXPECT_EQ(again.wait(), 0);
}
#endif

TEST_F(ChatTerminal, CtrlCStopsAReplyAndTheStateStaysWhole) {
  // The stop token never occurs, so the reply continues until it is interrupted.
  Terminal t(
      {"chat", "-m", kGemma, "--stop-id", "3", "-n", "1900", "--threads", "1", "--isa", "portable"},
      scratch.path());
  t.until("you> ");
  t.type("Set k = 5.\r");
  t.until("OK");
  t.type("\x03");
  t.until("(stopped; /continue resumes the reply)");
  t.until("you> ");
  t.type("/verify\r");
  t.until("equal: ");
  t.until("you> ");
  t.type("/continue\r");
  t.until("/continue");
  t.until_anything();
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

// ---------------------------------------------------------------- input

#ifdef STET_HAVE_LIBEDIT
TEST_F(ChatTerminal, APastedBlockIsOneMessage) {
  Terminal t({"chat", "--threads", "1"}, scratch.path());
  t.until("you> ");
  EXPECT_NE(t.shown().find("\033[?2004h"), std::string::npos);  // bracketed paste is on
  t.type("\033[200~first\rsecond\r\033[201~");
  t.until("second");
  t.type(" and more\r");
  t.until("you> ");
  t.type("\033[200~/home/x is a path\n\tin two lines\033[201~\r");
  t.until("in two lines");
  t.until("you> ");
  t.type("\033[200~/messages\r\033[201~\r");  // a single pasted line acts like a typed one
  t.until("user: first\r\n  second and more\r\n");
  t.until("assistant: ");
  t.until("user: /home/x is a path\r\n  \tin two lines\r\n");
  t.until("assistant: ");
  t.until("you> ");
  t.send(SIGTERM);
  EXPECT_EQ(t.wait(), -SIGTERM);
  EXPECT_NE(t.shown().find("\033[?2004l"), std::string::npos);  // bracketed paste is off
}
#endif

TEST_F(ChatTerminal, ABlockIsClosedByQuotesOrGivenUp) {
  Terminal t({"chat", "--threads", "1"}, scratch.path());
  t.until("you> ");
  t.type("\"\"\"\r");
  t.until("... ");
  t.type("exit\r");  // part of the message
  t.until("... ");
  t.type("/quit\"\"\"\r");
  t.until("you> ");
  t.type("begun \\\r");
  t.until("... ");
  t.type("\x04");
  t.until("the message was not sent: the input ended before a line to go on with after the \\");
  t.until("you> ");
  t.type("/messages\r");
  t.until("user: exit\r\n  /quit\r\n");
  t.until("assistant: ");
  t.until("you> ");
  EXPECT_EQ(t.shown().find("begun \r\n"), std::string::npos);
}

// ---------------------------------------------------------------- leaving

TEST_F(ChatTerminal, LeavingWarnsOnceAboutUnsavedMessages) {
  Terminal nothing({"chat", "--threads", "1"}, scratch.path());
  nothing.until("you> ");
  nothing.type("exit\r");
  EXPECT_EQ(nothing.wait(), 0);

  Terminal t({"chat", "--threads", "1"}, scratch.path());
  t.until("you> ");
  t.type("Set k = 5.\r");
  t.until("you> ");
  t.type("/quit\r");
  t.until("this conversation has 2 messages not saved yet: /save FILE keeps them");
  t.until("(/quit or Ctrl-D again leaves without keeping them)");
  t.until("you> ");
  t.type("What is k?\r");  // the chat goes on, and warns again at the next exit
  t.until("you> ");
  t.type("\x04");
  t.until("this conversation has 4 messages not saved yet: /save FILE keeps them");
  t.until("you> ");
  t.type("/save " + snapshot + "\r");
  t.until("saved ");
  t.until("you> ");
  t.type("\x04");
  EXPECT_EQ(t.wait(), 0);

  Terminal resumed({"chat", "--threads", "1", "--resume", snapshot}, scratch.path());
  resumed.until("4 messages so far");
  resumed.until("you> ");
  resumed.type("/bye\r");
  EXPECT_EQ(resumed.wait(), 0);
}

TEST_F(ChatTerminal, TheCurrentBranchGoesToTheTarget) {
  Terminal t({"chat", "--threads", "1", "--save", snapshot}, scratch.path());
  t.until("you> ");
  for (const char* line : {"Set k = 5.", "/fork side", "Set k = 9.", "/switch main"}) {
    t.type(std::string(line) + "\r");
    t.until("> ");
  }
  t.type("\x04");
  t.until("branch side has 2 messages not saved yet: /switch side, /save FILE keeps them");
  t.until("you> ");
  EXPECT_FALSE(std::filesystem::exists(snapshot));
  t.type("\x04");
  t.until("saved ");
  EXPECT_EQ(t.wait(), 0);
  EXPECT_EQ(Snapshot::open(snapshot).meta().chat.messages.size(), 2u);
}

TEST_F(ChatTerminal, ATargetThatCannotBeWrittenKeepsTheChat) {
  std::filesystem::create_directory(scratch / "there");
  Terminal t({"chat", "--threads", "1", "--save", scratch / "there/s.stet"}, scratch.path());
  t.until("you> ");
  t.type("Set k = 5.\r");
  t.until("you> ");
  std::filesystem::remove(scratch / "there");
  t.type("\x04");
  t.until("there/s.stet: no file can be made in its directory: ");
  t.until("(/save FILE saves it elsewhere; /quit or Ctrl-D again leaves without it)");
  t.until("you> ");
  t.type("/save " + snapshot + "\r");
  t.until("saved ");
  t.until("you> ");
  t.type("\x04");
  t.until("you> ");
  t.type("\x04");
  EXPECT_EQ(t.wait(), 1);
  size_t errors = 0;
  for (size_t at = 0;
       (at = t.shown().find("there/s.stet: no file can be made ", at)) != std::string::npos; ++at)
    ++errors;
  EXPECT_EQ(errors, 3u);  // one for each Ctrl-D
  EXPECT_EQ(Snapshot::open(snapshot).meta().chat.messages.size(), 2u);
}

TEST_F(ChatTerminal, AClosedWindowSavesTheConversation) {
  Terminal waiting({"chat", "--threads", "1", "--save", snapshot}, scratch.path());
  waiting.until("you> ");
  waiting.type("Set k = 5.\r");
  waiting.until("you> ");
  waiting.hang_up();
  EXPECT_EQ(waiting.wait(), -SIGHUP);
  EXPECT_EQ(Snapshot::open(snapshot).meta().chat.messages.size(), 2u);

  for (const int signal : {SIGHUP, SIGTERM}) {
    const std::string cut = scratch / "cut.stet";
    Terminal t({"chat", "--stop-id", "3", "-n", "1900", "--threads", "1", "--isa", "portable",
                "--save", cut},
               scratch.path());
    t.until("you> ");
    t.type("Set k = 5.\r");
    t.until("OK");
    if (signal == SIGHUP)
      t.hang_up();
    else
      t.send(signal);
    EXPECT_EQ(t.wait(), -signal);
    EXPECT_TRUE(Snapshot::open(cut).generation().turns.back().open);
    EXPECT_EQ(run_stet({"verify", cut}).status, 0);
    std::filesystem::remove(cut);
  }
  Terminal lost({"chat", "--threads", "1"}, scratch.path());
  lost.until("you> ");
  lost.type("Set k = 5.\r");
  lost.until("you> ");
  lost.send(SIGTERM);
  lost.until(
      "this conversation has 2 messages not saved yet: /save FILE or --save FILE would have "
      "kept them");
  EXPECT_EQ(lost.wait(), -SIGTERM);
}

// ---------------------------------------------------------------- output

TEST_F(ChatTerminal, ColoursWhereTheTerminalHasThem) {
  const auto shown = [&](const Terminal::Environment& environment) {
    Terminal t({"chat", "--threads", "1"}, scratch.path(), environment);
    t.until("> ");
    t.type("Set k = 5.\r");
    t.until("OK, k = 5.");
    t.until("> ");
    t.type("/nonsense\r");
    t.until("unknown command /nonsense");
    return t.shown();
  };
  const std::string reply = "\033[36mOK", error = "\033[31munknown command";
  const std::string coloured = shown({});
  EXPECT_NE(coloured.find(reply), std::string::npos);
  EXPECT_NE(coloured.find(error), std::string::npos);
  EXPECT_EQ(coloured.find(STET_ROOT), std::string::npos) << coloured;  // no path of this machine
  EXPECT_NE(coloured.find("pocket-gemma3: Gemma3ForCausalLM"), std::string::npos) << coloured;
  EXPECT_NE(shown({{"NO_COLOR", ""}}).find(reply), std::string::npos);
  for (const auto& setting : {std::pair{"NO_COLOR", "1"}, {"TERM", "dumb"}}) {
    const std::string plain = shown({setting});
    EXPECT_EQ(plain.find(reply), std::string::npos) << setting.first;
    EXPECT_EQ(plain.find(error), std::string::npos) << setting.first;
  }
}

TEST_F(ChatTerminal, ALongPromptShowsHowFarItIs) {
  Terminal t({"chat", "--threads", "1", "--chunk", "64"}, scratch.path());
  t.until("you> ");
  std::string message;
  for (int i = 0; i < 100; ++i) message += "Set k = 5. ";
  t.type(message + "\r");
  t.until("reading 64 / ");
  t.until(" tokens");
  t.until("you> ");
  // The progress line is erased before the reply begins.
  const size_t last = t.shown().rfind("reading "), reply = t.shown().find("\033[36m", last);
  ASSERT_NE(reply, std::string::npos);
  const std::string gone = "\r\033[K\033[36m";
  EXPECT_EQ(t.shown().substr(reply + 5 - gone.size(), gone.size()), gone);
}

}  // namespace
}  // namespace stet::test::chat_terminal_tests

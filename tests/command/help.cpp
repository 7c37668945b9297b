// Help, suggestions for misspelled words, completion and the manual page.
#include <sys/wait.h>

#include <cstdlib>
#include <set>
#include <sstream>

#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"
#include "tools/command/words.hpp"

namespace stet::test::help_tests {
namespace {

// Runs a shell command. Status 127 means that the program is missing.
Outcome run_shell(const std::string& command) {
  const TemporaryDirectory scratch;
  const int status =
      std::system((command + " >" + scratch / "out" + " 2>" + scratch / "err").c_str());
  Outcome o;
  o.status = WEXITSTATUS(status);
  o.out = read_text(scratch / "out");
  o.err = read_text(scratch / "err");
  return o;
}

std::vector<std::string> subcommands() {
  std::vector<std::string> names;
  std::istringstream help(run_stet({"--help"}).out);
  bool listed = false;
  for (std::string line; std::getline(help, line);) {
    if (line == "Subcommands:")
      listed = true;
    else if (listed && line.starts_with("  ") && line[2] != ' ')
      names.push_back(line.substr(2, line.find(' ', 2) - 2));
    else if (listed && line.empty())
      break;
  }
  EXPECT_GT(names.size(), 15u);
  return names;
}

// Returns "--name" of every option that the help of a subcommand lists.
std::set<std::string> options_of(const std::string& subcommand) {
  std::set<std::string> names;
  std::istringstream help(run_stet({"help", subcommand}).out);
  for (std::string line; std::getline(help, line);) {
    const size_t at = line.find("--");
    if (line.starts_with("  -") && at < 8)
      names.insert(line.substr(at, line.find_first_of(" ,", at) - at));
  }
  EXPECT_GE(names.size(), 1u) << subcommand;
  return names;
}

TEST(HelpCommand, HelpOfASubcommandIsThatOfItsOption) {
  for (const std::string& name : subcommands()) {
    const Outcome o = run_stet({"help", name});
    EXPECT_EQ(o.status, 0) << name;
    EXPECT_EQ(o.out, run_stet({name, "--help"}).out);
  }
  EXPECT_EQ(run_stet({"help"}).out, run_stet({"--help"}).out);
}

TEST(HelpCommand, TheCommandAlonePrintsHelp) {
  const Outcome o = run_stet({});
  EXPECT_EQ(o.status, 0);
  EXPECT_EQ(o.out, run_stet({"--help"}).out);
  EXPECT_EQ(o.err, "");
}

TEST(HelpCommand, NearWordsAreNamed) {
  const std::vector<std::pair<Args, std::string>> cases = {
      {{"genrate"}, "unknown subcommand genrate: did you mean generate?"},
      {{"verfiy", "s"}, "unknown subcommand verfiy: did you mean verify?"},
      {{"xyzzy"}, "unknown subcommand xyzzy"},
      {{"help", "sav"}, "unknown subcommand sav: did you mean save?"},
      {{"generate", "--promt", "hi"}, "unknown option --promt: did you mean --prompt?"},
      {{"generate", "-p", "hi", "--temprature=1"},
       "unknown option --temprature: did you mean --temperature?"},
      {{"generate", "-p", "hi", "--sav", "x"}, "unknown option --sav: did you mean --save?"},
      {{"save", "-p", "hi", "--ouptut", "x"}, "unknown option --ouptut: did you mean --output?"},
      {{"generate", "--zzz"}, "unknown option --zzz"},
      {{"generate", "-p", "hi", "--save", "x", "--form", "dleta"},
       "--form: expected full, delta or recipe, found dleta: did you mean delta?"},
      {{"completion", "bsh"}, "form: expected bash, zsh or man, found bsh: did you mean bash?"}};
  for (const auto& [args, text] : cases) {
    const Outcome o = run_stet(args);
    EXPECT_EQ(o.status, 2) << text;
    EXPECT_EQ(o.err, "stet: " + text + " (stet --help)\n");
  }
}

TEST(HelpCommand, DistancesCountEdits) {
  EXPECT_EQ(tool::edit_distance("", "abc"), 3u);
  EXPECT_EQ(tool::edit_distance("abc", "abc"), 0u);
  EXPECT_EQ(tool::edit_distance("verfiy", "verify"), 1u);
  EXPECT_EQ(tool::edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(tool::did_you_mean("f8", {"f16", "f32"}), "");
}

TEST(HelpCommand, BashCompletes) {
  const TemporaryDirectory scratch;
  write_file(scratch / "stet.bash", run_stet({"completion", "bash"}).out);
  ASSERT_EQ(run_shell("bash -n " + scratch / "stet.bash").status, 0);
  const auto complete = [&](const std::string& words, int at) {
    return run_shell("bash -c 'source " + scratch / "stet.bash" + "; COMP_WORDS=(" + words +
                     "); COMP_CWORD=" + std::to_string(at) + "; _stet; echo \"${COMPREPLY[*]}\"'")
        .out;
  };
  EXPECT_EQ(complete("stet ver", 1), "verify\n");
  EXPECT_EQ(complete("stet help ver", 2), "verify\n");
  EXPECT_EQ(complete("stet generate --temp", 2), "--temperature\n");
  EXPECT_EQ(complete("stet generate --kv b", 3), "bf16\n");
  EXPECT_EQ(complete("stet completion z", 2), "zsh\n");
  EXPECT_EQ(complete("stet resume s.st", 2), "\n");  // bash completes file names itself
}

TEST(HelpCommand, ZshTakesItsScript) {
  const TemporaryDirectory scratch;
  const std::string script = run_stet({"completion", "zsh"}).out;
  EXPECT_TRUE(script.starts_with("#compdef stet\n"));
  for (const std::string& name : subcommands())
    EXPECT_NE(script.find("    '" + name + ":"), std::string::npos) << name;
  EXPECT_NE(script.find("'--kv[type of cached keys and values\\: f32 (default), bf16, f16 or "
                        "q8]:TYPE:(f32 bf16 f16 q8)'"),
            std::string::npos);
  write_file(scratch / "_stet", script);
  const Outcome o = run_shell("zsh -n " + scratch / "_stet");
  if (o.status == 127) GTEST_SKIP() << "no zsh here";
  EXPECT_EQ(o.status, 0) << o.err;
}

TEST(HelpCommand, TheManualHasATitle) {
  const std::string page = run_stet({"completion", "man"}).out;
  const std::string title = page.substr(0, page.find('\n'));
  EXPECT_TRUE(title.starts_with(".TH STET 1 ")) << title;
  EXPECT_TRUE(title.ends_with("\"User Commands\"")) << title;
  EXPECT_TRUE(page.substr(title.size() + 1).starts_with(".SH NAME\nstet \\- ")) << page;
}

TEST(HelpCommand, TheManualHasEveryOption) {
  const TemporaryDirectory scratch;
  const std::string page = run_stet({"completion", "man"}).out;
  write_file(scratch / "stet.1", page);
  for (const std::string& name : subcommands()) {
    std::string title = name;
    for (size_t at = 0; (at = title.find('-', at)) != std::string::npos; at += 2)
      title.insert(at, "\\");
    const size_t begin = page.find(".SS stet " + title + "\n");
    ASSERT_NE(begin, std::string::npos) << name;
    const std::string section = page.substr(begin, page.find("\n.S", begin + 1) - begin);
    for (std::string option : options_of(name)) {
      for (size_t at = 0; (at = option.find('-', at)) != std::string::npos; at += 2)
        option.insert(at, "\\");
      EXPECT_NE(section.find(option + "\\fR"), std::string::npos) << name << " " << option;
    }
  }
  const Outcome o = run_shell("groff -man -ww -Tascii -z " + scratch / "stet.1");
  if (o.status == 127) GTEST_SKIP() << "no groff here";
  EXPECT_EQ(o.status, 0);
  EXPECT_EQ(o.err, "");
}

}  // namespace
}  // namespace stet::test::help_tests

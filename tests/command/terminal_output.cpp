// Free text in files and replies reaches a terminal without control characters.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/snapshot_image.hpp"
#include "tests/support/terminal.hpp"

namespace stet::test::terminal_output_tests {
namespace {

using Json = nlohmann::json;

// Sets the title, writes the clipboard (both forms of OSC 52), moves the cursor, changes the text
// direction, ends a line.
const std::string kEvil =
    "a\x1b]0;t\x07\x1b]52;c;aGk=\x07\u009d52;c;aGk=\u009c\x1b[2J\u202eb\u2066\u2028\x7f\rz";

// Returns the control sequences in `text`, except the terminal's own line ends.
std::string controls_in(const std::string& text) {
  std::string found;
  for (const std::string c :
       {"\x1b", "\x07", "\x7f", "\u009d", "\u009c", "\u202e", "\u2066", "\u2028", "\rz"}) {
    if (text.find(c) != std::string::npos) found += printable(c) + " ";
  }
  return found;
}

class TerminalOutput : public testing::Test {
 protected:
  // Writes a snapshot with correct digests whose free text all consists of control sequences.
  std::string evil_snapshot() const {
    const auto m = model(data_path("models/llama31-tiny"));
    Session s(m, options(1));
    s.append(std::vector<int32_t>{1, 2, 3});
    s.chat().messages = {{"user", kEvil, "", 0, 1, false},
                         {kEvil, "fine", Json{{kEvil, kEvil}}.dump(), 1, 2, false}};
    s.chat().chat_template = kEvil;
    s.chat().variables = Json{{"name", kEvil}}.dump();
    s.generation().stop_strings = {kEvil};
    Snapshot::save(s, file);
    SnapshotImage image = SnapshotImage::parse(read_text(file));
    Json meta = Json::parse(image.section("META").content);
    meta["checkpoint"] = meta["architecture"] = meta["config"]["family"] = meta["tokenizer"] =
        kEvil;
    for (Json& print : meta["fingerprints"]) print["digest"] = kEvil;
    image.section("META").content = meta.dump();
    write_file(file, forged(image));
    return file;
  }
  // Returns what a command leaves on the screen.
  std::string screen(const Args& args) const {
    Terminal terminal(args, scratch.path());
    EXPECT_GE(terminal.wait(), 0);
    return terminal.shown();
  }

  TemporaryDirectory scratch;
  std::string file = scratch / "evil.stet";
};

TEST_F(TerminalOutput, AMaliciousSnapshotIsEscaped) {
  evil_snapshot();
  const std::string other = scratch / "other.stet", model = data_path("models/llama31-tiny");
  for (const Args& args : std::vector<Args>{{"inspect", file},
                                            {"inspect", "--json", file},
                                            {"inspect", file, "-m", model},
                                            {"check", file},
                                            {"check", "--json", file},
                                            {"diff", file, file},
                                            {"diff", "--json", file, file},
                                            {"convert", file, "-o", other},
                                            {"verify", file, "-m", model},
                                            {"resume", file, "-m", model, "-n", "1"},
                                            {"prune", file, "-o", other, "--keep-last", "1"}}) {
    const Outcome o = run_stet(args);
    EXPECT_EQ(controls_in(o.out + o.err), "") << args[0] << "\n" << o.out << o.err;
    EXPECT_NE(o.out + o.err, "") << args[0];
  }
}

TEST_F(TerminalOutput, NamesOnTheCommandLineAreEscaped) {
  const std::string named = scratch / ("x" + kEvil);
  for (const Args& args :
       std::vector<Args>{{"inspect", named},
                         {"generate", "-m", named, "-p", "x"},
                         {kEvil},
                         {"generate", "--" + kEvil},
                         {"help", kEvil},
                         {"generate", "-n", kEvil},
                         {"tokenize", "-m", data_path("models/llama31-tiny"), kEvil}}) {
    const Outcome o = run_stet(args);
    EXPECT_NE(o.status, 0);
    EXPECT_EQ(controls_in(o.err), "") << printable(o.err);
  }
}

// JSON keeps every value and escapes it.
TEST_F(TerminalOutput, JsonIsEscaped) {
  evil_snapshot();
  const Outcome o = run_stet({"inspect", "--json", file});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(controls_in(o.out), "");
  EXPECT_NE(Json::parse(o.out).dump().find(Json(kEvil).dump()), std::string::npos);
}

TEST_F(TerminalOutput, ResultsAreEscapedOnATerminalOnly) {
  const std::string shape = scratch / "t.jinja";
  write_file(shape, "{{ messages[0].content }}");
  Args as_template = {"template", "-p", kEvil, "--chat-template", shape}, as_ids = {"detokenize"};
  std::string ids;
  for (const Json& id : Json::parse(run_stet({"tokenize", "--json", "--bos", "off", kEvil}).out))
    ids += (ids.empty() ? "" : ",") + id.dump();
  as_ids.push_back(ids);
  for (Args* args : {&as_template, &as_ids}) {
    // A program reads the text unchanged.
    EXPECT_EQ(run_stet(*args).out.substr(0, kEvil.size()), kEvil) << (*args)[0];
    EXPECT_EQ(controls_in(screen(*args)), "") << (*args)[0];
    EXPECT_NE(screen(*args).find("\\x1b]52;c;aGk=\\x07\\u009d52"), std::string::npos)
        << screen(*args);
    args->push_back("--raw-output");
    EXPECT_NE(screen(*args).find("\x1b]52;c;aGk=\x07"), std::string::npos) << (*args)[0];
  }
}

}  // namespace
}  // namespace stet::test::terminal_output_tests

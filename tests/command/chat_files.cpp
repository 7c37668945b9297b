// `stet chat` never replaces a file that another process has changed unless the user asks for it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "stet/snapshot/snapshot.hpp"
#include "tests/command/pipe.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::chat_files_tests {
namespace {

namespace fs = std::filesystem;

class ChatFiles : public testing::Test {
 protected:
  void SetUp() override {
#ifndef STET_HAVE_SENTENCEPIECE
    GTEST_SKIP() << "built without a library for the tokenizers";
#endif
  }
  static Outcome chat(const Args& options, const std::string& typed) {
    return run_stet(Args{"chat", "--threads", "1", "-n", "12"} + options, typed);
  }
  static std::vector<std::string> said(const std::string& path) {
    const Snapshot snapshot = Snapshot::open(path);
    std::vector<std::string> all;
    for (const Message& m : snapshot.meta().chat.messages) {
      if (m.role == "user") all.push_back(m.content);
    }
    return all;
  }
  using Said = std::vector<std::string>;

  // Runs a chat that says "Set d = 1."; before it ends, a second chat with the same options says
  // "Set b = 4.".
  Outcome chat_around_another(const Args& options) const {
    const Pipe in(scratch / "in"), out(scratch / "out");
    const CommandRun run(Args{"chat", "--threads", "1", "-n", "12"} + options, in.path, out.path,
                         scratch / "err");
    in.write("Set d = 1.\n");
    const std::string reply = out.read_line();
    EXPECT_EQ(chat(options, "Set b = 4.\n").status, 0);
    in.write("/quit\n");
    const int status = run.wait();
    return {status, reply, read_text(scratch / "err")};
  }

  TemporaryDirectory scratch;
  const std::string talk = scratch / "talk.stet", aside = scratch / "talk-1.stet";
};

TEST_F(ChatFiles, AnotherConversationIsRefusedBeforeAnythingIsSaid) {
  ASSERT_EQ(chat({"--save", talk}, "Set k = 5.\n").status, 0);
  const std::string before = read_text(talk);
  const std::string expected = "stet: --save: " + talk + " exists already: --resume " + talk +
                               " continues it, --overwrite replaces it\n";
  for (const Args& options : {Args{"--save", talk}, Args{"--save", scratch / "./talk.stet"},
                              Args{"--resume", talk, "--save", scratch / "other.stet"}}) {
    if (options.size() > 2) write_file(scratch / "other.stet", "something else");
    const Outcome o = chat(options, "Hello\n");
    EXPECT_EQ(o.status, 1);
    EXPECT_EQ(o.out, "");
    EXPECT_NE(o.err.find(" exists already: --resume "), std::string::npos) << o.err;
    if (options.size() == 2 && options[1] == talk) {
      EXPECT_EQ(o.err, expected);
    }
  }
  EXPECT_EQ(read_text(talk), before);
  EXPECT_EQ(read_text(scratch / "other.stet"), "something else");
}

TEST_F(ChatFiles, ANamedFileIsReplaced) {
  ASSERT_EQ(chat({"--save", talk}, "Set k = 5.\n").status, 0);
  EXPECT_EQ(chat({"--resume", talk, "--save", talk}, "Set b = 4.\n").status, 0);
  EXPECT_EQ(said(talk), (Said{"Set k = 5.", "Set b = 4."}));
  // A symbolic link to the same file counts as the same file.
  fs::create_symlink(talk, scratch / "link.stet");
  EXPECT_EQ(chat({"--resume", talk, "--save", scratch / "link.stet"}, "Set c = 3.\n").status, 0);
  EXPECT_EQ(said(talk), (Said{"Set k = 5.", "Set b = 4.", "Set c = 3."}));
  EXPECT_TRUE(fs::is_symlink(scratch / "link.stet"));
  EXPECT_EQ(chat({"--save", talk, "--overwrite"}, "Set d = 1.\n").status, 0);
  EXPECT_EQ(said(talk), Said{"Set d = 1."});
  for (const char* option : {"-o", "--output"}) {
    EXPECT_EQ(chat({option, talk}, "Set e = 2.\n").status, 0);
    EXPECT_EQ(said(talk), Said{"Set e = 2."});
  }
  write_file(scratch / "empty.stet", "");  // mktemp creates such a file
  EXPECT_EQ(chat({"--save", scratch / "empty.stet"}, "Set k = 5.\n").status, 0);
  EXPECT_EQ(said(scratch / "empty.stet"), Said{"Set k = 5."});
  EXPECT_EQ(chat({"--overwrite"}, "").err, "stet: --overwrite needs --save FILE (stet --help)\n");
  EXPECT_EQ(chat({"-o", talk, "--save", talk}, "").status, 2);
}

TEST_F(ChatFiles, ANewFileHasTheModeThatWasAskedFor) {
  ASSERT_EQ(chat({"--save", talk, "--mode", "640"}, "Set k = 5.\n").status, 0);
  struct stat info = {};
  ASSERT_EQ(::stat(talk.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

// A second chat writes to the file while the first one runs.
TEST_F(ChatFiles, AFileThatChangedMeanwhileIsKeptToo) {
  ASSERT_EQ(chat({"--save", talk}, "Set k = 5.\n").status, 0);
  for (const bool resumed : {true, false}) {
    SCOPED_TRACE(resumed);
    fs::remove(aside);
    if (!resumed) fs::remove(talk);
    const Outcome o = chat_around_another(resumed ? Args{"--resume", talk, "--save", talk}
                                                  : Args{"--save", talk});
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_NE(
        o.err.find(talk + " was changed by another program: saved to " + aside + " instead\n"),
        std::string::npos)
        << o.err;
    EXPECT_EQ(said(talk).back(), "Set b = 4.");
    EXPECT_EQ(said(aside).back(), "Set d = 1.");
    EXPECT_EQ(said(aside).size(), resumed ? 2u : 1u);
    EXPECT_FALSE(fs::exists(scratch / "talk-2.stet"));
  }
}

TEST_F(ChatFiles, OptionsOfTheFileAreCheckedBeforeAnythingIsSaid) {
  ASSERT_EQ(chat({"--save", talk}, "Set k = 5.\n").status, 0);
  ASSERT_EQ(run_stet({"convert", talk, "-o", scratch / "r.stet", "--form", "recipe"}).status, 0);
  const std::string to = scratch / "d.stet";
  const auto error = [&](const Args& more) {
    const Outcome o = chat(more, "Set b = 4.\n");
    EXPECT_EQ(o.out, "");
    EXPECT_FALSE(fs::exists(to));
    return o.err;
  };
  const Args delta = {"--save", to, "--form", "delta", "--against"};
  EXPECT_EQ(error(delta + Args{scratch / "no.stet"}),
            "stet: " + scratch / "no.stet" + ": cannot be read: No such file or directory\n");
  EXPECT_EQ(error(delta + Args{scratch / "r.stet"}),
            "stet: " + scratch / "r.stet" +
                ": parent: a recipe has no keys and values, so it cannot be the parent of a "
                "delta\n");
  const std::string own = "the delta needs its parent " + talk + "; save to another file\n";
  EXPECT_NE(
      error({"--resume", talk, "--save", talk, "--form", "delta", "--against", talk}).find(own),
      std::string::npos);
  const std::string linked = scratch / "linked";
  fs::create_directory(linked);
  for (const auto& file : fs::directory_iterator(asset_path("pocket-gemma3")))
    fs::create_symlink(file.path(), linked + "/" + file.path().filename().string());
  for (const char* what : {"--with-weights", "--with-tokenizer"})
    EXPECT_NE(error({"-m", linked, "--save", to, what})
                  .find("expected a regular file of its directory, to put into a snapshot"),
              std::string::npos)
        << what;
  const Args store = {"--store", "dir:" + scratch / "store", "--store-key", scratch / "key"};
  ASSERT_EQ(run_stet(Args{"store", "init"} + store).status, 0);
  EXPECT_EQ(error(store + Args{"--save", "store:x", "--mode", "640"}),
            "stet: --mode is for files, and store:x is in a store; leave it out (stet --help)\n");
}

TEST_F(ChatFiles, AConversationWithoutMessagesReplacesTheOneBefore) {
  ASSERT_EQ(chat({"--save", talk}, "Set k = 5.\n").status, 0);
  EXPECT_EQ(chat({"--resume", talk, "--save", talk}, "/rewind\n").status, 0);
  EXPECT_EQ(said(talk), Said{});
  EXPECT_EQ(chat({"--resume", talk, "--save", talk}, "Set b = 4.\n").status, 0);
  EXPECT_EQ(said(talk), Said{"Set b = 4."});
  // A system message is worth a file; nothing at all is not.
  const std::string other = scratch / "other.stet";
  EXPECT_EQ(chat({"--save", other}, "/system Be terse.\n").status, 0);
  EXPECT_EQ(Snapshot::open(other).meta().chat.messages.size(), 1u);
  EXPECT_EQ(chat({"--save", scratch / "none.stet"}, "").status, 0);
  EXPECT_FALSE(fs::exists(scratch / "none.stet"));
}

TEST_F(ChatFiles, ACopyReplacesNothingEither) {
  ASSERT_EQ(chat({"--save", talk}, "Set k = 5.\n").status, 0);
  const std::string before = read_text(talk);
  const Outcome o = chat({}, "Set b = 4.\n/save " + talk + "\n");
  EXPECT_EQ(o.status, 1);
  EXPECT_NE(o.err.find("/save: " + talk + " exists already: /save --overwrite " + talk +
                       " replaces it\n"),
            std::string::npos)
      << o.err;
  EXPECT_EQ(read_text(talk), before);
  EXPECT_EQ(chat({}, "/load " + talk + "\nSet b = 4.\n/save " + talk + "\n").status, 0);
  EXPECT_EQ(said(talk), (Said{"Set k = 5.", "Set b = 4."}));
  EXPECT_EQ(chat({}, "Set c = 3.\n/save --overwrite " + talk + "\n").status, 0);
  EXPECT_EQ(said(talk), Said{"Set c = 3."});
  EXPECT_EQ(chat({}, "Set b = 4.\n/save " + aside + "\nSet c = 3.\n/save " + aside + "\n").status,
            0);
  EXPECT_EQ(said(aside), (Said{"Set b = 4.", "Set c = 3."}));
}

TEST_F(ChatFiles, AFailedWriteLeavesNoFile) {
  ASSERT_EQ(chat({"--save", scratch / "none/talk.stet"}, "Set k = 5.\n").status, 1);
  const Outcome o =
      chat({"--save", talk, "--form", "delta", "--against", scratch / "none"}, "Set k = 5.\n");
  EXPECT_EQ(o.status, 1);
  EXPECT_FALSE(fs::exists(talk));
}

// The files of model and tokenizer in a snapshot are in those that continue it.
TEST_F(ChatFiles, ASelfContainedStateStaysSelfContained) {
  const auto is_whole = [](const std::string& path) {
    const Snapshot s = Snapshot::open(path);
    EXPECT_EQ(s.weights() == nullptr, s.tokenizer_files() == nullptr) << path;
    return s.weights() != nullptr;
  };
  ASSERT_EQ(chat({"--save", talk, "--with-weights", "--with-tokenizer"}, "Set k = 5.\n").status, 0);
  const std::string to = scratch / "to.stet", plain = scratch / "plain.stet";
  EXPECT_EQ(chat({"--resume", talk, "--save", to}, "Set b = 4.\n").status, 0);
  EXPECT_TRUE(is_whole(to));
  EXPECT_EQ(
      chat({"--save", plain}, "Set c = 3.\n/fork other\n/load " + talk +
                                  "\nSet b = 4.\n/save --overwrite " + to + "\n/switch main\n")
          .status,
      0);
  EXPECT_TRUE(is_whole(to));
  EXPECT_FALSE(is_whole(plain));  // its branch began without a snapshot
  EXPECT_EQ(run_stet({"resume", talk, "--say", "Set b = 4.", "-n", "1", "-o", to}).status, 0);
  EXPECT_TRUE(is_whole(to));
  EXPECT_EQ(run_stet({"experiment", talk, "--say", "Set b = 4.", "-n", "1", "--save-dir",
                      scratch / "runs"})
                .status,
            0);
  EXPECT_TRUE(is_whole(scratch / "runs/run-01.stet"));
  const std::string delta = scratch / "d.stet", next = scratch / "d2.stet";
  EXPECT_EQ(run_stet({"resume", talk, "--say", "Set b = 4.", "-n", "1", "-o", delta, "--form",
                      "delta", "--against", talk})
                .status,
            0);
  EXPECT_FALSE(is_whole(delta));  // its parent has them
  EXPECT_EQ(run_stet({"resume", delta, "--say", "Set c = 3.", "-n", "1", "-o", next, "--form",
                      "delta", "--against", delta})
                .status,
            0);
  EXPECT_FALSE(is_whole(next));
  EXPECT_EQ(run_stet({"resume", next, "--say", "Set d = 2.", "-n", "1", "-o", to}).status, 0);
  EXPECT_TRUE(is_whole(to));
  EXPECT_EQ(run_stet({"convert", next, "-o", to}).status, 0);
  EXPECT_TRUE(is_whole(to));
  EXPECT_EQ(chat({"--resume", talk, "--replay", "-o", to}, "Set b = 4.\n").status, 0);
  EXPECT_FALSE(is_whole(to));  // --replay may use another model
}

TEST_F(ChatFiles, TheParentOfADeltaIsKept) {
  ASSERT_EQ(chat({"--save", talk}, "Set k = 5.\n").status, 0);
  const std::string delta = scratch / "d.stet", before = read_text(talk);
  ASSERT_EQ(chat({"--resume", talk, "--save", delta, "--form", "delta", "--against", talk},
                 "Set b = 4.\n")
                .status,
            0);
  const Outcome begun = chat({"--resume", delta, "-o", talk}, "Set c = 3.\n");
  EXPECT_EQ(begun.status, 1);
  EXPECT_EQ(begun.out, "");
  const Outcome later =
      chat({}, "/load " + delta + "\nSet c = 3.\n/save --overwrite " + talk + "\n");
  EXPECT_EQ(later.status, 1);
  for (const Outcome& o : {begun, later})
    EXPECT_NE(o.err.find("the delta needs its parent " + talk), std::string::npos) << o.err;
  EXPECT_EQ(read_text(talk), before);
}

TEST_F(ChatFiles, TheParentOfTheFirstStateIsNotThatOfALoadedOne) {
  ASSERT_EQ(chat({"--save", talk}, "Set k = 5.\n").status, 0);
  const std::string delta = scratch / "d.stet", moved = scratch / "moved/talk";
  ASSERT_EQ(chat({"--resume", talk, "--save", delta, "--form", "delta", "--against", talk},
                 "Set b = 4.\n")
                .status,
            0);
  fs::create_directory(scratch / "moved");
  fs::copy(talk, moved);
  const Outcome o = chat({"--resume", delta, "--parent", moved}, "/load " + talk + "\n");
  EXPECT_EQ(o.status, 0) << o.err;
}

TEST_F(ChatFiles, SaveTakesOverwriteWithoutAName) {
  const Outcome o = chat({"--save", talk}, "Set k = 5.\n/save --overwrite\n");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(said(talk), Said{"Set k = 5."});
  for (const char* given : {"/save --overwrite\n", "/save \"\"\n"})
    EXPECT_EQ(chat({}, given).status, 1) << given;
  EXPECT_FALSE(fs::exists("--overwrite") || fs::exists("\"\""));
}

TEST_F(ChatFiles, AnotherKvTypeIsRefusedOnlyIfItWasAskedFor) {
  const std::string other = scratch / "other.stet";
  ASSERT_EQ(chat({"--save", talk}, "Set k = 5.\n").status, 0);
  ASSERT_EQ(chat({"--save", other, "--kv", "q8"}, "Set k = 5.\n").status, 0);
  const std::string fault = ": kv type: expected q8, found f32 (--kv; --replay computes it again)";
  for (const Outcome& o : {chat({"--resume", other, "--kv", "f32"}, "Set b = 4.\n"),
                           chat({"--kv", "f32"}, "/load " + other + "\n")}) {
    EXPECT_EQ(o.status, 1);
    EXPECT_NE(o.err.find(other + fault), std::string::npos) << o.err;
  }
  const Outcome o = chat({"--resume", talk}, "/load " + other + "\n");
  EXPECT_EQ(o.status, 0) << o.err;
  // --replay names the state that it has made, which is the one that is saved.
  const Outcome again = chat({"--resume", talk, "--replay", "--kv", "q8", "-o", other}, "");
  const std::string id = sha256_text(Snapshot::open(other).digests().id);
  EXPECT_TRUE(again.err.starts_with("migrated 25 tokens in ")) << again.err;
  EXPECT_NE(again.err.find(", kv q8; state " + id), std::string::npos) << again.err;
}

TEST_F(ChatFiles, AnEmptySystemMessageRemovesTheOneBefore) {
  ASSERT_EQ(chat({"--save", talk, "--system", "Be terse."}, "Set k = 5.\n").status, 0);
  EXPECT_EQ(Snapshot::open(talk).meta().chat.messages[0].role, "system");
  EXPECT_EQ(chat({"--resume", talk, "--save", talk, "--system", ""}, "Set b = 4.\n").status, 0);
  EXPECT_EQ(Snapshot::open(talk).meta().chat.messages[0].role, "user");
}

}  // namespace
}  // namespace stet::test::chat_files_tests

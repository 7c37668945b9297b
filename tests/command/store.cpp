// `stet store`, and store:NAME in place of a snapshot's path.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "stet/store/session.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/terminal.hpp"

namespace stet::test::store_tests {
namespace {

namespace fs = std::filesystem;

class StoreCommand : public testing::Test {
 protected:
  StoreCommand() {
    ::setenv("STET_STORE", ("dir:" + path_).c_str(), 1);
    ::setenv("STET_STORE_KEY", (scratch_ / "keys/key").c_str(), 1);
    const Outcome o = run({"store", "init"});
    EXPECT_NE(o.err.find("a new store"), std::string::npos);
  }
  ~StoreCommand() override {
    ::unsetenv("STET_STORE");
    ::unsetenv("STET_STORE_KEY");
  }
  static Outcome run(const Args& args, int status = 0, const std::string& in = "") {
    Outcome o = run_stet(args, in);
    EXPECT_EQ(o.status, status) << o.err;
    return o;
  }
  std::vector<fs::path> blocks() const {
    std::vector<fs::path> all;
    for (const auto& e : fs::directory_iterator(path_ + "/blocks")) all.push_back(e.path());
    return all;
  }
  // Runs a chat of two messages in two processes. Returns the second reply.
  std::string talk() {
    run({"chat", "--script", "-", "--save", "store:talk"}, 0,
        "Let's start by defining a variable k equal to 5. What is k?\n"
        "Now set a new variable m equal to k multiplied by 11. What is m?\n");
    return run({"resume", "store:talk", "--say", "What is k?", "--save", "store:talk"}).out;
  }

  TemporaryDirectory scratch_;
  const std::string path_ = scratch_ / "store";
};

TEST_F(StoreCommand, AConversationGoesOnInAnotherProcessAsFromAFile) {
  EXPECT_EQ(fs::status(scratch_ / "keys/key").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  const std::string reply = talk();
  run({"chat", "--script", "-", "--save", scratch_ / "f.stet"}, 0,
      "Let's start by defining a variable k equal to 5. What is k?\n"
      "Now set a new variable m equal to k multiplied by 11. What is m?\n");
  EXPECT_EQ(reply, run({"resume", scratch_ / "f.stet", "--say", "What is k?", "--save",
                        scratch_ / "f.stet"})
                       .out);
  run({"store", "get", "talk", "-o", scratch_ / "g.stet"});
  EXPECT_NE(run({"diff", scratch_ / "f.stet", scratch_ / "g.stet"}).out.find("equal: state"),
            std::string::npos);
  run({"diff", scratch_ / "f.stet", "store:talk"});
  run({"verify", "store:talk"});
  const std::string log = run({"store", "log", "talk"}).out;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2);
  EXPECT_NE(log.find("6 messages  assistant: "), std::string::npos);
  EXPECT_NE(log.find("(talk)"), std::string::npos);
  // The first digits of an id name the state, too.
  const std::string id = log.substr(log.find('\n') + 1, 12);
  EXPECT_NE(run({"inspect", "store:" + id}).out.find("sha256:" + id), std::string::npos);
  EXPECT_EQ(run({"store", "check"}).err, "2 states, 1 sound block, 0 faults\n");
}

// A server gives each of its clients a salt (tools/serve/shared_states.cpp).
TEST_F(StoreCommand, AServersStatesAreSoundAndTheirBlocksAreFound) {
  Store server(open_store_backend("dir:" + path_),
               StoreKey::load(scratch_ / "keys/key").for_tenant("alice"));
  Session session(model(asset_path("pocket-gemma3")), SessionOptions());
  session.append(random_tokens(session.model(), 100));
  server.set_name("st_1", std::nullopt, put_session(server, session, {}).place);
  EXPECT_EQ(run({"store", "check"}).err, "1 state, 1 sound block, 0 faults\n");
  const Args get = {"store", "get", "st_1", "--store-fetch", "always", "-o", scratch_ / "s.stet"};
  EXPECT_NE(run(get).err.find("store:st_1: 1 block fetched, 0 computed\n"), std::string::npos);
}

TEST_F(StoreCommand, AnInspectionIsNoUse) {
  talk();
  const auto before = std::chrono::floor<std::chrono::hours>(
      fs::last_write_time(path_ + "/stet-store") - std::chrono::hours(9));
  const auto records = [&] {
    std::vector<fs::path> all = blocks();
    for (const auto& e : fs::directory_iterator(path_ + "/states")) all.push_back(e.path());
    return all;
  };
  for (const fs::path& record : records()) fs::last_write_time(record, before);
  for (const char* action : {"check", "tree", "gc", "log"}) {
    Args args = {"store", action};
    if (action == std::string("log")) args.push_back("talk");
    run(args);
    for (const fs::path& record : records())
      EXPECT_TRUE(fs::last_write_time(record) == before) << action << " " << record;
  }
  run({"resume", "store:talk", "--store-fetch", "always", "--say", "What is m?"});
  for (const fs::path& block : blocks()) EXPECT_TRUE(fs::last_write_time(block) > before);
}

TEST_F(StoreCommand, MissingBlocksAreRecomputedAndReported) {
  talk();
  const Args ask = {"resume", "store:talk", "--store-fetch", "always", "--say", "What is m?"};
  const Outcome whole = run(ask);
  EXPECT_NE(whole.err.find("store:talk: 1 block fetched, 0 computed\n"), std::string::npos);
  fs::resize_file(blocks()[0], 5000);
  const Outcome cut = run(ask);
  EXPECT_EQ(cut.out, whole.out);
  EXPECT_NE(cut.err.find("store:talk: 0 blocks fetched, 1 computed (1 was refused: "),
            std::string::npos);
  EXPECT_NE(run({"store", "check"}, 1).out.find("bytes: expected"), std::string::npos);
  fs::remove(blocks()[0]);
  const Outcome gone = run(ask);
  EXPECT_EQ(gone.out, whole.out);
  EXPECT_NE(gone.err.find("store:talk: 0 blocks fetched, 1 computed (1 was not in the store)\n"),
            std::string::npos);
}

TEST_F(StoreCommand, EditsAndPrunesFetchTheBlocks) {
  std::string ids = "2";
  for (int i = 1; i < 70; ++i) ids += "," + std::to_string(3 + i % 200);
  run({"save", "--ids", ids, "--save", "store:a"});
  const std::string file = scratch_ / "a.stet";
  run({"convert", "store:a", "-o", file});
  const auto same = [&](const Args& stored, const Args& of_file) {
    EXPECT_NE(run(stored + Args{"-o", scratch_ / "x.stet"}).err.find("store:a: "),
              std::string::npos);
    run(of_file + Args{"-o", scratch_ / "y.stet"});
    run({"diff", scratch_ / "x.stet", scratch_ / "y.stet"});
  };
  const Args zero = {"--zero", "--layers", "2", "--positions", "3..9"};
  same(Args{"edit", "store:a"} + zero, Args{"edit", file} + zero);
  same({"edit", file, "--splice", "store:a"}, {"edit", file, "--splice", file});
  same({"prune", "store:a", "--keep-last", "9", "--threads", "1"},
       {"prune", file, "--keep-last", "9"});
  EXPECT_EQ(run({"export", "store:a", "-o", scratch_ / "e.safetensors"}, 2).err,
            "stet: snapshot: expected a file (stet convert store:a -o FILE writes one), found "
            "store:a (stet --help)\n");
}

TEST_F(StoreCommand, NamesMoveOnlyFromWhereTheyWere) {
  talk();
  const std::string before = run({"store", "names", "talk"}).out.substr(0, 12);
  // Another store continues from the same state, and both then push the same name.
  const std::string other = "dir:" + (scratch_ / "other");
  run({"store", "init", other});
  run({"store", "push", "talk", "--to", other});
  run({"resume", "store:talk", "--say", "What is m?", "--save", "store:talk"});
  run({"resume", "store:talk", "--store", other, "--say", "What is k?", "--save", "store:talk"});
  const std::string fault = run({"store", "pull", "talk", "--from", other}, 1).err;
  EXPECT_NE(fault.find("name talk: expected a state that "), std::string::npos);
  run({"store", "names", "talk", before});
  run({"store", "pull", "talk", "--from", other});
  EXPECT_EQ(run({"store", "log", "talk"}).out, run({"store", "log", "talk", "--store", other}).out);
  run({"store", "names", "talk", "--remove"});
  EXPECT_EQ(run({"store", "names"}).out, "");
  const Outcome gc = run({"store", "gc", "--grace", "0", "--dry-run"});
  EXPECT_NE(gc.err.find("to be removed: "), std::string::npos);
  EXPECT_NE(run({"store", "tree"}).out, "");
}

TEST_F(StoreCommand, StatesInUseAreNotCollected) {
  run({"generate", "--say", "Let a = 3.", "-o", "store:"});
  const std::string id = fs::directory_iterator(path_ + "/states")->path().filename();
  const auto collected = [&] {
    // A state that was written this second counts as in use.
    fs::last_write_time(path_ + "/states/" + id,
                        fs::file_time_type::clock::now() - std::chrono::hours(1));
    run({"store", "gc", "--grace", "0"});
    return !fs::exists(path_ + "/states/" + id);
  };
  {
    Terminal chat({"chat", "--resume", "store:" + id}, scratch_ / "home");
    chat.until("you> ");
    EXPECT_FALSE(collected());
    chat.type("/quit\r");
    EXPECT_EQ(chat.wait(), 0);
  }
  EXPECT_TRUE(fs::is_empty(path_ + "/leases"));
  EXPECT_TRUE(collected());
}

TEST_F(StoreCommand, OneBadNameDoesNotHideTheOthers) {
  for (const char* name : {"store:a", "store:b"}) run({"save", "-p", "hi", "-o", name});
  fs::copy_file(path_ + "/names/a", path_ + "/names/a.bak");
  write_file(path_ + "/names/not a name", "mine");
  const std::string hint = "stet store names a.bak --remove removes the name\n";
  for (const char* action : {"names", "tree"}) {
    const Outcome listed = run({"store", action}, 1);
    EXPECT_NE(listed.out.find(action == std::string("names") ? "  b\n" : "(a, b)"),
              std::string::npos)
        << listed.out;
    EXPECT_TRUE(listed.err.ends_with(hint)) << listed.err;
  }
  EXPECT_TRUE(run({"store", "gc"}, 1).err.ends_with(hint));
  EXPECT_TRUE(run({"store", "names", "a.bak"}, 1).err.ends_with(hint));
  run({"store", "names", "a.bak", "--remove"});
  EXPECT_EQ(run({"store", "names"}).err, "");
  EXPECT_NE(run({"store", "names", "a.bak", "--remove"}, 1).err.find("no such state"),
            std::string::npos);
  EXPECT_EQ(read_text(path_ + "/names/not a name"), "mine");
}

TEST_F(StoreCommand, ACollectionBelowAnUnreadableStateIsRefused) {
  run({"save", "-p", "hi", "-o", "store:a"});
  const std::string file = fs::directory_iterator(path_ + "/states")->path();
  fs::resize_file(file, fs::file_size(file) - 1);
  const Outcome o = run({"store", "gc", "--grace", "0"}, 1);
  EXPECT_NE(o.err.find("(name a leads to it)\nremoved: 0 states and 0 blocks, "),
            std::string::npos);
  EXPECT_TRUE(
      o.err.ends_with("remove the names that lead to it (stet store names NAME --remove)\n"))
      << o.err;
}

TEST_F(StoreCommand, ChecksAndCopiesStatesOfRecurrentModels) {
  std::string ids = "3";
  for (int i = 4; i < 153; ++i) ids += "," + std::to_string(i);
  run({"save", "-m", data_path("models/qwen35-tiny"), "--ids", ids, "-o", "store:r"});
  EXPECT_EQ(run({"store", "check"}).err, "1 state, 3 sound blocks, 0 faults\n");
  const std::string other = "dir:" + (scratch_ / "other");
  run({"store", "init", other});
  EXPECT_TRUE(
      run({"store", "push", "r", "--to", other}).err.ends_with(": 1 state and 3 blocks copied\n"));
}

TEST_F(StoreCommand, PutRefusesWhatTheStoreWouldNotKeep) {
  const std::string file = scratch_ / "whole.stet";
  const std::string model = data_path("models/qwen35-tiny");
  run({"save", "-m", model, "--ids", "3,4,5", "-o", file, "--with-weights"});
  EXPECT_EQ(run({"store", "put", file}, 1).err,
            "stet: " + file +
                ": WEIGHTS: a store keeps no weights; name the checkpoint with -m, or keep the "
                "file\n");
  EXPECT_TRUE(fs::is_empty(path_ + "/states"));
  run({"store", "put", file, "-m", model, "--name", "r"});
  run({"resume", "store:r", "-m", model, "-n", "1"});
  EXPECT_NE(run({"store", "put", file, "-m", model, "--name", ""}, 2).err.find("--name: expected"),
            std::string::npos);
}

TEST_F(StoreCommand, FaultsAreOneLine) {
  EXPECT_EQ(run({"resume", "store:nobody", "-n", "3"}, 1).err,
            "stet: dir:" + path_ + ": nobody: no such state is in the store\n");
  EXPECT_EQ(run({"store", "init"}, 1).err,
            "stet: " + path_ + ": store: the directory is a store already\n");
  EXPECT_EQ(run({"save", "-p", "hi", "-o", "store:x", "--compress", "zlib"}, 2).err,
            "stet: --compress is for files, and store:x is in a store; leave it out "
            "(stet --help)\n");
  EXPECT_EQ(run({"store", "names", "--store", "dir:" + (scratch_ / "no")}, 1).err,
            "stet: " + scratch_ / "no" + ": store: there is no store; stet store init makes one\n");
  EXPECT_EQ(run({"store", "gc", "--budget", "-1"}, 2).err,
            "stet: --budget: expected stet store init, found stet store gc (stet --help)\n");
  EXPECT_EQ(run({"store", "tree", "--to", "dir:/"}, 2).err,
            "stet: --to: expected stet store push or pull, found stet store tree (stet --help)\n");
  for (const char* option : {"--dry-run", "--remove"})
    EXPECT_NE(run({"store", "stats", option}, 2).err.find(option), std::string::npos);
  EXPECT_EQ(run({"store", "init", "dir:" + (scratch_ / "b"), "--budget", ""}, 2).err,
            "stet: --budget: expected a name, found \"\" (stet --help)\n");
  fs::permissions(scratch_ / "keys/key", fs::perms::group_read, fs::perm_options::add);
  EXPECT_NE(run({"store", "names"}, 1).err.find("chmod 600 makes it private"), std::string::npos);
}

}  // namespace
}  // namespace stet::test::store_tests

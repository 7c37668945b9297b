// A store never uses a directory that holds other files, and `gc` never removes such files.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <set>

#include "stet/store/session.hpp"
#include "tests/support/models.hpp"

namespace stet::test::directory_tests {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

// Writes a file old enough for every collection.
void write_old(const std::string& path, const std::string& text) {
  write_file(path, text);
  const timespec times[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

unsigned mode_of(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

const std::string kHash(64, 'a');

class StoreDirectory : public testing::Test {
 protected:
  TemporaryDirectory scratch_;
  const std::string path_ = scratch_ / "store";

  void collect() const {
    Store store(open_store_backend(path_), StoreKey::random());
    GcOptions options;
    options.grace = 10;
    store.gc(options);
  }
};

TEST_F(StoreDirectory, IsNewOrEmptyOrRefused) {
  const std::set<std::string> folders = {"blocks", "states", "names", "leases"};
  // Each case creates something in the directory and says whether a store may be created there.
  const std::vector<std::pair<std::function<void()>, bool>> cases = {
      {[] {}, true},
      {[&] { fs::create_directory(path_ + "/lost+found"); }, true},
      {[&] { write_file(path_ + "/stet-store.tmp-0123456789abcdef", "half"); }, true},
      {[&] { fs::create_directory(path_ + "/names"); }, true},  // left by a killed init
      {[&] { write_file(path_ + "/notes.txt", "mine"); }, false},
      {[&] { fs::create_directory(path_ + "/src"); }, false},
      {[&] {
         fs::create_directory(path_ + "/names");
         write_file(path_ + "/names/My notes.txt", "mine");
       },
       false},
      {[&] {
         fs::create_directory(scratch_ / "other");
         fs::create_directory_symlink(scratch_ / "other", path_ + "/blocks");
       },
       false},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    fs::remove_all(path_);
    fs::create_directory(path_);
    ASSERT_EQ(::chmod(path_.c_str(), 0755), 0);
    cases[i].first();
    std::set<std::string> before, after;
    for (const auto& e : fs::directory_iterator(path_)) before.insert(e.path().filename().string());
    const unsigned names = mode_of(path_ + "/names");
    const std::string error = error_of([&] { create_store(path_, 0); });
    for (const auto& e : fs::directory_iterator(path_)) after.insert(e.path().filename().string());
    EXPECT_EQ(mode_of(path_), 0755u);
    if (cases[i].second) {
      EXPECT_EQ(error, "no error");
      EXPECT_TRUE(std::ranges::includes(after, folders));
      EXPECT_EQ(mode_of(path_ + "/blocks"), 0755u);
    } else {
      EXPECT_TRUE(error.starts_with("argument: " + path_ +
                                    ": store: the directory has other files, such as "))
          << error;
      EXPECT_EQ(after, before);
    }
    if (names != 0) {
      EXPECT_EQ(mode_of(path_ + "/names"), names);
    }
  }
}

TEST_F(StoreDirectory, ANewOneIsPrivateToItsOwner) {
  create_store("dir:" + path_ + "/", 0);
  EXPECT_EQ(mode_of(path_), 0700u);
  EXPECT_EQ(mode_of(path_ + "/blocks"), 0700u);
  EXPECT_EQ(error_of([&] { create_store(path_, 0); }),
            "argument: " + path_ + ": store: the directory is a store already");
  write_file(scratch_ / "file", "x");
  EXPECT_EQ(error_of([&] { create_store(scratch_ / "file", 0); }),
            "io: " + scratch_ / "file" + ": expected a directory, found a file");
}

TEST_F(StoreDirectory, OnlyTheStoresOwnTemporariesAreSwept) {
  create_store(path_, 0);
  const std::string digits = "0123456789abcdef";
  const std::vector<std::string> mine = {"blocks/notes.txt",       "states/" + kHash + ".bak",
                                         "names/My notes.txt",     "leases/x.tmp-" + digits,
                                         "blocks/x.tmp-" + digits, "blocks/" + kHash + ".tmp-1",
                                         "blocks/.tmp-" + digits,  "notes.tmp-" + digits};
  const std::vector<std::string> left = {
      "blocks/" + kHash + ".tmp-" + digits, "states/" + kHash + ".tmp-" + digits,
      "names/talk.tmp-" + digits, "leases/" + kHash + ".tmp-" + digits,
      "blocks/" + kHash + ".shared-17-3"};
  for (const auto* files : {&mine, &left}) {
    for (const std::string& file : *files) write_old(path_ + "/" + file, "x");
  }
  collect();
  for (const std::string& file : mine) EXPECT_TRUE(fs::exists(path_ + "/" + file)) << file;
  for (const std::string& file : left) EXPECT_FALSE(fs::exists(path_ + "/" + file)) << file;
}

// Pipes and links under the names of records are not records, and do no harm.
TEST_F(StoreDirectory, PipesAndLinksAreNotRecords) {
  create_store(path_, 0);
  write_old(scratch_ / "target", "mine");
  for (const std::string folder : {"/blocks/", "/states/", "/names/", "/leases/"}) {
    const bool names = folder == "/names/";
    ASSERT_EQ(::mkfifo((path_ + folder + (names ? "talk" : kHash)).c_str(), 0600), 0);
    fs::create_symlink(scratch_ / "target",
                       path_ + folder + (names ? "link" : std::string(64, 'b')));
    ASSERT_EQ(
        ::mkfifo((path_ + folder + (names ? "x" : kHash) + ".tmp-0123456789abcdef").c_str(), 0600),
        0);
  }
  collect();
  Store store(open_store_backend(path_), StoreKey::random());
  EXPECT_EQ(store.names(), std::vector<std::string>());
  EXPECT_TRUE(store.states().empty());
  Sha256 link;
  link.bytes.fill(std::byte{0xbb});
  EXPECT_FALSE(store.has_state(link));
  EXPECT_FALSE(store.find_state(link).has_value());
  struct stat info = {};
  ASSERT_EQ(::stat((scratch_ / "target").c_str(), &info), 0);
  EXPECT_EQ(info.st_mtim.tv_sec, 1000);
  for (const std::string folder : {"/blocks/", "/states/"})
    EXPECT_TRUE(fs::is_fifo(path_ + folder + kHash));
  EXPECT_TRUE(fs::is_fifo(path_ + "/names/talk"));
}

// A user who can write to a store can neither choose a file that others overwrite nor stop their
// writing.
TEST_F(StoreDirectory, WritesReplaceLinksAndPipes) {
  create_store(path_, 0);
  Store store(open_store_backend(path_), StoreKey::random());
  write_file(scratch_ / "target", "mine");
  Sha256 id;
  id.bytes.fill(std::byte{0xaa});
  const std::vector<std::byte> bytes(4096, std::byte{7});
  const Store::NewBlock block{id, [&] { return std::span(bytes); }};
  const std::vector<std::function<void(const std::string&)>> obstacles = {
      [&](const std::string& path) { fs::create_symlink(scratch_ / "target", path); },
      [&](const std::string& path) { fs::create_symlink(scratch_ / "none", path); },
      [&](const std::string& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); },
  };
  for (const auto& put_obstacle : obstacles) {
    for (const std::string& file : {"/blocks/" + kHash, "/states/" + kHash, "/names/talk"s}) {
      fs::remove(path_ + file);
      put_obstacle(path_ + file);
    }
    EXPECT_EQ(store.put_blocks({&block, 1}).written, 1u);
    store.set_name("talk", std::nullopt, store.put_state(id, {}));
    EXPECT_EQ(store.blocks({&id, 1})[0].bytes.size(), bytes.size());
    EXPECT_EQ(store.resolve("talk"), id);
    EXPECT_EQ(read_text(scratch_ / "target"), "mine");
    EXPECT_FALSE(fs::exists(scratch_ / "none"));
  }
}

TEST_F(StoreDirectory, ADirectoryInThePlaceOfABlockCostsThatBlock) {
  create_store(path_, 0);
  Store store(open_store_backend(path_), StoreKey::random());
  fs::create_directory(path_ + "/blocks/" + kHash);
  std::vector<Sha256> ids(2);
  ids[0].bytes.fill(std::byte{0xaa});
  const std::vector<std::byte> bytes(4096, std::byte{7});
  std::vector<Store::NewBlock> blocks;
  for (const Sha256& id : ids) blocks.push_back({id, [&] { return std::span(bytes); }});
  EXPECT_EQ(store.put_blocks(blocks).written, 1u);
  const std::vector<StoredBlock> found = store.blocks(ids);
  EXPECT_TRUE(found[0].bytes.empty());
  EXPECT_EQ(found[1].bytes.size(), bytes.size());
}

TEST_F(StoreDirectory, ALockThatIsNoFileIsNotFollowed) {
  create_store(path_, 0);
  const std::string lock = path_ + "/lock", target = scratch_ / "target";
  fs::create_symlink(target, lock);
  EXPECT_TRUE(error_of([&] {
                collect();
              }).starts_with("io: " + lock + ": the lock file cannot be opened, or is a link: "));
  EXPECT_FALSE(fs::exists(target));
  fs::remove(lock);
  ASSERT_EQ(::mkfifo(lock.c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { collect(); }),
            "io: " + lock + ": expected a regular file to lock, found a device or pipe");
}

TEST_F(StoreDirectory, ABudgetIsANumber) {
  create_store(path_, 0);
  for (const std::string line :
       {"budget -5", "budget 5x", "budget", "budget ", "budget 99999999999999999999", "limit 5"}) {
    write_file(path_ + "/stet-store", "stet store 1\n" + line + "\n");
    EXPECT_EQ(error_of([&] { open_store_backend(path_); }),
              "format: " + path_ + "/stet-store: budget: expected \"budget BYTES\", found " + line);
  }
  write_file(path_ + "/stet-store", "stet store 1\nbudget 500\n");
  EXPECT_EQ(open_store_backend(path_)->about()[1].second, "500");
}

}  // namespace
}  // namespace stet::test::directory_tests

// Files and folders that other users made or can read: what is refused or not opened, and who may
// read written files.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/base/json_value.hpp"
#include "stet/base/limits.hpp"
#include "stet/checkpoint/checkpoint.hpp"
#include "stet/files/archive.hpp"
#include "stet/files/file.hpp"
#include "stet/files/mapped_file.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/text/tokenizer.hpp"
#include "tests/support/models.hpp"
#include "tests/support/process_cost.hpp"
#include "tests/support/run_command.hpp"
#include "tests/support/snapshot_image.hpp"

namespace stet::test::hostile_files_tests {
namespace {

namespace fs = std::filesystem;

unsigned mode_of(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : 0;
}

class Umask {
 public:
  explicit Umask(mode_t mask) : before_(::umask(mask)) {}
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;
  ~Umask() { ::umask(before_); }

 private:
  mode_t before_;
};

class HostileFiles : public testing::Test {
 protected:
  Session session(int64_t tokens = 3) const {
    Session s(m, options(1));
    for (int64_t i = 0; i < tokens; ++i)
      s.append(std::vector<int32_t>{static_cast<int32_t>(i % 250)});
    return s;
  }
  std::string only_file(const std::string& folder) const {
    std::string found;
    for (const auto& entry : fs::directory_iterator(folder)) found = entry.path().string();
    return found;
  }

  std::shared_ptr<const Model> m = model(data_path("models/llama31-tiny"));
  TemporaryDirectory scratch;
  std::string file = scratch / "s.stet";
};

// ---------------------------------------------------------------- permissions of written files

TEST_F(HostileFiles, ASnapshotIsItsOwnersFromItsFirstByte) {
  const Umask open_to_all(0);
  const std::string folder = scratch / "folder";
  fs::create_directory(folder);
  {
    const AtomicFile being_written(folder + "/s.stet", 0600);
    EXPECT_EQ(mode_of(only_file(folder)), 0600u);
  }
  Session s = session();
  Snapshot::save(s, file);
  EXPECT_EQ(mode_of(file), 0600u);
  Snapshot::save(s, scratch / "shared.stet", {.mode = 0640});
  EXPECT_EQ(mode_of(scratch / "shared.stet"), 0640u);
  const Umask strict(0027);
  Snapshot::save(s, scratch / "wide.stet", {.mode = 0666});
  EXPECT_EQ(mode_of(scratch / "wide.stet"), 0640u);
}

TEST_F(HostileFiles, AFileThatIsReplacedKeepsItsMode) {
  Session s = session();
  for (const unsigned mode : {0644u, 0600u, 0220u}) {
    Snapshot::save(s, file);
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    Snapshot::save(s, file, {.mode = 0666});
    EXPECT_EQ(mode_of(file), mode);
    fs::remove(file);
  }
  fs::create_symlink(file, scratch / "link.stet");
  Snapshot::save(s, scratch / "link.stet");  // through a dangling link
  EXPECT_EQ(mode_of(file), 0600u);
  ASSERT_EQ(::chmod(file.c_str(), 0644), 0);
  Snapshot::save(s, scratch / "link.stet");
  EXPECT_EQ(mode_of(file), 0644u);
}

TEST_F(HostileFiles, TheCommandAsksForModes) {
  const Umask usual(0022);
  EXPECT_EQ(run_stet({"save", "-p", "hello", "-o", file}).status, 0);
  EXPECT_EQ(mode_of(file), 0600u);
  EXPECT_EQ(run_stet({"convert", file, "-o", scratch / "b.stet", "--mode", "0664"}).status, 0);
  EXPECT_EQ(mode_of(scratch / "b.stet"), 0644u);
  for (const char* wrong : {"rw", "1777", "755", "", "06000"}) {
    const Outcome o = run_stet({"convert", file, "-o", scratch / "c.stet", "--mode", wrong});
    EXPECT_EQ(o.status, 2) << wrong;
    EXPECT_NE(
        o.err.find("--mode: expected read and write permissions in octal, as 600 or 0640, found "),
        std::string::npos)
        << o.err;
  }
}

TEST_F(HostileFiles, TemporariesOfOthersAreNeitherUsedNorAwaited) {
  const std::string temporary = file + ".tmp-0123456789abcdef",
                    pipe = file + ".tmp-fedcba9876543210";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  write_file(temporary, "of somebody who writes");
  const int held = ::open(temporary.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  Session s = session();
  Snapshot::save(s, file);
  EXPECT_TRUE(fs::exists(temporary));
  EXPECT_TRUE(fs::exists(pipe));
  ::close(held);
  if (::chown(temporary.c_str(), 65534, 65534) == 0) {  // only root may give files away
    Snapshot::save(s, file);
    EXPECT_TRUE(fs::exists(temporary));
    ASSERT_EQ(::chown(temporary.c_str(), ::geteuid(), ::getegid()), 0);
  }
  Snapshot::save(s, file);
  EXPECT_FALSE(fs::exists(temporary));  // left by a dead process of the same user
}

// ---------------------------------------------------------------- pipes, devices, folders

TEST_F(HostileFiles, IrregularFilesAreRefusedAtOnce) {
  const std::string pipe = scratch / "pipe", link = scratch / "link", folder = scratch / "model";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  fs::create_symlink(pipe, link);
  for (const std::string& path : {pipe, link, std::string("/dev/zero")}) {
    const std::string refused = "io: " + path + ": expected a regular file, found a device or pipe";
    EXPECT_EQ(error_of([&] { read_file(path, 100); }), refused);
    EXPECT_EQ(error_of([&] { read_text_file(path, 100); }), refused);
    EXPECT_EQ(error_of([&] { read_file_to_memory(path); }), refused);
    EXPECT_EQ(error_of([&] { MappedFile::open(path); }), refused);
    EXPECT_EQ(error_of([&] { Snapshot::open(path); }), refused);
  }
  fs::create_directory(folder);
  for (const char* name :
       {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
    fs::remove_all(folder);
    fs::copy(STET_ROOT "/assets/pocket-llama3", folder);
    fs::remove(folder + "/" + name);
    fs::create_symlink(pipe, folder + "/" + name);
    const Outcome o = run_stet({"generate", "-m", folder, "-p", "x", "-n", "1"});
    EXPECT_EQ(o.status, 1) << name;
    EXPECT_NE(o.err.find(name), std::string::npos) << o.err;
  }
  for (const Args& args : std::vector<Args>{{"inspect", pipe},
                                            {"generate", "-p", "x", "--save", pipe},
                                            {"generate", "--prompt-file", pipe},
                                            {"chat", "--script", pipe},
                                            {"logits", "--ids-file", pipe, "--digest"},
                                            {"template", "-p", "x", "--chat-template", pipe}}) {
    const Outcome o = run_stet(args);
    EXPECT_NE(o.status, 0) << args[0];
    EXPECT_NE(o.err.find("a device or pipe"), std::string::npos) << args[0] << o.err;
  }
  // The user's own input to the command may be a pipe.
  EXPECT_EQ(run_stet({"tokenize", "--prompt-file", "-"}, "hello").status, 0);
}

TEST_F(HostileFiles, AnIndexOfMillionsOfFilesIsRefused) {
  nlohmann::json map;
  for (size_t i = 0; i <= kMaxShards; ++i) map["t" + std::to_string(i)] = "f" + std::to_string(i);
  write_file(scratch / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  const std::string error = error_of([&] { Checkpoint::open(scratch.path()); });
  EXPECT_NE(error.find("expected one of at most 4096 files, found "), std::string::npos) << error;
}

// ---------------------------------------------------------------- JSON

TEST(HostileJson, TakesMemoryInProportion) {
  const auto many = [](const std::string& open, const std::string& one, const std::string& close,
                       size_t bytes) {
    std::string text = open + one, piece;
    while (piece.size() < 4096) piece += "," + one;
    while (text.size() + piece.size() < bytes) text += piece;
    return text + close;
  };
  size_t key = 0;
  std::string members = "{";
  while (members.size() < (size_t{8} << 20)) members += fmt::format("\"{:x}\":0,", key++);
  members.back() = '}';
  for (const std::string& text : {many("[", "1", "]", 16 << 20), many("[", "[]", "]", 16 << 20),
                                  many("[", "{}", "]", 16 << 20), many("[", "\"\"", "]", 16 << 20),
                                  many("[", "{\"\":1}", "]", 16 << 20), members}) {
    const ProcessCost spent = cost_of([&] {
      const std::string error = error_of([&] { parse_json_value(text, "FILE"); });
      if (!error.starts_with("format: FILE: expected JSON whose values take at most "))
        throw std::runtime_error(error);
    });
    EXPECT_EQ(spent.status, 0) << text.substr(0, 20);
#ifndef STET_SANITIZED
    EXPECT_LE(spent.memory, (size_t{64} << 20) + 4 * text.size()) << text.substr(0, 20);
#endif
  }
  EXPECT_GE(parse_json_value(many("[", "1", "]", 1 << 20), "FILE").size(),
            (size_t{1} << 19) - 4096);
}

// ---------------------------------------------------------------- templates

// A template from a snapshot has the same limits as a checkpoint's.
TEST_F(HostileFiles, ATemplateInASnapshotHasTheLimitsOfAnyOther) {
  ASSERT_EQ(run_stet({"save", "--say", "hello", "-o", file}).status, 0);
  SnapshotImage image = SnapshotImage::parse(read_text(file));
  nlohmann::json meta = nlohmann::json::parse(image.section("META").content);
  ASSERT_TRUE(meta.contains("dialogue"));
  meta["dialogue"]["chat_template"] =
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
  image.section("META").content = meta.dump();
  write_file(file, forged(image));
  const Outcome o = run_stet({"resume", file, "--say", "again", "-n", "1"});
  EXPECT_EQ(o.status, 1);
  EXPECT_NE(o.err.find("expected at most 50000000 steps, found more"), std::string::npos) << o.err;
}

// ---------------------------------------------------------------- files in a self-contained
// snapshot

TEST_F(HostileFiles, OnlyFilesOfTheCheckpointAreIncluded) {
  const std::string folder = scratch / "model", secret = scratch / "secret";
  fs::copy(STET_ROOT "/assets/pocket-llama3", folder);
  write_file(secret, read_text(folder + "/tokenizer_config.json"));
  fs::remove(folder + "/tokenizer_config.json");
  fs::create_symlink(secret, folder + "/tokenizer_config.json");
  const std::string refused = folder +
                              "/tokenizer_config.json: expected a regular file of its directory, "
                              "to put into a snapshot, found a link to " +
                              secret;
  const auto source = directory_source(folder);
  EXPECT_EQ(error_of([&] { ArchiveWriter(*source, Tokenizer::files_of(*source)); }),
            "io: " + refused);
  const Outcome o = run_stet({"save", "-m", folder, "-p", "x", "-o", file, "--with-tokenizer"});
  EXPECT_EQ(o.status, 1);
  EXPECT_NE(o.err.find(refused), std::string::npos) << o.err;
  EXPECT_FALSE(fs::exists(file));
  EXPECT_EQ(run_stet({"save", "-m", folder, "-p", "x", "-o", file}).status, 0);  // it works

  fs::remove(folder + "/tokenizer_config.json");  // a link inside the folder
  fs::copy_file(secret, folder + "/other.json");
  fs::create_symlink("other.json", folder + "/tokenizer_config.json");
  EXPECT_EQ(error_of([&] { ArchiveWriter(*source, Tokenizer::files_of(*source)); }), kNoError);
}

// models--x--y/snapshots/REVISION/NAME -> ../../blobs/HASH
TEST_F(HostileFiles, FilesOfTheHuggingFaceCacheAreIncluded) {
  const std::string cache = scratch / "models--x--y", revision = cache + "/snapshots/abc";
  fs::create_directories(revision);
  fs::create_directory(cache + "/blobs");
  for (const auto& entry : fs::directory_iterator(STET_ROOT "/assets/pocket-llama3")) {
    const std::string name = entry.path().filename().string();
    fs::copy_file(entry.path(), cache + "/blobs/" + name + "-hash");
    fs::create_symlink("../../blobs/" + name + "-hash", revision + "/" + name);
  }
  const Outcome o = run_stet(
      {"save", "-m", revision, "-p", "x", "-o", file, "--with-tokenizer", "--with-weights"});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(run_stet({"check", file}).status, 0);
}

// ---------------------------------------------------------------- parents

TEST_F(HostileFiles, AParentIsLookedForAmongFilesOfTheSameOwnerAlone) {
  Session s = session(70);
  Snapshot::save(s, file);
  const Snapshot parent = Snapshot::open(file);
  s.append(std::vector<int32_t>{1});
  const std::string delta = scratch / "d.stet", moved = scratch / "moved.stet";
  Snapshot::save(s, delta, {.form = SnapshotForm::delta, .parent = &parent});
  ASSERT_EQ(::mkfifo((scratch / "pipe.stet").c_str(), 0666), 0);
  fs::create_symlink("/dev/zero", scratch / "zero.stet");
  fs::rename(file, moved);
  EXPECT_EQ(error_of([&] { Snapshot::open_with_parents(delta); }), kNoError);
  const std::string none = "io: " + delta + ": parent: the delta needs the snapshot of state " +
                           parent.state_name() + ", which is not beside it; name it with --parent";
  if (::chown(moved.c_str(), 65534, 65534) == 0) {  // only root may give files away
    EXPECT_EQ(error_of([&] { Snapshot::open_with_parents(delta); }), none);
    EXPECT_EQ(error_of([&] { Snapshot::open_with_parents(delta, moved); }), kNoError);
    ASSERT_EQ(::chown(moved.c_str(), ::geteuid(), ::getegid()), 0);
  }
  fs::rename(moved,
             scratch / "elsewhere");  // found by its original name through a link, by no other name
  fs::create_symlink("elsewhere", moved);
  EXPECT_EQ(error_of([&] { Snapshot::open_with_parents(delta); }), none);
  fs::create_symlink("elsewhere", file);
  EXPECT_EQ(error_of([&] { Snapshot::open_with_parents(delta); }), kNoError);
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0666), 0);
  EXPECT_EQ(error_of([&] { Snapshot::open_with_parents(delta); }), none);
}

}  // namespace
}  // namespace stet::test::hostile_files_tests

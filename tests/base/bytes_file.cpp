#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/files/file.hpp"
#include "stet/files/mapped_file.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"

namespace stet::test::bytes_file_tests {
namespace {

// Faults that the system calls below inject into AtomicFile. They replace libc's.
struct Faults {
  bool active = false;
  uint64_t space = UINT64_MAX;  // bytes until writes fail with write_error
  size_t piece = SIZE_MAX;      // maximum bytes of one write
  bool interrupt = false;       // every other write is interrupted
  int write_error = ENOSPC;
  int fsync_error = 0, fsyncs_before = 0;  // fails after this many calls
  int rename_error = 0;
  uint64_t writes = 0;
};
Faults faults;

}  // namespace

extern "C" ssize_t write(int fd, const void* data, size_t size) {
  if (faults.active && fd > 2) {
    faults.writes += 1;
    if (faults.interrupt && faults.writes % 2 == 1) {
      errno = EINTR;
      return -1;
    }
    if (faults.space == 0) {
      errno = faults.write_error;
      return -1;
    }
    size = std::min({size, faults.piece, static_cast<size_t>(faults.space)});
    if (faults.space != UINT64_MAX) faults.space -= size;
  }
  return ::syscall(SYS_write, fd, data, size);
}

extern "C" int fsync(int fd) {
  if (faults.active && faults.fsync_error != 0 && faults.fsyncs_before-- == 0) {
    errno = faults.fsync_error;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (faults.active && faults.rename_error != 0) {
    errno = faults.rename_error;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace {

// Runs `call` with the given faults.
template <typename Call>
void with(Faults wanted, const Call& call) {
  faults = wanted;
  faults.active = true;
  struct Restore {
    ~Restore() { faults = Faults(); }
  } restore;
  call();
}

std::string pattern(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>((i * 131 + (i >> 8) * 7) & 0xff);
  return text;
}

TEST(ByteWriter, WritesLittleEndian) {
  stet::ByteWriter writer;
  writer.u8(0x01);
  writer.u16(0x0302);
  writer.u32(0x07060504);
  writer.u64(0x0f0e0d0c0b0a0908);
  writer.f32(-1.5f);
  writer.text("ab");
  writer.bytes(as_bytes("cd"));
  writer.zeros(2);
  EXPECT_EQ(writer.size(), 25u);
  const std::vector<std::byte> data = writer.take();
  EXPECT_EQ(
      std::string(reinterpret_cast<const char*>(data.data()), data.size()),
      std::string("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x00\x00\xc0\xbf"
                  "abcd\x00\x00",
                  25));
}

TEST(ByteReader, ReadsWhatTheWriterWrote) {
  stet::ByteWriter writer;
  writer.u8(0xff);
  writer.u16(0xfffe);
  writer.u32(0xfffefdfc);
  writer.u64(0xfffefdfcfbfaf9f8);
  writer.f32(std::numeric_limits<float>::denorm_min());
  writer.text("xyz");
  stet::ByteReader reader(writer.data(), "f");
  EXPECT_EQ(reader.u8("a"), 0xff);
  EXPECT_EQ(reader.u16("b"), 0xfffe);
  EXPECT_EQ(reader.u32("c"), 0xfffefdfcu);
  EXPECT_EQ(reader.u64("d"), 0xfffefdfcfbfaf9f8u);
  EXPECT_EQ(reader.f32("e"), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(reader.position(), 19u);
  EXPECT_EQ(reader.text(3, "g"), "xyz");
  reader.end("h");
}

TEST(ByteReader, NamesFileFieldAndOffsetOfAReadPastTheEnd) {
  const std::string data = "\x01\x02\x03";
  stet::ByteReader reader(as_bytes(data), "s.stet");
  EXPECT_EQ(error_of([&] { reader.u32("version"); }),
            "format: s.stet: version: expected 4 bytes at offset 0, found 3 before the end");
  EXPECT_EQ(reader.u16("kind"), 0x0201);  // the failed read consumed nothing
  EXPECT_EQ(error_of([&] { reader.end("padding"); }),
            "format: s.stet: padding: expected the end at offset 2, found 1 more byte");
  EXPECT_EQ(error_of([&] { reader.bytes(UINT64_MAX, "name"); }),
            "format: s.stet: name: expected 18446744073709551615 bytes at offset 2, found 1 before "
            "the end");
  reader.u8("flag");
  EXPECT_EQ(error_of([&] { reader.u8("flag"); }),
            "format: s.stet: flag: expected 1 byte at offset 3, found 0 before the end");
  EXPECT_EQ(error_of([&] { reader.u64("x"); }).substr(0, 6), "format");
  EXPECT_EQ(error_of([&] { reader.f32("x"); }).substr(0, 6), "format");
}

TEST(ReadFile, ReadsUpToItsLimit) {
  const TemporaryDirectory dir;
  const std::string content = pattern(100'000);
  write_file(dir / "a", content);
  EXPECT_EQ(stet::read_text_file(dir / "a", 100'000), content);
  EXPECT_EQ(stet::read_file(dir / "a", 1 << 20).size(), 100'000u);
  EXPECT_EQ(error_of([&] { stet::read_file(dir / "a", 99'999); }),
            "format: " + dir / "a" + ": expected at most 99999 bytes, found more");
  write_file(dir / "empty", "");
  EXPECT_EQ(stet::read_text_file(dir / "empty", 0), "");
}

TEST(ReadFile, NamesAFileThatCannotBeRead) {
  const TemporaryDirectory dir;
  EXPECT_EQ(error_of([&] { stet::read_file(dir / "none", 10); }),
            "io: " + dir / "none" + ": cannot be read: No such file or directory");
  EXPECT_EQ(error_of([&] { stet::read_text_file(dir.path(), 10); }),
            "io: " + dir.path() + ": cannot be read: Is a directory");
  EXPECT_EQ(error_of([&] { stet::read_file("/dev/zero", 1'000'000); }),
            "io: /dev/zero: expected a regular file, found a device or pipe");
}

// read_text_input() reads a pipe, as the shell's <(command) passes it. read_text_file() refuses
// one.
TEST(ReadFile, ReadsAPipeThatItWasGiven) {
  const std::string content(200'000, 'x');
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  std::thread feeder([&] {
    for (size_t at = 0; at < content.size();) {
      const ssize_t n = ::write(ends[1], content.data() + at, content.size() - at);
      if (n <= 0) break;
      at += static_cast<size_t>(n);
    }
    ::close(ends[1]);
  });
  const std::string path = "/dev/fd/" + std::to_string(ends[0]);
  EXPECT_EQ(error_of([&] { stet::read_text_file(path, SIZE_MAX); }),
            "io: " + path + ": expected a regular file, found a device or pipe");
  EXPECT_EQ(stet::read_text_input(path, SIZE_MAX), content);
  feeder.join();
  ::close(ends[0]);
}

TEST(MappedFile, ShowsTheBytes) {
  const TemporaryDirectory dir;
  const std::string content = pattern(10'001);
  write_file(dir / "a", content);
  const auto file = stet::MappedFile::open(dir / "a");
  EXPECT_EQ(file->path(), dir / "a");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()),
            content);
  write_file(dir / "a", "replaced");  // by rename(), so the mapping keeps the old file
  EXPECT_EQ(file->bytes()[10'000], static_cast<std::byte>(content[10'000]));
}

TEST(MappedFile, NamesAFileThatCannotBeMapped) {
  const TemporaryDirectory dir;
  EXPECT_EQ(error_of([&] { stet::MappedFile::open(dir / "none"); }),
            "io: " + dir / "none" + ": cannot be read: No such file or directory");
  EXPECT_EQ(error_of([&] { stet::MappedFile::open(dir.path()); }),
            "io: " + dir.path() + ": cannot be read: Is a directory");
  write_file(dir / "empty", "");
  EXPECT_EQ(error_of([&] { stet::MappedFile::open(dir / "empty"); }),
            "format: " + dir / "empty" + ": expected a file with content, found 0 bytes");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { stet::MappedFile::open(dir / "pipe"); }),
            "io: " + dir / "pipe" + ": expected a regular file, found a device or pipe");
}

// Returns the resident bytes of the mapping that begins at `address`.
size_t resident(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  char start[32];
  std::snprintf(start, sizeof start, "%lx-", reinterpret_cast<unsigned long>(address));
  std::string line;
  while (std::getline(maps, line) && line.rfind(start, 0) != 0) {
  }
  while (std::getline(maps, line)) {
    if (line.rfind("Rss:", 0) == 0) return std::stoul(line.substr(4)) * 1024;
  }
  return SIZE_MAX;
}

TEST(MappedFile, DropTakesWholePagesOutOfResidentMemory) {
  const TemporaryDirectory dir;
  const std::string content = pattern(4 << 20);
  write_file(dir / "a", content);
  const auto file = stet::MappedFile::open(dir / "a");
  const auto same = [&] {
    return std::memcmp(file->bytes().data(), content.data(), content.size()) == 0;
  };
  ASSERT_TRUE(same());
  EXPECT_EQ(resident(file->bytes().data()), content.size());
  file->drop(1, content.size() - 1);  // all but the first page
  EXPECT_LE(resident(file->bytes().data()), 65536u);
  EXPECT_TRUE(same());      // still there
  file->drop(0, SIZE_MAX);  // out of range: ignored
  file->drop(SIZE_MAX, 1);
  EXPECT_EQ(resident(file->bytes().data()), content.size());
}

TEST(AtomicFile, AppearsWhole) {
  const TemporaryDirectory dir;
  const std::string big = pattern(1'000'000);
  stet::AtomicFile file(dir / "a");
  file.write(as_bytes("head"));
  file.write(as_bytes(big));
  file.write({});
  file.write(as_bytes("tail"));
  EXPECT_EQ(file.written(), 1'000'008u);
  EXPECT_FALSE(std::filesystem::exists(dir / "a"));
  file.commit();
  EXPECT_EQ(read_text(dir / "a"), "head" + big + "tail");
  EXPECT_EQ(dir.names(), std::vector<std::string>{"a"});
  EXPECT_EQ(error_of([&] { file.write(as_bytes("x")); }),
            "io: " + dir / "a" + ": the file has been committed or has failed before");
}

TEST(AtomicFile, WithoutCommitLeavesTheOldFile) {
  const TemporaryDirectory dir;
  write_file(dir / "a", "old");
  {
    stet::AtomicFile file(dir / "a");
    file.write(as_bytes(pattern(100'000)));
    EXPECT_EQ(dir.names().size(), 2u);
  }
  EXPECT_EQ(read_text(dir / "a"), "old");
  EXPECT_EQ(dir.names(), std::vector<std::string>{"a"});
}

TEST(AtomicFile, KeepsThePermissionsOfTheFileItReplaces) {
  const TemporaryDirectory dir;
  write_file(dir / "a", "old");
  ASSERT_EQ(::chmod((dir / "a").c_str(), 0640), 0);
  write_file(dir / "a", "new");
  struct stat info = {};
  ASSERT_EQ(::stat((dir / "a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
  EXPECT_EQ(read_text(dir / "a"), "new");
}

TEST(AtomicFile, SurvivesShortAndInterruptedWrites) {
  const TemporaryDirectory dir;
  const std::string content = pattern(70'001);
  for (const size_t piece : {1u, 7u, 4096u, 65536u}) {
    with({.piece = piece, .interrupt = true}, [&] { write_file(dir / "a", content); });
    EXPECT_EQ(read_text(dir / "a"), content) << piece;
  }
}

TEST(AtomicFile, FullDiskLeavesTheOldFileAndNoTemporary) {
  const TemporaryDirectory dir;
  write_file(dir / "a", "old");
  const std::string content = pattern(200'000);
  for (uint64_t space = 0; space < content.size(); space += 9'973) {
    const auto save = [&] {
      stet::AtomicFile file(dir / "a");
      for (size_t at = 0; at < content.size(); at += 25'000) {
        file.write(as_bytes(content).subspan(at, 25'000));
      }
      file.commit();
    };
    with({.space = space}, [&] {
      EXPECT_NE(error_of(save).find("io: " + dir / "a" + ": cannot write "), std::string::npos);
    });
    EXPECT_EQ(read_text(dir / "a"), "old");
    EXPECT_EQ(dir.names(), std::vector<std::string>{"a"});
  }
}

TEST(AtomicFile, ErrorsNameTheReason) {
  const TemporaryDirectory dir;
  write_file(dir / "a", "old");
  const std::string prefix = "io: " + dir / "a" + ": ";
  const auto save = [&] { write_file(dir / "a", "new"); };
  const auto expect = [&](const Faults& wanted, const std::string& text) {
    with(wanted, [&] { EXPECT_EQ(error_of(save), prefix + text); });
    EXPECT_EQ(read_text(dir / "a"), "old");
    EXPECT_EQ(dir.names(), std::vector<std::string>{"a"});
  };
  expect({.space = 0}, "cannot write 3 bytes: No space left on device");
  expect({.space = 2, .write_error = EIO}, "cannot write 3 bytes: Input/output error");
  expect({.fsync_error = EIO}, "its bytes did not reach the disk: Input/output error");
  expect({.rename_error = EACCES},
         "the temporary file cannot be renamed to this name: Permission denied");

  with({.fsync_error = EIO, .fsyncs_before = 1}, [&] {  // the directory's fsync
    EXPECT_EQ(error_of(save),
              "io: " + dir / "a" +
                  ": durability: the new file is in place, but a loss of power may undo "
                  "that: Input/output error");
  });
  EXPECT_EQ(read_text(dir / "a"), "new");
}

TEST(AtomicFile, RefusesAPathThatCannotHoldAFile) {
  const TemporaryDirectory dir;
  const auto open = [](const std::string& path) {
    return error_of([&] { stet::AtomicFile file(path); });
  };
  write_file(dir / "a", "old");
  EXPECT_EQ(open(dir / "none/b"),
            "io: " + dir / "none/b" +
                ": no file can be made in its directory: No such file or directory");
  EXPECT_EQ(open(dir / "a/b"),
            "io: " + dir / "a/b" + ": no file can be made in its directory: Not a directory");
  EXPECT_EQ(open(dir.path()),
            "io: " + dir.path() + ": expected a regular file to write, found a directory");
  EXPECT_EQ(open(""), "io: path: the name is empty; name a file");
  EXPECT_EQ(open(dir / ""), "io: " + dir / "" + ": this is the name of a directory; name a file");
  EXPECT_EQ(open("/dev/null"),
            "io: /dev/null: expected a regular file to write, found a device or pipe");
  EXPECT_EQ(open("/proc/x"),
            "io: /proc/x: no file can be made in its directory: No such file or directory");
  EXPECT_EQ(dir.names(), std::vector<std::string>{"a"});
}

constexpr const char* kStillRoot = "still root";

// Returns error_of(call) of a process in `directory` that is not root, since root may do anything.
template <typename Call>
std::string error_without_root(const std::string& directory, const Call& call) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const bool dropped = ::chdir(directory.c_str()) == 0 &&
                         (::geteuid() != 0 || ::setresuid(65534, 65534, 65534) == 0);
    const std::string error = dropped ? error_of(call) : kStillRoot;
    ::_exit(::write(ends[1], error.data(), error.size()) < 0 ? 1 : 0);
  }
  ::close(ends[1]);
  char text[4096];
  const ssize_t size = ::read(ends[0], text, sizeof text);
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return {text, size < 0 ? 0 : static_cast<size_t>(size)};
}

// People protect results with chmod a-w, and cp, editors and databases respect that.
TEST(AtomicFile, RefusesAFileThatTheProcessMayNotWrite) {
  const TemporaryDirectory dir;
  const auto error = [&](const auto& call) { return error_without_root(dir.path(), call); };
  ASSERT_EQ(::chmod(dir.path().c_str(), 0777), 0);
  write_file(dir / "kept", "old");
  ASSERT_EQ(::chmod((dir / "kept").c_str(), 0444), 0);
  std::filesystem::create_symlink("kept", dir / "link");
  if (error([] {}) == kStillRoot) GTEST_SKIP() << "root cannot become another user here";
  for (const std::string name : {"kept", "link"}) {
    EXPECT_EQ(
        error([&] { write_file(name, "new"); }),
        "io: " + name + ": the file is write-protected; name another, or change its permissions");
  }
  EXPECT_EQ(read_text(dir / "kept"), "old");
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"kept", "link"}));

  using stet::AtomicFile;
  const auto replace = [] {
    AtomicFile file("kept", 0600, AtomicFile::Existing::replace);
    file.write(as_bytes("new"));
    file.commit();
  };
  EXPECT_EQ(error(replace), kNoError);
  EXPECT_EQ(read_text(dir / "kept"), "new");
  ASSERT_EQ(::chmod((dir / "kept").c_str(), 0666), 0);
  EXPECT_EQ(error([] { write_file("kept", "newer"); }), kNoError);
  EXPECT_EQ(read_text(dir / "kept"), "newer");
}

TEST(AtomicFile, WritesNamesThatLeaveNoRoomForMore) {
  const TemporaryDirectory dir;
  std::vector<std::string> names;
  for (const size_t size : {234, 235, 254, 255}) {
    names.push_back(std::string(size, 'n'));
    write_file(dir / names.back(), names.back());
    EXPECT_EQ(read_text(dir / names.back()), names.back());
  }
  EXPECT_EQ(dir.names(), names);
  const std::string abandoned = std::string(234, 'n') + ".tmp-0123456789abcdef";
  std::filesystem::copy_file(dir / names[0], dir / abandoned);
  write_file(dir / names[3], "new");
  EXPECT_EQ(dir.names(), names);
  const std::string longer = std::string(256, 'n');
  EXPECT_EQ(error_of([&] { write_file(dir / longer, "new"); }),
            "io: " + dir / longer + ": cannot be written: File name too long");
}

// The link stays. Its target is replaced atomically, through a temporary file in the target's
// directory.
TEST(AtomicFile, WritesThroughLinks) {
  const TemporaryDirectory dir;
  namespace fs = std::filesystem;
  ASSERT_TRUE(fs::create_directory(dir / "elsewhere"));
  write_file(dir / "elsewhere/file", "old");
  fs::create_symlink("elsewhere/file", dir / "relative");
  fs::create_symlink(dir / "relative", dir / "link");
  fs::create_symlink("elsewhere/new", dir / "dangling");
  {
    stet::AtomicFile file(dir / "link");
    file.write(as_bytes("new"));
    EXPECT_EQ(std::distance(fs::directory_iterator(dir / "elsewhere"), fs::directory_iterator()),
              2);  // its temporary file
    EXPECT_EQ(stet::read_text_file(dir / "link", 10), "old");
    file.commit();
    EXPECT_EQ(file.path(), dir / "link");
  }
  write_file(dir / "dangling", "made");
  EXPECT_EQ(stet::read_text_file(dir / "elsewhere/file", 10), "new");
  EXPECT_EQ(stet::read_text_file(dir / "elsewhere/new", 10), "made");
  for (const char* link : {"relative", "link", "dangling"})
    EXPECT_TRUE(fs::is_symlink(dir / link)) << link;
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"dangling", "elsewhere", "link", "relative"}));
}

TEST(AtomicFile, RefusesLinksThatLeadNowhere) {
  const TemporaryDirectory dir;
  namespace fs = std::filesystem;
  fs::create_symlink("b", dir / "a");
  fs::create_symlink("a", dir / "b");
  fs::create_symlink("none/file", dir / "c");
  fs::create_symlink(".", dir / "d");
  const auto refusal = [](const std::string& path) {
    return error_of([&] { stet::AtomicFile file(path); });
  };
  EXPECT_EQ(refusal(dir / "a"),
            "io: " + dir / "a" + ": cannot be written: Too many levels of symbolic links");
  EXPECT_EQ(
      refusal(dir / "c"),
      "io: " + dir / "c" + ": no file can be made in its directory: No such file or directory");
  EXPECT_EQ(refusal(dir / "d"),
            "io: " + dir / "d" + ": expected a regular file to write, found a directory");
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"a", "b", "c", "d"}));
}

// For directories that others can write to: a link must not choose the file that is overwritten.
TEST(AtomicFile, ReplacesLinksAndPipesIfAsked) {
  const TemporaryDirectory dir;
  namespace fs = std::filesystem;
  write_file(dir / "mine", "mine");
  fs::create_symlink("mine", dir / "link");
  fs::create_symlink("none", dir / "dangling");
  fs::create_symlink("loop", dir / "loop");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  fs::create_directory(dir / "folder");
  using stet::AtomicFile;
  for (const char* name : {"link", "dangling", "loop", "pipe", "new"}) {
    AtomicFile file(dir / name, 0600, AtomicFile::Existing::replace);
    file.write(as_bytes("new"));
    file.commit();
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(dir / name))) << name;
    EXPECT_EQ(read_text(dir / name), "new") << name;
  }
  EXPECT_EQ(error_of([&] { AtomicFile(dir / "folder", 0600, AtomicFile::Existing::replace); }),
            "io: " + dir / "folder" + ": expected a regular file to write, found a directory");
  EXPECT_EQ(read_text(dir / "mine"), "mine");
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"dangling", "folder", "link", "loop", "mine",
                                                   "new", "pipe"}));
}

TEST(AtomicFile, NextWriterRemovesTheTemporaryOfAKilledOne) {
  const TemporaryDirectory dir;
  write_file(dir / "a", "old");
  write_file(dir / "a.tmp-notes", "somebody's own");
  const pid_t child = ::fork();
  if (child == 0) {
    stet::AtomicFile file(dir / "a");
    file.write(as_bytes(pattern(100'000)));
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(dir.names().size(), 3u);
  EXPECT_EQ(read_text(dir / "a"), "old");

  stet::AtomicFile live(dir / "a");
  EXPECT_EQ(dir.names().size(), 3u);  // the dead writer's file made way for this one's
  write_file(dir / "a", "new");       // which stays while its writer lives
  EXPECT_EQ(dir.names().size(), 3u);
  live.write(as_bytes("live"));
  live.commit();
  EXPECT_EQ(read_text(dir / "a"), "live");
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"a", "a.tmp-notes"}));
}

TEST(AtomicFile, ConcurrentWritersLeaveOneWholeFile) {
  const TemporaryDirectory dir;
  std::vector<std::thread> writers;
  for (char letter = 'a'; letter < 'e'; ++letter) {
    writers.emplace_back([&dir, letter] {
      for (int i = 0; i < 10; ++i) write_file(dir / "f", std::string(150'000, letter));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string content = read_text(dir / "f");
  EXPECT_EQ(content, std::string(150'000, content.at(0)));
  EXPECT_EQ(dir.names(), std::vector<std::string>{"f"});
}

}  // namespace
}  // namespace stet::test::bytes_file_tests

#include "stet/files/archive.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "src/base/digest_bytes.hpp"
#include "src/files/open_file.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

constexpr char kMagic[] = "\x93STAR\r\n\x1a";
constexpr uint64_t kFrontBytes = 24, kEntryBytes = 34,
                   kDigestBytes = 16;  // bytes of an entry, without the name
constexpr size_t kMaxFiles = 4096, kMaxName = 255;
constexpr const char* kNameRule = "the plain name of a file, 1 to 255 bytes";

using Entry = ArchiveIndex::Entry;

[[noreturn]] void damaged(const std::string& path, const std::string& field,
                          const std::string& expected, const std::string& found) {
  throw Error(ErrorKind::format, path, field, expected, found);
}

uint64_t aligned(uint64_t end) {
  return (end + kArchiveAlignment - 1) / kArchiveAlignment * kArchiveAlignment;
}

bool allowed_name(const std::string& name) {
  return name.size() <= kMaxName && is_plain_name(name);
}

Digest digest_of_file(const FileBytes& file) {
  RunningDigest digest;
  file.stream([&](std::span<const std::byte> piece) { digest.add(piece); });
  return digest.result();
}

void check_digest(const std::string& path, const std::string& field, const Digest& expected,
                  const Digest& found) {
  if (!(found == expected))
    damaged(path, field, "digest " + digest_text(expected), digest_text(found));
}

// Checks the digest of the index and returns a reader of the rest. `path` names the archive.
ByteReader index_reader(std::span<const std::byte> archive, const std::string& path) {
  ByteReader front(archive, path);
  const auto magic = front.bytes(std::min<size_t>(archive.size(), 8), "magic");
  if (magic.size() < 8 || std::memcmp(magic.data(), kMagic, 8) != 0) {
    damaged(path, "magic", "an archive of files",
            magic.size() < 8 ? std::to_string(magic.size()) + " bytes" : "other bytes");
  }
  const uint64_t size = front.u32("index size");
  if (size < kFrontBytes + kDigestBytes || size > archive.size()) {
    damaged(path, "index size",
            std::to_string(kFrontBytes + kDigestBytes) + " up to the archive's " +
                std::to_string(archive.size()) + " bytes",
            std::to_string(size));
  }
  const auto index = archive.first(size - kDigestBytes);
  ByteReader digest(archive.subspan(index.size(), kDigestBytes), path);
  check_digest(path, "index", get(digest, "index"), digest_of(index));
  ByteReader reader(index, path);
  reader.bytes(12, "index");
  return reader;
}

// Reads the entry of a file that follows byte `end` of the archive.
Entry read_entry(ByteReader& index, uint64_t end, std::span<const std::byte> archive) {
  Entry e;
  e.offset = index.u64("offset of a file");
  e.size = index.u64("size of a file");
  e.digest = get(index, "digest of a file");
  e.name = index.text(index.u16("length of a name"), "name of a file");
  const std::string& path = index.file();
  if (!allowed_name(e.name))
    damaged(path, "name of a file", kNameRule, e.name.empty() ? "nothing" : e.name);
  if (e.offset != aligned(end)) {
    damaged(path, e.name, "to begin at " + std::to_string(aligned(end)), std::to_string(e.offset));
  }
  if (e.offset > archive.size() || e.size > archive.size() - e.offset) {
    damaged(path, e.name,
            "a file within the archive's " + std::to_string(archive.size()) + " bytes",
            std::to_string(e.size) + " at " + std::to_string(e.offset));
  }
  for (const std::byte b : archive.subspan(end, e.offset - end)) {
    if (b != std::byte{0})
      damaged(path, "bytes before " + e.name, "zero bytes", std::to_string(static_cast<int>(b)));
  }
  return e;
}

class ArchiveSource : public FileSource {
 public:
  ArchiveSource(std::span<const std::byte> archive, std::shared_ptr<const void> keeps_alive,
                const std::string& path, std::shared_ptr<const MappedFile> mapping)
      : FileSource(path, path + ": "),
        archive_(archive),
        keeps_alive_(std::move(keeps_alive)),
        mapping_(std::move(mapping)) {
    for (Entry& e : read_archive_index(archive, path).entries) entries_[e.name] = std::move(e);
  }

  bool has(const std::string& name) const override { return entries_.contains(name); }

  std::shared_ptr<const FileBytes> open(const std::string& name) const override {
    const Entry& e = find(name);
    const auto bytes = archive_.subspan(e.offset, e.size);
    auto file = std::make_shared<const FileBytes>(path_of(name), bytes, keeps_alive_, mapping_);
    check_digest(file->path(), "content", e.digest, digest_of_file(*file));
    return file;
  }

  std::string read(const std::string& name, size_t limit) const override {
    const Entry& e = find(name);
    if (e.size > limit) {
      damaged(path_of(name), "", "at most " + std::to_string(limit) + " bytes",
              std::to_string(e.size));
    }
    const auto bytes = archive_.subspan(e.offset, e.size);
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    check_digest(path_of(name), "content", e.digest, digest_of(std::as_bytes(std::span(text))));
    return text;
  }

 private:
  const Entry& find(const std::string& name) const {
    const auto it = entries_.find(name);
    if (it == entries_.end()) damaged(path_of(name), "", "a file of that name", "none");
    return it->second;
  }

  std::span<const std::byte> archive_;
  std::shared_ptr<const void> keeps_alive_;
  std::shared_ptr<const MappedFile> mapping_;
  std::map<std::string, Entry> entries_;
};

}  // namespace

ArchiveIndex read_archive_index(std::span<const std::byte> archive, const std::string& path) {
  ByteReader reader = index_reader(archive, path);
  const uint32_t count = reader.u32("number of files");
  if (count < 1 || count > kMaxFiles) {
    damaged(path, "number of files", "1 to " + std::to_string(kMaxFiles), std::to_string(count));
  }
  const uint64_t size = reader.u64("archive size");
  if (size != archive.size())
    damaged(path, "archive size", std::to_string(size), std::to_string(archive.size()));

  ArchiveIndex index;
  index.bytes = archive.first(reader.position() + reader.remaining() + kDigestBytes);
  uint64_t end = index.bytes.size();
  std::set<std::string> names;
  for (uint32_t i = 0; i < count; ++i) {
    Entry e = read_entry(reader, end, archive);
    if (!names.insert(e.name).second) damaged(path, e.name, "each name once", "a second file");
    end = e.offset + e.size;
    index.entries.push_back(std::move(e));
  }
  reader.end("index");
  if (end != size) {
    damaged(path, "archive size", std::to_string(end) + ", the end of the last file",
            std::to_string(size));
  }
  return index;
}

std::shared_ptr<const FileSource> archive_source(std::span<const std::byte> archive,
                                                 std::shared_ptr<const void> keeps_alive,
                                                 const std::string& path,
                                                 std::shared_ptr<const MappedFile> mapping) {
  return std::make_shared<const ArchiveSource>(archive, std::move(keeps_alive), path,
                                               std::move(mapping));
}

ArchiveWriter::ArchiveWriter(const FileSource& source, const std::vector<std::string>& names) {
  if (names.empty() || names.size() > kMaxFiles) {
    throw Error(ErrorKind::argument, source.path(), "number of files",
                "1 to " + std::to_string(kMaxFiles), std::to_string(names.size()));
  }
  uint64_t index_size = kFrontBytes + kDigestBytes;
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (!allowed_name(name))
      throw Error(ErrorKind::argument, source.path(), "name of a file", kNameRule, name);
    if (!seen.insert(name).second) {
      throw Error(ErrorKind::argument, source.path(), name, "each name once", "a second file");
    }
    index_size += kEntryBytes + name.size();
  }
  ByteWriter entries;
  size_ = index_size;
  for (const std::string& name : names) {
    source.check_own(name);
    files_.push_back(open_file(source, name));
    Entry e{name, aligned(size_), files_.back()->bytes().size(), digest_of_file(*files_.back())};
    entries.u64(e.offset);
    entries.u64(e.size);
    put(entries, e.digest);
    entries.u16(static_cast<uint16_t>(name.size()));
    entries.text(name);
    size_ = e.offset + e.size;
    entries_.push_back(std::move(e));
  }
  ByteWriter index;
  index.text({kMagic, 8});
  index.u32(static_cast<uint32_t>(index_size));
  index.u32(static_cast<uint32_t>(names.size()));
  index.u64(size_);
  index.bytes(entries.data());
  put(index, digest_of(index.data()));
  index_ = index.take();
}

void ArchiveWriter::write(AtomicFile& file) const {
  static constexpr std::array<std::byte, kArchiveAlignment> kZeros = {};
  const uint64_t start = file.written();
  if (start % kArchiveAlignment != 0) {
    throw Error(ErrorKind::argument, file.path(), "archive", "a start at a multiple of 4096",
                std::to_string(start));
  }
  file.write(index_);
  for (size_t i = 0; i < files_.size(); ++i) {
    const Entry& e = entries_[i];
    file.write(std::span(kZeros).first(static_cast<size_t>(start + e.offset - file.written())));
    RunningDigest digest;
    files_[i]->stream([&](std::span<const std::byte> piece) {
      digest.add(piece);
      file.write(piece);
    });
    if (!(digest.result() == e.digest)) {
      throw Error(ErrorKind::mismatch, files_[i]->path(), "content",
                  "digest " + digest_text(e.digest) + " as before", digest_text(digest.result()));
    }
  }
}

}  // namespace stet

// C interface: files in memory that belong to the caller.
#include <map>

#include "src/c/internal.hpp"
#include "src/files/open_file.hpp"
#include "stet/files/file_source.hpp"

namespace stet::c {
namespace {

const char kLent = 0;  // target for a shared_ptr without an object

class LentFiles : public FileSource {
 public:
  LentFiles(std::span<const stet_file> files, const std::string& name,
            std::shared_ptr<const void> keeps_alive)
      : FileSource(name, name + ": "), keeps_alive_(std::move(keeps_alive)) {
    for (const stet_file& file : files) {
      const std::string plain = cstring(file.name, "files.name");
      if (!is_plain_name(plain)) fail("files.name", "a plain file name", plain);
      const auto bytes = items(static_cast<const std::byte*>(file.data), file.size, "files.data");
      if (!files_.emplace(plain, bytes).second) fail("files.name", "each name once", plain);
    }
  }

  bool has(const std::string& name) const override { return files_.contains(name); }

  std::shared_ptr<const FileBytes> open(const std::string& name) const override {
    return std::make_shared<const FileBytes>(path_of(name), find(name), keeps_alive_);
  }

  std::string read(const std::string& name, size_t limit) const override {
    const std::span<const std::byte> bytes = find(name);
    if (bytes.size() > limit) {
      throw Error(ErrorKind::format, path_of(name), "",
                  "at most " + std::to_string(limit) + " bytes", std::to_string(bytes.size()));
    }
    return bytes.empty() ? ""
                         : std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

 private:
  std::span<const std::byte> find(const std::string& name) const {
    const auto it = files_.find(name);
    if (it == files_.end())
      throw Error(ErrorKind::io, path_of(name), "", "a file of that name", "none");
    return it->second;
  }

  std::map<std::string, std::span<const std::byte>> files_;
  std::shared_ptr<const void> keeps_alive_;
};

class OwningSource : public FileSource {
 public:
  OwningSource(std::shared_ptr<const FileSource> source, std::shared_ptr<const void> keeps_alive)
      : FileSource(source->path(), source->path_of("")),
        source_(std::move(source)),
        keeps_alive_(std::move(keeps_alive)) {}

  bool has(const std::string& name) const override { return source_->has(name); }
  void check_own(const std::string& name) const override { source_->check_own(name); }
  std::string read(const std::string& name, size_t limit) const override {
    return source_->read(name, limit);
  }
  JsonReader json(const std::string& name, size_t limit) const override {
    return source_->json(name, limit);
  }
  std::shared_ptr<const FileBytes> open(const std::string& name) const override {
    const std::shared_ptr<const FileBytes> file = open_file(*source_, name);
    return std::make_shared<const FileBytes>(file->path(), file->bytes(), both(file, keeps_alive_),
                                             file->mapping());
  }

 private:
  std::shared_ptr<const FileSource> source_;
  std::shared_ptr<const void> keeps_alive_;
};

}  // namespace

std::shared_ptr<const void> lent(stet_release_callback release, void* context) {
  if (release == nullptr) return nullptr;
  // A callback in C++ may throw, and no caller could receive the exception.
  return std::shared_ptr<const void>(static_cast<const void*>(&kLent), [=](const void*) {
    try {
      release(context);
    } catch (...) {
    }
  });
}

std::shared_ptr<const void> both(std::shared_ptr<const void> a, std::shared_ptr<const void> b) {
  return std::make_shared<
      const std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(std::move(a),
                                                                                 std::move(b));
}

std::shared_ptr<const FileSource> lent_files(std::span<const stet_file> files,
                                             const std::string& name,
                                             std::shared_ptr<const void> keeps_alive) {
  return std::make_shared<const LentFiles>(files, name, std::move(keeps_alive));
}

std::shared_ptr<const FileSource> with_owner(std::shared_ptr<const FileSource> source,
                                             std::shared_ptr<const void> keeps_alive) {
  if (keeps_alive == nullptr) return source;
  return std::make_shared<const OwningSource>(std::move(source), std::move(keeps_alive));
}

}  // namespace stet::c

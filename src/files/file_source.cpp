#include "stet/files/file_source.hpp"

#include <algorithm>
#include <filesystem>
#include <map>

#include "src/base/json_value.hpp"
#include "src/base/known_content.hpp"
#include "src/files/additional_templates.hpp"
#include "src/files/open_file.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/base/memory.hpp"

namespace stet {
namespace {

constexpr size_t kReadAtOnce = size_t{1} << 20;

std::shared_ptr<const FileBytes> read_into_memory(const std::string& path) {
  const auto content = std::make_shared<const FileContent>(read_file_to_memory(path));
  return std::make_shared<const FileBytes>(path, content->bytes(), content);
}

class DirectorySource : public FileSource {
 public:
  DirectorySource(const std::string& directory, bool map)
      : FileSource(directory,
                   directory.empty() || directory.ends_with('/') ? directory : directory + "/"),
        map_(map) {}

  bool has(const std::string& name) const override { return is_there(name) || is_made(name); }

  std::shared_ptr<const FileBytes> open(const std::string& name) const override {
    const std::string path = path_of(name);
    if (is_made(name)) {
      const auto text =
          std::make_shared<const std::string>(additional_templates_json(this->path()));
      return std::make_shared<const FileBytes>(path, std::as_bytes(std::span(*text)), text);
    }
    std::error_code unknown;
    if (std::filesystem::file_size(path, unknown) == 0) {  // empty files cannot be mapped
      return std::make_shared<const FileBytes>(path, std::span<const std::byte>(), nullptr);
    }
    std::shared_ptr<const FileBytes> content;
    if (map_) {
      const auto file = MappedFile::open(path);
      content = std::make_shared<const FileBytes>(path, file->bytes(), nullptr, file);
    } else {
      content = read_into_memory(path);
    }
    check_not_pointer(content->bytes(), content->bytes().size(), path);
    return content;
  }

  std::string read(const std::string& name, size_t limit) const override {
    if (is_made(name)) {
      std::string made = additional_templates_json(path());
      if (made.size() <= limit) return made;
      throw Error(ErrorKind::format, path_of(name), "",
                  "at most " + std::to_string(limit) + " bytes", std::to_string(made.size()));
    }
    std::string text = read_text_file(path_of(name), limit);
    check_not_pointer(std::as_bytes(std::span(text)), text.size(), path_of(name));
    return text;
  }

  void check_own(const std::string& name) const override {
    if (!is_made(name)) return check_own_file(name);
    for (const std::string& file : additional_template_files(path())) check_own_file(file);
  }

 private:
  bool is_there(const std::string& name) const {
    std::error_code unknown;  // reading will report the same error
    return std::filesystem::symlink_status(path_of(name), unknown).type() !=
           std::filesystem::file_type::not_found;
  }

  // Returns whether the file is composed from a folder.
  bool is_made(const std::string& name) const {
    return name == kAdditionalTemplates && !is_there(name) &&
           !additional_template_files(path()).empty();
  }

  void check_own_file(const std::string& name) const {
    namespace fs = std::filesystem;
    std::error_code error;
    const fs::path home = fs::canonical(path().empty() ? "." : path(), error);
    const fs::path file = error ? fs::path() : fs::canonical(path_of(name), error);
    if (error)
      throw Error(ErrorKind::io, path_of(name), "", "", "cannot be read: " + error.message());
    const bool inside = *file.lexically_relative(home).begin() != "..";
    const bool blob = home.parent_path().filename() == "snapshots" &&
                      file.parent_path() == home.parent_path().parent_path() / "blobs";
    if ((inside || blob) && fs::is_regular_file(file, error)) return;
    throw Error(ErrorKind::io, path_of(name), "",
                "a regular file of its directory, to put into a snapshot",
                "a link to " + file.string());
  }

  bool map_;
};

class MemorySource : public FileSource {
 public:
  MemorySource(std::vector<std::pair<std::string, std::string>> files, const std::string& path)
      : FileSource(path, path + ": ") {
    for (auto& [name, text] : files)
      files_[name] = std::make_shared<const std::string>(std::move(text));
  }

  bool has(const std::string& name) const override { return files_.contains(name); }

  std::shared_ptr<const FileBytes> open(const std::string& name) const override {
    const std::shared_ptr<const std::string>& text = find(name);
    return std::make_shared<const FileBytes>(path_of(name), std::as_bytes(std::span(*text)), text);
  }

  std::string read(const std::string& name, size_t limit) const override {
    const std::string& text = *find(name);
    if (text.size() <= limit) return text;
    throw Error(ErrorKind::format, path_of(name), "", "at most " + std::to_string(limit) + " bytes",
                std::to_string(text.size()));
  }

 private:
  const std::shared_ptr<const std::string>& find(const std::string& name) const {
    const auto it = files_.find(name);
    if (it == files_.end())
      throw Error(ErrorKind::format, path_of(name), "", "a file of that name", "none");
    return it->second;
  }

  std::map<std::string, std::shared_ptr<const std::string>> files_;
};

class CopyingSource : public FileSource {
 public:
  explicit CopyingSource(std::shared_ptr<const FileSource> source)
      : FileSource(source->path(), source->path_of("")), source_(std::move(source)) {}

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
    const auto copy = std::make_shared<Memory>(file->bytes().size());
    copy_bytes(file->bytes(), copy->data());
    file->check_unchanged();
    return std::make_shared<const FileBytes>(
        file->path(), std::span<const std::byte>(copy->data(), file->bytes().size()), copy);
  }

 private:
  std::shared_ptr<const FileSource> source_;
};

}  // namespace

FileBytes::FileBytes(std::string path, std::span<const std::byte> bytes,
                     std::shared_ptr<const void> keeps_alive,
                     std::shared_ptr<const MappedFile> mapping)
    : path_(std::move(path)),
      bytes_(bytes),
      keeps_alive_(std::move(keeps_alive)),
      mapping_(std::move(mapping)) {}

JsonReader FileSource::json(const std::string& name, size_t limit) const {
  return parse_python_json(read(name, limit), path_of(name));
}

void FileBytes::check_unchanged() const {
  if (mapping_ != nullptr) mapping_->check_unchanged();
}

void FileBytes::drop(size_t offset, size_t size) const {
  if (mapping_ == nullptr || offset > bytes_.size() || size > bytes_.size() - offset) return;
  mapping_->drop(static_cast<size_t>(bytes_.data() - mapping_->bytes().data()) + offset, size);
}

void FileBytes::stream(const std::function<void(std::span<const std::byte>)>& use) const {
  for (size_t at = 0; at < bytes().size(); at += kReadAtOnce) {
    const size_t size = std::min(kReadAtOnce, bytes_.size() - at);
    use(bytes_.subspan(at, size));
    drop(at, size);
  }
}

std::shared_ptr<const FileBytes> open_file(const FileSource& source, const std::string& name) {
  std::shared_ptr<const FileBytes> file = source.open(name);
  if (file == nullptr)
    throw Error(ErrorKind::io, source.path_of(name), "", "a file or an Error from its source",
                "null");
  return file;
}

std::shared_ptr<const FileSource> directory_source(const std::string& directory, bool map) {
  return std::make_shared<const DirectorySource>(directory, map);
}

std::shared_ptr<const FileSource> in_memory(std::shared_ptr<const FileSource> source) {
  return std::make_shared<const CopyingSource>(std::move(source));
}

std::shared_ptr<const FileSource> memory_source(
    std::vector<std::pair<std::string, std::string>> files, const std::string& path) {
  return std::make_shared<const MemorySource>(std::move(files), path);
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace stet

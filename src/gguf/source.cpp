// Presents a GGUF file as the files of a checkpoint.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "src/base/json_value.hpp"
#include "src/files/open_file.hpp"
#include "src/gguf/gguf.hpp"
#include "src/gguf/names.hpp"
#include "src/gguf/tensors.hpp"
#include "src/gguf/vocabulary.hpp"
#include "src/text/tokenizer_files.hpp"
#include "stet/base/error.hpp"
#include "stet/checkpoint/gguf.hpp"

namespace stet {
namespace {

constexpr const char* kConfig = "config.json";

class GgufSource : public FileSource {
 public:
  GgufSource(const std::string& path, const std::vector<Gguf>& parts, const std::string& pre)
      : FileSource(path, path + ": ") {
    const GgufNames names(parts);
    config_ = names.config();
    put("generation_config.json", names.generation_config());
    add_vocabulary(parts.front(), names.vocab_size(), pre);
    for (const Gguf& part : parts) files_[gguf_part_name(files_.size())] = part.file();
  }

  bool has(const std::string& name) const override {
    return name == kConfig || texts_.contains(name) || files_.contains(name);
  }
  std::shared_ptr<const FileBytes> open(const std::string& name) const override {
    if (const auto file = files_.find(name); file != files_.end()) return file->second;
    const auto text = text_of(name);
    return std::make_shared<const FileBytes>(path_of(name), std::as_bytes(std::span(*text)), text);
  }
  JsonReader json(const std::string& name, size_t limit) const override {
    return name == kConfig ? json_reader(config_, path_of(name)) : FileSource::json(name, limit);
  }
  std::string read(const std::string& name, size_t limit) const override {
    const auto file = open(name);
    const std::span<const std::byte> bytes = file->bytes();
    if (bytes.size() > limit)
      throw Error(ErrorKind::format, path_of(name), "",
                  "at most " + std::to_string(limit) + " bytes", std::to_string(bytes.size()));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  void put(const std::string& name, std::string text) {
    texts_[name] = std::make_shared<const std::string>(std::move(text));
  }

  // Writes config.json each time, since only snapshots and packed copies of the model have its text.
  std::shared_ptr<const std::string> text_of(const std::string& name) const {
    if (name == kConfig) {
      constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
      return std::make_shared<const std::string>(config_.dump(-1, ' ', false, kReplace));
    }
    const auto text = texts_.find(name);
    if (text == texts_.end())
      throw Error(ErrorKind::io, path_of(name), "", "", "the checkpoint has no such file");
    return text->second;
  }

  // Adds the tokenizer's files. Since weights need no vocabulary, an unusable one adds a file with
  // the reason instead.
  void add_vocabulary(const Gguf& keys, int64_t vocab_size, const std::string& pre) {
    try {
      for (auto& [name, text] : vocabulary_files(keys, vocab_size, pre)) put(name, std::move(text));
    } catch (const Error& e) {
      if (!pre.empty()) throw;
      put(kTokenizerFault, tokenizer_fault_text(e));
    }
  }

  nlohmann::ordered_json config_;
  std::map<std::string, std::shared_ptr<const std::string>> texts_;
  std::map<std::string, std::shared_ptr<const FileBytes>> files_;
};

// Returns the paths of all parts of a model split as "model-00001-of-00003.gguf".
std::vector<std::string> parts_of(const std::string& path, const Gguf& first) {
  const int64_t count = first.integer("split.count", 0, 9999).value_or(0);
  if (count <= 1) return {path};
  const std::string end = fmt::format("-of-{:05}.gguf", count);
  const size_t digits = 5;
  if (!path.ends_with(end) || path.size() < end.size() + digits)
    first.fail("split.count", "a name that ends with NNNNN" + end, path);
  const std::string stem = path.substr(0, path.size() - end.size() - digits);
  std::vector<std::string> all;
  for (int64_t i = 1; i <= count; ++i) all.push_back(fmt::format("{}{:05}{}", stem, i, end));
  return all;
}

}  // namespace

std::shared_ptr<const FileSource> gguf_source(const std::string& path, bool map,
                                              const std::string& pre) {
  const std::filesystem::path whole(path);
  const auto source = directory_source(whole.parent_path().string(), map);
  const auto open = [&](const std::string& name) {
    return Gguf::parse(open_file(*source, std::filesystem::path(name).filename().string()));
  };
  std::vector<Gguf> parts;
  parts.push_back(open(path));
  for (const std::string& part : parts_of(path, parts.front())) {
    if (part != path) parts.push_back(open(part));
  }
  return std::make_shared<const GgufSource>(path, parts, pre);
}

}  // namespace stet

#include "src/checkpoint/checkpoint_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "src/base/json_value.hpp"
#include "src/base/known_content.hpp"
#include "stet/base/error.hpp"
#include "stet/checkpoint/gguf.hpp"

namespace stet {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBeginning = 1024, kMostConfig = size_t{16} << 20;
const std::string kPathExpected = "a checkpoint directory or a .gguf file";
const std::string kAdapterConfig = "adapter_config.json";

// Returns the first bytes of a regular file, and "" for anything else: reading a pipe could block
// without end.
std::string first_bytes(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return "";
  std::string bytes(kBeginning, '\0');
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(path.c_str(), "rb"),
                                                           std::fclose);
  bytes.resize(in ? std::fread(bytes.data(), 1, bytes.size(), in.get()) : 0);
  return bytes;
}

bool is_word(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
  });
}

}  // namespace

std::string hub_name(std::string path) {
  bool hub = false;
  for (const char* address : {"https://", "http://", "hf://", "huggingface.co/", "hf.co/"}) {
    if (!path.starts_with(address)) continue;
    path.erase(0, std::string_view(address).size());
    hub = true;
  }
  std::error_code ignored;
  const size_t slash = path.find('/');
  if (slash == std::string::npos) return "";
  size_t end = path.find_first_of("/?:#@", slash + 1);
  if (!hub && end != std::string::npos && path[end] == '/') return "";
  const std::string owner = path.substr(0, slash), name = path.substr(slash + 1, end - slash - 1);
  if (!is_word(owner) || !is_word(name) || owner[0] == '.' || name.ends_with(".gguf")) return "";
  return hub || !fs::exists(owner, ignored) ? owner + "/" + name : "";
}

namespace {

// Returns the sorted names of a directory's entries that end with `ending`.
std::vector<std::string> files_ending(const std::string& directory, const std::string& ending) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory.empty() ? "." : directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(ending)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

std::string base_of_adapter(const FileSource& source) {
  const JsonReader adapter = source.json(kAdapterConfig, kMostConfig);
  const std::string base = adapter.string_or("base_model_name_or_path", "");
  return base.empty() ? "" : " of " + base;
}

[[noreturn]] void refuse_found(const std::string& path, const std::string& field,
                               const std::string& expected, const std::string& found) {
  throw Error(ErrorKind::io, path, field, expected, found);
}

[[noreturn]] void refuse_without_config(const FileSource& source) {
  const std::string& path = source.path();
  const char* const config = "config.json";
  if (source.has(kAdapterConfig))
    throw Error(ErrorKind::unsupported, path, kAdapterConfig, "",
                "this is an adapter alone" + base_of_adapter(source) +
                    "; merge_and_unload of peft merges it into its base model");
  if (const auto files = files_ending(path, ".gguf"); !files.empty())
    refuse_found(path, config, "",
                 "the file is missing; to use " + files.front() + ", give its path");
  if (const auto revisions = files_ending(path + "/snapshots", ""); !revisions.empty())
    refuse_found(path, config, "",
                 "the file is missing; this is a cache of the Hub, whose files are in snapshots/" +
                     revisions.back());
  if (source.has("params.json"))
    refuse_found(path, config, "",
                 "the file is missing; params.json belongs to another layout than Hugging Face's");
  source.read(config, kMostConfig);  // throws if the file cannot be read
  refuse_found(path, config, "", "the file is missing");
}

}  // namespace

void refuse_path(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    const std::string name = hub_name(path);
    if (name.empty()) refuse_found(path, "", kPathExpected, "nothing of that name");
    refuse_found(
        path, "", "",
        fmt::format("this is a name on the Hub; \"hf download {} --local-dir {}\" gets the files",
                    name, name.substr(name.find('/') + 1)));
  }
  const std::string begin = first_bytes(path);
  const auto bytes = std::as_bytes(std::span(begin));
  check_not_pointer(bytes, fs::file_size(path, ignored), path);
  const fs::path directory = fs::path(path).parent_path();
  const std::string found = known_content(bytes);
  if (fs::exists(directory / "config.json", ignored))
    refuse_found(path, "",
                 fmt::format("{}, here {}", kPathExpected,
                             directory.empty() ? "its directory, ." : directory.string()),
                 "one file of a checkpoint");
  refuse_found(path, "", kPathExpected,
               !found.empty()                        ? found
               : !fs::is_regular_file(path, ignored) ? "a device or pipe"
               : begin.empty()                       ? "an empty file"
               : path.ends_with(".json")             ? "a JSON file"
                                                     : "a file of another kind");
}

void require_model(const FileSource& source) {
  if (!source.has("config.json")) refuse_without_config(source);
  for (const char* name :
       {"adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"}) {
    if (!source.has(name)) continue;
    throw Error(
        ErrorKind::unsupported, source.path_of(name), "", "",
        fmt::format(
            "an adapter{} is beside the model; merge_and_unload of peft merges it, and without "
            "this file the base model runs alone",
            name == kAdapterConfig ? base_of_adapter(source) : ""));
  }
}

std::shared_ptr<const FileSource> checkpoint_source(const std::string& path, bool map,
                                                    const std::string& pre) {
  std::error_code unknown;
  if (path.empty() || fs::is_directory(path, unknown)) {
    if (!pre.empty())
      throw Error(ErrorKind::argument, path, "--pre", "",
                  "only the text of GGUF files can be split as --pre says; this is a directory");
    return directory_source(path, map);
  }
  if (path.ends_with(".gguf") || first_bytes(path).starts_with("GGUF"))
    return gguf_source(path, map, pre);
  refuse_path(path);
}

}  // namespace stet

#include "src/files/additional_templates.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/files/file.hpp"

namespace stet {
namespace {

constexpr size_t kMostTemplates = 100;  // published checkpoints have a handful

std::string joined(const std::string& directory, const std::string& name) {
  return directory.empty() || directory.ends_with('/') ? directory + name : directory + "/" + name;
}

}  // namespace

std::vector<std::string> additional_template_files(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code none;
  for (std::filesystem::directory_iterator at(joined(directory, kAdditionalFolder), none), end;
       !none && at != end; at.increment(none)) {
    const std::string name = at->path().filename().string();
    if (name.ends_with(".jinja") && name.size() > 6)
      files.push_back(kAdditionalFolder + ("/" + name));
  }
  if (files.size() > kMostTemplates)
    throw Error(ErrorKind::format, joined(directory, kAdditionalFolder), "",
                "at most " + std::to_string(kMostTemplates) + " templates",
                std::to_string(files.size()));
  std::ranges::sort(files);
  return files;
}

std::string additional_templates_json(const std::string& directory) {
  using Json = nlohmann::ordered_json;
  Json all = Json::object();
  for (const std::string& file : additional_template_files(directory)) {
    const size_t begin = file.find('/') + 1, end = file.size() - 6;
    all[file.substr(begin, end - begin)] =
        read_text_file(joined(directory, file), kMaxTokenizerConfig);
  }
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace stet

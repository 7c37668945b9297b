#include "tools/command/outputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "stet/base/error.hpp"

namespace stet::tool {
namespace {

namespace fs = std::filesystem;

bool is_output(const std::string& option) {
  constexpr std::array kOutputs = {"--output", "--save", "--svg", "--html"};
  return std::ranges::find(kOutputs, option) != kOutputs.end();
}

// Returns true for the snapshot that a command continues, whose file it may replace. Saving a
// snapshot protects the parents of a delta by itself.
bool is_continued(const std::string& command, const std::string& option) {
  constexpr std::array kOthers = {"export", "capture", "logits", "measure", "patch"};
  constexpr std::array kSnapshots = {"snapshot", "--resume", "--against", "--parent"};
  return std::ranges::find(kOthers, command) == kOthers.end() &&
         std::ranges::find(kSnapshots, option) != kSnapshots.end();
}

// Returns the paths of all parts of a model split as "model-00001-of-00003.gguf".
std::vector<fs::path> parts_of(const std::string& path) {
  constexpr std::string_view kForm = "00000-of-00000.gguf";
  constexpr size_t kCountAt = 9, kDigits = 5, kMost = 9999;
  if (path.size() < kForm.size()) return {};
  const std::string stem = path.substr(0, path.size() - kForm.size()),
                    end = path.substr(stem.size() + kDigits);
  size_t count = 0;
  const char* const digits = path.data() + stem.size() + kCountAt;
  std::from_chars(digits, digits + kDigits, count);
  if (!end.starts_with("-of-") || !end.ends_with(".gguf") || count > kMost) return {};
  std::vector<fs::path> all;
  for (size_t i = 1; i <= count; ++i) all.emplace_back(fmt::format("{}{:05}{}", stem, i, end));
  return all;
}

// Returns the files that an argument stands for: those in a directory, else those of the path.
std::vector<fs::path> files_of(const std::string& path) {
  std::error_code ignored;
  std::vector<fs::path> all = parts_of(path);
  all.emplace_back(path);
  for (const auto& entry : fs::directory_iterator(path, ignored)) all.push_back(entry.path());
  return all;
}

bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::is_regular_file(a, error) && fs::equivalent(a, b, error) && !error;
}

}  // namespace

void refuse_to_replace_inputs(Command& app) {
  app.after_parsing([&app] {
    const std::vector<FileArgument> all = app.file_arguments();
    for (const FileArgument& output : all) {
      if (!is_output(output.option)) continue;
      for (const FileArgument& input : all) {
        if (is_output(input.option) || is_continued(app.name(), input.option)) continue;
        for (const fs::path& file : files_of(input.path)) {
          if (is_same_file(output.path, file))
            usage_error(output.option, "a file that is not read",
                        fmt::format("{}, which {} reads; name another file", printable(output.path),
                                    input.option));
        }
      }
    }
  });
}

}  // namespace stet::tool

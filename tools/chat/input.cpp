#include "tools/chat/input.hpp"

#include <utility>

namespace stet::tool {
namespace {

constexpr std::string_view kQuotes = "\"\"\"";

// Returns the index at which a line opens a block, or npos. A message opens one at its beginning, a
// command after its name or at its end ("/edit 2 """").
size_t block_at(const std::string& line) {
  if (line.starts_with(kQuotes)) return 0;
  if (!line.starts_with('/') || line.starts_with("//")) return std::string::npos;
  const size_t text = line.find_first_not_of(' ', line.find(' '));
  if (text == std::string::npos) return text;
  if (line.compare(text, kQuotes.size(), kQuotes) == 0) return text;
  return line.ends_with(" \"\"\"") ? line.size() - kQuotes.size() : std::string::npos;
}

}  // namespace

std::optional<std::string> InputLines::add(const std::string& line) {
  if (state_ == State::block) return add_to_block(line);
  const bool single = line.find('\n') == std::string::npos;
  if (const size_t at = block_at(line);
      state_ == State::none && single && at != std::string::npos) {
    state_ = State::block;
    message_ = at == 0;
    text_ = line.substr(0, at);
    const std::string rest = line.substr(at + kQuotes.size());
    return rest.empty() ? std::nullopt : add_to_block(rest);
  }
  text_ += line;
  if (single && line.ends_with('\\')) {
    state_ = State::continued;
    text_.back() = '\n';
    return std::nullopt;
  }
  return take();
}

std::optional<std::string> InputLines::add_to_block(const std::string& line) {
  const size_t size = line.find_last_not_of(" \t") + 1;
  if (!std::string_view(line).substr(0, size).ends_with(kQuotes)) {
    text_ += line + '\n';
    return std::nullopt;
  }
  text_ += line.substr(0, size - kQuotes.size());
  if (size == kQuotes.size() && text_.ends_with('\n'))
    text_.pop_back();  // the closing quotes were alone on their line
  if (message_ && text_.starts_with('/')) text_.insert(0, "/");
  return take();
}

void InputLines::drop() { take(); }

std::string InputLines::take() {
  state_ = State::none;
  return std::exchange(text_, "");
}

std::string InputLines::expected() const {
  return state_ == State::block ? "a line that ends in \"\"\""
                                : "a line to go on with after the \\";
}

}  // namespace stet::tool

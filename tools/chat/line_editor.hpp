// Reads lines: on a terminal with editing, history and completion, else as they come.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stet::tool {

class LineEditor {
 public:
  // Returns the words that the last word of a line, up to the cursor, may be completed to.
  using Completer = std::function<std::vector<std::string>(const std::string& line)>;

  // `history` is the path of the history file, or empty. read() ends early when `wake_fd` is
  // readable; -1 stands for none.
  LineEditor(Completer completer, const std::string& history, int wake_fd);
  ~LineEditor();

  enum class Got { line, given_up, end };  // given up with Ctrl-C; end of input, or Ctrl-D
  // Reads the next line without its end. A pasted block is returned as several lines in one text.
  Got read(const std::string& prompt, std::string* line);

  class Input;
  struct Impl;

 private:
  std::unique_ptr<Input> input_;
  std::unique_ptr<Impl> impl_;  // null without a terminal or without libedit
};

}  // namespace stet::tool

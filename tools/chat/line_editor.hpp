// Lines that a person types: with editing, history and completion on a terminal, else as they come.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stet::tool {

class LineEditor {
 public:
  // What the last word of a line up to the cursor may become, as whole words.
  using Completer = std::function<std::vector<std::string>(const std::string& line)>;

  // `history` is a file that outlives the process; empty: none. What is read ends when `wake_fd` is
  // readable (-1: none).
  LineEditor(Completer completer, const std::string& history, int wake_fd);
  ~LineEditor();

  enum class Got { line, given_up, end };  // given up with Ctrl-C; the end of input, or Ctrl-D
  // The next line without its end; several of them where a block was pasted, which ends with none.
  Got read(const std::string& prompt, std::string* line);

  class Input;
  struct Impl;

 private:
  std::unique_ptr<Input> input_;
  std::unique_ptr<Impl> impl_;  // null: not a terminal, or built without libedit
};

}  // namespace stet::tool

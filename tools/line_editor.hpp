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

  // `history` is a file that outlives the process; empty: none.
  LineEditor(Completer completer, const std::string& history);
  ~LineEditor();

  // Whether the user sees a prompt.
  bool interactive() const;
  // The next line without its end; "" when it was given up with Ctrl-C; nothing at the end of input.
  std::optional<std::string> read(const std::string& prompt);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;  // null: not a terminal, or built without libedit
};

}  // namespace stet::tool

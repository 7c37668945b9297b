// Joins typed lines to messages and commands.
#pragma once

#include <optional>
#include <string>

namespace stet::tool {

// A line that ends in \ continues in the next. A line that begins with """ opens a message of
// several lines, and the first line that ends in """ closes it. After a command ("/system """) the
// quotes open a text for the command. A pasted block is one message. A line that begins with / is a
// command, and one that begins with // is a message that begins with /.
class InputLines {
 public:
  // Returns the message or command that this line completes, or nothing.
  std::optional<std::string> add(const std::string& line);
  bool open() const { return state_ != State::none; }  // a message is incomplete
  void drop();                                         // discards it
  std::string expected() const;  // the line that would complete it, for an error

 private:
  enum class State { none, continued, block };
  std::string take();
  std::optional<std::string> add_to_block(const std::string& line);

  State state_ = State::none;
  bool message_ = false;  // the block is a message even if it begins with /
  std::string text_;
};

}  // namespace stet::tool

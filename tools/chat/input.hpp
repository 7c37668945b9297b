// Lines as they are typed, put together to messages and commands.
#pragma once

#include <optional>
#include <string>

namespace stet::tool {

// A line that ends in \ goes on in the next. A line that begins with """ opens a message of several
// lines, which ends with the first line that ends in """; behind a command ("/system """) it opens
// a text of several lines for that. Lines that come as one (a pasted block) are taken as they are.
// What begins with one / is a command; a message that begins with / has // there.
class InputLines {
 public:
  // What is complete with this line, if anything.
  std::optional<std::string> add(const std::string& line);
  bool open() const {
    return state_ != State::none;
  }                              // something has begun and goes on in the next line
  void drop();                   // forgets it
  std::string expected() const;  // how it would end, for an error

 private:
  enum class State { none, continued, block };
  std::string take();
  std::optional<std::string> add_to_block(const std::string& line);

  State state_ = State::none;
  bool message_ = false;  // the block is a message, whatever it begins with
  std::string text_;
};

}  // namespace stet::tool

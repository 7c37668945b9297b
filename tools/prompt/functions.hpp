// Functions that a model may call, as the option --tools gives them to a chat template.
#pragma once

#include <string>
#include <string_view>

#include "stet/text/tokenizer.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {

// Reads a JSON array of functions (- for standard input), each {"type": "function", "function":
// {"name": ...}} or {"name": ...}. Throws a format Error with the file, the place, and what is
// expected there.
Json read_functions(const std::string& path);

// Returns "NAME, NAME" of functions as read_functions() returns them.
std::string function_names(const Json& functions);

// Throws an argument Error unless the chat template reads the variable `tools`. `source` is the
// template; "" stands for the tokenizer's own templates.
void require_tools(std::string_view source, const Tokenizer& tokenizer);

// Gives functions to a conversation's chat template, in place of those that it had. Throws as
// require_tools() does.
void set_tools(const Json& functions, const Tokenizer& tokenizer, ChatState& chat);

}  // namespace stet::tool

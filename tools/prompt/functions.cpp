#include "tools/prompt/functions.hpp"

#include <fmt/format.h>

#include "src/base/json_value.hpp"
#include "stet/base/error.hpp"

namespace stet::tool {
namespace {

constexpr const char* kForm = "[{\"type\": \"function\", \"function\": {\"name\": …}}, …]";

// Returns the object that has a function's name.
const Json& function_of(const Json& tool) {
  return tool.contains("function") ? tool["function"] : tool;
}

// Throws a format Error for a function without a name, or with members of other kinds.
void check_function(const Json& tool, const std::string& path, const std::string& at) {
  const auto fail = [&](const std::string& field, const std::string& expected, const Json& found) {
    throw Error(ErrorKind::format, path, field, expected, printable(dump(found), 60));
  };
  if (!tool.is_object()) fail(at, "an object", tool);
  const Json& function = function_of(tool);
  const std::string place = at + (tool.contains("function") ? ".function" : "");
  if (!function.is_object()) fail(place, "an object", function);
  const Json name = function.value("name", Json());
  if (!name.is_string() || name == "") fail(place + ".name", "the name of a function", name);
  const Json parameters = function.value("parameters", Json::object());
  if (!parameters.is_object()) fail(place + ".parameters", "a JSON schema", parameters);
}

}  // namespace

Json read_functions(const std::string& path) {
  const Json all = parse_ordered_json(read_prompt(path), path);
  if (!all.is_array())
    throw Error(ErrorKind::format, path, "", fmt::format("a JSON array of functions, {}", kForm),
                printable(dump(all), 60));
  for (size_t i = 0; i < all.size(); ++i) check_function(all[i], path, fmt::format("[{}]", i));
  return all;
}

std::string function_names(const Json& functions) {
  std::string names;
  for (const Json& tool : functions)
    names += (names.empty() ? "" : ", ") + function_of(tool)["name"].get<std::string>();
  return names;
}

void require_tools(std::string_view source, const Tokenizer& tokenizer) {
  const auto reads = [](std::string_view text) {
    return text.find("tools") != std::string_view::npos;
  };
  if (source.empty()
          ? reads(tokenizer.chat_template()) || reads(tokenizer.chat_template("tool_use"))
          : reads(source))
    return;
  throw Error(ErrorKind::argument, "", "--tools", "a chat template that has tools",
              "one without (--chat-template FILE uses another one)");
}

void set_tools(const Json& functions, const Tokenizer& tokenizer, ChatState& chat) {
  require_tools(chat.chat_template, tokenizer);
  Json all =
      chat.variables.empty() ? Json::object() : parse_ordered_json(chat.variables, "variables");
  all["tools"] = functions;
  chat.variables = dump(all);
}

}  // namespace stet::tool

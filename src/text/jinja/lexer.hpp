// Splits template source into tokens, with white space control applied.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/text/jinja/context.hpp"

namespace stet::jinja {

struct Token {
  enum class Type {
    data,
    variable_begin,
    variable_end,
    block_begin,
    block_end,
    name,
    string,
    integer,
    number,
    sign,
    end
  };
  Type type;
  std::string text;  // unescaped if it is a string
  Position at;

  bool is(Type t, std::string_view what) const { return type == t && text == what; }
  bool is_name(std::string_view what) const { return is(Type::name, what); }
  bool is_sign(std::string_view what) const { return is(Type::sign, what); }
};

// Returns the tokens; the last has type end. Throws a format Error.
std::vector<Token> tokenize(std::string_view source, const std::string& name);

}  // namespace stet::jinja

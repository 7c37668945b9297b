// JSON of nobody knows whom, as a value of the JSON library.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "stet/base/json_reader.hpp"

namespace stet {

// A JSON value. A format Error tells line and column of what is not JSON; duplicate keys, numbers
// that do not fit a double, nesting deeper than 64, and more values than limits.hpp allows are
// errors too.
nlohmann::json parse_json_value(std::string_view text, const std::string& file);
// The same with members in the order of the text. Time grows as n log n with their number, where
// the library's own parser compares each with all before it.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& file);

// The same of files that Python's json module wrote, which transformers reads: Infinity, -Infinity
// and NaN are numbers.
JsonReader parse_python_json(std::string_view text, const std::string& file);
nlohmann::json parse_python_json_value(std::string_view text, const std::string& file);
nlohmann::ordered_json parse_ordered_python_json(std::string_view text, const std::string& file);

// What a reader reads.
const nlohmann::json& json_of(const JsonReader& reader);

}  // namespace stet

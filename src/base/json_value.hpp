// Parses untrusted JSON to values of the JSON library.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "stet/base/json_reader.hpp"

namespace stet {

// Parses JSON. Throws a format Error with line and column for invalid JSON. Duplicate keys, numbers
// beyond a double, nesting deeper than 64 and more values than limits.hpp allows are errors, too.
nlohmann::json parse_json_value(std::string_view text, const std::string& file);
// Parses JSON and keeps members in the order of the text. Takes n log n time for n members, unlike
// the library's parser, which compares each with all before it.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& file);

// Parse files written by Python's json module, as transformers reads them: Infinity, -Infinity and
// NaN are numbers.
JsonReader parse_python_json(std::string_view text, const std::string& file);
nlohmann::json parse_python_json_value(std::string_view text, const std::string& file);
nlohmann::ordered_json parse_ordered_python_json(std::string_view text, const std::string& file);

// Throws the format Error for a text that the library's parser refuses: line, column, and what is
// wrong there. `position` and `token` are those of the event parse_error; `id` and `what` are those
// of its exception.
[[noreturn]] void throw_json_fault(std::string_view text, const std::string& file, size_t position,
                                   const std::string& token, int id, std::string_view what);

// Returns a reader of a value. Throws a format Error that names `file` if it is no object.
JsonReader json_reader(nlohmann::json value, const std::string& file);
// Returns the value behind a reader.
const nlohmann::json& json_of(const JsonReader& reader);

}  // namespace stet

#include "tools/serve/fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stet/base/error.hpp"

namespace stet::serve {
namespace {

std::string shown(const Json& value) { return printable(tool::dump(value), 60); }

bool is_nothing(const Json& value) {
  return value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         ((value.is_array() || value.is_object()) && value.empty());
}

// A value without those members that ask for nothing; levels are bounded by parse_body().
Json what_is_asked(const Json& value) {
  if (!value.is_object()) return value;
  Json asked = Json::object();
  for (const auto& [name, member] : value.items()) {
    Json inner = what_is_asked(member);
    if (!is_nothing(inner)) asked[name] = std::move(inner);
  }
  return asked;
}

}  // namespace

void refuse(const std::string& pointer, const std::string& expected, const std::string& found,
            const std::string& code) {
  throw RequestError(
      400, code, fmt::format("{}: expected {}, found {}", printable(pointer, 200), expected, found),
      pointer);
}

void unsupported(const std::string& pointer, const std::string& what, const std::string& hint,
                 const std::string& code) {
  throw RequestError(400, code,
                     fmt::format("{}: {} is not supported by this server; {}",
                                 printable(pointer, 200), printable(what, 100), hint),
                     pointer);
}

Fields::Fields(const Json& object, std::string pointer)
    : object_(object), pointer_(std::move(pointer)) {
  if (!object.is_object()) refuse(pointer_, "an object", shown(object));
}

std::vector<std::string> Fields::names() const {
  std::vector<std::string> all;
  for (const auto& [name, value] : object_.items()) all.push_back(name);
  return all;
}

const Json* Fields::find(const std::string& name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> Fields::text(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(at(name), "a string", shown(*value));
  return value->get<std::string>();
}

std::string Fields::required_text(const std::string& name) {
  std::optional<std::string> value = text(name);
  if (!value) refuse(at(name), "a string", "nothing", "missing_field");
  return *value;
}

std::optional<int64_t> Fields::integer(const std::string& name, int64_t min, int64_t max) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const bool whole = value->is_number_integer() &&
                     (!value->is_number_unsigned() || value->get<uint64_t>() <= INT64_MAX);
  if (!whole || value->get<int64_t>() < min || value->get<int64_t>() > max)
    refuse(at(name), fmt::format("an integer in {}..{}", min, max), shown(*value));
  return value->get<int64_t>();
}

std::optional<double> Fields::number(const std::string& name, double min, double max) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max))
    refuse(at(name), fmt::format("a number in {}..{}", min, max), shown(*value));
  return value->get<double>();
}

std::optional<bool> Fields::boolean(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(at(name), "true or false", shown(*value));
  return value->get<bool>();
}

std::vector<int32_t> read_ids(const Json& value, const std::string& pointer, int64_t vocab_size) {
  if (!value.is_array()) refuse(pointer, "an array of token ids", shown(value));
  std::vector<int32_t> all;
  for (const Json& id : value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size))
      refuse(fmt::format("{}/{}", pointer, all.size()),
             fmt::format("a token id in 0..{}", vocab_size - 1), shown(id));
    all.push_back(static_cast<int32_t>(id.get<uint64_t>()));
  }
  return all;
}

std::optional<std::vector<int32_t>> Fields::ids(const std::string& name, int64_t vocab_size) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return read_ids(*value, at(name), vocab_size);
}

std::vector<std::string> Fields::texts(const std::string& name, size_t most) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  const auto text_of = [](const std::string& where, const Json& text) {
    constexpr size_t kMost = 65536;
    if (!text.is_string()) refuse(where, "a string", shown(text));
    auto s = text.get<std::string>();
    if (s.empty() || s.size() > kMost)
      refuse(where, fmt::format("1 to {} bytes", kMost), std::to_string(s.size()));
    return s;
  };
  if (value->is_string()) return {text_of(at(name), *value)};
  if (!value->is_array() || value->size() > most)
    refuse(at(name), fmt::format("a string, or at most {} of them", most), shown(*value));
  std::vector<std::string> all;
  for (const Json& text : *value)
    all.push_back(text_of(fmt::format("{}/{}", at(name), all.size()), text));
  return all;
}

std::optional<Fields> Fields::object(const std::string& name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return Fields(*value, at(name));
}

std::optional<std::string> Fields::name(const std::string& name) {
  std::optional<std::string> value = text(name);
  return value && value->empty() ? std::nullopt : std::move(value);
}

void Fields::neutral(const std::string& name, std::initializer_list<Json> values,
                     const std::string& hint) {
  const Json* value = find(name);
  if (value == nullptr) return;
  const Json asked = what_is_asked(*value);
  if (is_nothing(asked) || std::find(values.begin(), values.end(), asked) != values.end()) return;
  if (!hint.empty()) unsupported(at(name), name, hint);
  unsupported(at(name), name,
              values.size() == 0 ? "leave it out"
                                 : "send " + tool::dump(*values.begin()) + " or leave it out");
}

void Fields::unused(std::initializer_list<const char*> names) {
  for (const char* name : names) known_.insert(name);
}

std::string Fields::at(const std::string& name) const {
  std::string pointer = pointer_ + "/";
  for (const char c : name) {
    if (c == '~')
      pointer += "~0";
    else if (c == '/')
      pointer += "~1";
    else
      pointer += c;
  }
  return pointer;
}

void Fields::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (!known_.contains(name) && !value.is_null())
      unsupported(at(name), name, "leave it out", "unknown_field");
  }
}

}  // namespace stet::serve

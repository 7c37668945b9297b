#include "tools/serve/fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/base/json_value.hpp"
#include "stet/base/error.hpp"

namespace stet::serve {
namespace {

constexpr size_t kMostLevels = 32, kMostValues = size_t{1} << 20;

// Scans a JSON text once. It checks the order of values and leaves the content of numbers and
// strings to the parser.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
  }

  void run() {
    if (peek() != '{') fail("a JSON object");
    do take_value();
    while (follows_value());
    if (peek() != '\0' || at_ < text_.size()) fail("the end of the body");
  }

 private:
  // Skips white space. Returns the next byte, or 0 at the end.
  char peek() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  // Takes a simple value, or opens containers up to the first simple value in them.
  void take_value() {
    for (;;) {
      const char c = peek();
      if (++values_ > kMostValues) refuse(fmt::format("JSON of at most {} values", kMostValues));
      if (c == '"') return take_string();
      if (c != '{' && c != '[') return take_word();
      if (open_.size() == kMostLevels)
        refuse(fmt::format("JSON of at most {} levels", kMostLevels));
      ++at_;
      open_ += c == '{' ? '}' : ']';
      if (take(open_.back())) return open_.pop_back();
      if (c == '{') take_key("a key in quotes, or '}'");
    }
  }

  // Closes the containers that end after a value. Returns true if another value follows.
  bool follows_value() {
    for (; !open_.empty(); open_.pop_back()) {
      if (take(',')) {
        if (open_.back() == '}') take_key("a key in quotes");
        return true;
      }
      if (!take(open_.back())) fail(fmt::format("',' or '{}'", open_.back()));
    }
    return false;
  }

  void take_key(const char* expected) {
    if (peek() != '"') fail(expected);
    take_string();
    if (!take(':')) fail("':'");
  }

  void take_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (static_cast<unsigned char>(text_[at_]) < 0x20)
        fail("an escape such as \\n in place of a control character");
      if (text_[at_] == '\\') ++at_;
    }
    at_ = std::min(at_, text_.size());
    if (at_ == text_.size()) fail("'\"' at the end of a string");
    ++at_;
  }

  // Takes true, false, null or a number.
  void take_word() {
    const size_t end = std::min(text_.find_first_of(" \t\r\n,:[]{}\"", at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    const bool number = !word.empty() && (word[0] == '-' || (word[0] >= '0' && word[0] <= '9'));
    if (!number && word != "true" && word != "false" && word != "null")
      fail(!open_.empty() && open_.back() == ']' ? "a value, or ']' where the list ends"
                                                 : "a value");
    at_ = end;
  }

  [[noreturn]] void refuse(const std::string& expected) const { stop(expected, "more"); }
  [[noreturn]] void fail(const std::string& expected) const {
    constexpr size_t kShown = 20;
    stop(expected, at_ == text_.size() ? "the end of the body"
                                       : printable(std::string(text_.substr(at_, kShown)), kShown));
  }
  [[noreturn]] void stop(const std::string& expected, const std::string& found) const {
    const std::string_view before = text_.substr(0, at_);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    throw RequestError(400, "invalid_json",
                       fmt::format("line {}, column {}: expected {}, found {}", line,
                                   at_ - (before.rfind('\n') + 1) + 1, expected, found));
  }

  std::string_view text_;
  size_t at_ = 0, values_ = 0;
  std::string open_;  // the closing characters of open containers
};

std::string shown(const Json& value) { return printable(tool::dump(value), 60); }

bool is_nothing(const Json& value) {
  return value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         ((value.is_array() || value.is_object()) && value.empty());
}

// Returns a value without empty members. parse_body() bounds its levels.
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

Json parse_body(const std::string& body) {
  Scan(body).run();
  try {
    return parse_ordered_json(body, "");
  } catch (const Error& e) {
    throw RequestError(400, "invalid_json",
                       fmt::format("{}{}expected {}, found {}", printable(e.field, 200),
                                   e.field.empty() ? "" : ": ", printable(e.expected, 200),
                                   printable(e.found, 60)));
  }
}

// ---------------------------------------------------------------- fields

void refuse(const std::string& pointer, const std::string& expected, const std::string& found,
            const std::string& code) {
  const std::string place = printable(pointer, 200);
  throw RequestError(400, code,
                     code == "missing_field"
                         ? fmt::format("{} is missing: give {}", place, expected)
                         : fmt::format("{}: expected {}, found {}", place, expected, found),
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

Field Fields::operator[](const std::string& name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return {found == object_.end() ? nullptr : &*found, name, at(name)};
}

std::optional<std::string> Field::text() const {
  const Json* const value = this->value();
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(pointer_, "a string", shown(*value));
  return value->get<std::string>();
}

std::string Field::required_text() const {
  std::optional<std::string> value = text();
  if (!value) refuse(pointer_, "a string", "nothing", "missing_field");
  return *value;
}

std::optional<int64_t> Field::integer(int64_t min, int64_t max) const {
  const Json* const value = this->value();
  if (value == nullptr) return std::nullopt;
  const bool whole = value->is_number_integer() &&
                     (!value->is_number_unsigned() || value->get<uint64_t>() <= INT64_MAX);
  if (!whole || value->get<int64_t>() < min || value->get<int64_t>() > max)
    refuse(pointer_, fmt::format("an integer in {}..{}", min, max), shown(*value));
  return value->get<int64_t>();
}

std::optional<double> Field::number(double min, double max) const {
  const Json* const value = this->value();
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max))
    refuse(pointer_, fmt::format("a number in {}..{}", min, max), shown(*value));
  return value->get<double>();
}

std::optional<bool> Field::boolean() const {
  const Json* const value = this->value();
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(pointer_, "true or false", shown(*value));
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

std::optional<std::vector<int32_t>> Field::ids(int64_t vocab_size) const {
  if (value() == nullptr) return std::nullopt;
  return read_ids(*value(), pointer_, vocab_size);
}

std::vector<std::string> Field::texts(size_t most, size_t most_bytes) const {
  const Json* const value = this->value();
  if (value == nullptr) return {};
  const auto text_of = [&](const std::string& where, const Json& text) {
    if (!text.is_string()) refuse(where, "a string", shown(text));
    auto s = text.get<std::string>();
    if (s.empty()) refuse(where, "at least one byte", "none");
    if (s.size() > most_bytes)
      refuse(where, fmt::format("at most {} bytes", most_bytes), std::to_string(s.size()));
    return s;
  };
  if (value->is_string()) return {text_of(pointer_, *value)};
  if (!value->is_array() || value->size() > most)
    refuse(pointer_, fmt::format("a string, or at most {} of them", most), shown(*value));
  std::vector<std::string> all;
  for (const Json& text : *value)
    all.push_back(text_of(fmt::format("{}/{}", pointer_, all.size()), text));
  return all;
}

std::optional<Fields> Field::object() const {
  if (value() == nullptr) return std::nullopt;
  return Fields(*value(), pointer_);
}

std::optional<std::string> Field::nonempty_text() const {
  std::optional<std::string> value = text();
  return value && value->empty() ? std::nullopt : std::move(value);
}

void Field::neutral(const std::vector<Json>& values, const std::string& hint) const {
  const Json* const value = this->value();
  if (value == nullptr) return;
  const Json asked = what_is_asked(*value);
  if (is_nothing(asked) || std::find(values.begin(), values.end(), asked) != values.end()) return;
  if (!hint.empty()) unsupported(pointer_, name_, hint);
  unsupported(
      pointer_, name_,
      values.empty() ? "leave it out" : "send " + tool::dump(values.front()) + " or leave it out");
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
    if (!known_.contains(name) && !is_nothing(what_is_asked(value)))
      unsupported(at(name), name, "leave it out", "unknown_field");
  }
}

}  // namespace stet::serve

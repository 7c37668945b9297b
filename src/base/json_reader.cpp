#include "src/base/json_value.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "src/base/json_memory.hpp"
#include "src/base/known_content.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

using SortedJson = nlohmann::json;

constexpr size_t kDepthLimit = 64;
constexpr double kExactIntegers = 9007199254740992.0;  // 2^53

// Returns the position of the last of the `count` bytes that the parser took. At the end of the
// text that is one past its last byte.
std::string line_and_column(std::string_view text, size_t count) {
  const std::string_view before = text.substr(0, std::min(count, text.size() + 1) - (count > 0));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1;  // 0 when there is no newline
  return fmt::format("line {}, column {}", line, before.size() - line_start + 1);
}

// A text in which numbers of the same length replace Python's Infinity and NaN, so that positions
// stay. `values` has the value of each replacement, in order, and nothing for an equal number of
// the original text.
struct PlainNumbers {
  static constexpr std::string_view kNan = "0e7", kInfinity = "0.00e007", kNegative = "-0.00e007";
  std::string text;
  std::deque<std::optional<double>> values;

  static bool marks(std::string_view number) {
    return number == kNan || number == kInfinity || number == kNegative;
  }
};

size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
  return std::min(at + 1, text.size());
}

PlainNumbers plain_numbers(std::string_view text) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  PlainNumbers plain{std::string(text), {}};
  const auto replace = [&](size_t at, std::string_view by, double value) {
    plain.text.replace(at, by.size(), by);
    plain.values.emplace_back(value);
  };
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      at = end_of_string(text, at);
      continue;
    }
    const size_t end = std::min(text.find_first_of(" \t\r\n,:[]{}\"", at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (word == "NaN") replace(at, PlainNumbers::kNan, std::nan(""));
    if (word == "Infinity") replace(at, PlainNumbers::kInfinity, kInfinite);
    if (word == "-Infinity") replace(at, PlainNumbers::kNegative, -kInfinite);
    if (PlainNumbers::marks(word)) plain.values.emplace_back();
    at = std::max(end, at + 1);
  }
  return plain;
}

// Returns the library's explanation without the position and the text, which the error shows
// anyway.
std::string fault_of(std::string_view all) {
  const size_t begin = all.find(" - ");
  if (begin == std::string_view::npos) return "";
  std::string fault(all.substr(begin + 3));
  if (const size_t read = fault.find("; last read: '"); read != std::string::npos) {
    const size_t end = fault.find("'; expected ", read);
    fault.erase(read, end == std::string::npos ? std::string::npos : end + 1 - read);
  }
  return fault;
}

// Builds the document from the parser's events, and refuses some input that the library would
// accept. The type Json decides whether members are sorted or keep the order of the text.
template <class Json>
class Builder : public nlohmann::json_sax<Json> {
  using Sax = nlohmann::json_sax<Json>;

 public:
  Builder(std::string_view text, const std::string& file,
          std::deque<std::optional<double>> special = {})
      : text_(text), file_(file), special_(std::move(special)) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(typename Sax::number_integer_t value) override { return add(value); }
  bool number_unsigned(typename Sax::number_unsigned_t value) override { return add(value); }
  bool number_float(typename Sax::number_float_t value, const std::string& number) override {
    if (!special_.empty() && PlainNumbers::marks(number)) {
      value = special_.front().value_or(value);
      special_.pop_front();
    }
    return add(value);
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(typename Sax::binary_t&) override { return false; }  // JSON text has none
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override {
    if constexpr (!kSorted) check_keys();
    return close();
  }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (kSorted && open_.back()->contains(name)) fail_twice(name);
    keys_.back() = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& e) override {
    throw_json_fault(text_, file_, position, token, e.id, e.what());
  }

 private:
  static constexpr bool kSorted = std::is_same_v<Json, SortedJson>;

  Json* add(Json&& value, bool) {
    memory_.charge(value, !open_.empty() && open_.back()->is_object() ? &keys_.back() : nullptr);
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    if constexpr (kSorted) {
      return &(parent[keys_.back()] = std::move(value));
    } else {  // the library would search all members for the name
      auto& members = parent.template get_ref<typename Json::object_t&>();
      return &members.emplace_back(std::move(keys_.back()), std::move(value)).second;
    }
  }

  template <typename Value>
  bool add(Value&& value) {
    add(Json(std::forward<Value>(value)), true);
    return true;
  }

  bool open(Json&& container) {
    if (open_.size() == kDepthLimit) {
      throw Error(ErrorKind::format, file_, "",
                  "JSON at most " + std::to_string(kDepthLimit) + " levels deep", "more levels");
    }
    open_.push_back(add(std::move(container), true));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  void check_keys() const {
    std::vector<const std::string*> names;
    for (const auto& member : open_.back()->template get_ref<const typename Json::object_t&>())
      names.push_back(&member.first);
    std::ranges::sort(
        names, {}, [](const std::string* name) -> const auto& { return *name; });
    const auto twice = std::ranges::adjacent_find(
        names, [](const std::string* a, const std::string* b) { return *a == *b; });
    if (twice != names.end()) fail_twice(**twice);
  }

  [[noreturn]] void fail_twice(const std::string& name) const {
    std::string path;
    for (size_t i = 0; i + 1 < open_.size(); ++i) {
      if (open_[i]->is_array())
        path += std::to_string(open_[i]->size() - 1) + ".";
      else
        path += name_of(i) + ".";
    }
    throw Error(ErrorKind::format, file_, path + name, "each key once", "a second value");
  }
  // Returns the name of the latest member of open object `i`.
  const std::string& name_of(size_t i) const {
    if constexpr (kSorted)
      return keys_[i];
    else
      return open_[i]->template get_ref<const typename Json::object_t&>().back().first;
  }

  std::string_view text_;
  const std::string& file_;
  std::deque<std::optional<double>> special_;  // values of the replaced numbers
  JsonMemory memory_{text_.size(), file_};
  Json root_;
  // The containers around the next value. Each is last in its parent, so none of them moves.
  std::vector<Json*> open_;
  std::vector<std::string> keys_;  // for each, the key of the next value
};

template <class Json>
Json parse(std::string_view text, const std::string& file) {
  Builder<Json> builder(text, file);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

template <class Json>
Json parse_python(std::string_view text, const std::string& file) {
  if (text.find("NaN") == std::string_view::npos && text.find("Infinity") == std::string_view::npos)
    return parse<Json>(text, file);
  PlainNumbers plain = plain_numbers(text);
  Builder<Json> builder(plain.text, file, std::move(plain.values));
  Json::sax_parse(plain.text.begin(), plain.text.end(), &builder);
  return builder.take();
}

std::string describe(const SortedJson* value) {
  if (value == nullptr) return "nothing";
  if (value->is_number_float() && !std::isfinite(value->get<double>())) {
    const double number = value->get<double>();
    return std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
  }
  if (value->is_object()) return "an object";
  if (value->is_array()) return "an array";
  return value->dump(-1, ' ', false, SortedJson::error_handler_t::replace);
}

std::string number_text(double value) { return SortedJson(value).dump(); }

// Returns the value as an integer, or nothing if it is not one.
std::optional<int64_t> as_integer(const SortedJson& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > INT64_MAX) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (number != std::floor(number) || std::abs(number) > kExactIntegers) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace

void throw_json_fault(std::string_view text, const std::string& file, size_t position,
                      const std::string& token, int id, std::string_view what) {
  const std::string tail = token.substr(token.size() - std::min<size_t>(token.size(), 40));
  const bool number = id == 406;  // the library's number for a value that overflows a double
  const std::string whole = known_content(std::as_bytes(std::span(text.data(), text.size())));
  const std::string fault = number ? "" : fault_of(what);
  throw Error(ErrorKind::format, file, line_and_column(text, position),
              number ? "a number that fits a double" : "valid JSON",
              !whole.empty()           ? whole
              : position > text.size() ? "the end of the text"
                                       : "'" + tail + "'" + (fault.empty() ? "" : ": " + fault));
}

struct JsonAccess {
  static JsonReader make(SortedJson&& parsed, const std::string& file) {
    auto value = std::make_shared<const SortedJson>(std::move(parsed));
    if (!value->is_object())
      throw Error(ErrorKind::format, file, "", "a JSON object", describe(value.get()));
    return {std::move(value), file, ""};
  }
  static const SortedJson& of(const JsonReader& r) {
    return *static_cast<const SortedJson*>(r.object_.get());
  }
  // Returns a reader of a value within r's document, which keeps the document alive.
  static JsonReader part(const JsonReader& r, const SortedJson* value, std::string path) {
    return {std::shared_ptr<const void>(r.object_, value), r.file_, std::move(path)};
  }
  // Returns null if the member is absent or null.
  static const SortedJson* find(const JsonReader& r, const std::string& name) {
    const SortedJson& object = of(r);
    const auto it = object.find(name);
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
  static int64_t checked_integer(const JsonReader& r, const SortedJson& value,
                                 const std::string& path, int64_t min, int64_t max) {
    const std::optional<int64_t> number = as_integer(value);
    if (number && *number >= min && *number <= max) return *number;
    throw Error(ErrorKind::format, r.file_, path,
                "an integer in " + std::to_string(min) + ".." + std::to_string(max),
                describe(&value));
  }
};

SortedJson parse_json_value(std::string_view text, const std::string& file) {
  return parse<SortedJson>(text, file);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& file) {
  return parse<nlohmann::ordered_json>(text, file);
}

JsonReader json_reader(SortedJson value, const std::string& file) {
  return JsonAccess::make(std::move(value), file);
}

JsonReader parse_json(std::string_view text, const std::string& file) {
  return json_reader(parse<SortedJson>(text, file), file);
}

JsonReader parse_python_json(std::string_view text, const std::string& file) {
  return json_reader(parse_python<SortedJson>(text, file), file);
}

nlohmann::json parse_python_json_value(std::string_view text, const std::string& file) {
  return parse_python<SortedJson>(text, file);
}

nlohmann::ordered_json parse_ordered_python_json(std::string_view text, const std::string& file) {
  return parse_python<nlohmann::ordered_json>(text, file);
}

const nlohmann::json& json_of(const JsonReader& reader) { return JsonAccess::of(reader); }

bool JsonReader::names(const std::string& name) const { return json_of(*this).contains(name); }
std::string JsonReader::text() const { return json_of(*this).dump(); }

std::string JsonReader::path_of(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

void JsonReader::fail(const std::string& name, const std::string& expected) const {
  throw Error(ErrorKind::format, file_, path_of(name), expected,
              describe(JsonAccess::find(*this, name)));
}

bool JsonReader::has(const std::string& name) const {
  return JsonAccess::find(*this, name) != nullptr;
}

bool JsonReader::has_object(const std::string& name) const {
  const SortedJson* value = JsonAccess::find(*this, name);
  return value != nullptr && value->is_object();
}

std::vector<std::string> JsonReader::keys() const {
  std::vector<std::string> keys;
  for (const auto& item : json_of(*this).items()) keys.push_back(item.key());
  return keys;
}

int64_t JsonReader::integer(const std::string& name, int64_t min, int64_t max) const {
  const SortedJson* value = JsonAccess::find(*this, name);
  if (value == nullptr)
    fail(name, "an integer in " + std::to_string(min) + ".." + std::to_string(max));
  return JsonAccess::checked_integer(*this, *value, path_of(name), min, max);
}

int64_t JsonReader::integer_or(const std::string& name, int64_t fallback, int64_t min,
                               int64_t max) const {
  return has(name) ? integer(name, min, max) : fallback;
}

double JsonReader::number(const std::string& name, double min, double max) const {
  const SortedJson* value = JsonAccess::find(*this, name);
  if (value != nullptr && value->is_number()) {
    const double number = value->get<double>();
    if (number >= min && number <= max) return number;
  }
  const bool from = min != -DBL_MAX, to = max != DBL_MAX;
  fail(name,
       std::string("a number") + (from && to ? " in " + number_text(min) + ".." + number_text(max)
                                  : from     ? " of at least " + number_text(min)
                                  : to       ? " of at most " + number_text(max)
                                             : ""));
}

double JsonReader::number_or(const std::string& name, double fallback, double min,
                             double max) const {
  return has(name) ? number(name, min, max) : fallback;
}

bool JsonReader::boolean(const std::string& name) const {
  const SortedJson* value = JsonAccess::find(*this, name);
  if (value == nullptr || !value->is_boolean()) fail(name, "true or false");
  return value->get<bool>();
}

bool JsonReader::boolean_or(const std::string& name, bool fallback) const {
  return has(name) ? boolean(name) : fallback;
}

std::string JsonReader::string(const std::string& name) const {
  const SortedJson* value = JsonAccess::find(*this, name);
  if (value == nullptr || !value->is_string()) fail(name, "a string");
  return value->get<std::string>();
}

std::string JsonReader::string_or(const std::string& name, const std::string& fallback) const {
  return has(name) ? string(name) : fallback;
}

JsonReader JsonReader::required_object(const std::string& name) const {
  const SortedJson* value = JsonAccess::find(*this, name);
  if (value == nullptr || !value->is_object()) fail(name, "an object");
  return JsonAccess::part(*this, value, path_of(name));
}

std::optional<JsonReader> JsonReader::object(const std::string& name) const {
  if (!has(name)) return std::nullopt;
  return required_object(name);
}

std::vector<JsonReader> JsonReader::objects(const std::string& name) const {
  const SortedJson* array = JsonAccess::find(*this, name);
  if (array == nullptr || !array->is_array()) fail(name, "an array of objects");
  std::vector<JsonReader> elements;
  elements.reserve(array->size());
  for (const SortedJson& element : *array) {
    if (!element.is_object()) fail(name, "an array of objects");
    elements.push_back(JsonAccess::part(
        *this, &element, path_of(name) + "[" + std::to_string(elements.size()) + "]"));
  }
  return elements;
}

std::vector<int64_t> JsonReader::integers(const std::string& name, int64_t min, int64_t max) const {
  std::vector<int64_t> numbers;
  const SortedJson* value = JsonAccess::find(*this, name);
  if (value == nullptr) return numbers;
  if (!value->is_array()) fail(name, "an array of integers");
  for (const SortedJson& element : *value) {
    const std::string path = path_of(name) + "[" + std::to_string(numbers.size()) + "]";
    numbers.push_back(JsonAccess::checked_integer(*this, element, path, min, max));
  }
  return numbers;
}

std::vector<double> JsonReader::numbers(const std::string& name) const {
  std::vector<double> numbers;
  const SortedJson* value = JsonAccess::find(*this, name);
  if (value == nullptr) return numbers;
  if (!value->is_array()) fail(name, "an array of numbers");
  for (const SortedJson& element : *value) {
    if (!element.is_number()) fail(name + "[" + std::to_string(numbers.size()) + "]", "a number");
    numbers.push_back(element.get<double>());
  }
  return numbers;
}

std::vector<int64_t> JsonReader::integer_or_integers(const std::string& name, int64_t min,
                                                     int64_t max) const {
  const SortedJson* value = JsonAccess::find(*this, name);
  if (value == nullptr || value->is_array()) return integers(name, min, max);
  return {integer(name, min, max)};
}

std::vector<std::string> JsonReader::strings(const std::string& name) const {
  std::vector<std::string> texts;
  const SortedJson* value = JsonAccess::find(*this, name);
  if (value == nullptr) return texts;
  if (!value->is_array()) fail(name, "an array of strings");
  for (const SortedJson& element : *value) {
    if (!element.is_string()) {
      throw Error(ErrorKind::format, file_,
                  path_of(name) + "[" + std::to_string(texts.size()) + "]", "a string",
                  describe(&element));
    }
    texts.push_back(element.get<std::string>());
  }
  return texts;
}

}  // namespace stet

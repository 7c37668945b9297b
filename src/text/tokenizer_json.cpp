#include "src/text/tokenizer_json.hpp"

#include <fmt/format.h>

#include "src/base/json_memory.hpp"
#include "src/base/json_value.hpp"
#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"

namespace stet {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;

// Builds the document from the parser's events. An object model.vocab and an array model.merges go
// into flat vectors: as a document, Gemma's half million merges would take seconds and 200 MB.
class Builder : public nlohmann::json_sax<json> {
 public:
  Builder(TokenizerJson& out, std::string_view text, const std::string& file)
      : out_(out), text_(text), file_(file), memory_(text.size(), file) {}

  bool null() override { return value(nullptr, "null"); }
  bool boolean(bool v) override { return value(v, "a boolean"); }
  bool number_float(double v, const std::string&) override { return value(v, "a fraction"); }
  bool binary(binary_t&) override { fail("JSON", "binary data"); }

  bool number_integer(int64_t v) override {
    if (mode_ == Mode::vocab) {
      if (out_.vocab.size() == kMaxPieces)
        fail("at most " + std::to_string(kMaxPieces) + " pieces", "more");
      out_.vocab.emplace_back(std::move(key_), v);
      return true;
    }
    return value(v, "a number");
  }

  bool number_unsigned(uint64_t v) override {
    if (mode_ == Mode::vocab) {
      return number_integer(v > INT64_MAX ? INT64_MAX : static_cast<int64_t>(v));
    }
    return value(v, "a number");
  }

  bool string(std::string& v) override {
    if (mode_ == Mode::merges) {
      merge_line(v);
      return true;
    }
    if (mode_ == Mode::pair) {
      if (++sides_ > 2) fail("two strings", "more");
      (sides_ == 1 ? left_ : right_) = v.size();
      out_.merge_text += v;
      return true;
    }
    return value(std::move(v), "a string");
  }

  bool start_object(size_t) override {
    if (mode_ == Mode::document && path_is("vocab")) {
      mode_ = Mode::vocab;
      out_.has_vocab = true;
      return true;
    }
    return open(json::object());
  }

  bool end_object() override {
    if (mode_ == Mode::vocab) {
      mode_ = Mode::document;
      return true;
    }
    return close();
  }

  bool start_array(size_t) override {
    if (mode_ == Mode::document && path_is("merges")) {
      mode_ = Mode::merges;
      out_.has_merges = true;
      return true;
    }
    if (mode_ == Mode::merges) {
      mode_ = Mode::pair;
      sides_ = 0;
      return true;
    }
    return open(json::array());
  }

  bool end_array() override {
    if (mode_ == Mode::merges) {
      mode_ = Mode::document;
      return true;
    }
    if (mode_ == Mode::pair) {
      if (sides_ != 2) fail("two strings", fmt::format("{}", sides_));
      mode_ = Mode::merges;
      add_merge(left_, right_);
      return true;
    }
    return close();
  }

  bool key(std::string& v) override {
    key_ = std::move(v);
    return true;
  }

  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& e) override {
    throw_json_fault(text_, file_, position, token, e.id, e.what());
  }

 private:
  enum class Mode { document, vocab, merges, pair };

  bool path_is(const char* name) const {
    return open_.size() == 2 && names_.back() == "model" && open_.back()->is_object() &&
           key_ == name;
  }

  // Returns the next value's key, or its index in an array. Call it after place().
  std::string name_of_next() const {
    if (open_.empty()) return "";
    return open_.back()->is_array() ? fmt::format("[{}]", open_.back()->size() - 1) : key_;
  }

  // Returns where to store the next value.
  json& place() {
    if (open_.empty()) return out_.document;
    json& parent = *open_.back();
    if (parent.is_array()) return parent.emplace_back();
    if (parent.contains(key_)) fail("each key once", key_ + " twice");
    return parent[key_];
  }

  template <class T>
  bool value(T&& v, const char* what) {
    if (mode_ == Mode::vocab) fail("an id for each piece", what);
    if (mode_ == Mode::merges) fail("strings or pairs of strings", what);
    if (mode_ == Mode::pair) fail("two strings", what);
    json element = std::forward<T>(v);
    charge(element);
    place() = std::move(element);
    return true;
  }

  bool open(json&& container) {
    if (mode_ == Mode::vocab) fail("an id for each piece", "an object or array");
    if (mode_ != Mode::document) fail("strings or pairs of strings", "an object or array");
    if (open_.size() == kMaxDepth) fail(fmt::format("nesting of at most {}", kMaxDepth), "more");
    charge(container);
    json& at = place();
    at = std::move(container);
    names_.push_back(name_of_next());
    open_.push_back(&at);
    return true;
  }

  bool close() {
    open_.pop_back();
    names_.pop_back();
    return true;
  }

  void charge(const json& element) {
    memory_.charge(element, !open_.empty() && open_.back()->is_object() ? &key_ : nullptr);
  }

  // Parses the older form of a merge: both sides separated by a space.
  void merge_line(const std::string& line) {
    if (line.starts_with("#version")) return;
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
      fail("two pieces with one space between", line);
    }
    out_.merge_text.append(line, 0, space).append(line, space + 1);
    add_merge(space, line.size() - space - 1);
  }

  void add_merge(size_t left, size_t right) {
    if (out_.merges.size() == kMaxMerges)
      fail("at most " + std::to_string(kMaxMerges) + " merges", "more");
    out_.merges.emplace_back(static_cast<uint32_t>(left), static_cast<uint32_t>(right));
  }

  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    std::string field;
    const auto add = [&](const std::string& name) {
      if (!field.empty() && !name.starts_with('[')) field += '.';
      field += name;
    };
    for (const std::string& name : names_) add(name);
    switch (mode_) {
      case Mode::document:
        if (!open_.empty() && open_.back()->is_object()) add(key_);
        break;
      case Mode::vocab:
        field = "model.vocab." + key_;
        break;
      default:
        field = fmt::format("model.merges[{}]", out_.merges.size());
    }
    throw Error(ErrorKind::format, file_, field, expected, found);
  }

  TokenizerJson& out_;
  std::string_view text_;
  const std::string& file_;
  JsonMemory memory_;
  Mode mode_ = Mode::document;
  std::vector<json*> open_;         // containers around the next value
  std::vector<std::string> names_;  // key of each of them
  std::string key_;
  int sides_ = 0;
  size_t left_ = 0, right_ = 0;
};

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& file) {
  TokenizerJson out;
  Builder builder(out, text, file);
  json::sax_parse(text.begin(), text.end(), &builder);
  if (!out.document.is_object()) {
    throw Error(ErrorKind::format, file, "", "a JSON object", out.document.type_name());
  }
  return out;
}

nlohmann::json parse_json_document(std::string_view text, const std::string& file) {
  nlohmann::json document = parse_python_json_value(text, file);
  if (!document.is_object())
    throw Error(ErrorKind::format, file, "", "a JSON object", document.type_name());
  return document;
}

std::optional<JsonNode> JsonNode::find(const std::string& name) const {
  if (!value_->is_object()) fail("an object");
  const auto it = value_->find(name);
  if (it == value_->end() || it->is_null()) return std::nullopt;
  return JsonNode(*it, file_, path_.empty() ? name : path_ + "." + name);
}

JsonNode JsonNode::at(const std::string& name) const {
  if (std::optional<JsonNode> node = find(name)) return *node;
  throw Error(ErrorKind::format, file_, path_.empty() ? name : path_ + "." + name, "a value",
              "none");
}

std::vector<JsonNode> JsonNode::elements() const {
  if (!value_->is_array()) fail("an array");
  std::vector<JsonNode> out;
  for (const nlohmann::json& element : *value_) {
    out.emplace_back(element, file_, fmt::format("{}[{}]", path_, out.size()));
  }
  return out;
}

std::string JsonNode::string() const {
  if (!value_->is_string()) fail("a string");
  return value_->get<std::string>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) fail("true or false");
  return value_->get<bool>();
}

int64_t JsonNode::integer(int64_t min, int64_t max) const {
  const std::string expected = fmt::format("an integer in {}..{}", min, max);
  if (!value_->is_number_integer()) fail(expected);
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > INT64_MAX) fail(expected);
  const int64_t v = value_->get<int64_t>();
  if (v < min || v > max) fail(expected);
  return v;
}

uint32_t JsonNode::character() const {
  const std::string text = string();
  if (text.empty() || utf8_at(text, 0).length != text.size()) fail("one character");
  return utf8_at(text, 0).code;
}

std::string JsonNode::string_or(const std::string& name, const std::string& fallback) const {
  const std::optional<JsonNode> node = find(name);
  return node ? node->string() : fallback;
}

bool JsonNode::boolean_or(const std::string& name, bool fallback) const {
  const std::optional<JsonNode> node = find(name);
  return node ? node->boolean() : fallback;
}

std::string JsonNode::shown() const { return printable(value_->dump(), 80); }

void JsonNode::fail(const std::string& expected) const {
  throw Error(ErrorKind::format, file_, path_, expected, shown());
}

void JsonNode::unsupported(const std::string& expected) const {
  throw Error(ErrorKind::unsupported, file_, path_, expected, shown());
}

}  // namespace stet

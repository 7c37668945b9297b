// Reads values from JSON, and writes them like Python's json.dumps.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/text/jinja/context.hpp"

namespace stet::jinja {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kJsonDepthLimit = 100;

// Builds values from the parser's events.
class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Value take() { return std::move(root_); }

  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(Value::boolean(value)); }
  bool number_integer(number_integer_t value) override { return add(Value::integer(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > INT64_MAX) fail("", "integers of 64 bits", std::to_string(value));
    return add(Value::integer(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& digits) override {
    if (digits.find_first_of(".eE") == string_t::npos) fail("", "integers of 64 bits", digits);
    return add(Value::number(value));
  }
  bool string(string_t& value) override { return add(Value::string(value)); }
  bool binary(binary_t&) override { return false; }  // JSON text has none
  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }
  bool key(string_t& name) override {
    open_.back().key = Value::string(name);
    return true;
  }
  bool end_object() override {
    Value done(Kind::dict, new_object<Dict>(std::move(open_.back().members)));
    open_.pop_back();
    return add(done);
  }
  bool end_array() override {
    Value done = Value::list(std::move(open_.back().items));
    open_.pop_back();
    return add(done);
  }
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception&) override {
    const std::string_view before =
        text_.substr(0, std::min(position, text_.size() + 1) - (position > 0));
    const auto line = 1 + std::ranges::count(before, '\n');
    const size_t column = before.size() - (before.rfind('\n') + 1) + 1;
    const std::string tail = token.substr(token.size() - std::min<size_t>(token.size(), 40));
    fail("line " + std::to_string(line) + " column " + std::to_string(column), "valid JSON",
         position > text_.size() ? "the end of the text" : "'" + tail + "'");
  }

 private:
  struct Container {
    bool object = false;
    Members members{};
    std::vector<Value> items{};
    Value key{};
  };

  [[noreturn]] void fail(const std::string& field, const std::string& expected,
                         const std::string& found) const {
    throw Error(ErrorKind::format, file_, field, expected, found);
  }
  bool open(bool object) {
    if (open_.size() == kJsonDepthLimit)
      fail("", "JSON at most " + std::to_string(kJsonDepthLimit) + " levels deep", "more levels");
    open_.push_back({object});
    return true;
  }
  // Charges roughly the memory of a value and its object.
  void charge(size_t bytes) {
    if (bytes > left_)
      fail("",
           "JSON whose values take at most " + std::to_string(memory_for(text_.size())) + " bytes",
           "more");
    left_ -= bytes;
  }
  static size_t memory_for(size_t text) { return (size_t{24} << 20) + 3 * text; }

  bool add(const Value& value) {
    const bool member = !open_.empty() && open_.back().object;
    charge(2 * sizeof(Value) + (value.object() != nullptr ? 176 : 0) +
           (member ? Members::kBytes + 176 : 0) +
           (is_string(value) ? text_of(value).bytes.capacity() : 0));
    if (open_.empty()) {
      root_ = value;
    } else if (open_.back().object) {
      open_.back().members.set(open_.back().key, value);
    } else {
      open_.back().items.push_back(value);
    }
    return true;
  }

  std::string_view text_;
  const std::string& file_;
  size_t left_ = memory_for(text_.size());
  Value root_;
  std::vector<Container> open_;
};

// Writes values like json.dumps.
class Writer {
 public:
  Writer(Context& c, const JsonStyle& style) : c_(c), style_(style), out_(c) {}

  void write(const Value& v) {
    const Context::Level level(c_);
    switch (v.kind()) {
      case Kind::none:
        return out_.add("null");
      case Kind::boolean:
        return out_.add(v.as_boolean() ? "true" : "false");
      case Kind::integer:
        return out_.add(std::to_string(v.as_integer()));
      case Kind::number:
        return out_.add(number(v.as_number()));
      case Kind::string:
        return quoted(text_of(v));
      case Kind::list:
      case Kind::tuple:
        return array(items_of(v));
      case Kind::dict:
        return object(members_of(v));
      default:
        require_defined(c_, v);
        c_.fail("a value that JSON has", std::string("one of type ") + type_name(v));
    }
  }
  Text take() { return std::move(out_.text); }

 private:
  static std::string number(double value) {
    const std::string text = float_repr(value);
    return text == "nan" ? "NaN" : text == "inf" ? "Infinity" : text == "-inf" ? "-Infinity" : text;
  }

  void quoted(const Text& text) {
    out_.add("\"");
    each_character(text, [&](uint32_t code, std::string_view bytes, int origin) {
      switch (code) {
        case '"':
          return out_.add("\\\"", origin);
        case '\\':
          return out_.add("\\\\", origin);
        case '\n':
          return out_.add("\\n", origin);
        case '\r':
          return out_.add("\\r", origin);
        case '\t':
          return out_.add("\\t", origin);
        case '\f':
          return out_.add("\\f", origin);
        case '\b':
          return out_.add("\\b", origin);
        default:
          break;
      }
      if (code >= 0x20 && (!style_.ensure_ascii || code < 0x7F)) return out_.add(bytes, origin);
      if (code < 0x10000) return escaped(code, origin);
      escaped(0xD800 + ((code - 0x10000) >> 10), origin);
      escaped(0xDC00 + ((code - 0x10000) & 0x3FF), origin);
    });
    out_.add("\"");
  }

  void escaped(uint32_t code, int origin) {
    static constexpr char kHex[] = "0123456789abcdef";
    std::string escape = "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) escape += kHex[code >> shift & 15];
    out_.add(escape, origin);
  }

  void line() {
    if (!style_.indent) return;
    out_.add("\n");
    for (int i = 0; i < depth_; ++i) out_.add(*style_.indent);
  }

  template <class Items, class One>
  void enclosed(const char* open, const char* close, const Items& items, One one) {
    out_.add(open);
    ++depth_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_.add(style_.item_separator);
      first = false;
      line();
      one(item);
    }
    --depth_;
    if (!first) line();
    out_.add(close);
  }

  void array(const std::vector<Value>& items) {
    enclosed("[", "]", items, [&](const Value& item) { write(item); });
  }

  Value key(const Value& v) {
    if (is_string(v)) return v;
    if (!is_number(v) && !v.is(Kind::none))
      c_.fail("keys that JSON has", std::string("one of type ") + type_name(v));
    Writer name(c_, style_);
    name.write(v);
    return c_.string(name.take());
  }

  void object(const Members& members) {
    auto all = members.all();
    if (style_.sort_keys) {
      std::ranges::stable_sort(all, [&](const auto& a, const auto& b) {
        return compare(c_, Order::less, a.first, b.first);
      });
    }
    enclosed("{", "}", all, [&](const auto& member) {
      quoted(text_of(key(member.first)));
      out_.add(style_.key_separator);
      write(member.second);
    });
  }

  Context& c_;
  const JsonStyle& style_;
  Builder out_;
  int depth_ = 0;
};

}  // namespace

Value Value::from_json(std::string_view json, const std::string& file) {
  Reader reader(json, file);
  Json::sax_parse(json.begin(), json.end(), &reader);
  return reader.take();
}

Text to_json(Context& c, const Value& v, const JsonStyle& style) {
  Writer writer(c, style);
  writer.write(v);
  return writer.take();
}

}  // namespace stet::jinja

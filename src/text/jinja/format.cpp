// Implements the operator % of strings and the method format, with Python's format specifications.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/text/jinja/context.hpp"

namespace stet::jinja {
namespace {

constexpr int64_t kWidthLimit = 1 << 20;
constexpr int64_t kPrecisionLimit = 1000;

// The layout of one value: [[fill]align][sign][#][0][width][,][.precision][type].
struct Spec {
  Text fill = plain(" ");
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false;
  char grouping = 0;  // , or _
  int64_t width = 0, precision = -1;
  char type = 0;
};

std::string in_base(uint64_t value, int base) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, base);
  return std::string(buffer, end.ptr);
}

std::string uppercase(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return text;
}

// Groups the digits before the point.
std::string grouped(const std::string& digits, char separator, size_t group) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % group == 0) out += separator;
    out += digits[i];
  }
  return out + digits.substr(whole);
}

// Formats like C's %g: the shorter form, without trailing zeros.
std::string general(double value, int64_t precision, bool keep_zeros) {
  precision = std::max<int64_t>(precision, 1);
  const std::string scientific = with_exponent(value, static_cast<int>(precision - 1));
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  const bool small = exponent >= -4 && exponent < precision;
  std::string digits =
      small ? fixed(value, static_cast<int>(precision - 1 - exponent)) : scientific.substr(0, e);
  if (!keep_zeros && digits.find('.') != std::string::npos) {
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.ends_with('.')) digits.pop_back();
  }
  return small ? digits : digits + scientific.substr(e);
}

// Formats the magnitude of a float by type e, f, g or %.
std::string float_digits(double magnitude, char type, int64_t precision, bool alternate) {
  if (std::isnan(magnitude)) return "nan";
  if (std::isinf(magnitude)) return "inf";
  switch (type | 0x20) {
    case 'e':
      return with_exponent(magnitude, static_cast<int>(precision));
    case 'g':
      return general(magnitude, precision, alternate);
    default:
      return fixed(magnitude, static_cast<int>(precision));
  }
}

// Pads text to its width. `head` (a sign or a prefix) precedes the fill if the alignment is =.
void lay_out(Context& c, Builder& out, const Text& head, const Text& body, const Spec& spec,
             char default_align) {
  const auto size = static_cast<int64_t>(characters(head.bytes) + characters(body.bytes));
  const int64_t missing = std::max<int64_t>(spec.width - size, 0);
  c.expect_memory(static_cast<size_t>(missing));
  const char align = spec.align != 0 ? spec.align : default_align;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  const auto fill = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) out.add(spec.fill);
  };
  if (align == '=') {
    out.add(head);
    fill(missing);
    return out.add(body);
  }
  fill(left);
  out.add(head);
  out.add(body);
  fill(missing - left);
}

void add_number(Context& c, Builder& out, const std::string& digits, bool minus, std::string prefix,
                const Spec& spec) {
  const size_t group =
      spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b' ? 4 : 3;
  const std::string body = spec.grouping != 0 ? grouped(digits, spec.grouping, group) : digits;
  prefix = (minus ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign)) + prefix;
  lay_out(c, out, plain(prefix), plain(body), spec, '>');
}

void add_integer(Context& c, Builder& out, int64_t value, const Spec& spec) {
  const uint64_t magnitude =
      value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const char type = static_cast<char>(spec.type | 0x20);
  const int base = type == 'x' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  std::string digits = in_base(magnitude, base), prefix;
  if (spec.alternate && base != 10) prefix = std::string("0") + spec.type;
  if (spec.type == 'X') digits = uppercase(digits);
  if (spec.precision > static_cast<int64_t>(digits.size())) {
    digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
  }
  add_number(c, out, digits, value < 0, prefix, spec);
}

void add_float(Context& c, Builder& out, double value, const Spec& spec) {
  const bool percent = spec.type == '%', upper = spec.type >= 'A' && spec.type <= 'Z';
  const double magnitude = std::abs(percent ? value * 100 : value);
  std::string digits;
  if (spec.type == 0 && spec.precision < 0) {
    digits = float_repr(magnitude);
  } else {
    const char type = spec.type == 0 ? 'g' : spec.type;
    digits = float_digits(magnitude, type, spec.precision < 0 ? 6 : spec.precision, spec.alternate);
    const bool plain_digits = digits.find_first_of(".ein") == std::string::npos;
    if (plain_digits && (spec.alternate || spec.type == 0)) digits += spec.alternate ? "." : ".0";
  }
  if (upper) digits = uppercase(digits);
  add_number(c, out, digits + (percent ? "%" : ""), std::signbit(value) && !std::isnan(value), "",
             spec);
}

void add_text(Context& c, Builder& out, const Text& text, const Spec& spec) {
  const size_t end = spec.precision < 0 ? text.bytes.size()
                                        : byte_of(text.bytes, static_cast<size_t>(spec.precision));
  lay_out(c, out, {}, slice(text, 0, end), spec, '<');
}

// Reads a run of digits as a number up to `limit`.
int64_t read_number(Context& c, std::string_view text, size_t& at, int64_t limit) {
  int64_t value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = value * 10 + (text[at] - '0');
    if (value > limit)
      c.fail("a width or precision of at most " + std::to_string(limit), "a larger one");
  }
  return value;
}

// ---- str.format ----

Spec parse_spec(Context& c, const Text& text) {
  Spec spec;
  const std::string_view bytes = text.bytes;
  const auto is_align = [&](size_t i) {
    return i < bytes.size() && std::string_view("<>^=").find(bytes[i]) != std::string_view::npos;
  };
  size_t at = 0;
  const size_t first = bytes.empty() ? 0 : utf8_at(bytes, 0).length;
  if (is_align(first)) {
    spec.fill = slice(text, 0, first);
    spec.align = bytes[first];
    at = first + 1;
  } else if (is_align(0)) {
    spec.align = bytes[at++];
  }
  const auto take = [&](std::string_view choices) {
    return at < bytes.size() && choices.find(bytes[at]) != std::string_view::npos ? bytes[at++]
                                                                                  : '\0';
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  if (take("0") != 0) {
    if (spec.align == 0) {
      spec.fill = plain("0");
      spec.align = '=';
    }
  }
  spec.width = read_number(c, bytes, at, kWidthLimit);
  spec.grouping = take(",_");
  if (take(".") != 0) spec.precision = read_number(c, bytes, at, kPrecisionLimit);
  spec.type = take("bcdeEfFgGnosxX%");
  if (at != bytes.size()) c.fail("a format specification", text.bytes);
  return spec;
}

void add_formatted(Context& c, Builder& out, const Value& v, const Text& spec_text) {
  if (spec_text.bytes.empty()) return out.add(str(c, v));
  const Spec spec = parse_spec(c, spec_text);
  const std::string_view floats = "eEfFgG%", integers = "bdoxX";
  const auto of = [&](std::string_view types) {
    return types.find(spec.type) != std::string_view::npos;
  };
  if (is_string(v) && (spec.type == 0 || spec.type == 's'))
    return add_text(c, out, text_of(v), spec);
  if (v.is(Kind::number) && (spec.type == 0 || of(floats)))
    return add_float(c, out, v.as_number(), spec);
  if (const auto whole = as_index(v)) {
    if (of(floats) && spec.type != 0) return add_float(c, out, static_cast<double>(*whole), spec);
    if (spec.type == 0 || of(integers)) {
      if (spec.precision >= 0)
        c.fail("no precision for an integer", text_of(c.string(spec_text)).bytes);
      return add_integer(c, out, *whole, spec);
    }
  }
  c.fail("a format for a value of type " + std::string(type_name(v)), spec_text.bytes);
}

// Formats the fields of one format string.
class BraceFormat {
 public:
  BraceFormat(Context& c, const Arguments& arguments) : c_(c), arguments_(arguments), out_(c) {}

  void format(const Text& format, int depth) {
    const std::string_view bytes = format.bytes;
    for (size_t at = 0; at < bytes.size();) {
      const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
      out_.add(format, at, brace);
      if (brace == bytes.size()) return;
      at = brace + 1;
      if (at < bytes.size() && bytes[at] == bytes[brace]) {
        out_.add(format, brace, brace + 1);
        ++at;
      } else if (bytes[brace] == '}') {
        c_.fail("a { before }", format.bytes);
      } else {
        at = field(format, at, depth);
      }
    }
  }
  Builder& out() { return out_; }

 private:
  // Formats the field that begins after a brace. Returns the position after it.
  size_t field(const Text& format, size_t begin, int depth) {
    const std::string_view bytes = format.bytes;
    size_t end = begin;
    for (int open = 1; open > 0; ++end) {
      if (end >= bytes.size()) c_.fail("a } for every {", format.bytes);
      open += bytes[end] == '{' ? 1 : bytes[end] == '}' ? -1 : 0;
    }
    const size_t last = end - 1;
    size_t name_end = begin;
    for (bool bracket = false; name_end < last; ++name_end) {
      if (bytes[name_end] == '[') bracket = true;
      if (bytes[name_end] == ']') bracket = false;
      if (!bracket && (bytes[name_end] == ':' || bytes[name_end] == '!')) break;
    }
    Value value = look_up(std::string(bytes.substr(begin, name_end - begin)));
    size_t at = name_end;
    if (at < last && bytes[at] == '!') {
      const char conversion = at + 1 < last ? bytes[at + 1] : '\0';
      if (conversion != 's' && conversion != 'r') c_.fail("!s or !r", format.bytes);
      value = conversion == 'r' ? c_.string(repr(c_, value)) : as_string(c_, value);
      at += 2;
      if (at < last && bytes[at] != ':') c_.fail("a : after a conversion", format.bytes);
    }
    Text spec = at < last ? slice(format, at + 1, last) : Text{};
    if (spec.bytes.find('{') != std::string::npos) {
      if (depth > 0) c_.fail("fields within fields at most once", format.bytes);
      BraceFormat inner(c_, arguments_);
      inner.next_ = next_;
      inner.format(spec, depth + 1);
      next_ = inner.next_;
      spec = std::move(inner.out_.text);
    }
    add_formatted(c_, out_, value, spec);
    return end;
  }

  Value argument(const std::string& name) {
    const bool number = name.find_first_not_of("0123456789") == std::string::npos;
    if (!number) {
      for (const auto& [key, value] : arguments_.named) {
        if (key == name) return value;
      }
      c_.fail("an argument for every field", name);
    }
    if ((name.empty() && next_ < 0) || (!name.empty() && next_ > 0))
      c_.fail("fields all with a number, or all without", name);
    const size_t index = name.empty()      ? static_cast<size_t>(next_++)
                         : name.size() > 6 ? SIZE_MAX
                                           : std::stoul(name);
    if (!name.empty()) next_ = -1;
    if (index >= arguments_.positional.size())
      c_.fail("an argument for every field", "field " + name);
    return arguments_.positional[index];
  }

  // Looks up name, name.attribute or name[item].
  Value look_up(const std::string& path) {
    size_t at = std::min(path.find_first_of(".["), path.size());
    Value value = argument(path.substr(0, at));
    while (at < path.size()) {
      const bool bracket = path[at] == '[';
      const size_t end =
          std::min(bracket ? path.find(']', at) : path.find_first_of(".[", at + 1), path.size());
      const std::string name = path.substr(at + 1, end - at - 1);
      if (name.empty() || (bracket && end == path.size())) c_.fail("a name in a field", path);
      const bool number =
          name.size() < 10 && name.find_first_not_of("0123456789") == std::string::npos;
      value = !bracket
                  ? attribute(c_, value, name)
                  : item(c_, value, number ? Value::integer(std::stoi(name)) : c_.string(name));
      at = bracket ? end + 1 : end;
    }
    return value;
  }

  Context& c_;
  const Arguments& arguments_;
  Builder out_;
  int64_t next_ = 0;  // next unnumbered field; -1 if fields are numbered
};

// ---- the operator % ----

class PercentFormat {
 public:
  PercentFormat(Context& c, const Text& format, const Value& values)
      : c_(c), format_(format), values_(values), out_(c) {}

  Value run() {
    const std::string_view bytes = format_.bytes;
    for (size_t at = 0; at < bytes.size();) {
      const size_t percent = std::min(bytes.find('%', at), bytes.size());
      out_.add(format_, at, percent);
      if (percent == bytes.size()) break;
      at = conversion(percent + 1);
    }
    const bool single = !values_.is(Kind::tuple);
    const bool keyed = values_.is(Kind::dict) || (single && values_.is(Kind::list));
    if (!keyed && used_ < (single ? 1 : items_of(values_).size()))
      c_.fail("a conversion for every value", format_.bytes);
    return out_.string();
  }

 private:
  char peek(size_t at) {
    if (at >= format_.bytes.size()) c_.fail("a whole conversion", format_.bytes);
    return format_.bytes[at];
  }

  Value next() {
    if (!values_.is(Kind::tuple)) {
      if (used_++ > 0) c_.fail("a value for every conversion", format_.bytes);
      return values_;
    }
    if (used_ >= items_of(values_).size()) c_.fail("a value for every conversion", format_.bytes);
    return items_of(values_)[used_++];
  }

  int64_t number(size_t& at, int64_t limit) {
    if (peek(at) != '*') return read_number(c_, format_.bytes, at, limit);
    ++at;
    const auto given = as_index(next());
    if (!given || *given < -limit || *given > limit)
      c_.fail("a width or precision of at most " + std::to_string(limit), "another");
    return *given;
  }

  size_t conversion(size_t at) {
    Spec spec;
    std::optional<Value> keyed;
    if (peek(at) == '(') {
      const size_t end = format_.bytes.find(')', at);
      if (end == std::string::npos || !values_.is(Kind::dict))
        c_.fail("a dict and %(name)", format_.bytes);
      const std::string name = format_.bytes.substr(at + 1, end - at - 1);
      const Value* found = find_member(c_, members_of(values_), c_.string(name));
      if (found == nullptr) c_.fail("a member for every %(name)", name);
      keyed = *found;
      at = end + 1;
    }
    bool zero = false;
    for (;; ++at) {
      const char flag = peek(at);
      if (flag == '-')
        spec.align = '<';
      else if (flag == '+')
        spec.sign = '+';
      else if (flag == ' ')
        spec.sign = spec.sign == '+' ? '+' : ' ';
      else if (flag == '#')
        spec.alternate = true;
      else if (flag == '0')
        zero = true;
      else
        break;
    }
    spec.width = number(at, kWidthLimit);
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (peek(at) == '.') spec.precision = std::max<int64_t>(number(++at, kPrecisionLimit), 0);
    while (peek(at) == 'l' || peek(at) == 'h' || peek(at) == 'L') ++at;
    spec.type = peek(at);
    if (spec.type == '%') {
      out_.add("%");
      return at + 1;
    }
    const Value value = keyed ? *keyed : next();
    if (zero && spec.align == 0 && spec.type != 's' && spec.type != 'r' && spec.type != 'c') {
      spec.align = '=';
      spec.fill = plain("0");
    }
    convert(value, spec);
    return at + 1;
  }

  void convert(const Value& v, Spec& spec) {
    const char type = spec.type;
    if (spec.align == 0) spec.align = '>';
    if (type == 's') return add_text(c_, out_, str(c_, v), spec);
    if (type == 'r' || type == 'a') return add_text(c_, out_, repr(c_, v), spec);
    if (type == 'c') {
      if (is_string(v) && characters(text_of(v).bytes) == 1)
        return add_text(c_, out_, text_of(v), spec);
      const auto code = as_index(v);
      if (!code || *code < 0 || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000))
        c_.fail("a character for %c", type_name(v));
      std::string bytes;
      utf8_append(bytes, static_cast<uint32_t>(*code));
      return add_text(c_, out_, plain(bytes), spec);
    }
    if (std::string_view("diuxXo").find(type) == std::string_view::npos &&
        std::string_view("eEfFgG").find(type) == std::string_view::npos) {
      c_.fail("a conversion of Python's %", std::string("%") + type);
    }
    require_defined(c_, v);
    if (!is_number(v)) c_.fail(std::string("a number for %") + type, type_name(v));
    if (std::string_view("eEfFgG").find(type) != std::string_view::npos)
      return add_float(c_, out_, as_double(v), spec);
    const bool decimal = type == 'd' || type == 'i' || type == 'u';
    if (!decimal && !as_index(v)) c_.fail(std::string("an integer for %") + type, type_name(v));
    add_integer(c_, out_,
                as_index(v) ? *as_index(v) : checked_integer(c_, std::trunc(v.as_number())), spec);
  }

  Context& c_;
  const Text& format_;
  const Value& values_;
  Builder out_;
  size_t used_ = 0;
};

}  // namespace

Value percent_format(Context& c, const Text& format, const Value& values) {
  return PercentFormat(c, format, values).run();
}

Value brace_format(Context& c, const Text& format, const Arguments& arguments) {
  BraceFormat fields(c, arguments);
  fields.format(format, 0);
  return fields.out().string();
}

}  // namespace stet::jinja

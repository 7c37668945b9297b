// Filters that make text.
#include <algorithm>
#include <cmath>

#include "src/text/jinja/filters.hpp"

namespace stet::jinja {
namespace {

template <Case kCase>
Value change(Context& c, const Value& v, const Bound&) {
  const Text text = str(c, v);
  c.scan(text.bytes.size());
  return c.string(change_case(text, kCase));
}

// Capitalizes words, which begin after white space and -({[<. str.title instead begins them after
// any character that is not a letter.
Value title(Context& c, const Value& v, const Bound&) {
  const Text text = str(c, v);
  c.scan(text.bytes.size());
  Text out;
  bool start = true;
  size_t at = 0;
  const auto flush = [&](size_t begin, size_t end) {
    const Text word = slice(text, begin, end);
    const size_t first = word.bytes.empty() ? 0 : utf8_at(word.bytes, 0).length;
    append(out, change_case(slice(word, 0, first), Case::upper));
    append(out, change_case(slice(word, first, word.bytes.size()), Case::lower));
  };
  size_t begin = 0;
  each_character(text, [&](uint32_t code, std::string_view bytes, int) {
    const bool between =
        is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
    if (between != start) {
      flush(begin, at);
      begin = at;
      start = between;
    }
    at += bytes.size();
  });
  flush(begin, at);
  return c.string(std::move(out));
}

Value trim(Context& c, const Value& v, const Bound& a) {
  const Text text = str(c, v);
  const Text* chars = a.text_or_null(c, 0);
  const Span span = stripped(c, text, chars, true, true);
  return c.string(slice(text, span.begin, span.end));
}

Value replace(Context& c, const Value& v, const Bound& a) {
  const int64_t count = a.has(2) && !a[2].is(Kind::none) ? a.integer(c, 2, -1) : -1;
  return replaced(c, str(c, v), str(c, a[0]), str(c, a[1]), count);
}

Value indent(Context& c, const Value& v, const Bound& a) {
  if (!is_string(v)) c.fail("a string to indent", type_name(v));
  const bool text_width = a.has(0) && is_string(a[0]);
  const int64_t width = text_width ? 0 : a.integer(c, 0, 4);
  c.expect_memory(static_cast<size_t>(std::max<int64_t>(width, 0)));
  const Text indention =
      text_width ? text_of(a[0])
                 : plain(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '));
  const bool first = a.truth(c, 1, false), blank = a.truth(c, 2, false);
  Text text = text_of(v);
  append(text, "\n");
  c.scan(text.bytes.size());
  Builder out(c);
  bool begun = false;
  each_line(text.bytes, false, [&](Span line) {
    if (begun) out.add("\n");
    if (begun ? blank || line.begin < line.end : first) out.add(indention);
    out.add(text, line.begin, line.end);
    begun = true;
  });
  return out.string();
}

Value center(Context& c, const Value& v, const Bound& a) {
  const Value text = as_string(c, v);
  return call(c, *find_method(text, "center"), text, {{Value::integer(a.integer(c, 0, 80))}, {}});
}

Value truncate(Context& c, const Value& v, const Bound& a) {
  if (!is_string(v)) c.fail("a string to truncate", type_name(v));
  const Text& text = text_of(v);
  const int64_t length = a.integer(c, 0, 255),
                leeway = a.has(3) && !a[3].is(Kind::none) ? a.integer(c, 3, 0) : 5;
  const Text end = a.has(2) ? a.text(c, 2) : plain("...");
  const auto end_length = static_cast<int64_t>(characters(end.bytes));
  if (length < end_length)
    c.fail("a length of at least " + std::to_string(end_length), std::to_string(length));
  if (leeway < 0) c.fail("a leeway of at least 0", std::to_string(leeway));
  c.scan(text.bytes.size());
  if (static_cast<int64_t>(characters(text.bytes)) - leeway <= length) return v;
  size_t cut = byte_of(text.bytes, static_cast<size_t>(length - end_length));
  if (!a.truth(c, 1, false)) {
    const size_t space = std::string_view(text.bytes).substr(0, cut).rfind(' ');
    if (space != std::string_view::npos) cut = space;
  }
  Builder out(c);
  out.add(text, 0, cut);
  out.add(end);
  return out.string();
}

Value wordcount(Context& c, const Value& v, const Bound&) {
  const Text text = str(c, v);
  c.scan(text.bytes.size());
  int64_t words = 0;
  bool within = false;
  each_character(text, [&](uint32_t code, std::string_view, int) {
    words += is_word(code) && !within ? 1 : 0;
    within = is_word(code);
  });
  return Value::integer(words);
}

Value escape(Context& c, const Value& v, const Bound&) {
  const Text text = str(c, v);
  c.scan(text.bytes.size());
  Builder out(c);
  each_character(text, [&](uint32_t code, std::string_view bytes, int origin) {
    const char* entity = code == '&'    ? "&amp;"
                         : code == '<'  ? "&lt;"
                         : code == '>'  ? "&gt;"
                         : code == '"'  ? "&#34;"
                         : code == '\'' ? "&#39;"
                                        : nullptr;
    out.add(entity != nullptr ? std::string_view(entity) : bytes, origin);
  });
  return out.string();
}

void add_quoted(Builder& out, const Text& text, std::string_view safe) {
  for (size_t i = 0; i < text.bytes.size(); ++i) {
    static constexpr char kHex[] = "0123456789ABCDEF";
    const char byte = text.bytes[i];
    const bool plain_byte = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                            (byte >= '0' && byte <= '9') ||
                            safe.find(byte) != std::string_view::npos;
    if (plain_byte) {
      out.add(text, i, i + 1);
      continue;
    }
    const auto code = static_cast<unsigned char>(byte);
    const Text one = slice(text, i, i + 1);
    out.add(std::string{'%', kHex[code >> 4], kHex[code & 15]},
            one.marks.empty() ? kUnmarked : one.marks[0].origin);
  }
}

// Encodes one string, or the members of a dict or of pairs as a query.
Value urlencode(Context& c, const Value& v, const Bound&) {
  Builder out(c);
  if (is_string(v) || !is_iterable(v)) {
    add_quoted(out, str(c, v), "_.-~/");
    return out.string();
  }
  const Value pairs = v.is(Kind::dict) ? call(c, *find_method(v, "items"), v, {}) : v;
  bool first = true;
  each(c, pairs, [&](const Value& pair) {
    const std::vector<Value> both = items(c, pair);
    if (both.size() != 2)
      c.fail("pairs of a name and a value", std::to_string(both.size()) + " items");
    if (!first) out.add("&");
    first = false;
    for (const size_t i : {0, 1}) {
      Builder quoted(c);
      add_quoted(quoted, str(c, both[i]), "_.-~ ");
      if (i == 1) out.add("=");
      out.add(text_of(replaced(c, quoted.text, plain(" "), plain("+"), -1)));
    }
  });
  return out.string();
}

Value string(Context& c, const Value& v, const Bound&) { return as_string(c, v); }

Value format(Context& c, const Value& v, const Bound& a) {
  if (!a.more.named.empty() && !a.more.positional.empty())
    c.fail("arguments by position or by name", "both");
  if (a.more.named.empty())
    return percent_format(c, str(c, v), c.list(a.more.positional, Kind::tuple));
  Members members;
  for (const auto& [name, value] : a.more.named) set_member(c, members, c.string(name), value);
  return percent_format(c, str(c, v), c.dict(std::move(members)));
}

Value tojson(Context& c, const Value& v, const Bound& a) {
  JsonStyle style;
  style.ensure_ascii = a.truth(c, 0, false);
  style.sort_keys = a.truth(c, 3, false);
  if (a.has(1) && !a[1].is(Kind::none)) {
    const bool text = is_string(a[1]);
    const int64_t width = text ? 0 : std::max<int64_t>(a.integer(c, 1, 0), 0);
    c.expect_memory(static_cast<size_t>(width));
    style.indent = text ? text_of(a[1]).bytes : std::string(static_cast<size_t>(width), ' ');
    style.item_separator = ",";
  }
  if (a.has(2) && !a[2].is(Kind::none)) {
    const std::vector<Value> both = items(c, a[2]);
    if (both.size() != 2 || !is_string(both[0]) || !is_string(both[1]))
      c.fail("separators of two strings", repr(c, a[2]).bytes);
    style.item_separator = text_of(both[0]).bytes;
    style.key_separator = text_of(both[1]).bytes;
  }
  return c.string(to_json(c, v, style));
}

Value join(Context& c, const Value& v, const Bound& a) {
  const Text separator = a.has(0) ? str(c, a[0]) : Text{};
  const AttributeOf get(c, a.value_or(1, Value()));
  Builder out(c);
  bool first = true;
  each(c, v, [&](const Value& item) {
    if (!first) out.add(separator);
    first = false;
    out.add(str(c, get(item)));
  });
  return out.string();
}

// Returns the number that v is or spells. Throws if it is neither.
double number_of_bytes(Context& c, const Value& v) {
  if (is_number(v)) return as_double(v);
  if (is_string(v)) {
    if (const std::optional<double> parsed = parse_float(text_of(v).bytes)) return *parsed;
  }
  c.fail("a number of bytes", type_name(v));
}

Value filesizeformat(Context& c, const Value& v, const Bound& a) {
  const double bytes = number_of_bytes(c, v);
  const bool binary = a.truth(c, 0, false);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return c.string("1 Byte");
  if (bytes < base) return c.string(std::to_string(checked_integer(c, bytes)) + " Bytes");
  double unit = base;
  const std::string_view prefixes = binary ? "KMGTPEZY" : "kMGTPEZY";
  size_t i = 0;
  for (; i + 1 < prefixes.size() && bytes >= unit * base; ++i) unit *= base;
  return c.string(fixed(bytes / unit, 1) + " " + prefixes[i] + (binary ? "iB" : "B"));
}

constexpr Builtin kTextFilters[] = {
    {"capitalize", "", 0, change<Case::capitalized>},
    {"center", "width", 0, center},
    {"e", "", 0, escape},
    {"escape", "", 0, escape},
    {"filesizeformat", "binary", 0, filesizeformat},
    {"forceescape", "", 0, escape},
    {"format", "* **", 0, format},
    {"indent", "width first blank", 0, indent},
    {"join", "d attribute", 0, join},
    {"lower", "", 0, change<Case::lower>},
    {"replace", "old new count", 2, replace},
    {"safe", "", 0, string},
    {"string", "", 0, string},
    {"title", "", 0, title},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, tojson},
    {"trim", "chars", 0, trim},
    {"truncate", "length killwords end leeway", 0, truncate},
    {"upper", "", 0, change<Case::upper>},
    {"urlencode", "", 0, urlencode},
    {"wordcount", "", 0, wordcount},
};

}  // namespace

const Builtin* find_text_filter(const std::string& name) { return find_in(kTextFilters, name); }

}  // namespace stet::jinja

// str() and repr() of values, and the methods of strings, lists and dicts.
#include <algorithm>

#include "src/text/jinja/context.hpp"

namespace stet::jinja {
namespace {

// Appends Python's repr of a string: in single quotes, unless it contains these and no double ones.
void add_quoted(Builder& out, const Text& text) {
  const bool has_single = text.bytes.find('\'') != std::string::npos;
  const char quote = has_single && text.bytes.find('"') == std::string::npos ? '"' : '\'';
  out.add(std::string_view(&quote, 1));
  each_character(text, [&](uint32_t code, std::string_view bytes, int origin) {
    static constexpr char kHex[] = "0123456789abcdef";
    const auto hex = [&](const char* prefix, int digits) {
      std::string escape = prefix;
      for (int i = digits; i-- > 0;) escape += kHex[code >> (4 * i) & 15];
      out.add(escape, origin);
    };
    if (code == '\n') return out.add("\\n", origin);
    if (code == '\r') return out.add("\\r", origin);
    if (code == '\t') return out.add("\\t", origin);
    if (code == '\\' || code == static_cast<uint32_t>(quote)) {
      out.add("\\", origin);
      return out.add(bytes, origin);
    }
    if (is_printable(code)) return out.add(bytes, origin);
    if (code < 0x100) return hex("\\x", 2);
    code < 0x10000 ? hex("\\u", 4) : hex("\\U", 8);
  });
  out.add(std::string_view(&quote, 1));
}

void add_repr(Context& c, Builder& out, const Value& v);

void add_items(Context& c, Builder& out, const std::vector<Value>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.add(", ");
    add_repr(c, out, items[i]);
  }
}

template <class Members, class Key>
void add_members(Context& c, Builder& out, const Members& members, Key key) {
  out.add("{");
  bool first = true;
  for (const auto& [name, value] : members) {
    if (!first) out.add(", ");
    first = false;
    key(name);
    out.add(": ");
    add_repr(c, out, value);
  }
  out.add("}");
}

void add_repr(Context& c, Builder& out, const Value& v) {
  const Context::Level level(c);
  switch (v.kind()) {
    case Kind::undefined:
      return out.add("Undefined");
    case Kind::none:
      return out.add("None");
    case Kind::boolean:
      return out.add(v.as_boolean() ? "True" : "False");
    case Kind::integer:
      return out.add(std::to_string(v.as_integer()));
    case Kind::number:
      return out.add(float_repr(v.as_number()));
    case Kind::string:
      return add_quoted(out, text_of(v));
    case Kind::list:
      out.add("[");
      add_items(c, out, items_of(v));
      return out.add("]");
    case Kind::tuple:
      out.add("(");
      add_items(c, out, items_of(v));
      return out.add(items_of(v).size() == 1 ? ",)" : ")");
    case Kind::view:
      out.add(v.as<List>().name);
      out.add("([");
      add_items(c, out, items_of(v));
      return out.add("])");
    case Kind::dict:
      return add_members(c, out, members_of(v).all(),
                         [&](const Value& key) { add_repr(c, out, key); });
    case Kind::space:
      out.add("<Namespace ");
      add_members(c, out, v.as<Space>().attributes,
                  [&](const std::string& key) { out.add("'" + key + "'"); });
      return out.add(">");
    case Kind::range: {
      const auto& range = v.as<Range>();
      out.add("range(" + std::to_string(range.start) + ", " + std::to_string(range.stop));
      return out.add(range.step == 1 ? ")" : ", " + std::to_string(range.step) + ")");
    }
    case Kind::iterator:
      return out.add("<generator object>");
    case Kind::loop:
    case Kind::callable:
      return out.add(v.as<Callable>().shown());
  }
}

}  // namespace

Text repr(Context& c, const Value& v) {
  Builder out(c);
  add_repr(c, out, v);
  return std::move(out.text);
}

Text str(Context& c, const Value& v) {
  if (is_string(v)) return text_of(v);
  if (v.is(Kind::undefined)) return {};
  return repr(c, v);
}

Value as_string(Context& c, const Value& v) { return is_string(v) ? v : c.string(str(c, v)); }

Span stripped(Context& c, const Text& text, const Text* chars, bool left, bool right) {
  const size_t size = text.bytes.size();
  chars == nullptr ? c.scan(size) : c.search(size * 8, chars->bytes.size() * 8);
  return stripped(text.bytes, chars != nullptr ? &chars->bytes : nullptr, left, right);
}

Value replaced(Context& c, const Text& text, const Text& from, const Text& to, int64_t count) {
  Builder out(c);
  size_t done = 0;
  if (from.bytes.empty()) {  // matches before every character and at the end
    for (size_t at = 0; count != 0 && at <= text.bytes.size(); --count) {
      out.add(text, done, at);
      out.add(to);
      done = at;
      at += at < text.bytes.size() ? utf8_at(text.bytes, at).length : 1;
    }
  } else {
    c.search(text.bytes.size(), from.bytes.size());
    for (size_t at; count != 0 && (at = text.bytes.find(from.bytes, done)) != std::string::npos;
         --count) {
      out.add(text, done, at);
      out.add(to);
      done = at + from.bytes.size();
    }
  }
  out.add(text, done, text.bytes.size());
  return out.string();
}

namespace {

const Text& self_text(const Value& self) { return text_of(self); }

Value part(Context& c, const Text& text, size_t begin, size_t end) {
  return c.string(slice(text, begin, end));
}

template <Case kCase>
Value change_text(Context& c, const Value& self, const Bound&) {
  c.scan(self_text(self).bytes.size());
  return c.string(change_case(self_text(self), kCase));
}

template <bool kLeft, bool kRight>
Value strip(Context& c, const Value& self, const Bound& a) {
  const Text& text = self_text(self);
  const Text* chars = a.text_or_null(c, 0);
  const Span span = stripped(c, text, chars, kLeft, kRight);
  return part(c, text, span.begin, span.end);
}

// Collects the parts of a string.
class Parts {
 public:
  Parts(Context& context, const Text& text) : context_(context), text_(text) {}
  void add(Span span) {
    context_.expect_memory((parts_.size() + 1) * sizeof(Value));
    parts_.push_back(part(context_, text_, span.begin, span.end));
  }
  Value list(bool reversed = false) {
    if (reversed) std::ranges::reverse(parts_);
    return context_.list(std::move(parts_));
  }

 private:
  Context& context_;
  const Text& text_;
  std::vector<Value> parts_;
};

// Returns the end of a span's first word, or from the right the beginning of its last word.
size_t word_edge(std::string_view bytes, Span span, bool from_right) {
  size_t edge = from_right ? span.end : span.begin;
  while (edge != (from_right ? span.begin : span.end)) {
    const size_t length =
        from_right ? utf8_last(bytes.substr(0, edge)) : utf8_at(bytes, edge).length;
    if (is_space(utf8_at(bytes, from_right ? edge - length : edge).code)) break;
    edge = from_right ? edge - length : edge + length;
  }
  return edge;
}

// Splits at white space, at most `limit` times unless that is negative. The unsplit rest keeps the
// white space at its outer end, as in Python.
void split_at_space(std::string_view bytes, int64_t limit, bool from_right, Parts& parts) {
  for (Span rest{0, bytes.size()};; --limit) {
    const Span inner =
        stripped(bytes.substr(rest.begin, rest.end - rest.begin), nullptr, !from_right, from_right);
    rest = {rest.begin + inner.begin, rest.begin + inner.end};
    if (rest.begin == rest.end) return;
    const size_t far_end = from_right ? rest.begin : rest.end;
    const size_t edge = limit == 0 ? far_end : word_edge(bytes, rest, from_right);
    parts.add(from_right ? Span{edge, rest.end} : Span{rest.begin, edge});
    (from_right ? rest.end : rest.begin) = edge;
  }
}

void split_at(std::string_view bytes, const std::string& separator, int64_t limit, bool from_right,
              Parts& parts) {
  Span rest{0, bytes.size()};
  for (; limit != 0; --limit) {
    const size_t at =
        from_right ? bytes.substr(0, rest.end).rfind(separator) : bytes.find(separator, rest.begin);
    if (at == std::string_view::npos) break;
    parts.add(from_right ? Span{at + separator.size(), rest.end} : Span{rest.begin, at});
    if (from_right) {
      rest.end = at;
    } else {
      rest.begin = at + separator.size();
    }
  }
  parts.add(rest);
}

template <bool kFromRight>
Value split(Context& c, const Value& self, const Bound& a) {
  const Text& text = self_text(self);
  const Text* separator = a.text_or_null(c, 0);
  const int64_t limit = a.integer(c, 1, -1);
  if (separator != nullptr && separator->bytes.empty()) c.fail("a separator", "an empty one");
  separator != nullptr ? c.search(text.bytes.size(), separator->bytes.size())
                       : c.scan(text.bytes.size());
  Parts parts(c, text);
  if (separator == nullptr) {
    split_at_space(text.bytes, limit, kFromRight, parts);
  } else {
    split_at(text.bytes, separator->bytes, limit, kFromRight, parts);
  }
  return parts.list(kFromRight);
}

Value splitlines(Context& c, const Value& self, const Bound& a) {
  c.scan(self_text(self).bytes.size());
  Parts parts(c, self_text(self));
  each_line(self_text(self).bytes, a.truth(c, 0, false), [&](Span line) { parts.add(line); });
  return parts.list();
}

template <bool kFromRight>
Value partition(Context& c, const Value& self, const Bound& a) {
  const Text& text = self_text(self);
  const std::string& separator = a.text(c, 0).bytes;
  if (separator.empty()) c.fail("a separator", "an empty one");
  c.search(text.bytes.size(), separator.size());
  const size_t at = kFromRight ? text.bytes.rfind(separator) : text.bytes.find(separator);
  const Value empty = c.string("");
  if (at == std::string::npos) {
    return c.list(kFromRight ? std::vector{empty, empty, self} : std::vector{self, empty, empty},
                  Kind::tuple);
  }
  return c.list(
      {part(c, text, 0, at), a[0], part(c, text, at + separator.size(), text.bytes.size())},
      Kind::tuple);
}

// Returns the part of a string selected by the arguments `start` and `end` of a search, in
// characters. Returns nothing if start is after the end.
std::optional<Span> searched(Context& c, const Text& text, const Bound& a) {
  c.copy(text.bytes.size());
  const auto count = static_cast<int64_t>(characters(text.bytes));
  const auto bound = [&](size_t i, int64_t otherwise) {
    const int64_t given = a.has(i) && !a[i].is(Kind::none) ? a.integer(c, i, 0) : otherwise;
    return given < 0 ? std::max<int64_t>(given < -count ? 0 : given + count, 0) : given;
  };
  const int64_t start = bound(1, 0), end = std::min(bound(2, count), count);
  if (start > count || start > end) return std::nullopt;
  return Span{byte_of(text.bytes, static_cast<size_t>(start)),
              byte_of(text.bytes, static_cast<size_t>(end))};
}

template <bool kFromRight, bool kMustBe>
Value find(Context& c, const Value& self, const Bound& a) {
  const Text& text = self_text(self);
  const std::string& wanted = a.text(c, 0).bytes;
  c.search(text.bytes.size(), wanted.size());
  if (const auto span = searched(c, text, a)) {
    const std::string_view part =
        std::string_view(text.bytes).substr(span->begin, span->end - span->begin);
    const size_t at = kFromRight ? part.rfind(wanted) : part.find(wanted);
    if (at != std::string_view::npos) {
      return Value::integer(static_cast<int64_t>(
          characters(std::string_view(text.bytes).substr(0, span->begin + at))));
    }
  }
  if (kMustBe) c.fail("a part of the string", wanted);
  return Value::integer(-1);
}

Value count(Context& c, const Value& self, const Bound& a) {
  const Text& text = self_text(self);
  const std::string& wanted = a.text(c, 0).bytes;
  c.search(text.bytes.size(), wanted.size());
  const auto span = searched(c, text, a);
  if (!span) return Value::integer(0);
  const std::string_view part =
      std::string_view(text.bytes).substr(span->begin, span->end - span->begin);
  if (wanted.empty()) return Value::integer(static_cast<int64_t>(characters(part)) + 1);
  int64_t found = 0;
  for (size_t at = 0; (at = part.find(wanted, at)) != std::string_view::npos; at += wanted.size())
    ++found;
  return Value::integer(found);
}

template <bool kAtEnd>
Value begins(Context& c, const Value& self, const Bound& a) {
  const auto span = searched(c, self_text(self), a);
  const auto fits = [&](const Value& wanted) {
    if (!is_string(wanted)) c.fail("a string or a tuple of strings", type_name(wanted));
    if (!span) return false;
    const std::string_view part =
        std::string_view(self_text(self).bytes).substr(span->begin, span->end - span->begin);
    c.copy(text_of(wanted).bytes.size());
    return kAtEnd ? part.ends_with(text_of(wanted).bytes) : part.starts_with(text_of(wanted).bytes);
  };
  if (!a[0].is(Kind::tuple)) return Value::boolean(fits(a[0]));
  return Value::boolean(std::ranges::any_of(items_of(a[0]), fits));
}

template <bool kSuffix>
Value without(Context& c, const Value& self, const Bound& a) {
  const Text& text = self_text(self);
  const std::string& affix = a.text(c, 0).bytes;
  const size_t size = text.bytes.size();
  if (kSuffix) return text.bytes.ends_with(affix) ? part(c, text, 0, size - affix.size()) : self;
  return text.bytes.starts_with(affix) ? part(c, text, affix.size(), size) : self;
}

Value replace_text(Context& c, const Value& self, const Bound& a) {
  return replaced(c, self_text(self), a.text(c, 0), a.text(c, 1), a.integer(c, 2, -1));
}

Value join_texts(Context& c, const Value& self, const Bound& a) {
  Builder out(c);
  bool first = true;
  each(c, a[0], [&](const Value& item) {
    if (!is_string(item))
      c.fail("strings to join", std::string("a value of type ") + type_name(item));
    if (!first) out.add(self_text(self));
    first = false;
    out.add(text_of(item));
  });
  return out.string();
}

// The side of the text in its new width.
enum class Side { left, right, center };
template <Side kSide>
Value justify(Context& c, const Value& self, const Bound& a) {
  const Text& text = self_text(self);
  const int64_t width = a.integer(c, 0, 0);
  const Text fill = a.has(1) ? a.text(c, 1) : plain(" ");
  if (characters(fill.bytes) != 1) c.fail("one character to fill with", fill.bytes);
  const auto size = static_cast<int64_t>(characters(text.bytes));
  const int64_t missing = std::max<int64_t>(width, size) - size;
  const int64_t left = kSide == Side::left    ? 0
                       : kSide == Side::right ? missing
                                              : missing / 2 + (missing & width & 1);
  c.expect_memory(static_cast<size_t>(missing));
  Builder out(c);
  for (int64_t i = 0; i < left; ++i) out.add(fill);
  out.add(text);
  for (int64_t i = left; i < missing; ++i) out.add(fill);
  return out.string();
}

Value zfill(Context& c, const Value& self, const Bound& a) {
  const Text& text = self_text(self);
  const size_t sign = text.bytes.starts_with('-') || text.bytes.starts_with('+') ? 1 : 0;
  Builder out(c);
  out.add(text, 0, sign);
  out.repeat("0", a.integer(c, 0, 0) - static_cast<int64_t>(characters(text.bytes)));
  out.add(text, sign, text.bytes.size());
  return out.string();
}

Value expandtabs(Context& c, const Value& self, const Bound& a) {
  const int64_t size = a.integer(c, 0, 8);
  Builder out(c);
  int64_t column = 0;
  each_character(self_text(self), [&](uint32_t code, std::string_view bytes, int origin) {
    if (code == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      out.repeat(" ", spaces);
      column += spaces;
      return;
    }
    out.add(bytes, origin);
    column = code == '\n' || code == '\r' ? 0 : column + 1;
  });
  return out.string();
}

// Tests whether the string is not empty and all its characters belong to the class.
template <auto kClass>
Value all_are(Context& c, const Value& self, const Bound&) {
  c.scan(self_text(self).bytes.size());
  bool all = !self_text(self).bytes.empty();
  each_character(self_text(self),
                 [&](uint32_t code, std::string_view, int) { all = all && kClass(code); });
  return Value::boolean(all);
}

bool is_ascii(uint32_t code) { return code < 0x80; }
bool is_alphanumeric(uint32_t code) { return is_alpha(code) || is_numeric(code); }

Value isascii(Context& c, const Value& self, const Bound& a) {
  return self_text(self).bytes.empty() ? Value::boolean(true) : all_are<is_ascii>(c, self, a);
}

// Returns true if the text has at least one cased character and all of them are upper (or lower)
// case.
template <bool kUpper>
Value has_case(Context& c, const Value& self, const Bound&) {
  c.scan(self_text(self).bytes.size());
  bool seen = false, other = false;
  each_character(self_text(self), [&](uint32_t code, std::string_view, int) {
    const bool upper = is_upper(code), lower = is_lower(code);
    seen = seen || (kUpper ? upper : lower);
    other = other || (kUpper ? lower : upper);
  });
  return Value::boolean(seen && !other);
}

Value istitle(Context& c, const Value& self, const Bound&) {
  c.scan(self_text(self).bytes.size());
  bool after_cased = false, seen = false, fits = true;
  each_character(self_text(self), [&](uint32_t code, std::string_view, int) {
    const bool upper = is_upper(code), lower = is_lower(code);
    fits = fits && !(upper && after_cased) && !(lower && !after_cased);
    after_cased = upper || lower;
    seen = seen || after_cased;
  });
  return Value::boolean(seen && fits);
}

struct FormatMethod : Callable {
  explicit FormatMethod(Value s) : self(std::move(s)) {}
  Value call(Context& c, const Arguments& arguments) override {
    return brace_format(c, text_of(self), arguments);
  }
  std::string shown() const override { return "<built-in method format>"; }
  const Value self;
};

constexpr Builtin kStringMethods[] = {
    {"capitalize", "", 0, change_text<Case::capitalized>},
    {"casefold", "", 0, change_text<Case::folded>},
    {"center", "width fillchar", 1, justify<Side::center>},
    {"count", "sub start end", 1, count},
    {"endswith", "suffix start end", 1, begins<true>},
    {"expandtabs", "tabsize", 0, expandtabs},
    {"find", "sub start end", 1, find<false, false>},
    {"format", "", 0, nullptr},
    {"index", "sub start end", 1, find<false, true>},
    {"isalnum", "", 0, all_are<is_alphanumeric>},
    {"isalpha", "", 0, all_are<is_alpha>},
    {"isascii", "", 0, isascii},
    {"isdecimal", "", 0, all_are<is_decimal>},
    {"isdigit", "", 0, all_are<is_digit>},
    {"islower", "", 0, has_case<false>},
    {"isnumeric", "", 0, all_are<is_numeric>},
    {"isspace", "", 0, all_are<is_space>},
    {"istitle", "", 0, istitle},
    {"isupper", "", 0, has_case<true>},
    {"join", "iterable", 1, join_texts},
    {"ljust", "width fillchar", 1, justify<Side::left>},
    {"lower", "", 0, change_text<Case::lower>},
    {"lstrip", "chars", 0, strip<true, false>},
    {"partition", "sep", 1, partition<false>},
    {"removeprefix", "prefix", 1, without<false>},
    {"removesuffix", "suffix", 1, without<true>},
    {"replace", "old new count", 2, replace_text},
    {"rfind", "sub start end", 1, find<true, false>},
    {"rindex", "sub start end", 1, find<true, true>},
    {"rjust", "width fillchar", 1, justify<Side::right>},
    {"rpartition", "sep", 1, partition<true>},
    {"rsplit", "sep maxsplit", 0, split<true>},
    {"rstrip", "chars", 0, strip<false, true>},
    {"split", "sep maxsplit", 0, split<false>},
    {"splitlines", "keepends", 0, splitlines},
    {"startswith", "prefix start end", 1, begins<false>},
    {"strip", "chars", 0, strip<true, true>},
    {"swapcase", "", 0, change_text<Case::swapped>},
    {"title", "", 0, change_text<Case::title>},
    {"upper", "", 0, change_text<Case::upper>},
    {"zfill", "width", 1, zfill},
};

Value list_index(Context& c, const Value& self, const Bound& a) {
  for (size_t i = 0; i < items_of(self).size(); ++i) {
    if (equal(c, items_of(self)[i], a[0])) return Value::integer(static_cast<int64_t>(i));
  }
  c.fail("an item of the list", repr(c, a[0]).bytes);
}

Value list_count(Context& c, const Value& self, const Bound& a) {
  return Value::integer(std::ranges::count_if(
      items_of(self), [&](const Value& item) { return equal(c, item, a[0]); }));
}

Value itself(Context&, const Value& self, const Bound&) { return self; }

constexpr Builtin kListMethods[] = {
    {"copy", "", 0, itself},
    {"count", "value", 1, list_count},
    {"index", "value", 1, list_index},
};

Value get(Context& c, const Value& self, const Bound& a) {
  require_hashable(c, a[0]);
  const Value* found = find_member(c, members_of(self), a[0]);
  return found != nullptr ? *found : a.value_or(1, Value());
}

template <class F>
Value view(Context& c, const Value& self, const char* name, F f) {
  std::vector<Value> all;
  for (const auto& [key, value] : members_of(self).all()) all.push_back(f(key, value));
  return c.list(std::move(all), Kind::view, name);
}

Value dict_items(Context& c, const Value& self, const Bound&) {
  return view(c, self, "dict_items",
              [&](const Value& key, const Value& value) { return c.pair(key, value); });
}
Value keys(Context& c, const Value& self, const Bound&) {
  return view(c, self, "dict_keys", [](const Value& key, const Value&) { return key; });
}
Value values(Context& c, const Value& self, const Bound&) {
  return view(c, self, "dict_values", [](const Value&, const Value& value) { return value; });
}

constexpr Builtin kDictMethods[] = {
    {"copy", "", 0, itself}, {"get", "key default", 1, get}, {"items", "", 0, dict_items},
    {"keys", "", 0, keys},   {"values", "", 0, values},
};

}  // namespace

const Builtin* find_method(const Value& self, const std::string& name) {
  switch (self.kind()) {
    case Kind::string:
      return find_in(kStringMethods, name);
    case Kind::dict:
      return find_in(kDictMethods, name);
    case Kind::list:
      return find_in(kListMethods, name);
    case Kind::tuple:
      return name == "copy" ? nullptr : find_in(kListMethods, name);
    default:
      return nullptr;
  }
}

namespace {

struct Method : Callable {
  Method(const Builtin& b, Value s) : builtin(b), self(std::move(s)) {}
  Value call(Context& c, const Arguments& arguments) override {
    return jinja::call(c, builtin, self, arguments);
  }
  std::string shown() const override {
    return std::string("<built-in method ") + builtin.name + ">";
  }
  const Builtin& builtin;
  const Value self;
};

}  // namespace

Value method_of(Context& c, const Value& self, const Builtin& builtin) {
  if (builtin.call == nullptr) return {Kind::callable, c.make<FormatMethod>(0, self)};
  return {Kind::callable, c.make<Method>(0, builtin, self)};
}

}  // namespace stet::jinja

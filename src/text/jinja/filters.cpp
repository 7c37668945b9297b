// Filters of sequences, dicts and numbers.
#include "src/text/jinja/filters.hpp"

#include <algorithm>
#include <cmath>

namespace stet::jinja {

AttributeOf::AttributeOf(Context& context, const Value& attribute, std::optional<Value> otherwise)
    : context_(context), otherwise_(std::move(otherwise)) {
  if (attribute.is(Kind::none)) return;
  if (!is_string(attribute)) {
    parts_.push_back(attribute);
    return;
  }
  const Text& path = text_of(attribute);
  for (size_t at = 0; at <= path.bytes.size();) {
    const size_t dot = std::min(path.bytes.find('.', at), path.bytes.size());
    const std::string part = path.bytes.substr(at, dot - at);
    const bool number = !part.empty() && part.size() < 18 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    parts_.push_back(number ? Value::integer(std::stoll(part)) : context.string(part));
    at = dot + 1;
  }
}

Value AttributeOf::operator()(const Value& of) const {
  Value value = of;
  for (const Value& part : parts_) {
    value = item(context_, value, part);
    if (otherwise_ && value.is(Kind::undefined)) value = *otherwise_;
  }
  return value;
}

namespace {

Value ignore_case(Context& c, const Value& v, bool case_sensitive) {
  if (case_sensitive || !is_string(v)) return v;
  c.scan(text_of(v).bytes.size());
  return c.string(change_case(text_of(v), Case::lower));
}

Value length_of(Context& c, const Value& v, const Bound&) {
  const auto size = length(c, v);
  if (!size) c.fail("something that has a length", std::string("a value of type ") + type_name(v));
  return Value::integer(static_cast<int64_t>(*size));
}

Value first(Context& c, const Value& v, const Bound&) {
  Value item;
  return iterate(c, v)->next(c, item) ? item : c.undefined("no first item, the sequence was empty");
}

bool reversible(const Value& v) {
  return is_string(v) || v.is(Kind::list) || v.is(Kind::tuple) || v.is(Kind::dict) ||
         v.is(Kind::view) || v.is(Kind::range) || v.is(Kind::undefined);
}

Value last(Context& c, const Value& v, const Bound&) {
  if (!reversible(v)) c.fail("a sequence", std::string("a value of type ") + type_name(v));
  const std::vector<Value> all = items(c, v);
  return all.empty() ? c.undefined("no last item, the sequence was empty") : all.back();
}

Value list(Context& c, const Value& v, const Bound&) { return c.list(items(c, v)); }

// Returns an iterator over a vector.
Value generated(Context& c, std::vector<Value> all) {
  const Value list = c.list(std::move(all));
  return c.iterator([list, i = size_t{0}](Context& context, Value& item) mutable {
    context.step();
    if (i >= items_of(list).size()) return false;
    item = items_of(list)[i++];
    return true;
  });
}

Value reverse(Context& c, const Value& v, const Bound&) {
  if (is_string(v)) return slice(c, v, Value(), Value(), Value::integer(-1));
  std::vector<Value> all = items(c, v);
  std::ranges::reverse(all);
  return v.is(Kind::iterator) ? c.list(std::move(all)) : generated(c, std::move(all));
}

// An item with the keys it is sorted by.
struct Keyed {
  std::vector<Value> keys;
  Value item;
};

void sort_by_keys(Context& c, std::vector<Keyed>& all, bool reverse) {
  const auto before = [&](const Keyed& a, const Keyed& b) {
    for (size_t i = 0; i < a.keys.size(); ++i) {
      if (!equal(c, a.keys[i], b.keys[i])) return compare(c, Order::less, a.keys[i], b.keys[i]);
    }
    return false;
  };
  std::ranges::stable_sort(
      all, [&](const Keyed& a, const Keyed& b) { return reverse ? before(b, a) : before(a, b); });
}

Value items_in_order(Context& c, std::vector<Keyed>& all, bool reverse) {
  sort_by_keys(c, all, reverse);
  std::vector<Value> sorted;
  for (Keyed& one : all) sorted.push_back(std::move(one.item));
  return c.list(std::move(sorted));
}

// Parses attributes separated by commas.
std::vector<AttributeOf> attributes_of(Context& c, const Value& attribute) {
  std::vector<AttributeOf> all;
  if (!is_string(attribute)) return {AttributeOf(c, attribute)};
  const std::string& names = text_of(attribute).bytes;
  for (size_t at = 0; at <= names.size();) {
    const size_t comma = std::min(names.find(',', at), names.size());
    all.emplace_back(c, c.string(names.substr(at, comma - at)));
    at = comma + 1;
  }
  return all;
}

Value sort(Context& c, const Value& v, const Bound& a) {
  const bool case_sensitive = a.truth(c, 1, false);
  const std::vector<AttributeOf> attributes = attributes_of(c, a.value_or(2, Value()));
  std::vector<Keyed> all;
  each(c, v, [&](const Value& item) {
    Keyed one{{}, item};
    for (const AttributeOf& get : attributes)
      one.keys.push_back(ignore_case(c, get(item), case_sensitive));
    c.expect_memory(all.size() * sizeof(Keyed));
    all.push_back(std::move(one));
  });
  return items_in_order(c, all, a.truth(c, 0, false));
}

Value dictsort(Context& c, const Value& v, const Bound& a) {
  require_defined(c, v);
  if (!v.is(Kind::dict)) c.fail("a dict to sort", type_name(v));
  const std::string by = a.has(1) ? a.text(c, 1).bytes : "key";
  if (by != "key" && by != "value") c.fail("by to be key or value", by);
  std::vector<Keyed> all;
  for (const auto& [key, value] : members_of(v).all()) {
    all.push_back(
        {{ignore_case(c, by == "key" ? key : value, a.truth(c, 0, false))}, c.pair(key, value)});
  }
  return items_in_order(c, all, a.truth(c, 2, false));
}

Value unique(Context& c, const Value& v, const Bound& a) {
  const AttributeOf get(c, a.value_or(1, Value()));
  const bool case_sensitive = a.truth(c, 0, false);
  const Iteration from = iterate(c, v);
  return c.iterator(
      [from, get, case_sensitive, seen = Members()](Context& context, Value& item) mutable {
        while (from->next(context, item)) {
          const Value key = ignore_case(context, get(item), case_sensitive);
          require_hashable(context, key);
          if (find_member(context, seen, key) != nullptr) continue;
          set_member(context, seen, key, Value());
          return true;
        }
        return false;
      });
}

template <Order kBetter>
Value extreme(Context& c, const Value& v, const Bound& a) {
  const AttributeOf get(c, a.value_or(1, Value()));
  const bool case_sensitive = a.truth(c, 0, false);
  std::optional<Value> best, best_key;
  each(c, v, [&](const Value& item) {
    const Value key = ignore_case(c, get(item), case_sensitive);
    if (best && !compare(c, kBetter, key, *best_key)) return;
    best = item;
    best_key = key;
  });
  return best ? *best : c.undefined("no aggregated item, the sequence was empty");
}

Value sum(Context& c, const Value& v, const Bound& a) {
  const AttributeOf get(c, a.value_or(0, Value()));
  Value total = a.value_or(1, Value::integer(0));
  if (is_string(total)) c.fail("a start that is no string", "one");
  each(c, v, [&](const Value& item) { total = binary(c, '+', total, get(item)); });
  return total;
}

Value groupby(Context& c, const Value& v, const Bound& a) {
  const std::optional<Value> otherwise =
      a.has(1) && !a[1].is(Kind::none) ? std::optional(a[1]) : std::nullopt;
  const AttributeOf get(c, a[0], otherwise);
  const bool case_sensitive = a.truth(c, 2, false);
  std::vector<Keyed> all;
  each(c, v, [&](const Value& item) {
    c.expect_memory(all.size() * sizeof(Keyed));
    all.push_back({{ignore_case(c, get(item), case_sensitive)}, item});
  });
  sort_by_keys(c, all, false);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < all.size();) {
    std::vector<Value> members;
    size_t end = begin;
    while (end < all.size() && equal(c, all[end].keys[0], all[begin].keys[0]))
      members.push_back(all[end++].item);
    const Value key = get(members[0]);
    groups.push_back(c.list({key, c.list(std::move(members))}, Kind::tuple, "group"));
    begin = end;
  }
  return c.list(std::move(groups));
}

Value batch(Context& c, const Value& v, const Bound& a) {
  const int64_t count = a.integer(c, 0, 0);
  const Value fill = a.value_or(1, Value());
  const Iteration from = iterate(c, v);
  return c.iterator([from, count, fill](Context& context, Value& item) {
    std::vector<Value> some;
    Value next;
    while ((some.empty() || static_cast<int64_t>(some.size()) != count) &&
           from->next(context, next)) {
      context.expect_memory(some.size() * sizeof(Value));
      some.push_back(next);
    }
    if (some.empty()) return false;
    if (!fill.is(Kind::none) && static_cast<int64_t>(some.size()) < count) {
      context.expect_memory(static_cast<size_t>(count) * sizeof(Value));
      some.resize(static_cast<size_t>(count), fill);
    }
    item = context.list(std::move(some));
    return true;
  });
}

Value slices(Context& c, const Value& v, const Bound& a) {
  const int64_t count = a.integer(c, 0, 0);
  if (count == 0) c.fail("a number of slices other than 0", "0");
  const std::vector<Value> all = items(c, v);
  const auto size = static_cast<int64_t>(all.size());
  std::vector<Value> parts;
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool longer = i < size % count;
    const int64_t end = begin + size / count + (longer ? 1 : 0);
    std::vector<Value> some(all.begin() + begin, all.begin() + end);
    if (a.has(1) && !a[1].is(Kind::none) && !longer) some.push_back(a[1]);
    c.expect_memory(parts.size() * sizeof(Value));
    parts.push_back(c.list(std::move(some)));
    begin = end;
  }
  return generated(c, std::move(parts));
}

Value pairs(Context& c, const Value& v, const Bound&) {
  if (v.is(Kind::undefined)) return generated(c, {});
  if (!v.is(Kind::dict)) c.fail("a mapping", std::string("a value of type ") + type_name(v));
  std::vector<Value> all;
  for (const auto& [key, value] : members_of(v).all()) all.push_back(c.pair(key, value));
  return generated(c, std::move(all));
}

Value default_value(Context& c, const Value& v, const Bound& a) {
  const bool use = v.is(Kind::undefined) || (a.truth(c, 1, false) && !truth(c, v));
  return use ? a.value_or(0, c.string("")) : v;
}

Value attr(Context& c, const Value& v, const Bound& a) {
  const std::string& name = a.text(c, 0).bytes;
  return v.is(Kind::dict) && find_method(v, name) == nullptr
             ? c.undefined("'dict object' has no attribute '" + name + "'")
             : attribute(c, v, name);
}

// Applies a filter by name, with the arguments after its name.
Value apply_filter(Context& c, const std::string& name, const Value& v,
                   const Arguments& arguments) {
  const Builtin* filter = find_filter(name);
  if (filter == nullptr) c.fail("a filter of Jinja", name);
  return call(c, *filter, v, arguments);
}

bool apply_test(Context& c, const std::string& name, const Value& v, const Arguments& arguments) {
  const Builtin* test = find_test(name);
  if (test == nullptr) c.fail("a test of Jinja", name);
  return truth(c, call(c, *test, v, arguments));
}

// Returns an iterator of f(item), computed on demand.
template <class F>
Value lazily(Context& c, const Value& v, F f) {
  if (!truth(c, v)) return generated(c, {});
  return c.iterator([from = iterate(c, v), f](Context& context, Value& item) {
    for (Value next; from->next(context, next);) {
      if (f(context, next, item)) return true;
    }
    return false;
  });
}

Value map(Context& c, const Value& v, const Bound& a) {
  Arguments rest = a.more;
  if (rest.positional.empty()) {
    std::optional<Value> attribute, otherwise;
    for (const auto& [name, value] : rest.named) {
      if (name == "attribute")
        attribute = value;
      else if (name == "default")
        otherwise = value;
      else
        c.fail("attribute and default as arguments of map", name);
    }
    if (!attribute) c.fail("a filter or an attribute to map with", "none");
    if (otherwise && otherwise->is(Kind::none)) otherwise.reset();
    const AttributeOf get(c, *attribute, otherwise);
    return lazily(c, v, [get](Context&, const Value& next, Value& item) {
      item = get(next);
      return true;
    });
  }
  const std::string name = str(c, rest.positional[0]).bytes;
  rest.positional.erase(rest.positional.begin());
  return lazily(c, v, [name, rest](Context& context, const Value& next, Value& item) {
    item = apply_filter(context, name, next, rest);
    return true;
  });
}

// select and reject, by a test of the item or of one of its attributes.
template <bool kKeep, bool kByAttribute>
Value filtered(Context& c, const Value& v, const Bound& a) {
  Arguments rest = a.more;
  const auto take = [&]() -> std::optional<Value> {
    if (rest.positional.empty()) return std::nullopt;
    const Value front = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
    return front;
  };
  const std::optional<Value> attribute = kByAttribute ? take() : Value();
  if (!attribute) c.fail("the name of an attribute", "none");
  const AttributeOf get(c, *attribute);
  const std::optional<Value> test = take();
  const std::string name = test ? str(c, *test).bytes : "";
  return lazily(c, v,
                [get, named = test.has_value(), name, rest](Context& context, const Value& next,
                                                            Value& item) {
                  const Value tested = get(next);
                  item = next;
                  return kKeep ==
                         (named ? apply_test(context, name, tested, rest) : truth(context, tested));
                });
}

Value absolute(Context& c, const Value& v, const Bound&) {
  require_defined(c, v);
  if (v.is(Kind::number)) return Value::number(std::abs(v.as_number()));
  const auto whole = as_index(v);
  if (!whole) c.fail("a number", std::string("a value of type ") + type_name(v));
  return *whole < 0 ? negative(c, v) : positive(c, v);
}

Value to_integer(Context& c, const Value& v, const Bound& a) {
  if (const auto whole = as_index(v)) return Value::integer(*whole);
  if (v.is(Kind::number)) {
    if (std::isnan(v.as_number())) return a.value_or(0, Value::integer(0));
    return Value::integer(checked_integer(c, std::trunc(v.as_number())));
  }
  require_defined(c, v);
  if (is_string(v)) {
    const int64_t base = a.integer(c, 1, 10);
    if (base != 0 && (base < 2 || base > 36)) return a.value_or(0, Value::integer(0));
    if (const auto whole = parse_integer(c, text_of(v).bytes, static_cast<int>(base)))
      return Value::integer(*whole);
    const auto number = parse_float(text_of(v).bytes);
    if (number && std::isfinite(*number))
      return Value::integer(checked_integer(c, std::trunc(*number)));
  }
  return a.value_or(0, Value::integer(0));
}

Value to_float(Context& c, const Value& v, const Bound& a) {
  require_defined(c, v);
  if (is_number(v)) return Value::number(as_double(v));
  const auto number = is_string(v) ? parse_float(text_of(v).bytes) : std::nullopt;
  return number ? Value::number(*number) : a.value_or(0, Value::number(0));
}

// Rounds half to even, as Python does.
double half_even(double value) {
  const double down = std::floor(value), rest = value - down;
  if (rest != 0.5) return rest < 0.5 ? down : down + 1;
  return std::fmod(down, 2) == 0 ? down : down + 1;
}

Value rounded(Context& c, const Value& v, const Bound& a) {
  require_defined(c, v);
  if (!is_number(v)) c.fail("a number to round", std::string("a value of type ") + type_name(v));
  const int64_t precision = a.integer(c, 0, 0);
  const std::string method = a.has(1) ? str(c, a[1]).bytes : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    c.fail("common, ceil or floor", method);
  if (precision < -400 || precision > 400)
    c.fail("a precision in -400..400", std::to_string(precision));
  const double scale = std::pow(10.0, static_cast<double>(precision < 0 ? -precision : precision));
  const double value = as_double(v);
  if (method != "common") {
    const double scaled = precision < 0 ? value / scale : value * scale;
    const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
    if (!std::isfinite(whole)) c.fail("a finite number to round", float_repr(value));
    const double result = precision < 0 ? whole * scale : whole / scale;
    return Value::number(result);
  }
  if (const auto whole = as_index(v); whole && precision >= 0) return Value::integer(*whole);
  if (!std::isfinite(value)) return v;
  if (as_index(v)) return Value::integer(checked_integer(c, half_even(value / scale) * scale));
  if (precision < 0) return Value::number(half_even(value / scale) * scale);
  return Value::number(*parse_float(fixed(value, static_cast<int>(precision))));
}

constexpr Builtin kFilters[] = {
    {"abs", "", 0, absolute},
    {"attr", "name", 1, attr},
    {"batch", "linecount fill_with", 1, batch},
    {"count", "", 0, length_of},
    {"d", "default_value boolean", 0, default_value},
    {"default", "default_value boolean", 0, default_value},
    {"dictsort", "case_sensitive by reverse", 0, dictsort},
    {"first", "", 0, first},
    {"float", "default", 0, to_float},
    {"groupby", "attribute default case_sensitive", 1, groupby},
    {"int", "default base", 0, to_integer},
    {"items", "", 0, pairs},
    {"last", "", 0, last},
    {"length", "", 0, length_of},
    {"list", "", 0, list},
    {"map", "* **", 0, map},
    {"max", "case_sensitive attribute", 0, extreme<Order::greater>},
    {"min", "case_sensitive attribute", 0, extreme<Order::less>},
    {"reject", "* **", 0, filtered<false, false>},
    {"rejectattr", "* **", 0, filtered<false, true>},
    {"reverse", "", 0, reverse},
    {"round", "precision method", 0, rounded},
    {"select", "* **", 0, filtered<true, false>},
    {"selectattr", "* **", 0, filtered<true, true>},
    {"slice", "slices fill_with", 1, slices},
    {"sort", "reverse case_sensitive attribute", 0, sort},
    {"sum", "attribute start", 0, sum},
    {"unique", "case_sensitive attribute", 0, unique},
};

}  // namespace

const Builtin* find_filter(const std::string& name) {
  const Builtin* found = find_in(kFilters, name);
  return found != nullptr ? found : find_text_filter(name);
}

}  // namespace stet::jinja

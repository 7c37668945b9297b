// Operators, comparison, iteration and access, with the semantics of Python and jinja2's sandbox.
#include <algorithm>
#include <bit>
#include <cmath>
#include <compare>

#include "src/text/jinja/context.hpp"

namespace stet::jinja {

const char* type_name(const Value& v) {
  switch (v.kind()) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::number:
      return "float";
    case Kind::string:
      return "str";
    case Kind::list:
      return "list";
    case Kind::tuple:
      return "tuple";
    case Kind::dict:
      return "dict";
    case Kind::view:
      return v.as<List>().name;
    case Kind::range:
      return "range";
    case Kind::iterator:
      return "generator";
    case Kind::space:
      return "Namespace";
    case Kind::loop:
      return "LoopContext";
    case Kind::callable:
      return "function";
  }
  return "";
}

void require_defined(Context& c, const Value& v) {
  if (!v.is(Kind::undefined)) return;
  const auto& undefined = v.as<Undefined>();
  c.fail(undefined.unsafe ? "what the sandbox allows" : "a defined value", undefined.message);
}

bool is_number(const Value& v) {
  return v.is(Kind::boolean) || v.is(Kind::integer) || v.is(Kind::number);
}

std::optional<int64_t> as_index(const Value& v) {
  if (v.is(Kind::integer)) return v.as_integer();
  if (v.is(Kind::boolean)) return v.as_boolean() ? 1 : 0;
  return std::nullopt;
}

double as_double(const Value& v) {
  return v.is(Kind::number) ? v.as_number() : static_cast<double>(*as_index(v));
}

bool truth(Context& c, const Value& v) {
  switch (v.kind()) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return v.as_boolean();
    case Kind::integer:
      return v.as_integer() != 0;
    case Kind::number:
      return v.as_number() != 0;
    case Kind::string:
      return !text_of(v).bytes.empty();
    case Kind::iterator:
    case Kind::space:
    case Kind::callable:
      return true;
    default:
      return *length(c, v) > 0;
  }
}

std::optional<size_t> length(Context& c, const Value& v) {
  switch (v.kind()) {
    case Kind::undefined:
      return 0;
    case Kind::string:
      c.copy(text_of(v).bytes.size());
      return characters(text_of(v).bytes);
    case Kind::list:
    case Kind::tuple:
    case Kind::view:
      return items_of(v).size();
    case Kind::dict:
      return members_of(v).all().size();
    case Kind::range:
      return static_cast<size_t>(v.as<Range>().count);
    case Kind::loop:
      return static_cast<size_t>(attribute(c, v, "length").as_integer());
    default:
      return std::nullopt;
  }
}

bool hashable(Context& c, const Value& v) {
  if (v.is(Kind::list) || v.is(Kind::dict) || v.is(Kind::view)) return false;
  if (!v.is(Kind::tuple)) return true;
  const Context::Level level(c);
  c.step(items_of(v).size());
  return std::ranges::all_of(items_of(v), [&](const Value& item) { return hashable(c, item); });
}

void require_hashable(Context& c, const Value& v) {
  if (!hashable(c, v)) c.fail("a hashable value", std::string("one of type ") + type_name(v));
}

namespace {

// Returns the steps for comparing with a key beyond its first bytes.
uint64_t key_steps(Context& c, const Value& key) {
  if (is_string(key)) return text_of(key).bytes.size() / 512;
  if (!key.is(Kind::tuple)) return 0;
  const Context::Level level(c);
  c.step(items_of(key).size());
  uint64_t steps = items_of(key).size();
  for (const Value& item : items_of(key)) steps += key_steps(c, item);
  return steps;
}

void charge_search(Context& c, const Members& members, const Value& key) {
  const uint64_t count = members.all().size(),
                 comparisons = count < 16 ? count : std::bit_width(count) + 1;
  c.step(key_steps(c, key) * comparisons + comparisons / 16);
}

}  // namespace

const Value* find_member(Context& c, const Members& members, const Value& key) {
  charge_search(c, members, key);
  return members.find(key);
}

void set_member(Context& c, Members& members, const Value& key, const Value& value) {
  charge_search(c, members, key);
  c.expect_memory(members.all().size() * Members::kBytes);
  members.set(key, value);
}

namespace {

// Compares numbers exactly, also integers with floats.
std::partial_ordering number_order(const Value& a, const Value& b) {
  const auto x = as_index(a), y = as_index(b);
  if (x && y) return *x <=> *y;
  const auto wide = [](const Value& v) {
    return as_index(v) ? static_cast<long double>(*as_index(v)) : as_double(v);
  };
  return wide(a) <=> wide(b);
}

bool equal_members(Context& c, const Members& a, const Members& b) {
  if (a.all().size() != b.all().size()) return false;
  for (const auto& [key, value] : a.all()) {
    const Value* other = find_member(c, b, key);
    if (other == nullptr || !equal(c, value, *other)) return false;
  }
  return true;
}

bool equal_items(Context& c, const Value& a, const Value& b) {
  if (length(c, a) != length(c, b)) return false;
  const Iteration x = iterate(c, a), y = iterate(c, b);
  for (Value p, q; x->next(c, p) && y->next(c, q);) {
    if (!equal(c, p, q)) return false;
  }
  return true;
}

}  // namespace

bool equal(Context& c, const Value& a, const Value& b) {
  c.step();
  if (is_number(a) && is_number(b)) return number_order(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  const Context::Level level(c);
  switch (a.kind()) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::string:
      c.copy(text_of(a).bytes.size());
      return text_of(a).bytes == text_of(b).bytes;
    case Kind::list:
    case Kind::tuple:
    case Kind::view:
    case Kind::range:
      return equal_items(c, a, b);
    case Kind::dict:
      return equal_members(c, members_of(a), members_of(b));
    default:
      return a.object() == b.object();
  }
}

bool compare(Context& c, Order order, const Value& a, const Value& b) {
  c.step();
  const Context::Level level(c);
  std::partial_ordering result = std::partial_ordering::unordered;
  if (is_number(a) && is_number(b)) {
    result = number_order(a, b);
  } else if (is_string(a) && is_string(b)) {
    c.copy(text_of(a).bytes.size());
    // UTF-8 sorts by bytes in the same order as by characters.
    result = text_of(a).bytes.compare(text_of(b).bytes) <=> 0;
  } else if (a.kind() == b.kind() && (a.is(Kind::list) || a.is(Kind::tuple))) {
    const auto &x = items_of(a), &y = items_of(b);
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(c, x[i], y[i])) return compare(c, order, x[i], y[i]);
    }
    result = x.size() <=> y.size();
  } else {
    require_defined(c, a);
    require_defined(c, b);
    c.fail("two values that can be ordered", std::string(type_name(a)) + " and " + type_name(b));
  }
  switch (order) {
    case Order::less:
      return result < 0;
    case Order::less_equal:
      return result <= 0;
    case Order::greater:
      return result > 0;
    case Order::greater_equal:
      return result >= 0;
  }
  return false;
}

bool contains(Context& c, const Value& container, const Value& item) {
  if (is_string(container)) {
    if (!is_string(item)) c.fail("a string to be looked for in a string", type_name(item));
    c.search(text_of(container).bytes.size(), text_of(item).bytes.size());
    return text_of(container).bytes.find(text_of(item).bytes) != std::string::npos;
  }
  if (container.is(Kind::dict)) {
    require_hashable(c, item);
    return find_member(c, members_of(container), item) != nullptr;
  }
  const Iteration iteration = iterate(c, container);
  for (Value element; iteration->next(c, element);) {
    if (equal(c, element, item)) return true;
  }
  return false;
}

bool is_iterable(const Value& v) {
  switch (v.kind()) {
    case Kind::none:
    case Kind::boolean:
    case Kind::integer:
    case Kind::number:
    case Kind::space:
    case Kind::callable:
      return false;
    default:
      return true;
  }
}

Iteration iterate(Context& c, const Value& v) {
  const auto counted = [&](auto at) {
    Iterator::Next next = [v, at, i = size_t{0}](Context& context, Value& item) mutable {
      context.step();
      return at(context, v, i++, item);
    };
    return c.make<Iterator>(64, std::move(next));
  };
  switch (v.kind()) {
    case Kind::iterator:
      return std::static_pointer_cast<Iterator>(v.shared());
    case Kind::undefined:
      return counted([](Context&, const Value&, size_t, Value&) { return false; });
    case Kind::list:
    case Kind::tuple:
    case Kind::view:
      return counted([](Context&, const Value& of, size_t i, Value& item) {
        if (i >= items_of(of).size()) return false;
        item = items_of(of)[i];
        return true;
      });
    case Kind::dict:
      return counted([](Context&, const Value& of, size_t i, Value& item) {
        if (i >= members_of(of).all().size()) return false;
        item = members_of(of).all()[i].first;
        return true;
      });
    case Kind::range:
      return counted([](Context&, const Value& of, size_t i, Value& item) {
        const auto& range = of.as<Range>();
        if (i >= static_cast<size_t>(range.count)) return false;
        item = Value::integer(range.at(static_cast<int64_t>(i)));
        return true;
      });
    case Kind::string:
      return counted(
          [byte = size_t{0}](Context& context, const Value& of, size_t, Value& item) mutable {
            const Text& text = text_of(of);
            if (byte >= text.bytes.size()) return false;
            const size_t end = byte + utf8_at(text.bytes, byte).length;
            item = context.string(slice(text, byte, end));
            byte = end;
            return true;
          });
    default:
      c.fail("something to iterate over", std::string("a value of type ") + type_name(v));
  }
}

std::vector<Value> items(Context& c, const Value& v) {
  std::vector<Value> all;
  each(c, v, [&](const Value& item) {
    c.expect_memory(all.size() * sizeof(Value));
    all.push_back(item);
  });
  return all;
}

namespace {

std::string quoted_name(const std::string& name) { return "'" + name + "'"; }

std::string object_name(const Value& v) {
  return v.is(Kind::none) ? "None" : quoted_name(std::string(type_name(v)) + " object");
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::ranges::find(names, name) != names.end();
}

// Returns whether the sandbox hides the name: methods that modify their object, and Python's
// internals.
bool is_unsafe(const Value& v, const std::string& name) {
  if (v.is(Kind::list)) {
    return is_one_of(name,
                     {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"}) ||
           (name.starts_with("__") && name.ends_with("__"));
  }
  if (v.is(Kind::dict) && is_one_of(name, {"clear", "pop", "popitem", "setdefault", "update"}))
    return true;
  return name.size() > 4 && name.starts_with("__") && name.ends_with("__");
}

// Returns the attribute that getattr finds.
std::optional<Value> own_attribute(Context& c, const Value& v, const std::string& name) {
  if (is_unsafe(v, name)) {
    return c.undefined("access to attribute " + quoted_name(name) + " of " +
                           quoted_name(type_name(v)) + " object is unsafe",
                       true);
  }
  if (v.is(Kind::space)) {
    c.names(v.as<Space>().attributes.size(), name.size());
    for (const auto& [key, value] : v.as<Space>().attributes) {
      if (key == name) return value;
    }
    return std::nullopt;
  }
  if (v.is(Kind::loop) || v.is(Kind::callable)) return v.as<Callable>().attribute(c, v, name);
  if (v.is(Kind::tuple) && *v.as<List>().name != '\0') {
    if (name == "grouper") return items_of(v)[0];
    if (name == "list") return items_of(v)[1];
  }
  if (const Builtin* method = find_method(v, name)) return method_of(c, v, *method);
  return std::nullopt;
}

// Returns v[index], without falling back to attributes.
std::optional<Value> own_item(Context& c, const Value& v, const Value& index) {
  if (v.is(Kind::dict)) {
    if (!hashable(c, index)) return std::nullopt;
    const Value* found = find_member(c, members_of(v), index);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  const std::optional<int64_t> number = as_index(index);
  const bool sequence = is_string(v) || v.is(Kind::list) || v.is(Kind::tuple) || v.is(Kind::range);
  if (!number || !sequence) return std::nullopt;
  const auto count = static_cast<int64_t>(*length(c, v));
  const int64_t at = *number < 0 ? *number + count : *number;
  if (at < 0 || at >= count) return std::nullopt;
  if (v.is(Kind::range)) return Value::integer(v.as<Range>().at(at));
  if (!is_string(v)) return items_of(v)[static_cast<size_t>(at)];
  const Text& text = text_of(v);
  c.scan(text.bytes.size());
  const size_t begin = byte_of(text.bytes, static_cast<size_t>(at));
  return c.string(slice(text, begin, begin + utf8_at(text.bytes, begin).length));
}

}  // namespace

Value attribute(Context& c, const Value& v, const std::string& name) {
  require_defined(c, v);
  if (auto found = own_attribute(c, v, name)) return *found;
  if (v.is(Kind::dict)) {
    if (auto found = own_item(c, v, c.string(name))) return *found;
  }
  return c.undefined(object_name(v) + " has no attribute " + quoted_name(name));
}

Value item(Context& c, const Value& v, const Value& index) {
  require_defined(c, v);
  if (auto found = own_item(c, v, index)) return *found;
  if (!is_string(index))
    return c.undefined(object_name(v) + " has no element " + repr(c, index).bytes);
  const std::string& name = text_of(index).bytes;
  if (auto found = own_attribute(c, v, name)) return *found;
  return c.undefined(object_name(v) + " has no attribute " + quoted_name(name));
}

Value slice(Context& c, const Value& v, const Value& start, const Value& stop, const Value& step) {
  require_defined(c, v);
  const auto number = [&](const Value& bound) -> std::optional<int64_t> {
    if (bound.is(Kind::none)) return std::nullopt;
    require_defined(c, bound);
    if (!as_index(bound)) c.fail("integers or none as bounds of a slice", type_name(bound));
    return as_index(bound);
  };
  const int64_t by = std::clamp(number(step).value_or(1), -INT64_MAX, INT64_MAX);
  if (by == 0) c.fail("a slice step other than 0", "0");
  const bool sequence = is_string(v) || v.is(Kind::list) || v.is(Kind::tuple) || v.is(Kind::range);
  if (!sequence)
    c.fail("something that has slices", std::string("a value of type ") + type_name(v));
  const auto count = static_cast<int64_t>(*length(c, v));
  // The bounds of Python's slice.indices.
  const int64_t low = by < 0 ? -1 : 0, high = by < 0 ? count - 1 : count;
  const auto clamped = [&](const Value& bound, int64_t otherwise) {
    const std::optional<int64_t> given = number(bound);
    if (!given) return otherwise;
    return *given < 0 ? std::max(*given < -count ? low : *given + count, low)
                      : std::min(*given, high);
  };
  const int64_t from = clamped(start, by < 0 ? high : low), to = clamped(stop, by < 0 ? low : high);
  const int64_t many = by < 0 ? (from > to ? (from - to - 1) / -by + 1 : 0)
                              : (from < to ? (to - from - 1) / by + 1 : 0);
  if (v.is(Kind::range)) {
    const auto& range = v.as<Range>();
    const int64_t stride = many > 1 ? range.step * by : range.step;
    return {Kind::range, c.make<Range>(0, range.at(from), range.at(to), stride, many)};
  }
  if (!is_string(v)) {
    c.expect_memory(static_cast<size_t>(many) * sizeof(Value));
    std::vector<Value> taken;
    for (int64_t i = 0; i < many; ++i)
      taken.push_back(items_of(v)[static_cast<size_t>(from + i * by)]);
    return c.list(std::move(taken), v.kind());
  }
  const Text& text = text_of(v);
  c.scan(text.bytes.size());
  const bool one_byte_each = static_cast<size_t>(count) == text.bytes.size();
  if (by == 1) {
    const auto byte = [&](int64_t i) {
      return one_byte_each ? static_cast<size_t>(i) : byte_of(text.bytes, static_cast<size_t>(i));
    };
    return many == 0 ? c.string("") : c.string(slice(text, byte(from), byte(from + many)));
  }
  c.expect_memory(2 * sizeof(size_t) * static_cast<size_t>(count));
  std::vector<size_t> begins;
  for (size_t at = 0; at < text.bytes.size(); at += utf8_at(text.bytes, at).length)
    begins.push_back(at);
  begins.push_back(text.bytes.size());
  Builder out(c);
  for (int64_t i = 0; i < many; ++i) {
    const auto at = static_cast<size_t>(from + i * by);
    out.add(text, begins[at], begins[at + 1]);
  }
  return out.string();
}

Value call(Context& c, const Value& callee, const Arguments& arguments) {
  c.step();
  require_defined(c, callee);
  if (!callee.is(Kind::callable) && !callee.is(Kind::loop)) {
    c.fail("something that can be called", std::string("a value of type ") + type_name(callee));
  }
  const Context::Level level(c);
  return callee.as<Callable>().call(c, arguments);
}

namespace {

[[noreturn]] void wrong_type(Context& c, const char* expected, const Value& v) {
  require_defined(c, v);
  c.fail(expected, std::string("a value of type ") + type_name(v));
}

Value overflow(Context& c) { c.fail("an integer of 64 bits", "a larger one"); }

Value integer_power(Context& c, int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return overflow(c);
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow(c);
  }
  return Value::integer(result);
}

Value integer_arithmetic(Context& c, char op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case '+':
      return __builtin_add_overflow(a, b, &result) ? overflow(c) : Value::integer(result);
    case '-':
      return __builtin_sub_overflow(a, b, &result) ? overflow(c) : Value::integer(result);
    case '*':
      return __builtin_mul_overflow(a, b, &result) ? overflow(c) : Value::integer(result);
    case 'p':
      return integer_power(c, a, b);
    default:
      break;
  }
  if (b == 0) c.fail("a divisor other than 0", "0");
  if (op == '/')
    return Value::number(
        static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
  if (b == -1) return op == '%' ? Value::integer(0) : integer_arithmetic(c, '-', 0, a);
  const bool down = a % b != 0 && (a < 0) != (b < 0);  // towards minus infinity
  return Value::integer(op == '%' ? a % b + (down ? b : 0) : a / b - (down ? 1 : 0));
}

// Implements Python's float_divmod.
std::pair<double, double> floor_division(double a, double b) {
  double rest = std::fmod(a, b), quotient = (a - rest) / b;
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) {
      rest += b;
      quotient -= 1;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (quotient == 0) return {std::copysign(0.0, a / b), rest};
  const double whole = std::floor(quotient);
  return {quotient - whole > 0.5 ? whole + 1 : whole, rest};
}

Value float_arithmetic(Context& c, char op, double a, double b) {
  if ((op == '/' || op == 'f' || op == '%') && b == 0)
    c.fail("a divisor other than 0", float_repr(b));
  switch (op) {
    case '+':
      return Value::number(a + b);
    case '-':
      return Value::number(a - b);
    case '*':
      return Value::number(a * b);
    case '/':
      return Value::number(a / b);
    case 'f':
      return Value::number(floor_division(a, b).first);
    case '%':
      return Value::number(floor_division(a, b).second);
    default:
      break;
  }
  if (a == 0 && b < 0) c.fail("a base other than 0 for a negative exponent", "0");
  const double power = std::pow(a, b);
  if ((std::isnan(power) && !std::isnan(a) && !std::isnan(b)) ||
      (std::isinf(power) && !std::isinf(a) && !std::isinf(b))) {
    c.fail("a power that is a float", float_repr(a) + " ** " + float_repr(b));
  }
  return Value::number(power);
}

Value repeated(Context& c, const Value& v, int64_t count) {
  const size_t times = count > 0 ? static_cast<size_t>(count) : 0;
  const size_t size = is_string(v) ? text_of(v).bytes.size() : items_of(v).size() * sizeof(Value);
  if (size > 0 && times > SIZE_MAX / 2 / size) c.expect_memory(SIZE_MAX);
  c.expect_memory(times * size);
  c.copy(times * size);
  if (!is_string(v)) {
    std::vector<Value> all;
    for (size_t i = 0; size > 0 && i < times; ++i)
      all.insert(all.end(), items_of(v).begin(), items_of(v).end());
    return c.list(std::move(all), v.kind());
  }
  Builder out(c);
  if (text_of(v).marks.empty()) {
    out.repeat(text_of(v).bytes, count);
  } else {
    for (size_t i = 0; i < times; ++i) out.add(text_of(v));
  }
  return out.string();
}

Value joined(Context& c, const Value& a, const Value& b) {
  if (is_string(a)) {
    Builder out(c);
    out.add(text_of(a));
    out.add(text_of(b));
    return out.string();
  }
  c.expect_memory((items_of(a).size() + items_of(b).size()) * sizeof(Value));
  std::vector<Value> all = items_of(a);
  all.insert(all.end(), items_of(b).begin(), items_of(b).end());
  return c.list(std::move(all), a.kind());
}

}  // namespace

Value binary(Context& c, char op, const Value& a, const Value& b) {
  if (op == '%' && is_string(a)) return percent_format(c, text_of(a), b);
  const auto x = as_index(a), y = as_index(b);
  if (x && y && !(op == 'p' && *y < 0)) return integer_arithmetic(c, op, *x, *y);
  if (is_number(a) && is_number(b)) return float_arithmetic(c, op, as_double(a), as_double(b));
  const auto sequence = [](const Value& v) {
    return is_string(v) || v.is(Kind::list) || v.is(Kind::tuple);
  };
  if (op == '+' && a.kind() == b.kind() && sequence(a)) return joined(c, a, b);
  if (op == '*' && sequence(a) && y) return repeated(c, a, *y);
  if (op == '*' && sequence(b) && x) return repeated(c, b, *x);
  require_defined(c, a);
  require_defined(c, b);
  const std::string sign = op == 'f' ? "//" : op == 'p' ? "**" : std::string(1, op);
  c.fail("operands that " + sign + " takes", std::string(type_name(a)) + " and " + type_name(b));
}

Value negative(Context& c, const Value& v) {
  if (const auto whole = as_index(v)) return integer_arithmetic(c, '-', 0, *whole);
  if (!v.is(Kind::number)) wrong_type(c, "a number after -", v);
  return Value::number(-v.as_number());
}

Value positive(Context& c, const Value& v) {
  if (!is_number(v)) wrong_type(c, "a number after +", v);
  return v.is(Kind::boolean) ? Value::integer(*as_index(v)) : v;
}

}  // namespace stet::jinja

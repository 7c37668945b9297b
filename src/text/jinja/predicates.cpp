// Jinja's tests, which follow `is`.
#include <cmath>

#include "src/text/jinja/context.hpp"

namespace stet::jinja {
namespace {

template <Kind... kKinds>
Value is_kind(Context&, const Value& v, const Bound&) {
  return Value::boolean((v.is(kKinds) || ...));
}

template <bool kWanted>
Value is_boolean(Context&, const Value& v, const Bound&) {
  return Value::boolean(v.is(Kind::boolean) && v.as_boolean() == kWanted);
}

Value defined(Context&, const Value& v, const Bound&) {
  return Value::boolean(!v.is(Kind::undefined));
}

template <int kRest>
Value parity(Context& c, const Value& v, const Bound&) {
  return Value::boolean(equal(c, binary(c, '%', v, Value::integer(2)), Value::integer(kRest)));
}

Value divisible(Context& c, const Value& v, const Bound& a) {
  return Value::boolean(equal(c, binary(c, '%', v, a[0]), Value::integer(0)));
}

template <bool kWanted>
Value equal_to(Context& c, const Value& v, const Bound& a) {
  return Value::boolean(equal(c, v, a[0]) == kWanted);
}

template <Order kOrder>
Value ordered(Context& c, const Value& v, const Bound& a) {
  return Value::boolean(compare(c, kOrder, v, a[0]));
}

Value in(Context& c, const Value& v, const Bound& a) {
  return Value::boolean(contains(c, a[0], v));
}

Value iterable(Context&, const Value& v, const Bound&) { return Value::boolean(is_iterable(v)); }

// Tests for a length and items by index or key.
Value sequence(Context&, const Value& v, const Bound&) {
  return Value::boolean(is_string(v) || v.is(Kind::list) || v.is(Kind::tuple) || v.is(Kind::dict) ||
                        v.is(Kind::range) || v.is(Kind::undefined));
}

Value callable(Context&, const Value& v, const Bound&) {
  return Value::boolean(v.is(Kind::callable) || v.is(Kind::loop) || v.is(Kind::undefined));
}

// Tests for the same object. Equal numbers and strings count as the same.
Value same_object(Context& c, const Value& v, const Bound& a) {
  if (v.kind() != a[0].kind()) return Value::boolean(false);
  const bool by_value = v.object() == nullptr || is_string(v);
  return Value::boolean(by_value ? equal(c, v, a[0]) : v.object() == a[0].object());
}

// str.islower and str.isupper.
template <bool kUpper>
Value is_in_case(Context& c, const Value& v, const Bound&) {
  const Value text = as_string(c, v);
  return call(c, *find_method(text, kUpper ? "isupper" : "islower"), text, {});
}

Value is_filter(Context& c, const Value& v, const Bound&) {
  return Value::boolean(find_filter(str(c, v).bytes) != nullptr);
}

Value is_test(Context& c, const Value& v, const Bound&) {
  return Value::boolean(find_test(str(c, v).bytes) != nullptr);
}

Value never(Context&, const Value&, const Bound&) { return Value::boolean(false); }

constexpr Builtin kTests[] = {
    {"!=", "other", 1, equal_to<false>},
    {"<", "other", 1, ordered<Order::less>},
    {"<=", "other", 1, ordered<Order::less_equal>},
    {"==", "other", 1, equal_to<true>},
    {">", "other", 1, ordered<Order::greater>},
    {">=", "other", 1, ordered<Order::greater_equal>},
    {"boolean", "", 0, is_kind<Kind::boolean>},
    {"callable", "", 0, callable},
    {"defined", "", 0, defined},
    {"divisibleby", "num", 1, divisible},
    {"eq", "other", 1, equal_to<true>},
    {"equalto", "other", 1, equal_to<true>},
    {"escaped", "", 0, never},
    {"even", "", 0, parity<0>},
    {"false", "", 0, is_boolean<false>},
    {"filter", "", 0, is_filter},
    {"float", "", 0, is_kind<Kind::number>},
    {"ge", "other", 1, ordered<Order::greater_equal>},
    {"greaterthan", "other", 1, ordered<Order::greater>},
    {"gt", "other", 1, ordered<Order::greater>},
    {"in", "seq", 1, in},
    {"integer", "", 0, is_kind<Kind::integer>},
    {"iterable", "", 0, iterable},
    {"le", "other", 1, ordered<Order::less_equal>},
    {"lessthan", "other", 1, ordered<Order::less>},
    {"lower", "", 0, is_in_case<false>},
    {"lt", "other", 1, ordered<Order::less>},
    {"mapping", "", 0, is_kind<Kind::dict>},
    {"ne", "other", 1, equal_to<false>},
    {"none", "", 0, is_kind<Kind::none>},
    {"number", "", 0, is_kind<Kind::boolean, Kind::integer, Kind::number>},
    {"odd", "", 0, parity<1>},
    {"sameas", "other", 1, same_object},
    {"sequence", "", 0, sequence},
    {"string", "", 0, is_kind<Kind::string>},
    {"test", "", 0, is_test},
    {"true", "", 0, is_boolean<true>},
    {"undefined", "", 0, is_kind<Kind::undefined>},
    {"upper", "", 0, is_in_case<true>},
};

}  // namespace

const Builtin* find_test(const std::string& name) { return find_in(kTests, name); }

}  // namespace stet::jinja

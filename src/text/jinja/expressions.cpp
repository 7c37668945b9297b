// Evaluates expressions.
#include "src/text/jinja/nodes.hpp"

namespace stet::jinja {

Value Expression::evaluate(Context& c) const {
  c.step();
  const Context::Level level(c);
  const Position before = c.at;
  c.at = at;
  Value v = value(c);
  c.at = before;  // not restored on failure, so the error has the inner position
  return v;
}

// Looks the name up in scopes, the variables of the rendering, and global functions.
Value Name::value(Context& c) const {
  for (const Frame* frame = c.frame.get(); frame != nullptr; frame = frame->parent.get()) {
    c.names(frame->names.size(), name.size());
    if (const Value* found = frame->find(name)) return *found;
  }
  for (const auto& [key, value] : c.variables) {
    if (key == name) return value;
  }
  if (auto global = find_global(c, name)) return *global;
  return c.undefined("'" + name + "' is undefined");
}

Value Sequence::value(Context& c) const {
  std::vector<Value> values;
  for (const ExpressionPtr& item : items) values.push_back(item->evaluate(c));
  return c.list(std::move(values), kind);
}

Value DictLiteral::value(Context& c) const {
  Members all;
  for (const auto& [key, value] : members) {
    const Value name = key->evaluate(c);
    require_hashable(c, name);
    set_member(c, all, name, value->evaluate(c));
  }
  return c.dict(std::move(all));
}

Value Arithmetic::value(Context& c) const {
  Value result = first->evaluate(c);
  for (const auto& [op, operand] : rest) result = binary(c, op, result, operand->evaluate(c));
  return result;
}

Value Unary::value(Context& c) const {
  const Value v = operand->evaluate(c);
  return sign == '!' ? Value::boolean(!truth(c, v)) : sign == '-' ? negative(c, v) : positive(c, v);
}

Value Logic::value(Context& c) const {
  Value v;
  for (const ExpressionPtr& operand : operands) {
    v = operand->evaluate(c);
    if (truth(c, v) != all) break;
  }
  return v;
}

Value Concatenation::value(Context& c) const {
  Builder out(c);
  for (const ExpressionPtr& operand : operands) out.add(str(c, operand->evaluate(c)));
  return out.string();
}

Value Comparison::value(Context& c) const {
  const auto holds = [&](const std::string& op, const Value& a, const Value& b) {
    if (op == "==") return equal(c, a, b);
    if (op == "!=") return !equal(c, a, b);
    if (op == "in") return contains(c, b, a);
    if (op == "not in") return !contains(c, b, a);
    return compare(c,
                   op == "<"    ? Order::less
                   : op == "<=" ? Order::less_equal
                   : op == ">"  ? Order::greater
                                : Order::greater_equal,
                   a, b);
  };
  Value left = first->evaluate(c);
  for (const auto& [op, operand] : rest) {
    Value right = operand->evaluate(c);
    if (!holds(op, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Conditional::value(Context& c) const {
  if (truth(c, test->evaluate(c))) return then->evaluate(c);
  return otherwise != nullptr ? otherwise->evaluate(c)
                              : c.undefined("the condition is false, and there is no else");
}

Arguments ArgumentList::evaluate(Context& c) const {
  Arguments all;
  for (const ExpressionPtr& e : positional) all.positional.push_back(e->evaluate(c));
  if (more != nullptr) {
    for (Value& v : items(c, more->evaluate(c))) all.positional.push_back(std::move(v));
  }
  for (const auto& [name, e] : named) all.named.emplace_back(name, e->evaluate(c));
  if (more_named != nullptr) {
    const Value members = more_named->evaluate(c);
    if (!members.is(Kind::dict))
      c.fail("a mapping after **", std::string("a value of type ") + type_name(members));
    for (const auto& [key, value] : members_of(members).all())
      all.named.emplace_back(str(c, key).bytes, value);
  }
  return all;
}

Value apply(Context& c, const Steps& steps, Value v) {
  for (const auto& step : steps) {
    c.step();
    c.at = step->at;
    v = step->apply(c, v);
  }
  return v;
}

Value SliceStep::apply(Context& c, const Value& v) const {
  const auto bound = [&](const ExpressionPtr& e) {
    return e != nullptr ? e->evaluate(c) : Value();
  };
  const Value from = bound(start), to = bound(stop);
  return slice(c, v, from, to, bound(step));
}

Value FilterStep::apply(Context& c, const Value& v) const {
  if (builtin == nullptr) c.fail(ErrorKind::unsupported, "a filter that this engine has", name);
  const Arguments given = arguments.evaluate(c);
  c.at = at;
  return call(c, *builtin, v, given);
}

Value TestStep::apply(Context& c, const Value& v) const {
  if (builtin == nullptr) c.fail(ErrorKind::unsupported, "a test that this engine has", name);
  const Arguments given = arguments.evaluate(c);
  c.at = at;
  const Value result = call(c, *builtin, v, given);
  return negated ? Value::boolean(!truth(c, result)) : result;
}

}  // namespace stet::jinja

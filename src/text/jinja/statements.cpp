// Executes statements: output, scopes, loops, macros.
#include "src/text/jinja/nodes.hpp"

namespace stet::jinja {

Flow execute(Context& c, const Body& body) {
  const Context::Level level(c);
  for (const auto& statement : body) {
    c.step();
    c.at = statement->at;
    const Flow flow = statement->execute(c);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

void Target::assign(Context& c, const Value& value) const {
  if (!parts.empty()) {
    const std::vector<Value> values = items(c, value);
    if (values.size() != parts.size()) {
      c.fail(std::to_string(parts.size()) + " values to unpack", std::to_string(values.size()));
    }
    for (size_t i = 0; i < parts.size(); ++i) parts[i].assign(c, values[i]);
  } else if (attribute.empty()) {
    c.names(c.frame->names.size(), name.size());
    c.frame->set(name, value);
  } else {
    Name object(name);
    object.at = at;
    const Value space = object.evaluate(c);
    if (!space.is(Kind::space))
      c.fail("a namespace to set an attribute of",
             std::string("a value of type ") + type_name(space));
    auto& attributes = space.as<Space>().attributes;
    c.names(attributes.size(), attribute.size());
    for (auto& [key, old] : attributes) {
      if (key == attribute) {
        old = value;
        return;
      }
    }
    attributes.emplace_back(attribute, value);
  }
}

Flow Data::execute(Context& c) const {
  c.write(text);
  return Flow::normal;
}

Flow Print::execute(Context& c) const {
  const Value v = expression->evaluate(c);
  if (is_string(v))
    c.write(text_of(v));
  else
    c.write(str(c, v));
  return Flow::normal;
}

Flow If::execute(Context& c) const {
  for (const auto& [test, body] : branches) {
    if (truth(c, test->evaluate(c))) return jinja::execute(c, body);
  }
  return jinja::execute(c, otherwise);
}

Flow Set::execute(Context& c) const {
  const Value v = expression->evaluate(c);
  c.at = at;
  target.assign(c, v);
  return Flow::normal;
}

Flow CapturedBlock::execute(Context& c) const {
  Flow flow = Flow::normal;
  Value text = c.captured([&] {
    const Scope scope(c);
    flow = jinja::execute(c, body);
  });
  if (flow != Flow::normal) return flow;
  text = apply(c, filters, std::move(text));
  c.at = at;
  if (target)
    target->assign(c, text);
  else
    c.write(str(c, text));
  return Flow::normal;
}

Flow With::execute(Context& c) const {
  std::vector<Value> given;
  for (const auto& [target, e] : values) given.push_back(e->evaluate(c));
  const Scope scope(c);
  for (size_t i = 0; i < given.size(); ++i) values[i].first.assign(c, given[i]);
  return jinja::execute(c, body);
}

Flow ScopedBlock::execute(Context& c) const {
  const Scope scope(c);
  return jinja::execute(c, body);
}

namespace {

// The variable `loop`. Draws items on demand, at most one ahead unless a length is asked for.
struct Loop : Callable {
  Loop(const For& n, const Value& o, Iteration f, int64_t d, std::shared_ptr<Frame> p)
      : node(n), over(o), from(std::move(f)), depth(d), parent(std::move(p)) {}

  bool advance(Context& c) {
    if (!ahead) peek(c);
    if (!*ahead) return false;
    before = std::move(current);
    current = std::move(next_item);
    next_item = Value();
    ahead.reset();
    ++index;
    return true;
  }
  bool peek(Context& c) {
    if (!ahead) ahead = from->next(c, next_item);
    return *ahead;
  }
  int64_t length(Context& c) {
    if (size >= 0) return size;
    if (node.test == nullptr && !over.is(Kind::iterator)) {
      size = static_cast<int64_t>(jinja::length(c, over).value_or(0));
      return size;
    }
    const bool has_next = peek(c);
    const Value rest = c.list(items(c, {Kind::iterator, from}));
    from = iterate(c, rest);
    size = index + 1 + (has_next ? 1 : 0) + static_cast<int64_t>(items_of(rest).size());
    return size;
  }

  Value call(Context& c, const Arguments& arguments) override {
    if (!node.recursive) c.fail("a loop marked recursive", "another");
    if (arguments.positional.size() != 1 || !arguments.named.empty())
      c.fail("one argument of loop", "another number");
    return c.captured([&] { node.run(c, arguments.positional[0], depth + 1, parent); });
  }
  std::string shown() const override { return "<LoopContext " + std::to_string(index + 1) + ">"; }
  std::optional<Value> attribute(Context& c, const Value& self, const std::string& name) override;
  void clear() override {
    before = current = next_item = over = Value();
    changed.reset();
    from = nullptr;
  }

  const For& node;
  Value over;
  Iteration from;
  const int64_t depth;  // 0 for the outermost of a recursive loop
  const std::shared_ptr<Frame> parent;
  int64_t index = -1, size = -1;
  std::optional<bool> ahead;  // empty until known: next_item is valid
  Value before, current, next_item;
  std::optional<Value> changed;
};

Value cycle(Context& c, const Value& self, const Bound& a) {
  if (a.more.positional.empty()) c.fail("items to cycle through", "none");
  return a.more.positional[static_cast<size_t>(self.as<Loop>().index) % a.more.positional.size()];
}

Value changed(Context& c, const Value& self, const Bound& a) {
  auto& loop = self.as<Loop>();
  const Value values = c.list(a.more.positional, Kind::tuple);
  const bool differs = !loop.changed || !equal(c, *loop.changed, values);
  if (differs) loop.changed = values;
  return Value::boolean(differs);
}

constexpr Builtin kLoopMethods[] = {{"cycle", "*", 0, cycle}, {"changed", "*", 0, changed}};

std::optional<Value> Loop::attribute(Context& c, const Value& self, const std::string& name) {
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(!peek(c));
  if (name == "length") return Value::integer(length(c));
  if (name == "revindex") return Value::integer(length(c) - index);
  if (name == "revindex0") return Value::integer(length(c) - index - 1);
  if (name == "depth") return Value::integer(depth + 1);
  if (name == "depth0") return Value::integer(depth);
  if (name == "previtem") return index == 0 ? c.undefined("there is no previous item") : before;
  if (name == "nextitem") return peek(c) ? next_item : c.undefined("there is no next item");
  const Builtin* method = find_in(kLoopMethods, name);
  return method != nullptr ? std::optional(method_of(c, self, *method)) : std::nullopt;
}

// Returns the items of `from` that pass the loop's test, tested on demand.
Iteration tested(Context& c, const For& node, const Iteration& from,
                 const std::shared_ptr<Frame>& parent) {
  Iterator::Next next = [&node, from, parent](Context& context, Value& item) {
    while (from->next(context, item)) {
      const Scope scope(context, parent);
      node.target.assign(context, item);
      if (truth(context, node.test->evaluate(context))) return true;
    }
    return false;
  };
  return c.make<Iterator>(64, std::move(next));
}

}  // namespace

Flow For::execute(Context& c) const {
  const Value v = over->evaluate(c);
  c.at = at;
  return run(c, v, 0, c.frame);
}

Flow For::run(Context& c, const Value& value, int64_t depth,
              const std::shared_ptr<Frame>& parent) const {
  Iteration from = iterate(c, value);
  if (test != nullptr) from = tested(c, *this, from, parent);
  const auto loop = c.make<Loop>(0, *this, value, from, depth, parent);
  const Value loop_value(Kind::loop, loop);
  // True if an iteration reached its end. As in jinja2, `else` runs if all were left by a jump.
  bool completed = false;
  while (loop->advance(c)) {
    c.step();
    const Scope scope(c, parent);
    c.frame->set("loop", loop_value);
    c.at = at;
    target.assign(c, loop->current);
    const Flow flow = jinja::execute(c, body);
    if (flow == Flow::break_loop) break;
    completed = completed || flow == Flow::normal;
  }
  if (loop.use_count() > 2) c.keep(loop);
  if (completed || otherwise.empty()) return Flow::normal;
  const Scope scope(c, parent);
  return jinja::execute(c, otherwise);
}

namespace {

struct Macro : Callable {
  Macro(const MacroDefinition& d, std::shared_ptr<Frame> f)
      : definition(d), closure(std::move(f)) {}

  Value call(Context& c, const Arguments& given) override {
    const Scope scope(c, closure);
    bind(c, given);
    return c.captured([&] { execute(c, definition.body); });
  }
  std::string shown() const override {
    return definition.name.empty() ? "<Macro anonymous>" : "<Macro '" + definition.name + "'>";
  }
  std::optional<Value> attribute(Context& c, const Value&, const std::string& name) override;

  const MacroDefinition& definition;
  const std::shared_ptr<Frame> closure;

 private:
  void bind(Context& c, const Arguments& given) const;
};

// Binds arguments to names of the macro's scope. Missing ones get their defaults there.
void Macro::bind(Context& c, const Arguments& given) const {
  const auto& parameters = definition.parameters;
  auto named = given.named;
  const auto take = [&](const std::string& name) -> std::optional<Value> {
    const auto found =
        std::find_if(named.begin(), named.end(), [&](const auto& n) { return n.first == name; });
    if (found == named.end()) return std::nullopt;
    const Value v = found->second;
    named.erase(found);
    return v;
  };
  bool has_caller = false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].first;
    has_caller = has_caller || name == "caller";
    const std::optional<Value> v =
        i < given.positional.size() ? std::optional(given.positional[i]) : take(name);
    c.names(c.frame->names.size(), name.size());
    if (v) c.frame->set(name, *v);
  }
  for (const auto& [name, otherwise] : parameters) {
    c.names(2 * c.frame->names.size(), name.size());
    if (c.frame->find(name) != nullptr) continue;
    c.frame->set(name, otherwise != nullptr
                           ? otherwise->evaluate(c)
                           : c.undefined("parameter '" + name + "' was not provided"));
  }
  if (definition.uses_caller && !has_caller) {
    const std::optional<Value> caller = take("caller");
    c.frame->set("caller", caller ? *caller : c.undefined("no caller defined"));
  }
  if (definition.uses_kwargs) {
    Members members;
    c.step(4 * named.size());
    for (const auto& [name, value] : named) set_member(c, members, c.string(name), value);
    c.frame->set("kwargs", c.dict(std::move(members)));
  } else if (!named.empty()) {
    c.fail("arguments that macro " + definition.name + " takes, each once", named[0].first);
  }
  const size_t taken = std::min(given.positional.size(), parameters.size());
  if (definition.uses_varargs) {
    c.frame->set("varargs", c.list({given.positional.begin() + static_cast<long>(taken),
                                    given.positional.end()},
                                   Kind::tuple));
  } else if (taken < given.positional.size()) {
    c.fail(
        "at most " + std::to_string(parameters.size()) + " arguments of macro " + definition.name,
        std::to_string(given.positional.size()));
  }
}

std::optional<Value> Macro::attribute(Context& c, const Value&, const std::string& name) {
  if (name == "name") return c.string(definition.name);
  if (name == "catch_kwargs") return Value::boolean(definition.uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(definition.uses_varargs);
  if (name == "caller") return Value::boolean(definition.uses_caller);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const auto& parameter : definition.parameters) names.push_back(c.string(parameter.first));
  return c.list(std::move(names), Kind::tuple);
}

Value macro_value(Context& c, const MacroDefinition& definition) {
  c.keep(c.frame);
  return {Kind::callable, c.make<Macro>(0, definition, c.frame)};
}

}  // namespace

Flow MacroStatement::execute(Context& c) const {
  c.names(c.frame->names.size(), macro.name.size());
  c.frame->set(macro.name, macro_value(c, macro));
  return Flow::normal;
}

Flow CallBlock::execute(Context& c) const {
  const Value callee = function->evaluate(c);
  Arguments arguments = call->arguments.evaluate(c);
  arguments.named.emplace_back("caller", macro_value(c, caller));
  c.at = call->at;
  c.write(str(c, jinja::call(c, callee, arguments)));
  return Flow::normal;
}

Program Program::parse(std::string_view source, const std::string& name) {
  auto impl = std::make_shared<Impl>();
  impl->name = name;
  impl->body = parse_template(source, name);
  return Program(std::move(impl));
}

Text Program::render(const Variables& variables, const RenderOptions& options) const {
  Context c(impl_->name, variables, options);
  try {
    execute(c, impl_->body);
  } catch (const Refused&) {
    throw;
  } catch (const Error& e) {
    if (!e.field.empty()) throw;
    c.fail(e.kind, e.expected, e.found);  // adds the position in the template
  }
  return c.take_output();
}

}  // namespace stet::jinja

// Global functions, and the binding of arguments to the parameters of a builtin.
#include <algorithm>

#include "src/text/jinja/context.hpp"

namespace stet::jinja {

bool Bound::truth(Context& context, size_t i, bool otherwise) const {
  return has(i) ? jinja::truth(context, (*this)[i]) : otherwise;
}

int64_t Bound::integer(Context& context, size_t i, int64_t otherwise) const {
  if (!has(i)) return otherwise;
  require_defined(context, (*this)[i]);
  const auto whole = as_index((*this)[i]);
  if (!whole)
    context.fail("an integer as argument", std::string("a value of type ") + type_name((*this)[i]));
  return *whole;
}

const Text& Bound::text(Context& context, size_t i) const {
  require_defined(context, (*this)[i]);
  if (!is_string((*this)[i]))
    context.fail("a string as argument", std::string("a value of type ") + type_name((*this)[i]));
  return text_of((*this)[i]);
}

const Text* Bound::text_or_null(Context& context, size_t i) const {
  return has(i) && !(*this)[i].is(Kind::none) ? &text(context, i) : nullptr;
}

namespace {

Bound bind(Context& c, const Builtin& builtin, const Arguments& arguments) {
  std::vector<std::string_view> names;
  bool any = false, any_named = false;
  for (std::string_view rest = builtin.parameters; !rest.empty();) {
    const size_t space = std::min(rest.find(' '), rest.size());
    const std::string_view word = rest.substr(0, space);
    rest.remove_prefix(std::min(space + 1, rest.size()));
    if (word == "*")
      any = true;
    else if (word == "**")
      any_named = true;
    else
      names.push_back(word);
  }
  Bound bound;
  bound.values.resize(names.size());
  const std::string title = builtin.name;
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    if (i < names.size())
      bound.values[i] = arguments.positional[i];
    else if (any)
      bound.more.positional.push_back(arguments.positional[i]);
    else
      c.fail("at most " + std::to_string(names.size()) + " arguments of " + title,
             std::to_string(arguments.positional.size()));
  }
  for (const auto& [name, value] : arguments.named) {
    const auto i = static_cast<size_t>(std::ranges::find(names, name) - names.begin());
    if (i < names.size() && !bound.values[i])
      bound.values[i] = value;
    else if (i == names.size() && any_named)
      bound.more.named.emplace_back(name, value);
    else
      c.fail("arguments that " + title + " takes, each once", name);
  }
  for (size_t i = 0; i < builtin.required; ++i) {
    if (!bound.values[i]) c.fail("argument " + std::string(names[i]) + " of " + title, "none");
  }
  return bound;
}

}  // namespace

Value call(Context& c, const Builtin& builtin, const Value& self, const Arguments& arguments) {
  c.step();
  return builtin.call(c, self, bind(c, builtin, arguments));
}

namespace {

constexpr int64_t kRangeLimit = 100'000;  // jinja2's sandbox has this limit

Value range(Context& c, const Value&, const Bound& a) {
  const bool one = !a.has(1);
  const int64_t start = one ? 0 : a.integer(c, 0, 0), stop = a.integer(c, one ? 0 : 1, 0),
                step = a.integer(c, 2, 1);
  if (step == 0) c.fail("a step other than 0", "0");
  const bool runs = step > 0 ? start < stop : start > stop;
  const uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                     : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const uint64_t count = runs ? (distance - 1) / stride + 1 : 0;
  if (count > static_cast<uint64_t>(kRangeLimit)) {
    c.fail(ErrorKind::capacity, "a range of at most " + std::to_string(kRangeLimit) + " items",
           std::to_string(count));
  }
  return {Kind::range, c.make<Range>(0, start, stop, step, static_cast<int64_t>(count))};
}

// Collects the members of a mapping or of pairs, and named arguments.
Members members_from(Context& c, const Bound& a) {
  Members members;
  if (a.has(0) && a[0].is(Kind::dict)) {
    c.step(members_of(a[0]).all().size());
    c.expect_memory(members_of(a[0]).all().size() * Members::kBytes);
    members = members_of(a[0]);
  } else if (a.has(0)) {
    each(c, a[0], [&](const Value& pair) {
      const std::vector<Value> both = items(c, pair);
      if (both.size() != 2)
        c.fail("pairs of a key and a value", std::to_string(both.size()) + " items");
      require_hashable(c, both[0]);
      set_member(c, members, both[0], both[1]);
    });
  }
  for (const auto& [name, value] : a.more.named) set_member(c, members, c.string(name), value);
  return members;
}

Value dict(Context& c, const Value&, const Bound& a) { return c.dict(members_from(c, a)); }

Value space(Context& c, const Value&, const Bound& a) {
  const Members members = members_from(c, a);
  const auto object = c.make<Space>(members.all().size() * 4 * sizeof(Value));
  for (const auto& [key, value] : members.all())
    object->attributes.emplace_back(str(c, key).bytes, value);
  c.keep(object);
  return {Kind::space, object};
}

Value raise_exception(Context& c, const Value&, const Bound& a) {
  throw Refused(ErrorKind::format, c.name,
                "line " + std::to_string(c.at.line) + " column " + std::to_string(c.at.column),
                "what the template accepts", str(c, a[0]).bytes);
}

// Formats the current time. The result has the marks of the format.
Value strftime_now(Context& c, const Value&, const Bound& a) {
  const Text& format = a.text(c, 0);
  Text out;
  append(out, utf8_lossy(format_time(c, c.options.now, format.bytes)),
         format.marks.empty() ? kUnmarked : format.marks[0].origin);
  return c.string(std::move(out));
}

struct Cycler : Callable {
  explicit Cycler(std::vector<Value> i) : items(std::move(i)) {}
  Value call(Context& c, const Arguments&) override {
    c.fail("something that can be called", "a cycler");
  }
  std::string shown() const override { return "<Cycler>"; }
  std::optional<Value> attribute(Context& c, const Value& self, const std::string& name) override;
  void clear() override { items.clear(); }
  std::vector<Value> items;
  size_t at = 0;
};

Value cycler_next(Context&, const Value& self, const Bound&) {
  auto& cycler = self.as<Cycler>();
  const Value current = cycler.items[cycler.at];
  cycler.at = (cycler.at + 1) % cycler.items.size();
  return current;
}

Value cycler_reset(Context&, const Value& self, const Bound&) {
  self.as<Cycler>().at = 0;
  return {};
}

struct Joiner : Callable {
  explicit Joiner(Value s) : separator(std::move(s)) {}
  Value call(Context& c, const Arguments&) override {
    if (used) return separator;
    used = true;
    return c.string("");
  }
  std::string shown() const override { return "<Joiner>"; }
  const Value separator;
  bool used = false;
};

Value cycler(Context& c, const Value&, const Bound& a) {
  if (a.more.positional.empty()) c.fail("at least one item to cycle through", "none");
  const auto object = c.make<Cycler>(a.more.positional.size() * sizeof(Value), a.more.positional);
  c.keep(object);
  return {Kind::callable, object};
}

Value joiner(Context& c, const Value&, const Bound& a) {
  return {Kind::callable, c.make<Joiner>(0, a.value_or(0, c.string(", ")))};
}

constexpr Builtin kCyclerMethods[] = {{"next", "", 0, cycler_next}, {"reset", "", 0, cycler_reset}};

std::optional<Value> Cycler::attribute(Context& c, const Value& self, const std::string& name) {
  if (name == "current") return items[at];
  const Builtin* method = find_in(kCyclerMethods, name);
  return method != nullptr ? std::optional(method_of(c, self, *method)) : std::nullopt;
}

constexpr Builtin kGlobals[] = {
    {"cycler", "*", 0, cycler},
    {"dict", "mapping **", 0, dict},
    {"joiner", "sep", 0, joiner},
    {"namespace", "mapping **", 0, space},
    {"raise_exception", "message", 1, raise_exception},
    {"range", "start stop step", 1, range},
    {"strftime_now", "format", 1, strftime_now},
};

}  // namespace

std::optional<Value> find_global(Context& c, const std::string& name) {
  const Builtin* global = find_in(kGlobals, name);
  return global != nullptr ? std::optional(method_of(c, Value(), *global)) : std::nullopt;
}

}  // namespace stet::jinja

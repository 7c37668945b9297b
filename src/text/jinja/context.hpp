// The state of one rendering (limits, output, scopes) and the operations on values that need it.
#pragma once

#include "src/text/jinja/value.hpp"

namespace stet::jinja {

struct Position {
  uint32_t line = 1, column = 1;
};

[[noreturn]] void fail_at(ErrorKind kind, const std::string& name, Position at,
                          const std::string& expected, const std::string& found);

class Context {
 public:
  Context(const std::string& name, const Variables& variables, const RenderOptions& options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Counts work. Throws a capacity Error beyond the limit.
  void step(uint64_t count = 1) {
    if (count > steps_left_)
      fail(ErrorKind::capacity, "at most " + std::to_string(options.limits.steps) + " steps",
           "more");
    steps_left_ -= count;
  }
  void copy(size_t bytes) { step(1 + bytes / 128); }
  void scan(size_t bytes) { step(1 + bytes / 2); }  // for work on every character
  // Counts a search through `count` names for one of `bytes` bytes.
  void names(size_t count, size_t bytes) { step(count / 16 + bytes / 512); }
  // Counts a search for `wanted` bytes in `bytes` bytes: at worst their product.
  void search(size_t bytes, size_t wanted) { step(1 + bytes / 8 + bytes / 64 * (wanted / 64)); }
  // Throws a capacity Error if `bytes` would exceed the limit. Called before allocating, if the
  // size is known.
  void expect_memory(size_t bytes);

  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    fail(ErrorKind::format, expected, found);
  }
  [[noreturn]] void fail(ErrorKind kind, const std::string& expected,
                         const std::string& found) const {
    fail_at(kind, name, at, expected, found);
  }

  // Creates an object whose memory is counted.
  template <class T, class... A>
  std::shared_ptr<T> make(size_t bytes, A&&... arguments) {
    auto object = new_object<T>(std::forward<A>(arguments)...);
    count(*object, sizeof(T) + bytes);
    return object;
  }
  Value string(Text text);
  Value string(std::string_view bytes) { return string(plain(bytes)); }
  Value list(std::vector<Value> items, Kind kind = Kind::list, const char* name = "");
  Value pair(const Value& a, const Value& b) { return list({a, b}, Kind::tuple); }
  Value dict(Members members);
  Value iterator(Iterator::Next next);
  Value undefined(const std::string& message, bool unsafe = false);

  // One level of recursion, of the template or of a value.
  class Level {
   public:
    explicit Level(Context& context) : context_(context) {
      if (++context_.depth_ <= context_.options.limits.depth) return;
      --context_.depth_;
      context_.fail(ErrorKind::capacity,
                    "at most " + std::to_string(context_.options.limits.depth) + " levels", "more");
    }
    ~Level() { --context_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Context& context_;
  };

  // Writes to the current output.
  void write(const Text& text);
  // Returns the output of `render` as a string.
  template <class F>
  Value captured(F render) {
    Text text;
    Text* outer = output_;
    output_ = &text;
    try {
      render();
    } catch (...) {
      output_ = outer;
      memory_.used -= text.bytes.size();
      throw;
    }
    output_ = outer;
    memory_.used -= text.bytes.size();
    return string(std::move(text));
  }
  Text take_output() { return std::move(result_); }

  // Registers an object that may refer to itself, to be cleared at the end.
  void keep(std::shared_ptr<Object> object) { kept_.push_back(std::move(object)); }

  const std::string& name;
  const Variables& variables;
  const RenderOptions& options;
  Position at;                   // position of the code being evaluated
  std::shared_ptr<Frame> frame;  // the innermost scope

 private:
  void count(Object& object, size_t bytes);

  uint64_t steps_left_;
  int depth_ = 0;
  Memory memory_;
  Text result_;
  Text* output_ = &result_;
  std::vector<std::shared_ptr<Object>> kept_;
};

// Builds a string within the limits.
class Builder {
 public:
  explicit Builder(Context& context) : context_(context) {}
  void add(std::string_view bytes, int origin = kUnmarked) {
    grow(bytes.size());
    append(text, bytes, origin);
  }
  void add(const Text& from) { add(from, 0, from.bytes.size()); }
  void add(const Text& from, size_t begin, size_t end) {
    grow(end - begin);
    append(text, from, begin, end);
  }
  // Appends the same bytes `count` times.
  void repeat(std::string_view bytes, int64_t count);
  Value string() { return context_.string(std::move(text)); }

  Text text;

 private:
  void grow(size_t bytes) {
    context_.copy(bytes);
    // A growing buffer doubles its memory.
    context_.expect_memory(2 * (text.bytes.size() + bytes + text.marks.size() * sizeof(Mark)));
  }
  Context& context_;
};

// A new scope within `parent`, until the end of the block.
class Scope {
 public:
  Scope(Context& context, std::shared_ptr<Frame> parent)
      : context_(context), outer_(context.frame) {
    context.frame = context.make<Frame>(0, std::move(parent));
  }
  explicit Scope(Context& context) : Scope(context, context.frame) {}
  ~Scope() { context_.frame = std::move(outer_); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Context& context_;
  std::shared_ptr<Frame> outer_;
};

// Operations with Python's semantics (operations.cpp).
const char* type_name(const Value& v);
bool truth(Context& c, const Value& v);
bool equal(Context& c, const Value& a, const Value& b);
enum class Order { less, less_equal, greater, greater_equal };
bool compare(Context& c, Order order, const Value& a, const Value& b);
bool contains(Context& c, const Value& container, const Value& item);
std::optional<size_t> length(Context& c, const Value& v);
bool is_iterable(const Value& v);
bool is_number(const Value& v);                   // booleans count as numbers
double as_double(const Value& v);                 // v is a number
std::optional<int64_t> as_index(const Value& v);  // for an integer or a boolean
bool hashable(Context& c, const Value& v);
void require_hashable(Context& c, const Value& v);
// Find and set a member by a hashable key. Both count the comparisons they make as steps.
const Value* find_member(Context& c, const Members& members, const Value& key);
void set_member(Context& c, Members& members, const Value& key, const Value& value);
Iteration iterate(Context& c, const Value& v);
std::vector<Value> items(Context& c, const Value& v);
template <class F>
void each(Context& c, const Value& v, F f) {
  const Iteration iteration = iterate(c, v);
  for (Value item; iteration->next(c, item);) f(item);
}

Value binary(Context& c, char op, const Value& a,
             const Value& b);  // + - * / % and f for //, p for **
Value negative(Context& c, const Value& v);
Value positive(Context& c, const Value& v);

Text str(Context& c, const Value& v);
Text repr(Context& c, const Value& v);
Value as_string(Context& c, const Value& v);  // v itself if it is a string
Span stripped(Context& c, const Text& text, const Text* chars, bool left,
              bool right);  // white space, without chars
Value replaced(Context& c, const Text& text, const Text& from, const Text& to,
               int64_t count);  // all, when count < 0

Value attribute(Context& c, const Value& v, const std::string& name);
Value item(Context& c, const Value& v, const Value& index);
Value slice(Context& c, const Value& v, const Value& start, const Value& stop, const Value& step);
Value call(Context& c, const Value& callee, const Arguments& arguments);
Value call(Context& c, const Builtin& builtin, const Value& self, const Arguments& arguments);
void require_defined(Context& c, const Value& v);

// Lookup of builtins.
const Builtin* find_filter(const std::string& name);
const Builtin* find_test(const std::string& name);
const Builtin* find_method(const Value& self, const std::string& name);
std::optional<Value> find_global(Context& c, const std::string& name);
Value method_of(Context& c, const Value& self, const Builtin& builtin);
template <size_t N>
const Builtin* find_in(const Builtin (&table)[N], const std::string& name) {
  for (const Builtin& b : table) {
    if (name == b.name) return &b;
  }
  return nullptr;
}

// Formats (format.cpp): the operator % of strings, and str.format.
Value percent_format(Context& c, const Text& format, const Value& values);
Value brace_format(Context& c, const Text& format, const Arguments& arguments);
// json.dumps (json.cpp).
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent{};
  std::string item_separator = ", ", key_separator = ": ";
};
Text to_json(Context& c, const Value& v, const JsonStyle& style);
// time.strftime for local time (time.cpp).
std::string format_time(Context& c, double seconds, const std::string& format);

// Formatting and parsing of numbers, as in Python (number.cpp).
std::string float_repr(double value);
std::string fixed(double value, int precision);
std::string with_exponent(double value, int precision);
std::optional<int64_t> parse_integer(Context& c, std::string_view text, int base);
std::optional<double> parse_float(std::string_view text);
int64_t checked_integer(Context& c, double whole);

}  // namespace stet::jinja

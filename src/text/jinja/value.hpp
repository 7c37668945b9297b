// The representation of values. All are immutable once made, except namespaces, frames, loops and
// iterators.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "src/text/jinja/text.hpp"

namespace stet::jinja {

class Context;
struct Bound;
struct Arguments;
using Kind = Value::Kind;

// Bytes of live values, counted while a template runs.
struct Memory {
  size_t used = 0;
};

// The target of a Value. When its last reference goes away, the objects that it alone holds are
// deleted in a loop, not by recursion, since chains may be long.
struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() {
    if (memory != nullptr) memory->used -= size;
  }
  // Drops references that could lead back to this object.
  virtual void clear() {}

  Memory* memory = nullptr;
  size_t size = 0;         // counted in `memory`
  Object* next = nullptr;  // in the list of objects to delete
};
void release(Object* object) noexcept;

template <class T, class... A>
std::shared_ptr<T> new_object(A&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<A>(arguments)...),
                            [](T* object) { release(object); });
}

struct String : Object {
  explicit String(Text t) : text(std::move(t)) {}
  const Text text;
};

// list, tuple, and the views of a dict.
struct List : Object {
  explicit List(std::vector<Value> i, const char* n = "") : items(std::move(i)), name(n) {}
  const std::vector<Value> items;
  const char* const name;  // dict_keys and so on for a view; group for a tuple of groupby
};

// Members in order of insertion. Keys compare as in Python (1 == 1.0 == True) and must be hashable.
class Members {
 public:
  // Bytes of a member, including its place in the index and spare capacity.
  static constexpr size_t kBytes = 160;
  const Value* find(const Value& key) const;
  void set(const Value& key, const Value& value);
  const std::vector<std::pair<Value, Value>>& all() const { return members_; }

 private:
  struct Less {
    bool operator()(const Value& a, const Value& b) const;
  };
  std::optional<size_t> index_of(const Value& key) const;
  std::vector<std::pair<Value, Value>> members_;
  std::map<Value, size_t, Less> index_;  // used from kIndexed members on
};

struct Dict : Object {
  explicit Dict(Members m) : members(std::move(m)) {}
  const Members members;
};

struct Range : Object {
  Range(int64_t a, int64_t b, int64_t c, int64_t n) : start(a), stop(b), step(c), count(n) {}
  const int64_t start, stop, step, count;
  int64_t at(int64_t i) const { return start + i * step; }
};

// Yields each value once; `next` returns false at the end.
struct Iterator : Object {
  using Next = std::function<bool(Context&, Value&)>;
  explicit Iterator(Next f) : next(std::move(f)) {}
  void clear() override { next = nullptr; }
  Next next;
};
using Iteration = std::shared_ptr<Iterator>;

struct Undefined : Object {
  Undefined(std::string m, bool u) : message(std::move(m)), unsafe(u) {}
  const std::string message;  // error text for a use of the value
  const bool unsafe;          // true if the sandbox hides the attribute
};

// namespace(), the only value that a template can modify.
struct Space : Object {
  void clear() override { attributes.clear(); }
  std::vector<std::pair<std::string, Value>> attributes;
};

// A function of the engine: a filter, a test, a method (`self` is its object) or a global.
using Native = Value (*)(Context&, const Value& self, const Bound& arguments);
struct Builtin {
  const char* name;
  const char* parameters;  // separated by spaces; a last * or ** takes any number more
  size_t required;
  Native call;
};

struct Callable : Object {
  virtual Value call(Context& context, const Arguments& arguments) = 0;
  virtual std::string shown() const = 0;  // str() of it
  // Returns an attribute. `self` is the value that refers to this object.
  virtual std::optional<Value> attribute(Context&, const Value& /*self*/, const std::string&) {
    return std::nullopt;
  }
};

// A scope: its names and the enclosing scope.
struct Frame : Object {
  explicit Frame(std::shared_ptr<Frame> p) : parent(std::move(p)) {}
  void clear() override { names.clear(); }
  const Value* find(const std::string& name) const;
  void set(const std::string& name, const Value& value);

  const std::shared_ptr<Frame> parent;
  std::vector<std::pair<std::string, Value>> names;
};

// Evaluated arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Evaluated arguments, assigned to the parameters of a builtin.
struct Bound {
  std::vector<std::optional<Value>> values;
  Arguments more;

  bool has(size_t i) const { return values[i].has_value(); }
  const Value& operator[](size_t i) const { return *values[i]; }
  Value value_or(size_t i, const Value& otherwise) const { return has(i) ? *values[i] : otherwise; }
  // Return an argument of the required type. Errors name the parameter and the type.
  bool truth(Context& context, size_t i, bool otherwise) const;
  int64_t integer(Context& context, size_t i, int64_t otherwise) const;
  const Text& text(Context& context, size_t i) const;
  // Returns null if the argument is absent or none.
  const Text* text_or_null(Context& context, size_t i) const;
};

inline bool is_string(const Value& v) { return v.is(Kind::string); }
inline const Text& text_of(const Value& v) { return v.as<String>().text; }
inline const std::vector<Value>& items_of(const Value& v) { return v.as<List>().items; }
inline const Members& members_of(const Value& v) { return v.as<Dict>().members; }

}  // namespace stet::jinja

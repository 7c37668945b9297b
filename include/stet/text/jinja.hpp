// Jinja templates as the chat templates of published checkpoints use them: what jinja2's
// ImmutableSandboxedEnvironment renders with trim_blocks, lstrip_blocks and loop controls on and
// autoescape off, and with what transformers adds to it: the tag {% generation %} (its body is
// rendered), the functions raise_exception(message) and strftime_now(format), and a filter tojson
// that is Python's json.dumps(ensure_ascii=False).
//
// Source: the documentation of Jinja 3.1 (template designer documentation, sandbox) and of Python 3
// for the meaning of operators, methods of str, repr, and format strings.
//
// Differing on purpose: integers have 64 bits, and an overflow is an error; the filters safe and
// escape give ordinary strings; include, import, extends, block and autoescape are refused, as are
// the filters that make HTML or random choices.
//
// Templates and variables are not trusted: every resource is limited, and every failure is a
// stet::Error whose file is the template's name and whose field is "line L column C": format (the
// template is wrong, or wrong for these variables), unsupported (a part of Jinja that this engine
// does not have), capacity (a limit is reached).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/base/error.hpp"

namespace stet::jinja {

// Bytes begin..end-1 of a text came from input strings of this origin.
struct Mark {
  size_t begin = 0, end = 0;
  int origin = 0;

  bool operator==(const Mark&) const = default;
};

// UTF-8 and where it came from. Marks are sorted and disjoint, none is empty, and neighbours of one
// origin are one mark. Bytes without a mark are the template's own.
struct Text {
  std::string bytes;
  std::vector<Mark> marks;

  bool operator==(const Text&) const = default;
};

// The origin of a string that is not marked.
inline constexpr int kUnmarked = -1;

struct Object;

// A value of the template language, cheap to copy. Safe to share between threads.
class STET_API Value {
 public:
  enum class Kind : uint8_t {
    undefined,
    none,
    boolean,
    integer,
    number,
    string,
    list,
    tuple,
    dict,
    view,
    range,
    iterator,
    space,
    loop,
    callable
  };

  Value() = default;  // None
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value number(double value);
  // Ill-formed UTF-8 becomes U+FFFD.
  static Value string(std::string_view bytes, int origin = kUnmarked);
  static Value list(std::vector<Value> items);
  static Value dict(std::vector<std::pair<std::string, Value>> members);

  // Throws Error: format, with line and column, where it is not JSON, is nested more than 100 deep,
  // or has a number that fits neither 64 bits nor a double, or where its values take more than 24
  // MiB and three times the text. Of two members of one name the later one stays, as in Python.
  static Value from_json(std::string_view json, const std::string& file);
  // A copy with this origin on all strings in it, keys too. The value is one made by the functions
  // above.
  Value marked(int origin) const;

  Kind kind() const { return kind_; }
  std::vector<Value> items() const;  // of a list, else none
  // The members of a dict whose keys are strings; of another value none.
  std::vector<std::pair<std::string, Value>> members() const;

  // For the engine.
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}
  bool is(Kind kind) const { return kind_ == kind; }
  bool as_boolean() const { return boolean_; }
  int64_t as_integer() const { return integer_; }
  double as_number() const { return number_; }
  Object* object() const { return object_.get(); }
  const std::shared_ptr<Object>& shared() const { return object_; }
  template <class T>
  T& as() const {
    return static_cast<T&>(*object_);
  }

 private:
  Kind kind_ = Kind::none;
  union {
    bool boolean_;
    int64_t integer_ = 0;
    double number_;
  };
  std::shared_ptr<Object> object_;
};

using Variables = std::vector<std::pair<std::string, Value>>;

// What one rendering may use. Time is bounded by steps: one for every node evaluated and every item
// passed, more for long strings: one for 128 bytes copied, for 2 bytes looked at as characters. All
// of the default take a few seconds.
struct Limits {
  uint64_t steps = 50'000'000;
  size_t memory = size_t{24} << 20;  // bytes of all values and unfinished output that live at once
  size_t output = size_t{16} << 20;  // bytes of the result
  int depth = 1000;  // expressions, bodies and calls within one another, and values within values
};

struct RenderOptions {
  Limits limits{};
  double now = 0;  // for strftime_now: seconds since the epoch, shown in local time
};

// raise_exception(message) of the template: `found` is the message as it is.
class Refused : public Error {
 public:
  using Error::Error;
};

// A parsed template. Immutable; any number of threads may render it at once.
class STET_API Program {
 public:
  // `name` is the file of errors. Source is UTF-8 of at most 512 KiB, nested at most 200 deep.
  static Program parse(std::string_view source, const std::string& name);

  Text render(const Variables& variables, const RenderOptions& options = {}) const;

  struct Impl;

 private:
  explicit Program(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace stet::jinja

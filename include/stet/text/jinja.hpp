// A Jinja engine for the chat templates of published checkpoints. It renders like jinja2's
// ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks and loop controls on and autoescape
// off. It includes transformers' additions: the tag {% generation %} (its body is rendered), the
// functions raise_exception(message) and strftime_now(format), and tojson as Python's
// json.dumps(ensure_ascii=False).
//
// Sources: the documentation of Jinja 3.1 (template designer documentation, sandbox), and of Python
// 3 for operators, methods of str, repr, and format strings.
//
// Intended differences: integers have 64 bits, and overflow is an error. The filters safe and
// escape return ordinary strings. include, import, extends, block and autoescape are rejected, as
// are filters that produce HTML or make random choices.
//
// Templates and variables are untrusted: every resource is limited. Every failure is a stet::Error
// with the template's name as file and "line L column C" as field. Its kind is one of:
//   format       the template is wrong, or wrong for these variables
//   unsupported  a part of Jinja that this engine lacks
//   capacity     a limit was reached
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

// Marks bytes begin .. end-1 of a text as coming from input strings of this origin.
struct Mark {
  size_t begin = 0, end = 0;
  int origin = 0;

  bool operator==(const Mark&) const = default;
};

// UTF-8 text with the origins of its parts. Marks are sorted, disjoint and not empty, and adjacent
// marks of one origin are merged. Bytes without a mark are the template's own.
struct Text {
  std::string bytes;
  std::vector<Mark> marks;

  bool operator==(const Text&) const = default;
};

// The origin of an unmarked string.
inline constexpr int kUnmarked = -1;

struct Object;

// A value of the template language. Cheap to copy, and safe to share between threads.
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
  // Creates a string. Ill-formed UTF-8 becomes U+FFFD.
  static Value string(std::string_view bytes, int origin = kUnmarked);
  static Value list(std::vector<Value> items);
  static Value dict(std::vector<std::pair<std::string, Value>> members);

  // Parses JSON. Throws a format Error with line and column for malformed JSON and for nesting
  // deeper than 100. Also throws one for a number that fits neither 64 bits nor a double. Values
  // may take at most 24 MiB plus three times the text. Of repeated member names, the last one
  // counts, as in Python.
  static Value from_json(std::string_view json, const std::string& file);
  // Returns a copy with this origin on all strings in it, including keys. For values made by the
  // functions above.
  Value marked(int origin) const;

  Kind kind() const { return kind_; }
  std::vector<Value> items() const;  // items of a list; otherwise empty
  // Returns the members of a dict with string keys; empty for other values.
  std::vector<std::pair<std::string, Value>> members() const;

  // The members from here on are used by the engine only.
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

// Limits of one rendering. Time is bounded by steps: one for every node evaluated and every item
// visited. Long strings cost one step per 128 bytes copied or 2 bytes inspected as characters. The
// default allows a few seconds.
struct Limits {
  uint64_t steps = 50'000'000;
  size_t memory = size_t{24} << 20;  // bytes of all live values and unfinished output
  size_t output = size_t{16} << 20;  // bytes of the result
  int depth = 1000;                  // nesting of expressions, bodies and calls, and of values
};

// Options of a rendering.
struct RenderOptions {
  Limits limits{};
  double now = 0;  // for strftime_now: seconds since 1970, shown in local time
};

// Thrown when the template calls raise_exception(message); `found` is the message unchanged.
class Refused : public Error {
 public:
  using Error::Error;
};

// A parsed template. Immutable: any number of threads may render it at once.
class STET_API Program {
 public:
  // Parses a template of at most 512 KiB of UTF-8, nested at most 200 deep. Errors report `name` as
  // the file.
  static Program parse(std::string_view source, const std::string& name);

  Text render(const Variables& variables, const RenderOptions& options = {}) const;

  struct Impl;

 private:
  explicit Program(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace stet::jinja

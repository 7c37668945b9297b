// The JSON of a request, and its fields: each is read once, checked, and said by its JSON pointer
// where it is wrong. What nobody reads is refused by its name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tools/serve/http.hpp"

namespace stet::serve {

// The object that a body is. Takes time in proportion to its size. Throws a RequestError
// that tells line and column of what is not JSON, for more levels or values than a request may
// have, and for a key that comes twice.
Json parse_body(const std::string& body);

[[noreturn]] void refuse(const std::string& pointer, const std::string& expected,
                         const std::string& found, const std::string& code = "invalid_value");

// The error of something that this server does not have: `hint` says what would do.
[[noreturn]] void unsupported(const std::string& pointer, const std::string& what,
                              const std::string& hint = "leave it out",
                              const std::string& code = "unsupported_field");

// An array of token ids below `vocab_size`.
std::vector<int32_t> read_ids(const Json& value, const std::string& pointer, int64_t vocab_size);

class Fields;

// A value of a request, whether or not it is there. Whatever reads it returns nothing where it is
// absent or null, and throws a RequestError (400) with its JSON pointer where it is wrong.
class Field {
 public:
  // `found` is null where the field is absent. It must outlive this.
  Field(const Json* found, std::string name, std::string pointer)
      : found_(found), name_(std::move(name)), pointer_(std::move(pointer)) {}

  bool present() const { return found_ != nullptr; }  // also as null
  // Null where it is absent or null.
  const Json* value() const { return present() && !found_->is_null() ? found_ : nullptr; }
  const std::string& pointer() const { return pointer_; }

  std::optional<std::string> text() const;
  std::optional<std::string> nonempty_text() const;
  std::string required_text() const;
  std::optional<int64_t> integer(int64_t min, int64_t max) const;
  std::optional<double> number(double min, double max) const;
  std::optional<bool> boolean() const;
  // Each below `vocab_size`.
  std::optional<std::vector<int32_t>> ids(int64_t vocab_size) const;
  // A text, or an array of them.
  std::vector<std::string> texts(size_t most) const;
  std::optional<Fields> object() const;

  // Refuses what this server does not have. These values ask for nothing of it, and so does what is
  // empty, or an object whose members are.
  void neutral(const std::vector<Json>& values, const std::string& hint = "") const;

 private:
  const Json* found_;
  std::string name_, pointer_;
};

// The members of a JSON object. Those that nobody has asked for are refused in the end.
class Fields {
 public:
  // `object` must outlive this.
  Fields(const Json& object, std::string pointer);

  std::vector<std::string> names() const;  // of all fields that are there
  Field operator[](const std::string& name);
  // Has no effect on a reply by its definition.
  void unused(std::initializer_list<const char*> names);
  // To be called last: refuses fields that nobody asked for, unless they are null.
  void finish() const;

  const std::string& pointer() const { return pointer_; }

 private:
  std::string at(const std::string& name) const;  // its JSON pointer

  const Json& object_;
  std::string pointer_;
  std::set<std::string> known_;
};

}  // namespace stet::serve

// The JSON of a request and its fields. Each field is read and checked once, and errors give its
// JSON pointer. Fields that are never read are refused by name.
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

// Parses a body, which must be an object, in linear time. Throws a RequestError with line and
// column for malformed JSON, too many levels or values, and duplicate keys.
Json parse_body(const std::string& body);

[[noreturn]] void refuse(const std::string& pointer, const std::string& expected,
                         const std::string& found, const std::string& code = "invalid_value");

// Runs work on the value of a field. An error that it throws for a wrong value names this field,
// in the message and as pointer.
template <class Work>
auto for_field(const std::string& pointer, const Work& work) {
  try {
    return work();
  } catch (...) {
    const RequestError e = current_error();
    if (e.status != 400) throw;
    const std::string text = e.what(), known = e.pointer + ": ";
    const bool named = !e.pointer.empty() && text.starts_with(known);
    throw RequestError(400, e.code, pointer + ": " + text.substr(named ? known.size() : 0),
                       pointer);
  }
}

// Throws the error of a feature that this server does not support. `hint` is what to do instead.
[[noreturn]] void unsupported(const std::string& pointer, const std::string& what,
                              const std::string& hint = "leave it out",
                              const std::string& code = "unsupported_field");

// Returns an array of token ids below `vocab_size`.
std::vector<int32_t> read_ids(const Json& value, const std::string& pointer, int64_t vocab_size);

class Fields;

// A field of a request, present or absent. Readers return nothing if it is absent or null, and
// throw a RequestError (400) with its JSON pointer if it is wrong.
class Field {
 public:
  // `found` is null for an absent field. It must outlive this object.
  Field(const Json* found, std::string name, std::string pointer)
      : found_(found), name_(std::move(name)), pointer_(std::move(pointer)) {}

  bool present() const { return found_ != nullptr; }  // even as null
  // Returns null if the field is absent or null.
  const Json* value() const { return present() && !found_->is_null() ? found_ : nullptr; }
  const std::string& pointer() const { return pointer_; }

  std::optional<std::string> text() const;
  std::optional<std::string> nonempty_text() const;
  std::string required_text() const;
  std::optional<int64_t> integer(int64_t min, int64_t max) const;
  std::optional<double> number(double min, double max) const;
  std::optional<bool> boolean() const;
  // Returns ids, each below `vocab_size`.
  std::optional<std::vector<int32_t>> ids(int64_t vocab_size) const;
  // Returns the texts of a string or an array of strings.
  std::vector<std::string> texts(size_t most, size_t most_bytes = 65536) const;
  std::optional<Fields> object() const;

  // Refuses a feature that this server does not support, unless the value asks for nothing. These
  // are `values`, empty values, and objects of empty members.
  void neutral(const std::vector<Json>& values, const std::string& hint = "") const;

 private:
  const Json* found_;
  std::string name_, pointer_;
};

// The members of a JSON object. finish() refuses those that were not read.
class Fields {
 public:
  // `object` must outlive this object.
  Fields(const Json& object, std::string pointer);

  std::vector<std::string> names() const;  // names of all members
  Field operator[](const std::string& name);
  // Ignores fields that cannot affect a reply by their definition.
  void unused(std::initializer_list<const char*> names);
  // Call it last: refuses fields that were not read, unless they are null.
  void finish() const;

  const std::string& pointer() const { return pointer_; }

 private:
  std::string at(const std::string& name) const;  // returns its JSON pointer

  const Json& object_;
  std::string pointer_;
  std::set<std::string> known_;
};

}  // namespace stet::serve

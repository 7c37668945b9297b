// The fields of a request: each is read once, checked, and said by its JSON pointer where it is
// wrong. What nobody reads is refused by its name.
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

// The object that a body is (body.cpp). Takes time in proportion to its size. Throws a RequestError
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

class Fields {
 public:
  // `object` must outlive this.
  Fields(const Json& object, std::string pointer);

  std::vector<std::string> names() const;  // of all fields that are there
  // Null where it is absent or null.
  const Json* find(const std::string& name);
  std::optional<std::string> text(const std::string& name);
  std::optional<int64_t> integer(const std::string& name, int64_t min, int64_t max);
  std::optional<double> number(const std::string& name, double min, double max);
  std::optional<bool> boolean(const std::string& name);
  // Each below `vocab_size`.
  std::optional<std::vector<int32_t>> ids(const std::string& name, int64_t vocab_size);
  // A text, or an array of them.
  std::vector<std::string> texts(const std::string& name, size_t most);
  std::optional<Fields> object(const std::string& name);
  std::string required_text(const std::string& name);
  // A name; nothing where it is empty.
  std::optional<std::string> name(const std::string& name);

  // Refuses what this server does not have. These values ask for nothing of it, and so does what is
  // empty, or an object whose members are.
  void neutral(const std::string& name, std::initializer_list<Json> values,
               const std::string& hint = "");
  // Has no effect on a reply by its definition.
  void unused(std::initializer_list<const char*> names);
  // To be called last: refuses fields that nobody asked for, unless they are null.
  void finish() const;

  std::string at(const std::string& name) const;  // its JSON pointer
  const std::string& pointer() const { return pointer_; }

 private:
  const Json& object_;
  std::string pointer_;
  std::set<std::string> known_;
};

}  // namespace stet::serve

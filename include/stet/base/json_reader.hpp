// JSON from files that nobody vouches for: parsed within limits, then read through checked
// accessors.
#pragma once

#include <cfloat>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/api.h"

namespace stet {

// One object of a JSON file. Each accessor checks type and range and throws a format Error with the
// file and the field's path ("text_config.num_hidden_layers"). A null field counts as absent.
class STET_API JsonReader {
 public:
  // A null field is not there; names() has it.
  bool has(const std::string& name) const;
  bool has_object(const std::string& name) const;
  bool names(const std::string& name) const;
  std::vector<std::string> keys() const;  // sorted; null fields included

  // 1000000.0 is an integer too: some writers leave no other choice.
  int64_t integer(const std::string& name, int64_t min, int64_t max) const;
  int64_t integer_or(const std::string& name, int64_t fallback, int64_t min, int64_t max) const;
  double number(const std::string& name, double min = -DBL_MAX, double max = DBL_MAX) const;
  double number_or(const std::string& name, double fallback, double min = -DBL_MAX,
                   double max = DBL_MAX) const;
  bool boolean(const std::string& name) const;
  bool boolean_or(const std::string& name, bool fallback) const;
  std::string string(const std::string& name) const;
  std::string string_or(const std::string& name, const std::string& fallback) const;

  JsonReader required_object(const std::string& name) const;
  std::optional<JsonReader> object(const std::string& name) const;
  // The elements of an array of objects, which must be there.
  std::vector<JsonReader> objects(const std::string& name) const;

  // Arrays; an absent one is empty.
  std::vector<int64_t> integers(const std::string& name, int64_t min, int64_t max) const;
  std::vector<double> numbers(const std::string& name) const;
  std::vector<std::string> strings(const std::string& name) const;
  // An array, or one integer in place of an array of one, as eos_token_id is written.
  std::vector<int64_t> integer_or_integers(const std::string& name, int64_t min, int64_t max) const;

  // The Error for a value that is wrong for a reason the accessors do not know.
  [[noreturn]] void fail(const std::string& name, const std::string& expected) const;

  const std::string& file() const { return file_; }
  std::string path_of(const std::string& name) const;
  std::string text() const;  // the object again, as one line of JSON with sorted keys

 private:
  friend struct JsonAccess;  // of the source file, which knows the library behind it
  JsonReader(std::shared_ptr<const void> object, std::string file, std::string path)
      : object_(std::move(object)), file_(std::move(file)), path_(std::move(path)) {}

  std::shared_ptr<const void> object_;  // shared by copies and parts
  std::string file_, path_;
};

// The object that a whole file is.
STET_API JsonReader parse_json(std::string_view text, const std::string& file);

}  // namespace stet

// Reads untrusted JSON: parsed within limits, then accessed through checked functions.
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

// One object of a JSON file. Each function checks type and range, and throws a format Error with
// the file and the field's path ("text_config.num_hidden_layers"). A null field counts as absent.
class STET_API JsonReader {
 public:
  // has() is false for a null field; names() is true.
  bool has(const std::string& name) const;
  bool has_object(const std::string& name) const;
  bool names(const std::string& name) const;
  std::vector<std::string> keys() const;  // sorted; null fields included

  // Returns an integer. 1000000.0 is accepted, because some writers produce it.
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
  // Returns the elements of an array of objects, which is required.
  std::vector<JsonReader> objects(const std::string& name) const;

  // Return arrays; an absent one is empty.
  std::vector<int64_t> integers(const std::string& name, int64_t min, int64_t max) const;
  std::vector<double> numbers(const std::string& name) const;
  std::vector<std::string> strings(const std::string& name) const;
  // Returns an array, or a single integer as an array of one, as eos_token_id is written.
  std::vector<int64_t> integer_or_integers(const std::string& name, int64_t min, int64_t max) const;

  // Throws the Error for a value that is wrong for another reason than type or range.
  [[noreturn]] void fail(const std::string& name, const std::string& expected) const;

  const std::string& file() const { return file_; }
  std::string path_of(const std::string& name) const;
  std::string text() const;  // the object as one line of JSON with sorted keys

 private:
  friend struct JsonAccess;  // implementation detail of the source file
  JsonReader(std::shared_ptr<const void> object, std::string file, std::string path)
      : object_(std::move(object)), file_(std::move(file)), path_(std::move(path)) {}

  std::shared_ptr<const void> object_;  // shared by copies and sub-objects
  std::string file_, path_;
};

// Parses a file that consists of one object.
STET_API JsonReader parse_json(std::string_view text, const std::string& file);

}  // namespace stet

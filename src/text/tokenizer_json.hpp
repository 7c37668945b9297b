// tokenizer.json as read: the two big tables of a BPE model in flat form, the rest as a JSON
// document; and checked access to such documents.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stet {

// A value in a document and the way to it, for error messages. Refers to the document.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const nlohmann::json& json() const { return *value_; }
  const std::string& file() const { return file_; }
  const std::string& path() const { return path_; }

  // A member that is there and not null.
  std::optional<JsonNode> find(const std::string& name) const;
  JsonNode at(const std::string& name) const;
  // The elements of an array.
  std::vector<JsonNode> elements() const;

  std::string string() const;
  bool boolean() const;
  int64_t integer(int64_t min, int64_t max) const;
  uint32_t character() const;  // a string of one character

  std::string string_or(const std::string& name, const std::string& fallback) const;
  bool boolean_or(const std::string& name, bool fallback) const;

  // Error(format) for this value.
  [[noreturn]] void fail(const std::string& expected) const;
  // Error(unsupported): this value asks for something that this build does not do.
  [[noreturn]] void unsupported(const std::string& expected) const;

 private:
  std::string shown() const;

  const nlohmann::json* value_;
  std::string file_, path_;
};

struct TokenizerJson {
  nlohmann::json document;  // without model.vocab and model.merges of a BPE model
  std::vector<std::pair<std::string, int64_t>> vocab;
  std::string merge_text;  // left and right side of each merge, one after another
  std::vector<std::pair<uint32_t, uint32_t>> merges;  // their lengths
  bool has_vocab = false, has_merges = false;
};

// Throws Error: format, with line and column where it is not JSON; nesting deeper than 64 and keys
// that stand twice in an object are errors too.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& file);

// A JSON object of any other file, under the same limits. Infinity and NaN are numbers, because
// Python writes and reads them.
nlohmann::json parse_json_document(std::string_view text, const std::string& file);

}  // namespace stet

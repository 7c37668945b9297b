// Parses tokenizer.json: the two big tables of a BPE model to flat vectors, the rest to a JSON
// document. Offers checked access to such documents.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stet {

// A value in a document with its path for error messages. Refers to the document.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const nlohmann::json& json() const { return *value_; }
  const std::string& file() const { return file_; }
  const std::string& path() const { return path_; }

  // Returns a member that exists and is not null.
  std::optional<JsonNode> find(const std::string& name) const;
  JsonNode at(const std::string& name) const;
  // Returns the elements of an array.
  std::vector<JsonNode> elements() const;

  std::string string() const;
  bool boolean() const;
  int64_t integer(int64_t min, int64_t max) const;
  uint32_t character() const;  // a string of one character

  std::string string_or(const std::string& name, const std::string& fallback) const;
  bool boolean_or(const std::string& name, bool fallback) const;

  // Throws a format Error about this value.
  [[noreturn]] void fail(const std::string& expected) const;
  // Throws an unsupported Error: the value asks for something that this build does not implement.
  [[noreturn]] void unsupported(const std::string& expected) const;

 private:
  std::string shown() const;

  const nlohmann::json* value_;
  std::string file_, path_;
};

struct TokenizerJson {
  nlohmann::json document;  // without model.vocab and model.merges of a BPE model
  std::vector<std::pair<std::string, int64_t>> vocab;
  std::string merge_text;                             // the two sides of each merge in sequence
  std::vector<std::pair<uint32_t, uint32_t>> merges;  // byte lengths of the two sides
  bool has_vocab = false, has_merges = false;
};

// Throws a format Error: with line and column for invalid JSON, and also for nesting deeper than 64
// and for duplicate keys.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& file);

// Parses the JSON object of another file under the same limits. Infinity and NaN are numbers, since
// Python writes and reads them.
nlohmann::json parse_json_document(std::string_view text, const std::string& file);

}  // namespace stet

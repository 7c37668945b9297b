#include "stet/text/tokenizer_warnings.hpp"

#include <algorithm>
#include <set>

#include "src/text/tokenizer_config.hpp"
#include "src/text/tokenizer_json.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

constexpr size_t kLongestMark = 64, kMostNamed = 8;

// Returns the mark that begins at `at` in the usual form, <…> or [CAPITALS], or "" if there is
// none.
std::string_view mark_at(std::string_view text, size_t at) {
  const bool angle = text[at] == '<';
  const size_t end = text.substr(at, kLongestMark).find(angle ? '>' : ']');
  if (end == std::string_view::npos || end < 3) return {};
  const std::string_view mark = text.substr(at, end + 1), inner = mark.substr(1, end - 1);
  if (angle) return inner.find_first_of(" \t\r\n<'\"{}=") == std::string_view::npos ? mark : "";
  const std::string_view capitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_/";
  return inner.find_first_not_of(capitals) == std::string_view::npos ? mark : "";
}

// Returns the marks that are one piece of the vocabulary but are encoded as several.
std::set<std::string> split_marks(const Tokenizer& tokenizer, std::string_view source) {
  std::set<std::string> seen, split;
  for (size_t at = 0; at < source.size(); ++at) {
    if (source[at] != '<' && source[at] != '[') continue;
    const std::string mark(mark_at(source, at));
    if (mark.empty() || !seen.insert(mark).second) continue;
    const auto id = tokenizer.find_id(mark);
    if (id && tokenizer.encode(mark, Tokenizer::Bos::off) != std::vector<int32_t>{*id})
      split.insert(mark);
  }
  return split;
}

}  // namespace

std::vector<std::string> tokenizer_warnings(const Tokenizer& tokenizer) {
  std::vector<std::string> warnings;
  if (const std::string* text = find_file(tokenizer.files(), "tokenizer_config.json")) {
    const nlohmann::json config = parse_json_document(*text, "tokenizer_config.json");
    const std::string warning = tokenizer_note(JsonNode(config, "", ""), "warning");
    if (!warning.empty()) warnings.push_back(printable(warning, 300));
  }
  std::set<std::string> split = split_marks(tokenizer, tokenizer.chat_template());
  split.merge(split_marks(tokenizer, tokenizer.chat_template("tool_use")));
  if (split.empty()) return warnings;
  std::string names;
  size_t named = 0;
  for (const std::string& mark : split) {
    if (named++ == kMostNamed) break;
    names += (names.empty() ? "" : ", ") + printable(mark, 80);
  }
  if (split.size() > kMostNamed)
    names += " and " + std::to_string(split.size() - kMostNamed) + " more";
  warnings.push_back("the vocabulary has " + names +
                     " of the chat template as ordinary pieces, not as marks: they are split into "
                     "letters, which the model was hardly trained with");
  return warnings;
}

}  // namespace stet

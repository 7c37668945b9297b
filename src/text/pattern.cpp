#include "src/text/pattern.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/text/text_budget.hpp"
#include "src/text/tokenizer_json.hpp"
#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"

#ifdef STET_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace stet {

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::parse(const JsonNode& node) {
  if (const std::optional<JsonNode> text = node.find("String")) {
    const std::string literal_text = text->string();
    if (literal_text.empty()) text->fail("a string that is not empty");
    return literal(literal_text);
  }
  if (const std::optional<JsonNode> source = node.find("Regex")) {
    return regex(source->string(), source->file(), source->path());
  }
  node.fail("{\"String\": ...} or {\"Regex\": ...}");
}

Pattern Pattern::regex(const std::string& source, const std::string& file,
                       const std::string& what) {
  Pattern pattern;
  pattern.known_ = KnownPattern::of(source);
  return pattern.known_ ? pattern : compile(source, file, what);
}

bool Pattern::Finder::next(Match& match) {
  if (regex_) return next_of_regex(match);
  if (!pattern_.known_) {
    const size_t begin = text_.find(pattern_.literal_, at_);
    if (begin == std::string_view::npos) return false;
    match = {begin, begin + pattern_.literal_.size()};
    at_ = match.end;
    return true;
  }
  while (at_ < text_.size()) {
    const size_t begin = at_;
    at_ = pattern_.known_->match(text_, begin);
    if (at_ > begin) {
      match = {begin, at_};
      return true;
    }
    at_ = begin + utf8_at(text_, begin).length;
  }
  return false;
}

#ifdef STET_HAVE_PCRE2

struct Pattern::Compiled {
  pcre2_code* code = nullptr;
  std::string file, what;
  ~Compiled() { pcre2_code_free(code); }
};

struct Pattern::Finder::Regex {
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack = nullptr;
  ~Regex() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

namespace {

// Oniguruma's \s, \w and \d under Unicode, for use in a class. PCRE2's \s also has U+180E, and its
// \w lacks marks and connectors. In Oniguruma, a table for Latin-1 makes the six numbers below
// U+0100 words.
constexpr const char* kSpaces = R"(\x09-\x0d\x{85}\p{Z})";
std::string words() { return std::string(kUnicodeWord) + R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})"; }

// Returns \b or \B for Oniguruma's words, which differ from PCRE2's.
std::string word_edge(bool edge) {
  const char* const same = edge ? "!" : "=";
  const char* const other = edge ? "=" : "!";
  return fmt::format("(?:(?<={0})(?{1}{0})|(?<!{0})(?{2}{0}))", fmt::format("[{}]", words()), same,
                     other);
}

// Translates Oniguruma's syntax to PCRE2's. Refuses constructs that the two read differently.
std::string translate(const std::string& source, const std::string& file, const std::string& what) {
  const auto refuse = [&](const std::string& found) {
    throw Error(ErrorKind::unsupported, file, what, "a pattern that Oniguruma and PCRE2 read alike",
                found);
  };
  const std::string word = words();
  std::string out;
  bool in_class = false;
  size_t class_start = 0;
  for (size_t i = 0; i < source.size(); ++i) {
    const char c = source[i];
    if (c == '\\' && i + 1 < source.size()) {
      const char next = source[++i];
      if (!in_class && (next == 'b' || next == 'B')) {
        out += word_edge(next == 'b');
        continue;
      }
      const char* set = next == 's' || next == 'S'   ? kSpaces
                        : next == 'w' || next == 'W' ? word.c_str()
                                                     : nullptr;
      if (set && (next == 's' || next == 'w')) {
        out += in_class ? std::string(set) : fmt::format("[{}]", set);
      } else if (set) {
        if (in_class) refuse(source.substr(i - 1, 2) + " in a class");
        out += fmt::format("[^{}]", set);
      } else {
        if (std::string_view("hHRXKGgCNOyYzZkQEcM").find(next) != std::string_view::npos) {
          refuse(source.substr(i - 1, 2));
        }
        out += c;
        out += next;
      }
      continue;
    }
    if (!in_class && c == '[') {
      in_class = true;
      class_start = i + (source.compare(i, 2, "[^") == 0 ? 2 : 1);
    } else if (in_class && c == ']' && i > class_start) {
      in_class = false;
    } else if (in_class && c == '[') {
      refuse("[ in a class");
    } else if (in_class && source.compare(i, 2, "&&") == 0) {
      refuse("&& in a class");
    } else if (in_class && c == ']') {
      refuse("an empty class");
    } else if (!in_class && source.compare(i, 2, "(*") == 0) {
      refuse("(*");
    } else if (!in_class && source.compare(i, 2, "(?") == 0) {
      const size_t flags_end =
          std::min(source.find_first_not_of("imsxaDSWPy-", i + 2), source.size());
      if (source.find_first_of("msxaDSWPy", i + 2) < flags_end)
        refuse(source.substr(i, flags_end - i));
    }
    out += c;
  }
  return out;
}

size_t places_at_once(size_t text) {
  return std::clamp<size_t>((size_t{1} << 22) / (text + 1), 64, 4096);
}

std::string message_of(int code) {
  PCRE2_UCHAR8 text[200];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Pattern Pattern::compile(const std::string& source, const std::string& file,
                         const std::string& what) {
  const std::string translated = translate(source, file, what);
  int code = 0;
  PCRE2_SIZE at = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->file = file;
  compiled->what = what;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  compiled->code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT,
      &code, &at, context.get());
  if (!compiled->code) {
    throw Error(ErrorKind::format, file, what, "a regular expression",
                fmt::format("{} at byte {} of {}", message_of(code), at, translated));
  }
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);  // optional: PCRE2 can interpret
  Pattern pattern;
  pattern.compiled_ = std::move(compiled);
  return pattern;
}

Pattern::Finder::Finder(const Pattern& pattern, std::string_view text, TextBudget& budget)
    : pattern_(pattern), text_(text), budget_(budget) {
  if (!pattern.compiled_) return;
  regex_.reset(new Regex{pcre2_match_data_create_from_pattern(pattern.compiled_->code, nullptr),
                         pcre2_match_context_create(nullptr)});
  if (!regex_->data || !regex_->context) throw std::bad_alloc();
  // Limits backtracking to a small factor of the text's size, so that a bad pattern fails instead
  // of hanging.
  const size_t limit = 1'000'000 + 16 * text.size();
  pcre2_set_match_limit(regex_->context,
                        static_cast<uint32_t>(std::min<size_t>(limit, UINT32_MAX)));
  pcre2_set_heap_limit(regex_->context, 32 * 1024);  // KiB, for the interpreter
}

// Finds a match that begins at one of the next positions. Few positions are tried at a time, so the
// budget is checked often enough even if each reads the whole text.
int Pattern::Finder::match_from(size_t at) {
  pcre2_set_offset_limit(regex_->context, at + places_at_once(text_.size()) - 1);
  const auto run = [&] {
    return pcre2_match(pattern_.compiled_->code, reinterpret_cast<PCRE2_SPTR>(text_.data()),
                       text_.size(), at, PCRE2_NO_UTF_CHECK, regex_->data, regex_->context);
  };
  int result = run();
  if (result == PCRE2_ERROR_JIT_STACKLIMIT && !regex_->stack) {
    regex_->stack = pcre2_jit_stack_create(64 * 1024, 16 * 1024 * 1024, nullptr);
    if (!regex_->stack) throw std::bad_alloc();
    pcre2_jit_stack_assign(regex_->context, nullptr, regex_->stack);
    result = run();
  }
  budget_.check_time(result < 0, pattern_.compiled_->file, pattern_.compiled_->what);
  if (result >= 0 || result == PCRE2_ERROR_NOMATCH) return result;
  throw Error(ErrorKind::capacity, pattern_.compiled_->file, pattern_.compiled_->what,
              "a match within PCRE2's limits", message_of(result));
}

bool Pattern::Finder::next_of_regex(Match& match) {
  while (at_ <= text_.size()) {
    if (match_from(at_) < 0) {
      at_ += places_at_once(text_.size());
      while (at_ < text_.size() && (static_cast<unsigned char>(text_[at_]) & 0xC0) == 0x80) ++at_;
      continue;
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(regex_->data);
    match = {ends[0], ends[1]};
    if (match.end > match.begin || match.end != last_end_) {
      at_ = last_end_ = match.end;
      return true;
    }
    at_ += at_ < text_.size() ? utf8_at(text_, at_).length : 1;
  }
  return false;
}

#else

struct Pattern::Compiled {};
struct Pattern::Finder::Regex {};

Pattern Pattern::compile(const std::string& source, const std::string& file,
                         const std::string& what) {
  throw Error(ErrorKind::unsupported, file, what, "",
              "only the patterns of GPT-2, Llama 3 and Qwen are known: this stet was built without "
              "PCRE2, which " +
                  source + " needs");
}

Pattern::Finder::Finder(const Pattern& pattern, std::string_view text, TextBudget& budget)
    : pattern_(pattern), text_(text), budget_(budget) {}

bool Pattern::Finder::next_of_regex(Match&) { return false; }  // without PCRE2 there is none

#endif

Pattern::Finder::~Finder() = default;

}  // namespace stet

#include "src/text/known_patterns.hpp"

#include <algorithm>
#include <string>

#include "stet/text/utf8.hpp"

namespace stet {
namespace {

using Spelling = KnownPattern::Kind;
using Case = KnownPattern::Case;

struct Contractions {
  const char* spelling;
  Case letters;
};
constexpr Contractions kContractions[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d", Case::kept},
    {"'(?:[sdmt]|ll|ve|re)", Case::kept},
    {"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", Case::ascii},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)", Case::unicode},
    {"'(?i:[sdmt]|ll|ve|re)", Case::unicode},
};

struct Rest {
  const char* spelling;
  Spelling kind;
  size_t most_numbers;
};
constexpr Rest kRests[] = {
    {R"(| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", Spelling::gpt2, SIZE_MAX},
    {R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Spelling::cl100k, 3},
    {R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Spelling::cl100k, 1},
    {R"(|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
     Spelling::cl100k, 3},
};

// The character at a position of the text. After the end it belongs to no class.
struct Character {
  uint32_t code;
  size_t end;
  int kind;

  Character(std::string_view text, size_t at) : code(0), end(at), kind(-1) {
    if (at >= text.size()) return;
    const Utf8 c = utf8_at(text, at);
    code = c.code;
    end = at + c.length;
    kind = static_cast<int>(char_class(code));
  }
  bool is(CharClass c) const { return kind == static_cast<int>(c); }
  bool ends_line() const { return code == '\r' || code == '\n'; }
};

size_t end_of_run(std::string_view text, size_t at, CharClass members, size_t most = SIZE_MAX) {
  for (; most > 0; --most) {
    const Character c(text, at);
    if (!c.is(members)) break;
    at = c.end;
  }
  return at;
}

// Returns the end of a contraction's letters, or `at` if there is none.
size_t end_of_contraction(std::string_view text, size_t at, Case letters) {
  for (const std::string_view known : {"s", "t", "re", "ve", "m", "ll", "d"}) {
    const std::string_view found = text.substr(at, known.size());
    const auto same = [&](char a, char b) {
      return a == b || (letters != Case::kept && b >= 'A' && b <= 'Z' && a == (b | 0x20));
    };
    if (std::ranges::equal(known, found, same)) return at + known.size();
  }
  // The only other character that equals one of these letters in another case: U+017F, a form of s.
  if (letters == Case::unicode && text.substr(at).starts_with("\xC5\xBF")) return at + 2;
  return at;
}

}  // namespace

std::optional<KnownPattern> KnownPattern::of(std::string_view source) {
  if (source == R"(\p{N})")
    return KnownPattern{.kind = Spelling::character, .members = CharClass::number};
  if (source == R"(\s)")
    return KnownPattern{.kind = Spelling::character, .members = CharClass::space};
  for (const Contractions& contractions : kContractions) {
    if (!source.starts_with(contractions.spelling)) continue;
    const std::string_view behind = source.substr(std::string_view(contractions.spelling).size());
    for (const Rest& rest : kRests) {
      if (behind != rest.spelling) continue;
      return KnownPattern{.kind = rest.kind,
                          .contractions = contractions.letters,
                          .most_numbers = rest.most_numbers};
    }
  }
  return std::nullopt;
}

// Tries the alternatives of the pattern in order.
size_t KnownPattern::match(std::string_view text, size_t at) const {
  const Character first(text, at);
  if (kind == Spelling::character) return first.is(members) ? first.end : at;
  if (first.code == '\'') {
    const size_t end = end_of_contraction(text, first.end, contractions);
    if (end > first.end) return end;
  }

  if (first.is(CharClass::letter)) return end_of_run(text, first.end, CharClass::letter);
  const Character next(text, first.end);
  const bool space = first.code == ' ';
  const bool joins_letters =
      kind == Spelling::gpt2 ? space : !first.is(CharClass::number) && !first.ends_line();
  if (joins_letters && next.is(CharClass::letter))
    return end_of_run(text, next.end, CharClass::letter);

  if (first.is(CharClass::number) ||
      (kind == Spelling::gpt2 && space && next.is(CharClass::number)))
    return end_of_run(text, first.end, CharClass::number, most_numbers - 1);

  if (first.is(CharClass::other) || (space && next.is(CharClass::other))) {
    size_t end = end_of_run(text, first.end, CharClass::other);
    while (kind == Spelling::cl100k && Character(text, end).ends_line()) ++end;
    return end;
  }

  // White space. For cl100k the match ends at its last line end, if there is one. Otherwise it is
  // the whole run if the text ends there or the run is one character. Else it omits the last
  // character, which joins the following word.
  size_t end = at, last = at, line = at;
  for (Character c = first; c.is(CharClass::space); c = Character(text, end)) {
    last = end;
    end = c.end;
    if (c.ends_line()) line = end;
  }
  if (kind == Spelling::cl100k && line > at) return line;
  return end == text.size() || last == at ? end : last;
}

}  // namespace stet

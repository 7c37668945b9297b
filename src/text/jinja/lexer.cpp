#include "src/text/jinja/lexer.hpp"

#include <algorithm>
#include <cstring>

namespace stet::jinja {
namespace {

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }
bool is_hex_char(char c) { return is_digit_char(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }
bool is_name_char(char c) {
  return is_digit_char(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// Converts line ends to \n and drops one at the very end.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name)
      : source_(normalized(source)), name_(name) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) data();
    push(Token::Type::end, "", at_);
    return std::move(tokens_);
  }

 private:
  using Type = Token::Type;

  // ---- positions ----

  // Returns the line and column of an offset. Fast if it is after the previous call's offset.
  Position position(size_t at) {
    if (at < counted_) {
      counted_ = 0;
      counted_at_ = {};
    }
    for (; counted_ < at; ++counted_) {
      if (source_[counted_] == '\n')
        counted_at_ = {counted_at_.line + 1, 1};
      else if ((static_cast<unsigned char>(source_[counted_]) & 0xC0) != 0x80)
        ++counted_at_.column;
    }
    return counted_at_;
  }
  [[noreturn]] void fail(size_t at, const std::string& expected, const std::string& found) {
    fail_at(ErrorKind::format, name_, position(at), expected, found);
  }
  void push(Type type, std::string text, size_t at) {
    tokens_.push_back({type, std::move(text), position(at)});
  }

  // ---- reading ----

  char peek(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  bool follows(std::string_view text) const { return source_.compare(at_, text.size(), text) == 0; }
  size_t space_end(size_t at) const {
    while (at < source_.size()) {
      const Utf8 c = utf8_at(source_, at);
      if (!is_space(c.code)) break;
      at += c.length;
    }
    return at;
  }
  // Returns where text continues after a tag that ends at `at`. A - removes all white space. The
  // end of a block or comment removes one line end, unless there is a +.
  size_t after_tag(size_t at, char control, bool block) const {
    if (control == '-') return space_end(at);
    return block && control != '+' && at < source_.size() && source_[at] == '\n' ? at + 1 : at;
  }

  // ---- text ----

  // Reads the text up to the next tag, and the tag's beginning.
  void data() {
    const size_t begin = at_;
    size_t tag = begin;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos) {
        emit(begin, source_.size());
        at_ = source_.size();
        return;
      }
      const char kind = tag + 1 < source_.size() ? source_[tag + 1] : '\0';
      if (kind == '%' || kind == '{' || kind == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    at_ = tag + 2;
    const char control = peek() == '-' || peek() == '+' ? source_[at_++] : '\0';
    emit(begin, text_end(begin, tag, control, kind != '{'));
    if (kind == '#') return comment(tag);
    if (kind == '%' && raw(tag)) return;
    push(kind == '%' ? Type::block_begin : Type::variable_begin, "", tag);
    inside(kind == '%', tag);
  }

  void emit(size_t begin, size_t end) {
    if (begin < end) push(Type::data, source_.substr(begin, end - begin), begin);
  }

  // Returns where text before a tag ends. A - removes the white space before the tag. A block
  // removes it back to the beginning of its line, unless there is a +.
  size_t text_end(size_t begin, size_t tag, char control, bool block) const {
    const std::string_view text = std::string_view(source_).substr(begin, tag - begin);
    if (control == '-') return begin + stripped(text, nullptr, false, true).end;
    if (control == '+' || !block) return tag;
    const size_t newline = text.rfind('\n');
    const bool whole_line =
        newline != std::string_view::npos || begin == 0 || source_[begin - 1] == '\n';
    const size_t line = newline == std::string_view::npos ? begin : begin + newline + 1;
    return whole_line && space_end(line) >= tag ? line : tag;
  }

  void comment(size_t tag) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos)
      fail(tag, "#} at the end of a comment", "the end of the template");
    const char before = end > at_ ? source_[end - 1] : '\0';
    at_ = after_tag(end + 2, before == '-' || before == '+' ? before : '\0', true);
  }

  // Reads a tag's word and its end: the position after it and its control sign.
  bool word_and_end(size_t at, std::string_view word, size_t& end, char& control) const {
    at = space_end(at);
    if (source_.compare(at, word.size(), word) != 0) return false;
    at = space_end(at + word.size());
    control =
        at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at++] : '\0';
    end = at + 2;
    return source_.compare(at, 2, "%}") == 0;
  }

  // Reads {% raw %} … {% endraw %}; at_ is after its beginning. Returns false if the tag is not
  // raw.
  bool raw(size_t tag) {
    size_t begin = 0, end = 0;
    char control = 0;
    if (!word_and_end(at_, "raw", begin, control) || control == '+') return false;
    begin = control == '-' ? space_end(begin) : begin;
    for (size_t close = begin; (close = source_.find("{%", close)) != std::string::npos; ++close) {
      size_t word = close + 2;
      const char before = word < source_.size() && (source_[word] == '-' || source_[word] == '+')
                              ? source_[word++]
                              : '\0';
      if (!word_and_end(word, "endraw", end, control)) continue;
      emit(begin, text_end(begin, close, before, true));
      at_ = after_tag(end, control, true);
      return true;
    }
    if (begin < source_.size()) fail(tag, "{% endraw %}", "the end of the template");
    at_ = begin;  // there is no raw text to keep
    return true;
  }

  // ---- inside of a tag ----

  void inside(bool block, size_t tag) {
    const std::string_view close = block ? "%}" : "}}";
    while (true) {
      if (open_.empty()) {
        const bool sign =
            (peek() == '-' || (block && peek() == '+')) && source_.compare(at_ + 1, 2, close) == 0;
        if (sign || follows(close)) {
          push(block ? Type::block_end : Type::variable_end, "", at_);
          at_ = after_tag(at_ + (sign ? 3 : 2), sign ? peek() : '\0', block);
          return;
        }
      }
      if (at_ >= source_.size()) {
        fail(open_.empty() ? tag : open_.back().second,
             open_.empty() ? std::string(close) + " at the end of this tag"
                           : std::string("the end of this ") + open_.back().first,
             "the end of the template");
      }
      token();
    }
  }

  void token() {
    const size_t begin = at_;
    const char c = peek();
    if (const size_t after = space_end(at_); after > at_) {
      at_ = after;
    } else if (is_digit_char(c)) {
      number();
    } else if (is_name_char(c)) {
      while (is_name_char(peek()) && space_end(at_) == at_) at_ += utf8_at(source_, at_).length;
      push(Type::name, source_.substr(begin, at_ - begin), begin);
    } else if (c == '\'' || c == '"') {
      string();
    } else {
      sign();
    }
  }

  // Returns the end of digits in groups separated by underscores.
  template <class Digit>
  size_t digits(size_t at, Digit digit) const {
    while (at < source_.size() && digit(source_[at])) {
      ++at;
      if (at + 1 < source_.size() && source_[at] == '_' && digit(source_[at + 1])) ++at;
    }
    return at;
  }

  void number() {
    const size_t begin = at_;
    size_t end = digits(begin, is_digit_char);
    bool is_float = false;
    const auto fraction = [&](size_t at) {
      return at + 1 < source_.size() && is_digit_char(source_[at + 1]);
    };
    // After a dot a number is an index: a.0.1
    if (begin == 0 || source_[begin - 1] != '.') {
      if (end < source_.size() && source_[end] == '.' && fraction(end)) {
        end = digits(end + 1, is_digit_char);
        is_float = true;
      }
      if (end < source_.size() && (source_[end] | 0x20) == 'e') {
        const size_t sign =
            end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-') ? 1
                                                                                             : 0;
        if (fraction(end + sign)) {
          end = digits(end + sign + 1, is_digit_char);
          is_float = true;
        }
      }
    }
    if (!is_float) end = integer_end(begin);
    std::string text = source_.substr(begin, end - begin);
    std::erase(text, '_');
    push(is_float ? Type::number : Type::integer, text, begin);
    at_ = end;
  }

  size_t integer_end(size_t begin) const {
    const char kind =
        begin + 1 < source_.size() ? static_cast<char>(source_[begin + 1] | 0x20) : '\0';
    if (source_[begin] != '0') return digits(begin, is_digit_char);
    const size_t first =
        begin + 2 < source_.size() && source_[begin + 2] == '_' ? begin + 3 : begin + 2;
    size_t end = begin;
    if (kind == 'x') end = digits(first, is_hex_char);
    if (kind == 'o') end = digits(first, [](char c) { return c >= '0' && c <= '7'; });
    if (kind == 'b') end = digits(first, [](char c) { return c == '0' || c == '1'; });
    return end > first ? end : digits(begin, [](char c) { return c == '0'; });
  }

  void sign() {
    const size_t begin = at_;
    static constexpr std::string_view kSigns[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                  "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                  ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto* found =
        std::ranges::find_if(kSigns, [&](std::string_view s) { return follows(s); });
    if (found == std::end(kSigns))
      fail(begin, "an expression", source_.substr(begin, utf8_at(source_, begin).length));
    at_ += found->size();
    balance(*found, begin);
    push(Type::sign, std::string(*found), begin);
  }

  void balance(std::string_view sign, size_t at) {
    static constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (sign.size() > 1) return;
    if (kOpen.find(sign) != std::string_view::npos) open_.emplace_back(sign[0], at);
    const size_t close = kClose.find(sign);
    if (close == std::string_view::npos) return;
    if (open_.empty()) fail(at, "an opening bracket before", std::string(sign));
    if (open_.back().first != kOpen[close]) {
      fail(at, std::string(1, kClose[kOpen.find(open_.back().first)]), std::string(sign));
    }
    open_.pop_back();
  }

  // ---- strings ----

  void string() {
    const size_t begin = at_;
    const char quote = peek();
    std::string text;
    for (++at_; peek() != quote || at_ >= source_.size();) {
      if (at_ >= source_.size()) fail(begin, "the end of this string", "the end of the template");
      if (peek() == '\\')
        escape(text);
      else
        text += source_[at_++];
    }
    ++at_;
    push(Type::string, std::move(text), begin);
  }

  // Reads a Python escape. A backslash before any other character is kept.
  void escape(std::string& text) {
    const size_t begin = at_;
    ++at_;
    static constexpr std::string_view kLetters = "\\'\"abfnrtv", kCodes = "\\'\"\a\b\f\n\r\t\v";
    const char c = at_ < source_.size() ? source_[at_++] : '\0';
    if (const size_t known = c == '\0' ? std::string_view::npos : kLetters.find(c);
        known != std::string_view::npos) {
      text += kCodes[known];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      text_of_code(text, begin, hex(begin, c == 'x' ? 2 : c == 'u' ? 4 : 8));
    } else if (c >= '0' && c <= '7') {
      uint32_t code = static_cast<uint32_t>(c - '0');
      for (int i = 0; i < 2 && peek() >= '0' && peek() <= '7'; ++i)
        code = code * 8 + static_cast<uint32_t>(source_[at_++] - '0');
      utf8_append(text, code);
    } else if (c == 'N') {
      fail_at(ErrorKind::unsupported, name_, position(begin), "characters by their codes",
              "one by its name: \\N");
    } else if (c != '\n') {  // an escaped line end vanishes
      text += '\\';
      at_ = begin + 1;
      if (c != '\0') {
        const size_t length = utf8_at(source_, at_).length;
        text += source_.substr(at_, length);
        at_ += length;
      }
    }
  }

  uint32_t hex(size_t begin, int count) {
    uint32_t code = 0;
    for (int i = 0; i < count; ++i) {
      if (!is_hex_char(peek()))
        fail(begin, std::to_string(count) + " hexadecimal digits",
             source_.substr(begin, at_ + 1 - begin));
      const char c = source_[at_++];
      code = code << 4 | static_cast<uint32_t>(is_digit_char(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return code;
  }

  void text_of_code(std::string& text, size_t begin, uint32_t code) {
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      fail(begin, "the code of a character", source_.substr(begin, at_ - begin));
    utf8_append(text, code);
  }

  const std::string source_;
  const std::string& name_;
  std::vector<Token> tokens_;
  std::vector<std::pair<char, size_t>> open_;  // brackets and their positions
  size_t at_ = 0;
  size_t counted_ = 0;
  Position counted_at_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

}  // namespace stet::jinja

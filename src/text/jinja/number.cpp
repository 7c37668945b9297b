// Formats and parses numbers as Python does.
#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "src/text/jinja/context.hpp"

namespace stet::jinja {

// Returns repr: the shortest digits that restore the value, with an exponent below 1e-4 and from
// 1e16 on.
std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".ein") == std::string::npos ? text + ".0" : text;
}

// fmt omits zeros after the 767 digits that a double can have.
std::string fixed(double value, int precision) {
  std::string text = fmt::format("{:.{}f}", value, precision);
  const size_t point = text.find('.');
  if (point != std::string::npos) text.resize(point + 1 + static_cast<size_t>(precision), '0');
  return text;
}

std::string with_exponent(double value, int precision) {
  std::string text = fmt::format("{:.{}e}", value, precision);
  const size_t point = text.find('.'), e = text.find('e');
  if (point != std::string::npos)
    text.insert(e, point + 1 + static_cast<size_t>(precision) - e, '0');
  return text;
}

namespace {

// Returns the digits of a number in text, without surrounding white space and without underscores.
std::optional<std::string> digits_of(std::string_view text) {
  const Span span = stripped(text, nullptr, true, true);
  const std::string_view inner = text.substr(span.begin, span.end - span.begin);
  std::string digits;
  for (size_t i = 0; i < inner.size(); ++i) {
    if (inner[i] != '_') {
      digits += inner[i];
      continue;
    }
    const auto alphanumeric = [&](size_t at) {
      return at < inner.size() && std::isalnum(static_cast<unsigned char>(inner[at])) != 0;
    };
    if (i == 0 || !alphanumeric(i - 1) || !alphanumeric(i + 1)) return std::nullopt;
  }
  return digits;
}

}  // namespace

std::optional<int64_t> parse_integer(Context& c, std::string_view text, int base) {
  const std::optional<std::string> digits = digits_of(text);
  if (!digits) return std::nullopt;
  std::string_view rest = *digits;
  const bool minus = rest.starts_with('-');
  if (minus || rest.starts_with('+')) rest.remove_prefix(1);
  const auto prefixed = [&](char letter) {
    return rest.size() > 2 && rest[0] == '0' && (rest[1] | 0x20) == letter;
  };
  for (const auto& [letter, radix] : {std::pair{'b', 2}, {'o', 8}, {'x', 16}}) {
    if ((base != 0 && base != radix) || !prefixed(letter)) continue;
    base = radix;
    rest.remove_prefix(2);
    break;
  }
  if (base == 0)
    base = rest.find_first_not_of('0') == std::string_view::npos || rest[0] != '0' ? 10 : -1;
  if (base < 0 || rest.empty()) return std::nullopt;
  uint64_t value = 0;
  const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), value, base);
  const uint64_t limit = uint64_t{INT64_MAX} + (minus ? 1 : 0);
  if (end.ptr != rest.data() + rest.size()) return std::nullopt;
  if (end.ec == std::errc::result_out_of_range || value > limit)
    c.fail("an integer of 64 bits", std::string(text.substr(0, 60)));
  return static_cast<int64_t>(minus ? 0 - value : value);
}

std::optional<double> parse_float(std::string_view text) {
  const std::optional<std::string> digits = digits_of(text);
  if (!digits) return std::nullopt;
  std::string_view rest = *digits;
  if (rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.starts_with('+') || rest.find_first_of("(xX") != std::string_view::npos ||
      (rest.starts_with('-') && digits->starts_with('+'))) {
    return std::nullopt;
  }
  double value = 0;
  const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (end.ptr != rest.data() + rest.size() || rest.empty()) return std::nullopt;
  if (end.ec == std::errc::result_out_of_range) {  // too large, or too small
    const size_t e = rest.find_first_of("eE");
    const bool small = e != std::string_view::npos && e + 1 < rest.size() && rest[e + 1] == '-';
    value = small ? 0 : HUGE_VAL;
    return rest.starts_with('-') ? -value : value;
  }
  return value;
}

int64_t checked_integer(Context& c, double whole) {
  if (!(std::abs(whole) < 9223372036854775808.0))
    c.fail("an integer of 64 bits", float_repr(whole));
  return static_cast<int64_t>(whole);
}

}  // namespace stet::jinja

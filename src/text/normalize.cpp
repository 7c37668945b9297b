#include "src/text/normalize.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/text/text_budget.hpp"
#include "src/text/tokenizer_json.hpp"
#include "src/text/unicode_classes.hpp"
#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"

#ifdef STET_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

namespace stet {
namespace {

std::string_view strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Utf8 c = utf8_at(text, 0);
    if (!is_white_space(c.code)) break;
    text.remove_prefix(c.length);
  }
  while (right && !text.empty()) {
    const size_t length = utf8_last(text);
    if (!is_white_space(utf8_at(text, text.size() - length).code)) break;
    text.remove_suffix(length);
  }
  return text;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

#ifdef STET_HAVE_UTF8PROC

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8 c = utf8_at(text, i);
    i += c.length;
    if (c.code == 0x130) {
      out += "i\xCC\x87";  // the only character whose lower case has two
    } else {
      utf8_append(out,
                  static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code))));
    }
  }
  return out;
}

// Returns a Unicode normal form (UAX #15). Combining marks are sorted here, since utf8proc takes
// quadratic time on long runs of them.
std::string normal_form(std::string_view text, bool compose, bool compat, const std::string&,
                        const std::string&) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compat ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size() + 32);
  for (size_t i = 0; i < text.size();) {
    const Utf8 c = utf8_at(text, i);
    i += c.length;
    utf8proc_int32_t buffer[32];  // the longest decomposition has 18
    int last_class = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code),
                                                       buffer, 32, options, &last_class);
    if (n < 0 || n > 32) {
      codes.push_back(static_cast<utf8proc_int32_t>(c.code));
    } else {
      codes.insert(codes.end(), buffer, buffer + n);
    }
  }
  const auto mark_class = [](utf8proc_int32_t code) {
    return utf8proc_get_property(code)->combining_class;
  };
  for (auto at = codes.begin(); at != codes.end();) {
    const auto first = std::find_if(at, codes.end(), mark_class);
    at = std::find_if_not(first, codes.end(), mark_class);
    std::stable_sort(first, at, [&](auto a, auto b) { return mark_class(a) < mark_class(b); });
  }
  if (compose) {
    const auto stable_compose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const utf8proc_ssize_t n = utf8proc_normalize_utf32(
        codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), stable_compose);
    codes.resize(static_cast<size_t>(n));
  }
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t code : codes) utf8_append(out, static_cast<uint32_t>(code));
  return out;
}

void need_tables(const JsonNode&) {}

#else

std::string lowercase(std::string_view text) { return std::string(text); }

// Always throws. Callers ask only for NFC, and only for text that NFC may change.
std::string normal_form(std::string_view text, bool, bool, const std::string& file,
                        const std::string& field) {
  throw Error(
      ErrorKind::unsupported, file, field, "",
      fmt::format("U+{:04X} cannot be normalized to NFC: this stet was built without utf8proc",
                  utf8_at(text, nfc_prefix(text)).code));
}

void need_tables(const JsonNode& node) {
  node.unsupported("no Unicode normalizer but NFC: this build has no utf8proc");
}

#endif

}  // namespace

std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view replacement,
                        TextBudget& budget) {
  std::string out;
  out.reserve(text.size());
  Pattern::Finder finder(pattern, text, budget);
  size_t done = 0;
  for (Match m; finder.next(m); done = m.end) {
    out += text.substr(done, m.begin - done);
    out += replacement;
    budget.check_size(out.size());
  }
  out += text.substr(done);
  return out;
}

Normalizer Normalizer::parse(const JsonNode& node) {
  Normalizer normalizer;
  normalizer.add(node);
  return normalizer;
}

void Normalizer::add(const JsonNode& node) {
  const JsonNode type_node = node.at("type");
  const std::string type = type_node.string();
  if (steps_.size() == kMaxSteps)
    node.fail("at most " + std::to_string(kMaxSteps) + " normalizers");
  const auto form = [&](bool compose, bool compat) {
    if (!compose || compat) need_tables(type_node);
    steps_.push_back({.kind = Kind::form,
                      .compose = compose,
                      .compat = compat,
                      .file = node.file(),
                      .field = type_node.path()});
  };
  if (type == "Sequence") {
    for (const JsonNode& part : node.at("normalizers").elements()) add(part);
  } else if (type == "Replace") {
    steps_.push_back({.kind = Kind::replace,
                      .pattern = Pattern::parse(node.at("pattern")),
                      .text = node.at("content").string()});
  } else if (type == "Prepend") {
    steps_.push_back({.kind = Kind::prepend, .text = node.at("prepend").string()});
  } else if (type == "NFC" || type == "NFD") {
    form(type == "NFC", false);
  } else if (type == "NFKC" || type == "NFKD") {
    form(type == "NFKC", true);
  } else if (type == "Lowercase") {
    need_tables(type_node);
    steps_.push_back({.kind = Kind::lowercase});
  } else if (type == "Strip") {
    steps_.push_back({.kind = Kind::strip,
                      .left = node.boolean_or("strip_left", true),
                      .right = node.boolean_or("strip_right", true)});
  } else {
    type_node.unsupported(
        "a normalizer of Sequence, Replace, Prepend, NFC, NFD, NFKC, NFKD, Lowercase, Strip");
  }
}

std::string Normalizer::apply(std::string_view text, TextBudget& budget) const {
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::replace:
        out = replace_all(out, *step.pattern, step.text, budget);
        break;
      case Kind::prepend:
        if (!out.empty()) out = step.text + out;
        break;
      case Kind::form:
        if (is_ascii(out)) break;
        if (step.compose && !step.compat && nfc_prefix(out) == out.size()) break;
        out = normal_form(out, step.compose, step.compat, step.file, step.field);
        break;
      case Kind::lowercase:
        out = lowercase(out);
        break;
      case Kind::strip:
        out = std::string(strip(out, step.left, step.right));
        break;
    }
    budget.check_size(out.size());
  }
  return out;
}

}  // namespace stet

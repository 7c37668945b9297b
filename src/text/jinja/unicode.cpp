// Case and classes of characters by utf8proc's tables. A build without utf8proc handles ASCII
// alone, and throws for other characters.
#include <algorithm>
#include <iterator>

#include "src/text/jinja/text.hpp"

#ifdef STET_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

namespace stet::jinja {
namespace {

#ifdef STET_HAVE_UTF8PROC

int category(uint32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }
uint32_t simple_upper(uint32_t code) {
  return static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}
uint32_t simple_lower(uint32_t code) {
  return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}
uint32_t simple_title(uint32_t code) {
  return static_cast<uint32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code)));
}
void add_folded(std::string& out, uint32_t code) {
  utf8proc_int32_t folded[8];  // the longest folding has 3
  int last_class = 0;
  const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), folded, 8,
                                                     UTF8PROC_CASEFOLD, &last_class);
  if (n < 0 || n > 8) return utf8_append(out, code);
  for (utf8proc_ssize_t i = 0; i < n; ++i) utf8_append(out, static_cast<uint32_t>(folded[i]));
}

#else

enum {
  UTF8PROC_CATEGORY_CN,
  UTF8PROC_CATEGORY_LU,
  UTF8PROC_CATEGORY_LL,
  UTF8PROC_CATEGORY_LT,
  UTF8PROC_CATEGORY_LM,
  UTF8PROC_CATEGORY_LO,
  UTF8PROC_CATEGORY_MN,
  UTF8PROC_CATEGORY_MC,
  UTF8PROC_CATEGORY_ME,
  UTF8PROC_CATEGORY_ND,
  UTF8PROC_CATEGORY_NL,
  UTF8PROC_CATEGORY_NO,
  UTF8PROC_CATEGORY_SK,
  UTF8PROC_CATEGORY_ZS,
  UTF8PROC_CATEGORY_ZL,
  UTF8PROC_CATEGORY_ZP,
  UTF8PROC_CATEGORY_CC,
  UTF8PROC_CATEGORY_CF,
  UTF8PROC_CATEGORY_CS,
  UTF8PROC_CATEGORY_CO
};

int category(uint32_t code) {
  if (code >= 0x80) {
    throw Error(ErrorKind::unsupported, "", "",
                "ASCII: this build has no utf8proc to tell kinds of letters", "other characters");
  }
  if (code >= 'a' && code <= 'z') return UTF8PROC_CATEGORY_LL;
  if (code >= 'A' && code <= 'Z') return UTF8PROC_CATEGORY_LU;
  if (code >= '0' && code <= '9') return UTF8PROC_CATEGORY_ND;
  return code == ' '                   ? UTF8PROC_CATEGORY_ZS
         : code < 0x20 || code == 0x7F ? UTF8PROC_CATEGORY_CC
                                       : UTF8PROC_CATEGORY_SK;
}
uint32_t simple_upper(uint32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LL ? code - 32 : code;
}
uint32_t simple_lower(uint32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LU ? code + 32 : code;
}
uint32_t simple_title(uint32_t code) { return simple_upper(code); }
void add_folded(std::string& out, uint32_t code) { utf8_append(out, simple_lower(code)); }

#endif

// Characters whose upper case has several (Unicode's SpecialCasing.txt), sorted.
struct Special {
  uint32_t code;
  const char* upper;
};
constexpr Special kSpecial[] = {
    {0xDF, "SS"},
    {0x149, "\u02BCN"},
    {0x1F0, "J\u030C"},
    {0x390, "\u0399\u0308\u0301"},
    {0x3B0, "\u03A5\u0308\u0301"},
    {0x587, "\u0535\u0552"},
    {0x1E96, "H\u0331"},
    {0x1E97, "T\u0308"},
    {0x1E98, "W\u030A"},
    {0x1E99, "Y\u030A"},
    {0x1E9A, "A\u02BE"},
    {0x1F50, "\u03A5\u0313"},
    {0x1F52, "\u03A5\u0313\u0300"},
    {0x1F54, "\u03A5\u0313\u0301"},
    {0x1F56, "\u03A5\u0313\u0342"},
    {0x1F80, "\u1F08\u0399"},
    {0x1F81, "\u1F09\u0399"},
    {0x1F82, "\u1F0A\u0399"},
    {0x1F83, "\u1F0B\u0399"},
    {0x1F84, "\u1F0C\u0399"},
    {0x1F85, "\u1F0D\u0399"},
    {0x1F86, "\u1F0E\u0399"},
    {0x1F87, "\u1F0F\u0399"},
    {0x1F88, "\u1F08\u0399"},
    {0x1F89, "\u1F09\u0399"},
    {0x1F8A, "\u1F0A\u0399"},
    {0x1F8B, "\u1F0B\u0399"},
    {0x1F8C, "\u1F0C\u0399"},
    {0x1F8D, "\u1F0D\u0399"},
    {0x1F8E, "\u1F0E\u0399"},
    {0x1F8F, "\u1F0F\u0399"},
    {0x1F90, "\u1F28\u0399"},
    {0x1F91, "\u1F29\u0399"},
    {0x1F92, "\u1F2A\u0399"},
    {0x1F93, "\u1F2B\u0399"},
    {0x1F94, "\u1F2C\u0399"},
    {0x1F95, "\u1F2D\u0399"},
    {0x1F96, "\u1F2E\u0399"},
    {0x1F97, "\u1F2F\u0399"},
    {0x1F98, "\u1F28\u0399"},
    {0x1F99, "\u1F29\u0399"},
    {0x1F9A, "\u1F2A\u0399"},
    {0x1F9B, "\u1F2B\u0399"},
    {0x1F9C, "\u1F2C\u0399"},
    {0x1F9D, "\u1F2D\u0399"},
    {0x1F9E, "\u1F2E\u0399"},
    {0x1F9F, "\u1F2F\u0399"},
    {0x1FA0, "\u1F68\u0399"},
    {0x1FA1, "\u1F69\u0399"},
    {0x1FA2, "\u1F6A\u0399"},
    {0x1FA3, "\u1F6B\u0399"},
    {0x1FA4, "\u1F6C\u0399"},
    {0x1FA5, "\u1F6D\u0399"},
    {0x1FA6, "\u1F6E\u0399"},
    {0x1FA7, "\u1F6F\u0399"},
    {0x1FA8, "\u1F68\u0399"},
    {0x1FA9, "\u1F69\u0399"},
    {0x1FAA, "\u1F6A\u0399"},
    {0x1FAB, "\u1F6B\u0399"},
    {0x1FAC, "\u1F6C\u0399"},
    {0x1FAD, "\u1F6D\u0399"},
    {0x1FAE, "\u1F6E\u0399"},
    {0x1FAF, "\u1F6F\u0399"},
    {0x1FB2, "\u1FBA\u0399"},
    {0x1FB3, "\u0391\u0399"},
    {0x1FB4, "\u0386\u0399"},
    {0x1FB6, "\u0391\u0342"},
    {0x1FB7, "\u0391\u0342\u0399"},
    {0x1FBC, "\u0391\u0399"},
    {0x1FC2, "\u1FCA\u0399"},
    {0x1FC3, "\u0397\u0399"},
    {0x1FC4, "\u0389\u0399"},
    {0x1FC6, "\u0397\u0342"},
    {0x1FC7, "\u0397\u0342\u0399"},
    {0x1FCC, "\u0397\u0399"},
    {0x1FD2, "\u0399\u0308\u0300"},
    {0x1FD3, "\u0399\u0308\u0301"},
    {0x1FD6, "\u0399\u0342"},
    {0x1FD7, "\u0399\u0308\u0342"},
    {0x1FE2, "\u03A5\u0308\u0300"},
    {0x1FE3, "\u03A5\u0308\u0301"},
    {0x1FE4, "\u03A1\u0313"},
    {0x1FE6, "\u03A5\u0342"},
    {0x1FE7, "\u03A5\u0308\u0342"},
    {0x1FF2, "\u1FFA\u0399"},
    {0x1FF3, "\u03A9\u0399"},
    {0x1FF4, "\u038F\u0399"},
    {0x1FF6, "\u03A9\u0342"},
    {0x1FF7, "\u03A9\u0342\u0399"},
    {0x1FFC, "\u03A9\u0399"},
    {0xFB00, "FF"},
    {0xFB01, "FI"},
    {0xFB02, "FL"},
    {0xFB03, "FFI"},
    {0xFB04, "FFL"},
    {0xFB05, "ST"},
    {0xFB06, "ST"},
    {0xFB13, "\u0544\u0546"},
    {0xFB14, "\u0544\u0535"},
    {0xFB15, "\u0544\u053B"},
    {0xFB16, "\u054E\u0546"},
    {0xFB17, "\u0544\u053D"},
};

const char* special_upper(uint32_t code) {
  const auto* found = std::lower_bound(std::begin(kSpecial), std::end(kSpecial), code,
                                       [](const Special& s, uint32_t c) { return s.code < c; });
  return found != std::end(kSpecial) && found->code == code ? found->upper : nullptr;
}

// The digits that are not decimal, such as superscripts (Unicode's DerivedNumericType.txt), sorted.
constexpr struct {
  uint32_t first, last;
} kOtherDigits[] = {{0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
                    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
                    {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
                    {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
                    {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};

// The ideographs that have a numeric value (Unicode's DerivedNumericType.txt), sorted.
constexpr uint32_t kNumericIdeographs[] = {
    0x3405,  0x3483,  0x382A,  0x3B4D,  0x4E00,  0x4E03,  0x4E07,  0x4E09,  0x4E5D,
    0x4E8C,  0x4E94,  0x4E96,  0x4EBF,  0x4EC0,  0x4EDF,  0x4EE8,  0x4F0D,  0x4F70,
    0x5104,  0x5146,  0x5169,  0x516B,  0x516D,  0x5341,  0x5343,  0x5344,  0x5345,
    0x534C,  0x53C1,  0x53C2,  0x53C3,  0x53C4,  0x56DB,  0x58F1,  0x58F9,  0x5E7A,
    0x5EFE,  0x5EFF,  0x5F0C,  0x5F0D,  0x5F0E,  0x5F10,  0x62FE,  0x634C,  0x67D2,
    0x6F06,  0x7396,  0x767E,  0x8086,  0x842C,  0x8CAE,  0x8CB3,  0x8D30,  0x9621,
    0x9646,  0x964C,  0x9678,  0x96F6,  0xF96B,  0xF973,  0xF978,  0xF9B2,  0xF9D1,
    0xF9D3,  0xF9FD,  0x20001, 0x20064, 0x200E2, 0x20121, 0x2092A, 0x20983, 0x2098C,
    0x2099C, 0x20AEA, 0x20AFD, 0x20B19, 0x22390, 0x22998, 0x23B1B, 0x2626D, 0x2F890};

bool is_cased(uint32_t code) {
  return is_upper(code) || is_lower(code) || category(code) == UTF8PROC_CATEGORY_LT;
}

// Returns whether a character is Case_Ignorable, which is skipped when looking at a sigma's
// neighbours.
bool is_ignorable(uint32_t code) {
  const int c = category(code);
  return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
         c == UTF8PROC_CATEGORY_LM ||
         (c == UTF8PROC_CATEGORY_SK && (code >= 0x80 || code == '^' || code == '`')) ||
         code == '\'' || code == '.' || code == ':' || code == 0xB7 || code == 0x2019;
}

// Returns whether a capital sigma ends a word: there it has another lower case than within.
bool is_final_sigma(std::string_view bytes, size_t at) {
  bool after_cased = false;
  for (size_t i = at; i > 0;) {
    i -= utf8_last(bytes.substr(0, i));
    const uint32_t code = utf8_at(bytes, i).code;
    if (is_ignorable(code)) continue;
    after_cased = is_cased(code);
    break;
  }
  for (size_t i = at + 2; after_cased && i < bytes.size();) {
    const Utf8 c = utf8_at(bytes, i);
    i += c.length;
    if (!is_ignorable(c.code)) return !is_cased(c.code);
  }
  return after_cased;
}

void add_lower(std::string& out, uint32_t code, std::string_view bytes, size_t at) {
  if (code == 0x130) {
    out += "i\u0307";  // the only character whose lower case has two
  } else if (code == 0x3A3) {
    out += is_final_sigma(bytes, at) ? "\u03C2" : "\u03C3";
  } else {
    utf8_append(out, simple_lower(code));
  }
}

void add_upper(std::string& out, uint32_t code) {
  if (const char* several = special_upper(code)) {
    out += several;
  } else {
    utf8_append(out, simple_upper(code));
  }
}

void add_title(std::string& out, uint32_t code) {
  const char* several = special_upper(code);
  const uint32_t title = simple_title(code);
  if (several == nullptr || (title != code && code != 0xDF)) return utf8_append(out, title);
  const std::string_view upper = several;
  const size_t first = utf8_at(upper, 0).length;
  out += upper.substr(0, first);
  for (size_t i = first; i < upper.size(); i += utf8_at(upper, i).length)
    add_lower(out, utf8_at(upper, i).code, upper, i);
}

}  // namespace

Text change_case(const Text& text, Case to) {
  Text out;
  bool after_cased = false, first = true;
  size_t at = 0;
  each_character(text, [&](uint32_t code, std::string_view bytes, int origin) {
    std::string changed;
    const auto lower = [&] { add_lower(changed, code, text.bytes, at); };
    const auto title_if = [&](bool condition) { condition ? add_title(changed, code) : lower(); };
    switch (to) {
      case Case::lower:
        lower();
        break;
      case Case::upper:
        add_upper(changed, code);
        break;
      case Case::folded:
        add_folded(changed, code);
        break;
      case Case::capitalized:
        title_if(first);
        break;
      case Case::title:
        title_if(!after_cased);
        after_cased = is_cased(code);
        break;
      case Case::swapped:
        is_upper(code)   ? lower()
        : is_lower(code) ? add_upper(changed, code)
                         : utf8_append(changed, code);
        break;
    }
    append(out, changed, origin);
    first = false;
    at += bytes.size();
  });
  return out;
}

bool is_space(uint32_t code) { return is_white_space(code) || (code >= 0x1C && code <= 0x1F); }
bool is_line_end(uint32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}
bool is_printable(uint32_t code) {
  if (code == ' ') return true;
  const int c = category(code);
  return c != UTF8PROC_CATEGORY_CC && c != UTF8PROC_CATEGORY_CF && c != UTF8PROC_CATEGORY_CS &&
         c != UTF8PROC_CATEGORY_CO && c != UTF8PROC_CATEGORY_CN && c != UTF8PROC_CATEGORY_ZL &&
         c != UTF8PROC_CATEGORY_ZP && c != UTF8PROC_CATEGORY_ZS;
}
bool is_upper(uint32_t code) { return category(code) == UTF8PROC_CATEGORY_LU; }
bool is_lower(uint32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LL || code == 0xAA || code == 0xBA;
}
bool is_alpha(uint32_t code) {
  const int c = category(code);
  return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
         c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_LO;
}
bool is_decimal(uint32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }
bool is_digit(uint32_t code) {
  return is_decimal(code) || std::ranges::any_of(kOtherDigits, [code](const auto& range) {
           return code >= range.first && code <= range.last;
         });
}
bool is_numeric(uint32_t code) {
  const int c = category(code);
  return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO ||
         std::ranges::binary_search(kNumericIdeographs, code);
}

}  // namespace stet::jinja

// Includes CLI11. In a static program, the streams and locales that it brings would be an eighth of
// the file. CLI11 uses them for texts in memory, and for files and standard streams that stet does
// not let it use. There it is compiled with the small stand-ins below; all other names are those of
// std.
#pragma once

#ifndef STET_STATIC
#include <CLI/CLI.hpp>
#else

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iterator>
#include <limits>
#include <locale>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace stet::tool::std_of_cli11 {

using namespace ::std;
using ::std::isalpha;
using ::std::isspace;
using ::std::tolower;

struct locale {};  // "C"
template <class Char>
bool isspace(Char c, locale) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
template <class Char>
bool isalpha(Char c, locale) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
template <class Char>
Char tolower(Char c, locale) {
  return c >= 'A' && c <= 'Z' ? static_cast<Char>(c - 'A' + 'a') : c;
}

struct setw {
  int width;
};
constexpr struct Left {
} left;
constexpr struct Endl {
} endl;
constexpr struct Flush {
} flush;

class ostream;
ostream& getline(ostream& in, string& line, char end = '\n');

// A text that grows at its end, and from whose beginning lines are taken.
class ostream {
 public:
  ostream() = default;
  explicit ostream(string text) : text_(std::move(text)) {}

  const string& str() const { return text_; }
  void str(string text) { text_ = std::move(text), at_ = 0; }
  size_t tellp() const { return text_.size(); }
  bool good() const { return !failed_; }
  bool fail() const { return failed_; }
  explicit operator bool() const { return !failed_; }
  struct Buffer {
    size_t left;
    size_t in_avail() const { return left; }
  };
  unique_ptr<Buffer> rdbuf() const { return make_unique<Buffer>(Buffer{text_.size() - at_}); }

  ostream& operator<<(setw w) {
    width_ = static_cast<size_t>(w.width);
    return *this;
  }
  ostream& operator<<(Left) {
    left_ = true;
    return *this;
  }
  ostream& operator<<(Endl) { return *this << '\n'; }
  ostream& operator<<(Flush) { return *this; }
  ostream& put(char c) { return *this << c; }
  ostream& operator<<(const string& s) {
    const size_t fill = width_ > s.size() ? width_ - s.size() : 0;
    width_ = 0;
    if (!left_) text_.append(fill, ' ');
    text_ += s;
    if (left_) text_.append(fill, ' ');
    return *this;
  }
  ostream& operator<<(const char* s) { return *this << string(s); }
  ostream& operator<<(char c) { return *this << string(1, c); }
  template <class Number>
  requires is_arithmetic_v<Number> ostream& operator<<(Number x) {
    if constexpr (is_integral_v<Number>) return *this << to_string(x);
    char text[32];
    ::std::snprintf(text, sizeof text, "%g", static_cast<double>(x));
    return *this << text;
  }

  friend ostream& getline(ostream& in, string& line, char end) {
    in.failed_ = in.at_ >= in.text_.size();
    if (in.failed_) return in;
    const size_t stop = min(in.text_.find(end, in.at_), in.text_.size());
    line.assign(in.text_, in.at_, stop - in.at_);
    in.at_ = stop + 1;
    return in;
  }

 protected:
  string text_;
  size_t at_ = 0, width_ = 0;
  bool left_ = false, failed_ = false;
};

using istream = ostream;
using stringstream = ostream;
using ostringstream = ostream;
using istringstream = ostream;

// Stand-ins for files and standard streams, which CLI11 names but stet never makes it use.
struct ifstream : ostream {
  explicit ifstream(const string&) { failed_ = true; }
};
inline ostream cout, cerr;

}  // namespace stet::tool::std_of_cli11

// <iostream>, which CLI11 includes, would initialize the standard streams and with them all locales.
#pragma push_macro("_GLIBCXX_IOSTREAM")
#undef _GLIBCXX_IOSTREAM
#define _GLIBCXX_IOSTREAM 1
#define std ::stet::tool::std_of_cli11
#include <CLI/CLI.hpp>
#undef std
#pragma pop_macro("_GLIBCXX_IOSTREAM")

#endif

// Heat maps as SVG: shapes and text, without scripts or fonts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "tools/lab/picture.hpp"

namespace stet::tool {
namespace {

constexpr int kText = 11, kRow = 18, kMargin = 16, kLegend = 160;
constexpr double kLetter = 6.7;  // maximum width of a letter in a monospaced font of that size

std::string as_xml(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const std::string_view as = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : "";
    if (as.empty())
      out += c;
    else
      out += as;
  }
  return out;
}

size_t letters(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// Shortens a text to `most` characters. Shows a text of spaces as "␣".
std::string shortened(const std::string& text, size_t most) {
  if (!text.empty() && text.find_first_not_of(' ') == std::string::npos) return "␣";
  if (letters(text) <= most) return text;
  size_t end = 0, seen = 0;
  while (end < text.size() && (seen < most - 1 || (text[end] & 0xC0) == 0x80))
    seen += (text[end++] & 0xC0) != 0x80;
  return text.substr(0, end) + "…";
}

// Returns the strength of a value's colour: -1 is blue, 0 white and 1 red. If the map has no
// negative values, colours run from white to blue only.
double strength(double v, const HeatMap& m) {
  if (m.low < 0) return std::clamp(v / std::max(-m.low, m.high), -1.0, 1.0);
  return -std::clamp((v - m.low) / (m.high > m.low ? m.high - m.low : 1), 0.0, 1.0);
}

std::string colour(double s) {
  const int blue[] = {38, 101, 200}, red[] = {205, 60, 40};
  const int* const full = s < 0 ? blue : red;
  const auto mixed = [&](int i) {
    return static_cast<int>(std::lround(255 + (full[i] - 255) * std::abs(s)));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mixed(0), mixed(1), mixed(2));
}

// Draws maps below one another and keeps the size of the drawing.
class Drawing {
 public:
  void text(double x, double y, const std::string& text, const char* more = "") {
    fmt::format_to(std::back_inserter(body_), "<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y,
                   more, as_xml(text));
  }
  void box(double x, double y, double w, double h, const std::string& fill,
           const std::string& tip = "") {
    fmt::format_to(std::back_inserter(body_),
                   "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
                   "fill=\"{}\"{}",
                   x, y, w, h, fill,
                   tip.empty() ? "/>\n" : "><title>" + as_xml(tip) + "</title></rect>\n");
    width_ = std::max(width_, x + w);
  }
  void heading(const std::string& title) {
    text(kMargin, y_ += 20, title, " font-size=\"17\" font-weight=\"600\"");
    width_ = std::max(width_, kMargin + 10.2 * static_cast<double>(letters(title)));
  }
  void add(const HeatMap& m) {
    text(kMargin, y_ += 36, m.title, " font-size=\"13\" font-weight=\"600\"");
    width_ = std::max(width_, kMargin + 8.0 * static_cast<double>(letters(m.title)));
    legend(m);
    cells(m);
  }
  std::string page() const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, "
        "monospace\" font-size=\"{2}\" fill=\"#1b1f24\">\n<rect width=\"100%\" height=\"100%\" "
        "fill=\"#fff\"/>\n{3}</svg>\n",
        width_ + kMargin, y_ + kMargin, kText, body_);
  }

 private:
  void legend(const HeatMap& m) {
    y_ += 12;
    const std::string low = fmt::format("{:.3g}", m.low), high = fmt::format("{:.3g}", m.high);
    const double x = kMargin + kLetter * static_cast<double>(low.size()) + 6;
    text(kMargin, y_ + 9, low);
    constexpr int kSteps = 40;
    for (int i = 0; i < kSteps; ++i)
      box(x + i * double{kLegend} / kSteps, y_, double{kLegend} / kSteps + 0.3, 10,
          colour(strength(m.low + (m.high - m.low) * (i + 0.5) / kSteps, m)));
    text(x + kLegend + 6, y_ + 9, m.unit.empty() ? high : high + " " + m.unit);
    y_ += 22;
  }
  void cells(const HeatMap& m) {
    size_t row_letters = letters(m.rows_name), column_letters = 1, cell_letters = 0;
    for (const std::string& r : m.rows) row_letters = std::max(row_letters, letters(r));
    for (const std::string& c : m.columns) column_letters = std::max(column_letters, letters(c));
    for (const auto& row : m.labels) {
      for (const std::string& l : row) cell_letters = std::max(cell_letters, letters(l));
    }
    row_letters = std::min<size_t>(row_letters, 28);
    column_letters = std::min<size_t>(column_letters, 14);
    cell_letters = std::min<size_t>(cell_letters, 9);
    const double left = kMargin + kLetter * static_cast<double>(row_letters) + 8,
                 each = std::max(double{kRow}, kLetter * static_cast<double>(cell_letters) + 6);
    if (!m.columns_name.empty()) text(left, y_ += kText, m.columns_name + " →", " fill=\"#667\"");
    // Names of columns are vertical and end above their cells.
    y_ += kLetter * static_cast<double>(column_letters) + 6;
    for (size_t c = 0; c < m.columns.size(); ++c) {
      const double x = left + (static_cast<double>(c) + 0.5) * each + 4;
      text(x, y_ - 4, shortened(m.columns[c], column_letters),
           fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", x, y_ - 4).c_str());
    }
    text(kMargin, y_ - 4, m.rows_name, " fill=\"#667\"");
    for (size_t r = 0; r < m.rows.size(); ++r, y_ += kRow) {
      text(left - 6, y_ + kRow - 5, shortened(m.rows[r], row_letters), " text-anchor=\"end\"");
      for (size_t c = 0; c < m.values[r].size(); ++c)
        cell(m, r, c, left + static_cast<double>(c) * each, each);
    }
  }
  void cell(const HeatMap& m, size_t r, size_t c, double x, double each) {
    const double v = m.values[r][c], s = strength(v, m);
    const std::string label = m.labels.empty() ? "" : m.labels[r][c];
    box(x, y_, each - 1, kRow - 1, std::isfinite(v) ? colour(s) : "#eee",
        fmt::format("{} {}, {} {} {}: {:.6g} {}{}", m.rows_name, m.rows[r], m.columns_name, c,
                    m.columns[c], v, m.unit, label.empty() ? "" : " " + label));
    if (label.empty()) return;
    text(x + (each - 1) / 2, y_ + kRow - 6, shortened(label, 9),
         std::abs(s) > 0.6 ? " text-anchor=\"middle\" fill=\"#fff\"" : " text-anchor=\"middle\"");
  }

  std::string body_;
  double width_ = 0, y_ = kMargin;
};

}  // namespace

std::string svg_of(const std::string& title, const std::vector<HeatMap>& maps) {
  Drawing drawing;
  drawing.heading(title);
  for (const HeatMap& m : maps) drawing.add(m);
  return drawing.page();
}

}  // namespace stet::tool

// Pictures for people: files that need nothing else. HTML with zoom and hover, or SVG for papers.
#pragma once

#include <string>
#include <vector>

#include "tools/command/command.hpp"

namespace stet::tool {

// A table of values in [low, high] as colours, a text for each cell under the pointer.
struct HeatMap {
  std::string title, rows_name, columns_name;
  std::vector<std::string> rows, columns;
  std::vector<std::vector<double>> values;       // [rows][columns]
  std::vector<std::vector<std::string>> labels;  // shown in the cells; empty: none
  double low = 0, high = 1;
  std::string unit = {};  // of the values, beside the scale
};

// All of them below one another, as one page, or as one drawing with its text as text.
std::string html_of(const std::string& title, const std::vector<HeatMap>& maps);
std::string svg_of(const std::string& title, const std::vector<HeatMap>& maps);

// --html, --svg
struct PictureOptions {
  std::string html, svg;

  void add_to(Command& app);
  bool asked() const { return !html.empty() || !svg.empty(); }
  std::string option() const { return html.empty() ? "--svg" : "--html"; }
  // Throws an argument Error for more cells than a viewer of SVG can bear, an io Error where
  // writing fails.
  void write(const std::string& title, const std::vector<HeatMap>& maps) const;
};

}  // namespace stet::tool

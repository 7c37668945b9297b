// Pictures in single files: HTML with zoom and hover, or SVG for papers.
#pragma once

#include <string>
#include <vector>

#include "tools/command/command.hpp"

namespace stet::tool {

// A table of values in [low, high], drawn as colours, with a text for the cell under the pointer.
struct HeatMap {
  std::string title, rows_name, columns_name;
  std::vector<std::string> rows, columns;
  std::vector<std::vector<double>> values;  // [rows][columns]; a row may end earlier, or be empty
  std::vector<std::vector<std::string>> labels;  // shown in the cells; empty for none
  double low = 0, high = 1;
  std::string unit = {};  // unit of the values, shown at the colour scale
};

// Returns rows of values, with null for an empty one.
Json rows_json(const std::vector<std::vector<double>>& rows);

// Return all maps below one another, as one page or one drawing. Text stays text.
std::string html_of(const std::string& title, const std::vector<HeatMap>& maps);
std::string svg_of(const std::string& title, const std::vector<HeatMap>& maps);

// The options --html and --svg.
struct PictureOptions {
  std::string html, svg;

  void add_to(Command& app);
  bool asked() const { return !html.empty() || !svg.empty(); }
  std::string option() const { return html.empty() ? "--svg" : "--html"; }
  // Writes the files. Throws an argument Error for more cells than SVG viewers can handle, an io
  // Error if writing fails.
  void write(const std::string& title, const std::vector<HeatMap>& maps) const;
};

}  // namespace stet::tool

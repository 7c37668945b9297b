// Pictures for people: one HTML file that needs nothing else.
#pragma once

#include <string>
#include <vector>

namespace stet::tool {

// A table of values in [low, high] as colours, a text for each cell under the pointer.
struct HeatMap {
  std::string title, rows_name, columns_name;
  std::vector<std::string> rows, columns;
  std::vector<std::vector<double>> values;       // [rows][columns]
  std::vector<std::vector<std::string>> labels;  // shown in the cells; empty: none
  double low = 0, high = 1;
};

// Writes all of them below one another; an io Error where that fails.
void write_html(const std::string& path, const std::string& title,
                const std::vector<HeatMap>& maps);

}  // namespace stet::tool

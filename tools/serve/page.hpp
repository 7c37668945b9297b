// The files of tools/serve/page, compiled into the command.
#pragma once

#include <string_view>
#include <vector>

namespace stet::serve {

struct PageFile {
  std::string_view name;  // "index.html"
  const char* type;
  std::string_view bytes;
};
const std::vector<PageFile>& page_files();

}  // namespace stet::serve

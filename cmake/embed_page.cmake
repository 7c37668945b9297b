# Writes page_files() (tools/serve/page.hpp) with the files of a folder.
#   cmake -DFROM=DIR -DTO=FILE -P embed_page.cmake
set(types ".html" "text/html" ".css" "text/css" ".js" "text/javascript" ".svg" "image/svg+xml")
file(GLOB files ${FROM}/*)
list(SORT files)
set(bytes "")
set(rows "")
set(number 0)
foreach(file ${files})
  get_filename_component(name ${file} NAME)
  get_filename_component(extension ${file} LAST_EXT)
  list(FIND types ${extension} at)
  math(EXPR at "${at} + 1")
  list(GET types ${at} type)
  file(READ ${file} hex HEX)
  string(LENGTH "${hex}" length)
  math(EXPR size "${length} / 2")
  string(REGEX REPLACE "(..)" "\\\\x\\1" text "${hex}")
  string(REPLACE "\\x0a" "\\x0a\"\n\"" text "${text}") # a string literal for each line
  string(CONFIGURE [[
constexpr char file_@number@[] =
"@text@";
]] one @ONLY)
  string(APPEND bytes "${one}")
  string(APPEND rows "    {\"${name}\", \"${type}\", {file_${number}, ${size}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(CONFIGURE OUTPUT ${TO} @ONLY CONTENT [[
#include "tools/serve/page.hpp"
namespace stet::serve {
namespace {
@bytes@
}  // namespace
const std::vector<PageFile>& page_files() {
  static const std::vector<PageFile> all = {
@rows@  };
  return all;
}
}  // namespace stet::serve
]])

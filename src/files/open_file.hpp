// Opens files of sources that programs may define.
#pragma once

#include <memory>
#include <string>

#include "stet/files/file_source.hpp"

namespace stet {

// Opens a file of a source. Throws an io Error if the source returns null, against its contract.
std::shared_ptr<const FileBytes> open_file(const FileSource& source, const std::string& name);

}  // namespace stet

// Recognizes paths that should be checkpoints but are not, and explains what they are.
#pragma once

#include "stet/files/file_source.hpp"

namespace stet {

// Returns "owner/name" if `path` means a model on the Hugging Face Hub, otherwise "".
std::string hub_name(std::string path);

// Throws an Error for a path that is not a directory, and says what to do. For a name on the
// Hugging Face Hub it says how to download the files. For one file of a checkpoint it names the
// directory. Otherwise it says what the file is.
[[noreturn]] void refuse_path(const std::string& path);

// Throws an Error if config.json is missing, and says what the files are instead. Also throws if an
// adapter is beside it: transformers would apply the adapter, stet would silently run the base
// model.
void require_model(const FileSource& source);

}  // namespace stet

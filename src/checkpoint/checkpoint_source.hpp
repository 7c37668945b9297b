// What is found where a checkpoint should be.
#pragma once

#include "stet/files/file_source.hpp"

namespace stet {

// Returns "owner/name" for a path that means a model on the Hugging Face Hub, "" for another.
std::string hub_name(std::string path);

// Throws an Error for a path that is no directory, and says what would do: for a name on the
// Hugging Face Hub, how to get the files; for one file of a checkpoint, its directory; else what
// the file is.
[[noreturn]] void refuse_path(const std::string& path);

// Throws an Error where config.json is missing, and says what the files are instead; and where an
// adapter lies beside it: transformers would apply the adapter, stet would run the base model.
void require_model(const FileSource& source);

}  // namespace stet

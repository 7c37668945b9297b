// Reads the tokenizer of a checkpoint, or explains why it is not usable.
#pragma once

#include <optional>
#include <string>

#include "stet/base/error.hpp"
#include "stet/files/file_source.hpp"
#include "tools/options/options.hpp"

namespace stet::tool {

// Adds --pre, which sets how text is split for every GGUF file that the process reads.
void add_pre_to(Command& app);
// Returns the value of --pre, or "".
const std::string& chosen_pre();

// Returns true if there is a tokenizer, even one that cannot be used.
bool has_tokenizer(const FileSource& source);
// Returns the Error for a tokenizer that cannot be used, or nothing if it can.
std::optional<Error> tokenizer_fault(const FileSource& source);

}  // namespace stet::tool

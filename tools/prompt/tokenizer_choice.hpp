// How the tokenizer of a checkpoint is read, and why it cannot be.
#pragma once

#include <optional>
#include <string>

#include "stet/base/error.hpp"
#include "stet/files/file_source.hpp"
#include "tools/options/options.hpp"

namespace stet::tool {

// --pre: how the text of a GGUF file is split, for all files that the process reads.
void add_pre_to(Command& app);
// What was given, or "".
const std::string& chosen_pre();

// Whether there is a tokenizer, be it one that cannot be used.
bool has_tokenizer(const FileSource& source);
// Why the tokenizer that there is cannot be used; nothing where it can.
std::optional<Error> tokenizer_fault(const FileSource& source);

}  // namespace stet::tool

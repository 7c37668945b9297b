// Finds and reads the files of a tokenizer. Turns vocab.json and merges.txt into the tokenizer.json
// that transformers makes of them.
#pragma once

#include <string>
#include <string_view>

#include "src/files/additional_templates.hpp"
#include "src/text/tokenizer_config.hpp"
#include "stet/base/error.hpp"
#include "stet/files/file_source.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

// Replaces a vocabulary that cannot be used, and holds the reason: an object with the members of an
// Error. The weights can still be used, since they need no vocabulary.
inline constexpr const char* kTokenizerFault = "tokenizer_fault.json";
std::string tokenizer_fault_text(const Error& error);
// Throws the Error that tokenizer_fault_text() wrote. `file` names the text in errors.
[[noreturn]] void throw_tokenizer_fault(const std::string& text, const std::string& file);

// Returns whether a name is that of a vocabulary or of its replacement. It is the first of
// Tokenizer::files_of() if there is one.
bool is_vocabulary_file(std::string_view name);
// Reads the files that Tokenizer::files_of() names, unchanged.
Tokenizer::Files read_tokenizer_files(const FileSource& source);

// Throws an io Error for files without a known vocabulary. It names the vocabulary found instead,
// if stet knows its name.
[[noreturn]] void throw_no_vocabulary(const FileSource& source);

// Returns the tokenizer.json equivalent to vocab.json and merges.txt, whose tokenizer class decides
// how text is split. Adds the class's special tokens unless the config sets others. Throws a format
// Error, or an unsupported Error for a class whose rules stet does not know.
std::string tokenizer_json_of_merges(const Tokenizer::Files& files, const std::string& where,
                                     TokenizerConfig& config);

}  // namespace stet

// The files of a tokenizer: which of them are there, and vocab.json with merges.txt as the
// tokenizer.json that transformers makes of them.
#pragma once

#include <string>
#include <string_view>

#include "src/files/additional_templates.hpp"
#include "src/text/tokenizer_config.hpp"
#include "stet/base/error.hpp"
#include "stet/files/file_source.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

// Stands in place of a vocabulary that cannot be used, and says why not: an object with the members
// of an Error. Weights need no vocabulary, so it is no reason to refuse them.
inline constexpr const char* kTokenizerFault = "tokenizer_fault.json";
std::string tokenizer_fault_text(const Error& error);
// Throws the Error that the text holds.
[[noreturn]] void throw_tokenizer_fault(const std::string& text, const std::string& file);

// Of the names that Tokenizer::files_of() gives, the first is that of a vocabulary, if there is one
// or something in its place.
bool is_vocabulary_file(std::string_view name);
// The files that Tokenizer::files_of() names, as they are.
Tokenizer::Files read_tokenizer_files(const FileSource& source);

// Throws the io Error for files without a vocabulary that stet reads. It names what is there
// instead, so far as stet knows the name.
[[noreturn]] void throw_no_vocabulary(const FileSource& source);

// The tokenizer.json of vocab.json and merges.txt, which leave to the class of the tokenizer how
// text is split. Adds the special tokens that the class has unless the config says otherwise.
// Throws Error: format; unsupported for a class whose rules stet does not know.
std::string tokenizer_json_of_merges(const Tokenizer::Files& files, const std::string& where,
                                     TokenizerConfig& config);

}  // namespace stet

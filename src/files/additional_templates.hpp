// Chat templates beside the one of chat_template.jinja, as transformers saves them: files
// NAME.jinja in the folder additional_chat_templates of a checkpoint.
#pragma once

#include <string>
#include <vector>

namespace stet {

// The name under which a source of files has them all: a JSON object of templates by name. What was
// packed or archived holds a file of this name; of a directory with the folder it is made.
inline constexpr const char* kAdditionalTemplates = "additional_chat_templates.json";

// The files of the folder, below `directory`, in the order of their names.
std::vector<std::string> additional_template_files(const std::string& directory);
// The object. Throws Error: io, and format for a file of more than 16 MB.
std::string additional_templates_json(const std::string& directory);

}  // namespace stet

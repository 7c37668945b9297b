// Reads further chat templates beside chat_template.jinja. As saved by transformers, they are files
// NAME.jinja in the folder additional_chat_templates of a checkpoint.
#pragma once

#include <string>
#include <vector>

namespace stet {

inline constexpr const char* kAdditionalFolder = "additional_chat_templates";
// The name under which a source of files offers these templates: as a JSON object by template name.
// Packed and archived checkpoints hold a file of this name. For a directory with the folder, the
// file is composed.
inline constexpr const char* kAdditionalTemplates = "additional_chat_templates.json";

// Returns the folder's files, relative to `directory`, sorted by name.
std::vector<std::string> additional_template_files(const std::string& directory);
// Returns the JSON object. Throws an io Error, or a format Error for a file of more than 16 MB.
std::string additional_templates_json(const std::string& directory);

}  // namespace stet

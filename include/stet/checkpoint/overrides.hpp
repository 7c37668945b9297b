// Checkpoints that say less than they should, or something wrong: GGUF files without a chat
// template, or whose end token is not the one that ends a turn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/files/file_source.hpp"

namespace stet {

struct CheckpointOverrides {
  std::optional<std::string> chat_template;  // the Jinja source, in place of the checkpoint's
  std::vector<int32_t> eos_ids;              // stop tokens, in place of the checkpoint's; none: its

  bool any() const { return chat_template.has_value() || !eos_ids.empty(); }
};

// The checkpoint as if its own files said so: in chat_template.jinja, and in the eos_token_id of
// generation_config.json. So the tokenizer's fingerprint is that of the other template, states hold
// the other stop tokens, and what is packed or saved with the weights keeps both.
STET_API std::shared_ptr<const FileSource> overridden(std::shared_ptr<const FileSource> source,
                                                      CheckpointOverrides overrides);

}  // namespace stet

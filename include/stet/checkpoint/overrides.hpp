// Overrides for incomplete or wrong checkpoints: GGUF files without a chat template, or with an end
// token that does not end a turn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/files/file_source.hpp"

namespace stet {

// Values that replace those of a checkpoint.
struct CheckpointOverrides {
  std::optional<std::string> chat_template;  // Jinja source that replaces the checkpoint's
  std::vector<int32_t> eos_ids;  // stop tokens that replace the checkpoint's; empty: keep those

  bool any() const { return chat_template.has_value() || !eos_ids.empty(); }
};

// Returns the checkpoint with its chat_template.jinja, and eos_token_id in generation_config.json,
// replaced. The tokenizer's fingerprint, the states' stop tokens, and packed or saved files reflect
// the overrides.
STET_API std::shared_ptr<const FileSource> overridden(std::shared_ptr<const FileSource> source,
                                                      CheckpointOverrides overrides);

}  // namespace stet

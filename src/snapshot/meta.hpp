// Encodes and decodes the section META (docs/formats.md, "META").
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "stet/session/session.hpp"
#include "stet/snapshot/file.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

// Returns the metadata of a snapshot of `state`, with model and tokenizer as in `like`.
SnapshotMeta meta_of(const State& state, SnapshotMeta like);
// Returns the metadata of a snapshot of a session's state. `tokenizer` is null if none is in use.
SnapshotMeta meta_of(const State& state, const Session& session, const Tokenizer* tokenizer);
std::string encode_meta(const SnapshotMeta& meta);
// META and the two sections with the log of prunes.
struct MetaSections {
  std::string_view json;
  std::span<const std::byte> prunes, removed;
};
// `file` names the source in errors. Throws a format or unsupported Error.
SnapshotMeta decode_meta(const MetaSections& sections, const std::string& file);
// Throws a capacity Error if decode_meta() would refuse the sections that `meta` was encoded to.
void check_meta(const SnapshotMeta& meta, const MetaSections& sections);

// Returns JSON with sorted keys and no spaces, since the state digest covers it.
std::string encode_generation(const GenerationState& generation);
// Returns JSON in the same form.
std::string encode_chat(const ChatState& chat);

}  // namespace stet

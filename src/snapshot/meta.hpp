// The section META (docs/snapshot-format.md, "META").
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "stet/session/session.hpp"
#include "stet/snapshot/file.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

// What a snapshot of `state` says of itself, where `like` has it of model and tokenizer.
SnapshotMeta meta_of(const State& state, SnapshotMeta like);
// The same of a session's state; `tokenizer` null: none is in use.
SnapshotMeta meta_of(const State& state, const Session& session, const Tokenizer* tokenizer);
std::string encode_meta(const SnapshotMeta& meta);
// META and the sections of the log of prunes.
struct MetaSections {
  std::string_view json;
  std::span<const std::byte> prunes, removed;
};
// `file` names the source in errors. Throws Error: format, or unsupported.
SnapshotMeta decode_meta(const MetaSections& sections, const std::string& file);

int64_t meta_vocab(const SnapshotMeta& meta);
int64_t meta_hidden(const SnapshotMeta& meta);

// Sorted keys, no spaces: part of what the state digest covers.
std::string encode_generation(const GenerationState& generation);
// Likewise. Throws an argument Error for messages that could not be read back: texts that are no
// UTF-8, members that are no JSON object, positions that are out of order or beyond `positions` (of
// the transcript).
std::string encode_chat(const ChatState& chat);
void check_chat(const ChatState& chat, int64_t positions, const std::string& source);

}  // namespace stet

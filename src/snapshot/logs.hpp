// Encodes and decodes the logs of a state: prunes in sections of their own, edits and interventions
// in META (docs/formats.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stet/base/bytes.hpp"
#include "stet/base/json_reader.hpp"
#include "stet/model/config.hpp"
#include "stet/snapshot/file.hpp"

namespace stet {

// Convert bytes to and from hexadecimal as META has it, the high digit first. `text` must have two
// characters a byte; parse_hex returns false if one is no hexadecimal digit.
std::string hex_text(std::span<const std::byte> bytes);
bool parse_hex(std::string_view text, std::span<std::byte> bytes);

// Writes the sections PRUNES and REMOVED.
void encode_prunes(const std::vector<Prune>& prunes, ByteWriter& log, ByteWriter& removed);
// Reads prunes. `m` has capacity and positions. Throws a format Error if a prune is of positions
// that did not exist after the previous one. Removed tokens must be in the vocabulary.
std::vector<Prune> decode_prunes(std::span<const std::byte> log, std::span<const std::byte> removed,
                                 const SnapshotMeta& m, int64_t vocab, const std::string& file);

// Convert members of META. The decoders get META's object and the fields decoded before.
nlohmann::json edits_json(const std::vector<KvEdit>& edits);
std::vector<KvEdit> decode_edits(const JsonReader& json, const SnapshotMeta& m);
nlohmann::json interventions_json(const std::vector<Intervention>& all);
// Throws a format Error if interventions are not in the order of attachment, or do not fit the
// model.
std::vector<Intervention> decode_interventions(const JsonReader& json, const SnapshotMeta& m,
                                               const ModelConfig& config);

}  // namespace stet

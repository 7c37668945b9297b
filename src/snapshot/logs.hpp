// The logs of a state: prunes, in sections of their own, and edits and interventions, in META
// (docs/snapshot-format.md).
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

// Bytes as members of META have them: two hexadecimal digits each, the high half first. parse_hex
// returns whether `text`, of twice as many characters, has no others.
std::string hex_text(std::span<const std::byte> bytes);
bool parse_hex(std::string_view text, std::span<std::byte> bytes);

// PRUNES and REMOVED.
void encode_prunes(const std::vector<Prune>& prunes, ByteWriter& log, ByteWriter& removed);
// `m` has capacity and positions. Throws a format Error for prunes of positions that were not there
// after the one before, and for removed tokens that are not of the vocabulary.
std::vector<Prune> decode_prunes(std::span<const std::byte> log, std::span<const std::byte> removed,
                                 const SnapshotMeta& m, int64_t vocab, const std::string& file);

// Members of META; the decoders are given META, and what was read of it before.
nlohmann::json edits_json(const std::vector<KvEdit>& edits);
std::vector<KvEdit> decode_edits(const JsonReader& json, const SnapshotMeta& m);
nlohmann::json interventions_json(const std::vector<Intervention>& all);
// Throws a format Error for what is not in the order in which it was attached, or not of this
// model.
std::vector<Intervention> decode_interventions(const JsonReader& json, const SnapshotMeta& m,
                                               const ModelConfig& config);

}  // namespace stet

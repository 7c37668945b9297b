// Encodes and decodes the payloads of states and names (include/stet/store/store.hpp).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "stet/store/store.hpp"

namespace stet {

// Returns a block in encoding 1 of a record (record.hpp). Returns nothing if that is impossible or
// not shorter.
std::vector<std::byte> encode_block(std::span<const std::byte> bytes);
// Throws a format Error for invalid data, or if it would expand beyond the size of a block.
StoredBytes decode_block(std::span<const std::byte> payload, const std::string& where);

std::vector<std::byte> encode_state_payload(const StateRecord& state);
StateRecord decode_state_payload(std::span<const std::byte> payload, const std::string& where);
std::vector<std::byte> encode_name_payload(const std::string& name,
                                           std::span<const NameEntry> entries);
std::vector<NameEntry> decode_name_payload(std::span<const std::byte> payload,
                                           const std::string& name, const std::string& where);

}  // namespace stet

// The payloads of states and names (include/stet/store/store.hpp).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "stet/store/store.hpp"

namespace stet {

// A block by encoding 1 of a record (record.hpp); empty where it cannot be, or is no shorter.
std::vector<std::byte> encode_block(std::span<const std::byte> bytes);
// Throws a format Error, also where it would give more than a block can have.
StoredBytes decode_block(std::span<const std::byte> payload, const std::string& where);

std::vector<std::byte> encode_state_payload(const StateRecord& state);
StateRecord decode_state_payload(std::span<const std::byte> payload, const std::string& where);
std::vector<std::byte> encode_name_payload(const std::string& name,
                                           std::span<const NameEntry> entries);
std::vector<NameEntry> decode_name_payload(std::span<const std::byte> payload,
                                           const std::string& name, const std::string& where);

}  // namespace stet

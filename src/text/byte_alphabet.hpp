// GPT-2's spelling of bytes as characters (Radford et al. 2019, bytes_to_unicode). Printable
// Latin-1 stands for itself. The other 68 bytes are U+0100 and up, in order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stet {

// Returns the bytes that a piece spells, or nothing if it has a character outside the alphabet. The
// piece must be valid UTF-8.
std::optional<std::string> bytes_of_piece(std::string_view piece);

}  // namespace stet

// GPT-2's way to write bytes as characters (Radford et al. 2019, bytes_to_unicode): printable
// Latin-1 stands for itself, the 68 others for U+0100 and up, in order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stet {

// The bytes that a piece writes; nothing where it has a character outside the alphabet. Text is
// valid UTF-8.
std::optional<std::string> bytes_of_piece(std::string_view piece);

}  // namespace stet

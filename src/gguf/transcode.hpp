// Blocks of one ggml type as blocks of another that holds the same numbers, exactly.
#pragma once

#include <cstddef>

namespace stet {

// 32 weights: d times an integer of five bits, or of a table, is d times an int8.
void q5_0_as_q8_0(const std::byte* from, std::byte* to);
void iq4_nl_as_q8_0(const std::byte* from, std::byte* to);
// 256 weights: a scale of six bits and an integer of three for each 16 weights have room in eight
// and six.
void q3_k_as_q6_k(const std::byte* from, std::byte* to);

}  // namespace stet

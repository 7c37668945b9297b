// Converts blocks of one ggml type to another type that holds the same numbers exactly.
#pragma once

#include <cstddef>

namespace stet {

// Convert 32 weights: d times a five-bit integer, or times an entry of a table, equals d times an
// int8.
void q5_0_as_q8_0(const std::byte* from, std::byte* to);
void iq4_nl_as_q8_0(const std::byte* from, std::byte* to);
// Converts 256 weights: Q3_K's six-bit scales and three-bit integers fit into Q6_K's eight and six
// bits.
void q3_k_as_q6_k(const std::byte* from, std::byte* to);

}  // namespace stet

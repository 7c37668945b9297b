#include "src/gguf/transcode.hpp"

#include <cstdint>
#include <cstring>

namespace stet {
namespace {

uint8_t at(const std::byte* p, int i) { return static_cast<uint8_t>(p[i]); }

}  // namespace

// Q5_0: d | 32 fifth bits | 16 bytes whose low halves are weights 0 .. 15
void q5_0_as_q8_0(const std::byte* from, std::byte* to) {
  std::memcpy(to, from, 2);
  for (int i = 0; i < 32; ++i) {
    const int low = i < 16 ? at(from, 6 + i) & 15 : at(from, 6 + i - 16) >> 4,
              high = at(from, 2 + i / 8) >> (i % 8) & 1;
    to[2 + i] = static_cast<std::byte>((low | high << 4) - 16);
  }
}

// IQ4_NL: d | 16 bytes whose low halves are weights 0 .. 15
void iq4_nl_as_q8_0(const std::byte* from, std::byte* to) {
  static constexpr int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
  std::memcpy(to, from, 2);
  for (int i = 0; i < 32; ++i) {
    const int index = i < 16 ? at(from, 2 + i) & 15 : at(from, 2 + i - 16) >> 4;
    to[2 + i] = static_cast<std::byte>(kValues[index]);
  }
}

// Q3_K: 32 bytes of third bits, 64 of low two bits, 12 of scales, float16 d.
//
// Q6_K: 128 bytes of low nibbles, 64 of high two bits, 16 scales, float16 d.
//
// Weight w is in half w / 128, and there in part w / 32 % 4 of 32 weights.
void q3_k_as_q6_k(const std::byte* from, std::byte* to) {
  std::memset(to, 0, 210);
  for (int w = 0; w < 256; ++w) {
    const int half = w / 128, part = w / 32 % 4, i = w % 32;
    const int low = at(from, 32 + half * 32 + i) >> (2 * part) & 3,
              third = at(from, i) >> (w / 32) & 1;
    const int u = 32 + low - (third != 0 ? 0 : 4);
    to[half * 64 + part % 2 * 32 + i] |= static_cast<std::byte>((u & 15) << (part < 2 ? 0 : 4));
    to[128 + half * 32 + i] |= static_cast<std::byte>(u >> 4 << (2 * part));
  }
  for (int s = 0; s < 16; ++s) {
    const int low = s < 8 ? at(from, 96 + s) & 15 : at(from, 96 + s - 8) >> 4,
              high = at(from, 104 + s % 4) >> (2 * (s / 4)) & 3;
    to[192 + s] = static_cast<std::byte>((low | high << 4) - 32);
  }
  std::memcpy(to + 208, from + 108, 2);
}

}  // namespace stet

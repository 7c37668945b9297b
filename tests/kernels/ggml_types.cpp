// Decodes the block types of GGUF. The expected digests come from ggml's own dequantize_row_* on
// the same blocks (ik_llama.cpp 8337e4cd3, 2026-11-24), bit for bit.
#include <random>
#include <vector>

#include "stet/base/sha256.hpp"
#include "stet/kernels/ggml.hpp"
#include "tests/support/models.hpp"

namespace stet::test::ggml_types_tests {
namespace {

struct OfType {
  uint32_t type;
  std::vector<size_t> scales;  // where a block has float16 numbers, here small
  const char* digest;
};

TEST(GgmlTypes, NumbersAreThoseOfTheReference) {
  const OfType all[] = {{2, {0}, "dd20f4a07829c14a"},     {3, {0, 2}, "8d057681d5196140"},
                        {6, {0}, "6293bf753e6ac61a"},     {7, {0, 2}, "64d5784c87e26c09"},
                        {8, {0}, "87bc398cdb42abda"},     {10, {80, 82}, "596e173ca3f45a62"},
                        {11, {108}, "52c48b48e16005ad"},  {12, {0, 2}, "bf3c38d274ebdeca"},
                        {13, {0, 2}, "c43c5761e52c353e"}, {14, {208}, "86134412ec3566b7"},
                        {20, {0}, "7ef83565e4925074"},    {23, {0}, "f0016534582d9362"}};
  for (const OfType& of : all) {
    const GgmlType type = *ggml_type(of.type);
    constexpr size_t kBlocks = 64;
    std::mt19937 random(of.type);
    std::vector<unsigned char> blocks(kBlocks * type.bytes);
    for (unsigned char& b : blocks) b = static_cast<unsigned char>(random() >> 24);
    for (size_t i = 0; i < kBlocks; ++i) {
      for (const size_t at : of.scales) {
        unsigned char& high = blocks[i * type.bytes + at + 1];
        high = static_cast<unsigned char>((high & 0x83) | 0x2c);
      }
    }
    std::vector<float> x(kBlocks * type.elements);
    dequantize_ggml(of.type, blocks.data(), kBlocks, x.data());
    EXPECT_EQ(sha256_text(sha256_of(std::as_bytes(std::span(x)))).substr(7, 16), of.digest)
        << type.name;
  }
  EXPECT_FALSE(ggml_type(4));
  EXPECT_FALSE(ggml_type(99));
}

}  // namespace
}  // namespace stet::test::ggml_types_tests

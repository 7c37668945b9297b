// Written GGUF files: every field has the place that the format prescribes, and blocks are as the
// format defines them.
#include "src/gguf/writer.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "stet/base/error.hpp"
#include "stet/kernels/ggml.hpp"
#include "tests/support/models.hpp"

namespace stet::test::gguf_tests {
namespace {

constexpr size_t kBlock = 32;
constexpr uint32_t kF32 = 0, kQ4_0 = 2, kQ8_0 = 8, kBf16 = 30;

std::vector<std::byte> encode(uint32_t type, std::span<const float> x) {
  const GgmlType stored = *ggml_type(type);
  std::vector<std::byte> out(x.size() / stored.elements * stored.bytes);
  quantize_ggml(type, x.data(), x.size() / stored.elements, out.data());
  return out;
}

std::vector<int> bytes_of(const std::vector<std::byte>& data) {
  std::vector<int> result;
  for (const std::byte b : data) result.push_back(std::to_integer<int>(b));
  return result;
}

TEST(Gguf, BlocksOfEightBits) {
  std::vector<float> x(kBlock, 0.0f);
  x[0] = -63.5f, x[1] = 0.25f, x[2] = -0.25f,
  x[3] = 31.75f;  // with d = 0.5: -127, 0.5, -0.5, 63.5; ties round away from 0
  std::vector<int> expected(34, 0);
  expected[1] = 0x38;  // 0.5 as float16
  expected[2] = 0x81, expected[3] = 0x01, expected[4] = 0xFF, expected[5] = 0x40;
  EXPECT_EQ(bytes_of(encode(kQ8_0, x)), expected);
  EXPECT_EQ(bytes_of(encode(kQ8_0, std::vector<float>(kBlock, 0.0f))), std::vector<int>(34, 0));
}

TEST(Gguf, BlocksOfFourBits) {
  std::vector<float> x(2 * kBlock, 0.0f);
  // The largest magnitude is -4, so d is 0.5: -4 becomes 0, 0 becomes 8, and 4 would be 16.
  x[0] = -4, x[16] = 3.75f, x[1] = 0.2f, x[17] = 0.25f, x[2] = -0.3f;
  // The largest magnitude is 8, so d is -1.
  x[32] = 8, x[48] = -7.5f, x[33] = -1;
  std::vector<int> expected(36, 0x88);
  expected[0] = 0x00, expected[1] = 0x38;
  expected[2] = 0xF0, expected[3] = 0x98, expected[4] = 0x87;
  expected[18] = 0x00, expected[19] = 0xBC;
  expected[20] = 0xF0, expected[21] = 0x89;
  EXPECT_EQ(bytes_of(encode(kQ4_0, x)), expected);
}

TEST(Gguf, Floats) {
  const std::vector<float> x = {1.0f, -2.5f,
                                1.00390625f};  // the last is a tie and becomes the even bfloat16
  EXPECT_EQ(bytes_of(encode(kBf16, x)), (std::vector<int>{0x80, 0x3F, 0x20, 0xC0, 0x80, 0x3F}));
  EXPECT_EQ(bytes_of(encode(kF32, {x.data(), 2})),
            (std::vector<int>{0, 0, 0x80, 0x3F, 0, 0, 0x20, 0xC0}));
}

TEST(Gguf, File) {
  const TemporaryDirectory scratch;
  const std::string path = scratch / "a.gguf";
  GgufKeys m;
  m.u32("n", 7);
  m.texts("t", {"", "ab"});
  m.booleans("b", {true, false});
  GgufWriter writer(path, m, {{"v", kF32, {3}}, {"m", kQ8_0, {2, 32}}});
  writer.write(encode(kF32, std::vector<float>{1, 2, 3}));
  writer.write(encode(kQ8_0, std::vector<float>(32, 127.0f)));
  writer.write(encode(kQ8_0, std::vector<float>(32, 0.0f)));
  writer.commit();

  const std::vector<std::byte> bytes = read_file(path, 1 << 20);
  ByteReader r(bytes, path);
  const auto text = [&] { return r.text(r.u64("length"), "text"); };
  EXPECT_EQ(r.text(4, "magic"), "GGUF");
  EXPECT_EQ(r.u32("version"), 3u);
  EXPECT_EQ(r.u64("tensors"), 2u);
  EXPECT_EQ(r.u64("keys"), 3u);
  EXPECT_EQ(text(), "n");
  EXPECT_EQ(r.u32("type"), 4u);
  EXPECT_EQ(r.u32("value"), 7u);
  EXPECT_EQ(text(), "t");
  EXPECT_EQ(r.u32("type"), 9u);
  EXPECT_EQ(r.u32("type of elements"), 8u);
  EXPECT_EQ(r.u64("length"), 2u);
  EXPECT_EQ(text(), "");
  EXPECT_EQ(text(), "ab");
  EXPECT_EQ(text(), "b");
  EXPECT_EQ(r.u32("type"), 9u);
  EXPECT_EQ(r.u32("type of elements"), 7u);
  EXPECT_EQ(r.u64("length"), 2u);
  EXPECT_EQ(r.u8("element"), 1);
  EXPECT_EQ(r.u8("element"), 0);
  EXPECT_EQ(text(), "v");
  EXPECT_EQ(r.u32("dimensions"), 1u);
  EXPECT_EQ(r.u64("dimension"), 3u);
  EXPECT_EQ(r.u32("type"), 0u);
  EXPECT_EQ(r.u64("offset"), 0u);
  EXPECT_EQ(text(), "m");
  EXPECT_EQ(r.u32("dimensions"), 2u);
  EXPECT_EQ(r.u64("innermost dimension"), 32u);
  EXPECT_EQ(r.u64("outermost dimension"), 2u);
  EXPECT_EQ(r.u32("type"), 8u);
  EXPECT_EQ(r.u64("offset"), 32u);
  const size_t data = (r.position() + 31) / 32 * 32;
  for (const std::byte b : r.bytes(data - r.position(), "padding")) EXPECT_EQ(b, std::byte{0});
  EXPECT_EQ(r.f32("v"), 1.0f);
  EXPECT_EQ(r.f32("v"), 2.0f);
  EXPECT_EQ(r.f32("v"), 3.0f);
  r.bytes(20, "padding");
  EXPECT_EQ(r.u16("d"), 0x3C00);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(r.u8("q"), 127);
  EXPECT_EQ(r.u16("d"), 0);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(r.u8("q"), 0);
  EXPECT_EQ(r.remaining(), 28u);  // two blocks of 34 bytes, and padding to 96 bytes
}

TEST(Gguf, Refusals) {
  const TemporaryDirectory scratch;
  const std::string path = scratch / "a.gguf";
  EXPECT_THROW(GgufWriter(path, {}, {{"m", kQ4_0, {2, 48}}}), Error);
  EXPECT_THROW(GgufKeys().u32("n", uint64_t{1} << 32), Error);
  {
    GgufWriter writer(path, {}, {{"v", kF32, {3}}});
    EXPECT_THROW(writer.write(encode(kF32, std::vector<float>(4))), Error);
    writer.write(encode(kF32, std::vector<float>(2)));
    EXPECT_THROW(writer.commit(), Error);
    writer.write(encode(kF32, std::vector<float>(1)));
    EXPECT_THROW(writer.write(encode(kF32, std::vector<float>(1))), Error);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace stet::test::gguf_tests

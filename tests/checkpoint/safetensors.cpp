#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "stet/base/bytes.hpp"
#include "stet/checkpoint/safetensors.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"

namespace stet::test::safetensors_tests {
namespace {

using stet::DType;
using stet::SafeTensors;

std::string with_length(uint64_t length, const std::string& rest) {
  stet::ByteWriter writer;
  writer.u64(length);
  writer.text(rest);
  return {reinterpret_cast<const char*>(writer.data().data()), writer.size()};
}

std::string file_of(const std::string& header, const std::string& data) {
  return with_length(header.size(), header + data);
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

std::string refusal(const std::string& bytes) {
  const std::string error = error_of([&] { SafeTensors::parse(as_bytes(bytes), "w"); });
  const std::string prefix = "format: w: ";
  return error.rfind(prefix, 0) == 0 ? error.substr(prefix.size()) : "?? " + error;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const std::string kSmall =
    file_of("{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "F32", "[1,2]", "[6,14]") + "," +
                entry("a", "BF16", "[3]", "[0,6]") + "," + entry("s", "I64", "[]", "[14,22]") +
                "," + entry("z", "U8", "[0,5]", "[6,6]") + "}  ",
            "aaaaaabbbbbbbbssssssss");

TEST(SafeTensors, ShowsTensorsInTheOrderOfTheirData) {
  const SafeTensors file = SafeTensors::parse(as_bytes(kSmall), "w");
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, "z");
  EXPECT_EQ(file.tensors()[2].name, "b");
  EXPECT_EQ(file.tensors()[3].name, "s");
  const stet::TensorView* b = file.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::f32);
  EXPECT_EQ(b->dtype_text, "F32");
  EXPECT_EQ(b->shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(text_of(b->bytes), "bbbbbbbb");
  EXPECT_EQ(text_of(file.find("s")->bytes), "ssssssss");
  EXPECT_EQ(file.find("s")->shape, std::vector<int64_t>{});
  EXPECT_EQ(file.find("z")->bytes.size(), 0u);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
}

TEST(SafeTensors, KnowsEveryDType) {
  const std::pair<const char*, size_t> dtypes[] = {
      {"F64", 8}, {"F32", 4}, {"BF16", 2}, {"F16", 2}, {"I64", 8}, {"I32", 4}, {"I16", 2},
      {"I8", 1},  {"U64", 8}, {"U32", 4},  {"U16", 2}, {"U8", 1},  {"BOOL", 1}};
  for (const auto& [name, size] : dtypes) {
    const std::string bytes =
        file_of("{" + entry("t", name, "[3]", "[0," + std::to_string(3 * size) + "]") + "}",
                std::string(3 * size, 'x'));
    const SafeTensors file = SafeTensors::parse(as_bytes(bytes), "w");
    EXPECT_STREQ(stet::dtype_name(file.find("t")->dtype), name);
    EXPECT_EQ(stet::dtype_size(file.find("t")->dtype), size);
  }
}

TEST(SafeTensors, PassesOverUnknownDTypesButChecksTheirOffsets) {
  const std::string good = file_of(
      "{" + entry("q", "F8_E4M3", "[4]", "[0,4]") + "," + entry("f", "F32", "[1]", "[4,8]") + "}",
      "qqqqffff");
  const SafeTensors file = SafeTensors::parse(as_bytes(good), "w");
  EXPECT_EQ(file.find("q")->dtype, DType::other);
  EXPECT_EQ(file.find("q")->dtype_text, "F8_E4M3");
  EXPECT_EQ(file.find("q")->bytes.size(), 4u);
  EXPECT_EQ(refusal(file_of("{" + entry("q", "F8_E4M3", "[4]", "[0,4]") + "}", "qqq")),
            "q.data_offsets: expected a range within 3 bytes of data, found [0, 4]");
}

TEST(SafeTensors, EmptyFilesOfTensorsAreFiles) {
  EXPECT_TRUE(SafeTensors::parse(as_bytes(file_of("{}", "")), "w").tensors().empty());
  EXPECT_EQ(refusal(file_of("{}", "x")), "data: expected 0 bytes, as the header says, found 1");
}

TEST(SafeTensors, RefusesADamagedHeaderLength) {
  EXPECT_EQ(refusal(""), "header length: expected 8 bytes at offset 0, found 0 before the end");
  EXPECT_EQ(refusal("1234567"),
            "header length: expected 8 bytes at offset 0, found 7 before the end");
  EXPECT_EQ(refusal(with_length(3, "{}")),
            "header: expected 3 bytes at offset 8, found 2 before the end");
  EXPECT_EQ(refusal(with_length(100'000'000, "{}")),
            "header: expected 100000000 bytes at offset 8, found 2 before the end");
  EXPECT_EQ(refusal(with_length(100'000'001, "{}")),
            "header length: expected at most 100000000 bytes, found 100000001");
  EXPECT_EQ(refusal(with_length(uint64_t{1} << 63, "{}")),
            "header length: expected at most 100000000 bytes, found 9223372036854775808");
  EXPECT_EQ(refusal(with_length(UINT64_MAX, "{}")),
            "header length: expected at most 100000000 bytes, found 18446744073709551615");
}

TEST(SafeTensors, RefusesAHeaderOfAnotherForm) {
  const auto header = [](const std::string& json) { return refusal(file_of(json, "")); };
  EXPECT_EQ(header(""), "line 1, column 1: expected valid JSON, found the end of the text");
  EXPECT_EQ(header("[]"), "expected a JSON object, found an array");
  EXPECT_EQ(header("{\"a\":1}"), "a: expected an object, found 1");
  EXPECT_EQ(header("{\"a\":null}"), "a: expected an object, found nothing");
  EXPECT_EQ(header("{\"__metadata__\":[]}"), "__metadata__: expected an object, found an array");
  EXPECT_EQ(header("{\"__metadata__\":{\"k\":1}}"), "__metadata__.k: expected a string, found 1");
  EXPECT_EQ(header("{\"a\":{}}"), "a.dtype: expected a string, found nothing");
  EXPECT_EQ(header("{" + entry("a", "F32", "null", "[0,4]") + "}"),
            "a.shape: expected an array of integers, found nothing");
  EXPECT_EQ(header("{" + entry("a", "F32", "4", "[0,4]") + "}"),
            "a.shape: expected an array of integers, found 4");
  EXPECT_EQ(header("{" + entry("a", "F32", "[1]", "[0]") + "}"),
            "a.data_offsets: expected two integers, found an array");
  EXPECT_EQ(header("{" + entry("a", "F32", "[1]", "null") + "}"),
            "a.data_offsets: expected two integers, found nothing");
  EXPECT_EQ(header("{" + entry("a", "F32", "[0]", "[0,0]") + "," +
                   entry("a", "F32", "[0]", "[0,0]") + "}"),
            "a: expected each key once, found a second value");
}

TEST(SafeTensors, RefusesOffsetsAndShapesThatDoNotFit) {
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return refusal(file_of("{" + entry("a", "F32", shape, offsets) + "}", "12345678"));
  };
  EXPECT_EQ(one("[2]", "[0,8]"), "?? no error");
  EXPECT_EQ(one("[2]", "[1,9]"),
            "a.data_offsets: expected a range within 8 bytes of data, found [1, 9]");
  EXPECT_EQ(one("[2]", "[8,0]"),
            "a.data_offsets: expected a range within 8 bytes of data, found [8, 0]");
  EXPECT_EQ(
      one("[2]", "[0,9223372036854775807]"),
      "a.data_offsets: expected a range within 8 bytes of data, found [0, 9223372036854775807]");
  EXPECT_EQ(one("[2]", "[-8,0]"),
            "a.data_offsets[0]: expected an integer in 0..9223372036854775807, found -8");
  EXPECT_EQ(one("[2]", "[0,18446744073709551615]"),
            "a.data_offsets[1]: expected an integer in 0..9223372036854775807, found "
            "18446744073709551615");
  EXPECT_EQ(one("[-2]", "[0,8]"),
            "a.shape[0]: expected an integer in 0..9223372036854775807, found -2");
  EXPECT_EQ(one("[1.5]", "[0,8]"),
            "a.shape[0]: expected an integer in 0..9223372036854775807, found 1.5");
  EXPECT_EQ(one("[3]", "[0,8]"), "a.data_offsets: expected 12 bytes for F32 [3], found 8 bytes");
  EXPECT_EQ(one("[]", "[0,8]"), "a.data_offsets: expected 4 bytes for F32 [], found 8 bytes");
  EXPECT_EQ(one("[4294967296,4294967296]", "[0,8]"),
            "a.shape: expected less than 2^63 bytes, found [4294967296, 4294967296]");
  EXPECT_EQ(one("[2305843009213693952,8]", "[0,8]"),
            "a.shape: expected less than 2^63 bytes, found [2305843009213693952, 8]");
  EXPECT_EQ(one("[2305843009213693952]", "[0,8]"),
            "a.shape: expected less than 2^63 bytes, found [2305843009213693952]");
  EXPECT_EQ(one("[1]", "[0,4]"), "data: expected 4 bytes, as the header says, found 8");
  EXPECT_EQ(
      one("[1]", "[4,8]"),
      "a.data_offsets: expected to begin at 0, where the tensor before it ends, found [4, 8]");
}

TEST(SafeTensors, RefusesOverlapAndHoles) {
  const auto two = [](const std::string& first, const std::string& second) {
    return refusal(
        file_of("{" + entry("a", "U8", "[4]", first) + "," + entry("b", "U8", "[4]", second) + "}",
                "123456789"));
  };
  EXPECT_EQ(
      two("[0,4]", "[3,7]"),
      "b.data_offsets: expected to begin at 4, where the tensor before it ends, found [3, 7]");
  EXPECT_EQ(
      two("[0,4]", "[0,4]"),
      "b.data_offsets: expected to begin at 4, where the tensor before it ends, found [0, 4]");
  EXPECT_EQ(
      two("[5,9]", "[0,4]"),
      "a.data_offsets: expected to begin at 4, where the tensor before it ends, found [5, 9]");
  EXPECT_EQ(two("[4,8]", "[0,4]"), "data: expected 8 bytes, as the header says, found 9");
}

// Parses damaged bytes. Expects a format Error, or views that lie within the bytes. Returns true if
// they were accepted.
bool parses(const std::string& bytes) {
  try {
    const SafeTensors file = SafeTensors::parse(as_bytes(bytes), "w");
    size_t covered = 0;
    for (const stet::TensorView& tensor : file.tensors()) {
      for (const std::byte b : tensor.bytes) covered += 1 + 0 * std::to_integer<size_t>(b);
      if (tensor.dtype != DType::other) {
        const int64_t count = stet::element_count(tensor.shape).value();
        EXPECT_EQ(static_cast<size_t>(count) * stet::dtype_size(tensor.dtype), tensor.bytes.size());
      }
    }
    EXPECT_LE(covered, bytes.size());
    return true;
  } catch (const stet::Error& error) {
    EXPECT_EQ(error.kind, stet::ErrorKind::format) << error.what();
    EXPECT_EQ(error.file, "w");
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return false;
  }
}

TEST(SafeTensors, EveryTruncationIsAnError) {
  for (size_t size = 0; size < kSmall.size(); ++size)
    EXPECT_FALSE(parses(kSmall.substr(0, size))) << size;
  EXPECT_FALSE(parses(kSmall + "x"));
}

TEST(SafeTensors, EveryFlippedBitOfTheHeaderIsAnErrorOrAnotherHeader) {
  size_t errors = 0, accepted = 0;
  for (size_t bit = 0; bit < 8 * (kSmall.size() - 22); ++bit) {
    std::string damaged = kSmall;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    ++(parses(damaged) ? accepted : errors);
  }
  EXPECT_GT(errors, 1500u);
  EXPECT_GT(accepted, 50u);  // changed names, unknown dtypes
}

TEST(SafeTensors, RandomDamageIsAnErrorOrAnotherHeader) {
  std::mt19937 random(7);
  size_t accepted = 0;
  for (int i = 0; i < 30'000; ++i) {
    std::string damaged = kSmall;
    const size_t changes = 1 + random() % 4;
    for (size_t j = 0; j < changes; ++j) {
      const size_t at = random() % (damaged.size() - 22);
      switch (random() % 4) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged[at] = "0123456789-.e,[]{}\":"[random() % 20];
          break;
        case 2:
          damaged.erase(at, 1 + random() % 3);
          break;
        default:
          damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 9));
          break;
      }
    }
    accepted += parses(damaged);
  }
  EXPECT_GT(accepted, 100u);
}

TEST(SafeTensorsWriter, WritesTheseBytes) {
  const TemporaryDirectory dir;
  stet::SafeTensorsWriter writer(
      dir / "w", {{"x\"y", DType::bf16, {1, 2}}, {"num", DType::i64, {}}}, {{"format", "pt"}});
  writer.write(as_bytes("abc"));  // crosses the boundary between the two tensors
  writer.write(as_bytes("d12345678"));
  writer.commit();
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"x\"y":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},)"
      R"("num":{"dtype":"I64","shape":[],"data_offsets":[4,12]}})";
  ASSERT_EQ(header.size() % 8, 2u);
  EXPECT_EQ(read_text(dir / "w"),
            with_length(header.size() + 6, header + "      " + "abcd12345678"));
}

TEST(SafeTensorsWriter, WithoutMetadataOrTensors) {
  const TemporaryDirectory dir;
  stet::SafeTensorsWriter(dir / "w", {}).commit();
  EXPECT_EQ(read_text(dir / "w"), with_length(8, "{}      "));
  const auto bytes = stet::read_file(dir / "w", 1000);
  EXPECT_TRUE(SafeTensors::parse(bytes, "w").tensors().empty());
}

TEST(SafeTensorsWriter, RequiresTheDeclaredBytes) {
  const TemporaryDirectory dir;
  const auto declare = [&](const std::vector<stet::TensorSpec>& tensors) {
    return error_of([&] { stet::SafeTensorsWriter writer(dir / "w", tensors); });
  };
  const std::string prefix = "argument: " + dir / "w" + ": ";
  EXPECT_EQ(declare({{"a", DType::f32, {1}}, {"a", DType::f32, {1}}}),
            prefix + "a: expected each name once, found a second tensor");
  EXPECT_EQ(declare({{"__metadata__", DType::f32, {1}}}),
            prefix + "__metadata__: expected each name once, found a second tensor");
  EXPECT_EQ(declare({{"a", DType::other, {1}}}),
            prefix + "a: expected a known dtype, found another");
  EXPECT_EQ(declare({{"a", DType::f32, {-1}}}),
            prefix + "a: expected less than 2^63 bytes, found [-1]");
  EXPECT_EQ(declare({{"a", DType::u8, {INT64_MAX}}, {"b", DType::u8, {1}}}),
            prefix + "b: expected less than 2^63 bytes, found [1]");
  EXPECT_EQ(declare({{"\xff", DType::u8, {1}}}),
            prefix + "\\xff: expected UTF-8, found other bytes");
  {
    stet::SafeTensorsWriter writer(dir / "w", {{"a", DType::f32, {1}}});
    writer.write(as_bytes("123"));
    EXPECT_EQ(error_of([&] { writer.commit(); }),
              prefix + "data: expected 1 more bytes, as declared, found the end");
    EXPECT_EQ(error_of([&] { writer.write(as_bytes("45")); }),
              prefix + "data: expected at most 1 more bytes, as declared, found 2");
  }
  EXPECT_TRUE(dir.names().empty());
}

}  // namespace
}  // namespace stet::test::safetensors_tests

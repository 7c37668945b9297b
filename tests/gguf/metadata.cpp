// Keys of GGUF files: sampling settings, ignored keys, and keys that mark a file as something other
// than a model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "src/base/known_content.hpp"
#include "src/gguf/gguf.hpp"
#include "src/gguf/writer.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "tests/support/models.hpp"

namespace stet::test::metadata_tests {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHeader = 24, kAlignment = 32;  // magic, version, tensors, keys

// A GGUF file of a small model, and copies with other keys.
class Metadata : public testing::Test {
 protected:
  Metadata() { write(data_path("models/llama31-tiny")); }

  void write(const std::string& directory) {
    write_gguf(*directory_source(directory), path_, {.tokenizer = GgufTokenizer::none});
    whole_ = read_text(path_);
  }
  // Inserts keys before the others. The data after them stays aligned.
  void put(const GgufKeys& keys, const std::string& raw = "", uint64_t raw_keys = 0) const {
    std::string added(reinterpret_cast<const char*>(keys.bytes().data()), keys.bytes().size());
    added += raw;
    GgufKeys padding;
    const size_t empty = 8 + 3 + 4 + 8;
    padding.text(
        "pad",
        std::string((2 * kAlignment - (added.size() + empty) % kAlignment) % kAlignment, 'x'));
    added.append(reinterpret_cast<const char*>(padding.bytes().data()), padding.bytes().size());
    std::string file = whole_;
    uint64_t count = 0;
    std::memcpy(&count, file.data() + 16, sizeof count);
    count += keys.count() + raw_keys + 1;
    std::memcpy(file.data() + 16, &count, sizeof count);
    write_file(path_, file.insert(kHeader, added));
  }
  void replace(const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    const size_t at = whole_.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_file(path_, whole_.replace(at, to.size(), to));
  }
  std::string error() const {
    return error_of([&] { Model::load(gguf_source(path_), 1); });
  }
  GenerationConfig generation() const { return Model::load(gguf_source(path_), 1)->generation(); }

  TemporaryDirectory directory_;
  std::string path_ = directory_ / "m.gguf", whole_;
};

TEST_F(Metadata, SamplingOfLlamaCpp) {
  GgufKeys keys;
  keys.f32("general.sampling.temp", 0.7);
  keys.i32("general.sampling.top_k", 40);
  keys.f32("general.sampling.top_p", 0.95);
  keys.f32("general.sampling.min_p", 0.05);
  keys.f32("general.sampling.penalty_repeat", 1.1);
  put(keys);
  const GenerationConfig g = generation();
  EXPECT_TRUE(g.sample);
  EXPECT_EQ(g.temperature, 0.7);  // the published double, not the float32 beside it
  EXPECT_EQ(g.top_k, 40);
  EXPECT_EQ(g.top_p, 0.95);
  EXPECT_EQ(g.min_p, 0.05);
  EXPECT_EQ(g.repetition_penalty, 1.1);
}

TEST_F(Metadata, SamplingThatStetDoesNotHaveIsNamed) {
  GgufKeys keys;
  keys.i32("general.sampling.mirostat", 2);
  put(keys);
  EXPECT_EQ(generation().ignored, std::vector<std::string>{"general.sampling.mirostat"});
  EXPECT_FALSE(generation().sample);
  keys.f32("general.sampling.xtc_probability", 0.5);
  keys.f32("general.sampling.temp", 0.7);
  put(keys);
  EXPECT_EQ(generation().ignored, (std::vector<std::string>{"general.sampling.mirostat",
                                                            "general.sampling.xtc_probability"}));
  EXPECT_TRUE(generation().sample);
}

// llama.cpp decodes greedily at a temperature of 0 or less, and considers all tokens if top_k is
// below 1.
TEST_F(Metadata, SamplingThatIsNone) {
  for (const double temperature : {0.0, -1.0}) {
    GgufKeys keys;
    keys.f32("general.sampling.temp", temperature);
    keys.i32("general.sampling.top_k", -1);
    put(keys);
    const GenerationConfig g = generation();
    EXPECT_FALSE(g.sample);
    EXPECT_EQ(g.temperature, 1) << "greedy, so that it is not used";
    EXPECT_EQ(g.top_k, 0);
  }
}

TEST_F(Metadata, SamplingOutOfRangeNamesTheKey) {
  for (const auto& [name, value, range] : {std::tuple("top_p", 1.5, "0..1"),
                                           {"min_p", -0.1, "0..1"},
                                           {"temp", 1e9, "0..1000000"},
                                           {"penalty_repeat", 0.0, "1e-06..1000000"}}) {
    GgufKeys keys;
    keys.f32(std::string("general.sampling.") + name, value);
    put(keys);
    const std::string start = "format: " + path_ + ": general.sampling." + name +
                              ": expected a number in " + range + ", found ";
    EXPECT_EQ(error().substr(0, start.size()), start);
  }
}

// llama.cpp can read the sampling settings that stet writes, and changes made to a key later take
// effect.
TEST_F(Metadata, SamplingIsWritten) {
  const TemporaryDirectory checkpoint;
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(data_path(std::string("models/llama31-tiny/") + name), checkpoint / name);
  const auto written = [&](const std::string& config) {
    write_file(checkpoint / "generation_config.json", config);
    write(checkpoint.path());
    return Gguf::parse(directory_source(directory_.path())->open("m.gguf"));
  };
  const Gguf draws = written(
      R"({"do_sample": true, "temperature": 0.6123456789, "top_k": 20, "top_p": 0.9, "min_p": 0.01,
          "repetition_penalty": 1.05, "eos_token_id": [7, 9]})");
  EXPECT_EQ(draws.number("general.sampling.temp"), double{0.6123456789f});
  EXPECT_EQ(draws.integer("general.sampling.top_k", 0, 100), 20);
  EXPECT_EQ(draws.number("general.sampling.top_p"), double{0.9f});
  EXPECT_EQ(draws.number("general.sampling.min_p"), double{0.01f});
  EXPECT_EQ(draws.number("general.sampling.penalty_repeat"), double{1.05f});
  EXPECT_EQ(generation().temperature, 0.6123456789);  // no digit is lost
  EXPECT_EQ(generation().eos_ids, (std::vector<int32_t>{7, 9}));
  const auto float_bytes = [](float x) {
    return std::string(reinterpret_cast<const char*>(&x), sizeof x);
  };
  const std::string key = "general.sampling.temp" + std::string("\6\0\0\0", 4);
  replace(key + float_bytes(0.6123456789f), key + float_bytes(0.25f));
  EXPECT_EQ(generation().temperature, 0.25);
  EXPECT_EQ(generation().top_k, 20);
  EXPECT_EQ(generation().eos_ids, (std::vector<int32_t>{7, 9}));
  const Gguf greedy = written(R"({"temperature": 0.6, "top_k": 20})");
  EXPECT_TRUE(greedy.keys("general.sampling.").empty());
  EXPECT_FALSE(generation().sample);
}

std::string le(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// Returns a key whose value is nested arrays of `levels` levels. The innermost holds one number.
std::string nested(const std::string& name, int levels) {
  std::string text = le(name.size(), 8) + name + le(9, 4);
  for (int i = 1; i < levels; ++i) text += le(9, 4) + le(1, 8);
  return text + le(4, 4) + le(1, 8) + le(0, 4);
}

TEST_F(Metadata, UnreadValuesMayBeAnything) {
  const std::string fingerprint = Model::load(gguf_source(path_), 1)->fingerprint();
  GgufKeys keys;
  keys.text("unread.text", "\xff\xfe not UTF-8");
  keys.f32s("unread.numbers", {1, 2, 3});
  const std::string empties = le(3, 8) + "x.e" + le(9, 4) + le(9, 4) + le(2, 8) +
                              (le(8, 4) + le(0, 8)) +
                              (le(8, 4) + le(2, 8) + le(1, 8) + "a" + le(0, 8));
  put(keys, nested("x.nested", 2) + nested("x.deep", 16) + empties, 3);
  EXPECT_EQ(Model::load(gguf_source(path_), 1)->fingerprint(), fingerprint);
  put({}, nested("x.deep", 18), 1);
  EXPECT_EQ(error(),
            "format: " + path_ + ": x.deep: expected arrays of at most 16 levels, found more");
  put({}, le(1, 8) + "x" + le(9, 4) + le(4, 4) + le(uint64_t{1} << 62, 8), 1);
  EXPECT_EQ(error().find("format: " + path_ +
                         ": x: expected 4611686018427387904 elements of 4 bytes (the file is "
                         "truncated: download it again), found "),
            0u)
      << error();
}

TEST_F(Metadata, BigEndianFilesAndOtherVersions) {
  std::reverse(whole_.begin() + 4, whole_.begin() + 8);
  write_file(path_, whole_);
  EXPECT_EQ(error(), "unsupported: " + path_ +
                         ": version: expected a little-endian file (gguf_convert_endian.py of "
                         "llama.cpp makes one), found a big-endian one");
  write_file(path_, "GGUF" + le(1, 4) + whole_.substr(8));
  EXPECT_EQ(error(), "unsupported: " + path_ + ": version: expected 2 or 3, found 1");
  write_file(path_, "tjgg" + whole_.substr(4));
  EXPECT_EQ(error(),
            "format: " + path_ +
                ": magic: expected GGUF, found a GGML file of llama.cpp from before August "
                "2023");
  write_file(path_, "");
  EXPECT_EQ(error(), "format: " + path_ + ": magic: expected GGUF, found an empty file");
}

TEST_F(Metadata, FilesThatAreNoModel) {
  const std::string start = "unsupported: " + path_ + ": general.type: expected a model, found ";
  GgufKeys lora;
  lora.text("adapter.type", "lora");
  put(lora);
  EXPECT_EQ(error(),
            start + "an adapter (llama-export-lora of llama.cpp merges it into its base model)");
  const std::string plain = whole_;
  const auto typed = [&](const std::string& type) {
    whole_ = plain;
    const std::string from = le(12, 8) + "general.type" + le(8, 4) + le(5, 8) + "model";
    const size_t at = whole_.find(from);
    EXPECT_NE(at, std::string::npos);
    const std::string to = le(12, 8) + "general.type" + le(8, 4) + le(5, 8) + type;
    write_file(path_, whole_.replace(at, from.size(), to));
    return error();
  };
  EXPECT_EQ(typed("vocab"), start + "a vocabulary without weights");
  EXPECT_EQ(typed("other"), start + "other");
  EXPECT_EQ(typed("model"), kNoError);
}

TEST_F(Metadata, DownloadsThatStopped) {
  const auto cut = [&](size_t size) {
    write_file(path_, whole_.substr(0, size));
    return error();
  };
  const std::string half = cut(whole_.size() / 2),
                    start = "format: " + path_ + ": the file is truncated: it has " +
                            size_text(whole_.size() / 2) + " of the ",
                    end = " that its header promises; download it again";
  ASSERT_TRUE(half.starts_with(start) && half.ends_with(end)) << half;
  const std::string promised = half.substr(start.size(), half.size() - start.size() - end.size());
  // The last tensor may be followed by padding.
  EXPECT_TRUE(promised == size_text(whole_.size()) || promised == size_text(whole_.size() - 31))
      << promised;
  EXPECT_EQ(cut(100).find("format: " + path_ + ": "), 0u);
  EXPECT_NE(cut(100).find("(the file is truncated: download it again)"), std::string::npos)
      << cut(100);
}

}  // namespace
}  // namespace stet::test::metadata_tests

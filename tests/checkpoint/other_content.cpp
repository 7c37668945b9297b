// A path that is not a checkpoint gives an error that names what it is and what to use instead.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "src/base/known_content.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/text/tokenizer.hpp"
#include "tests/support/models.hpp"

namespace stet::test::other_content_tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kPointer =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 4900000000\n";

class OtherContent : public testing::Test {
 protected:
  OtherContent() {
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::copy_file(data_path(std::string("models/llama31-tiny/") + name), at(name));
      fs::permissions(at(name), fs::perms::owner_write, fs::perm_options::add);
    }
  }

  std::string at(const std::string& name) const { return directory_ / name; }
  // Returns the error; "@" stands for the directory in expected texts.
  std::string error(const std::string& path) const {
    std::string text = error_of([&] { Model::load(path, 1); });
    EXPECT_EQ(text.find('\n'), std::string::npos);
    for (size_t found; (found = text.find(directory_.path())) != std::string::npos;)
      text.replace(found, directory_.path().size(), "@");
    return text;
  }
  std::string error() const { return error(directory_.path()); }
  void config(const std::function<void(Json&)>& change) const {
    Json json = Json::parse(read_text(at("config.json")));
    change(json);
    write_file(at("config.json"), json.dump());
  }

  TemporaryDirectory directory_;
};

TEST_F(OtherContent, GitLfsPointers) {
  const std::string expected =
      ": a Git LFS pointer to a file of 4.9 GB; git lfs pull or hf download fetches the file "
      "itself";
  write_file(at("m.gguf"), kPointer);
  EXPECT_EQ(error(at("m.gguf")), "format: @/m.gguf" + expected);
  write_file(at("model.safetensors"), kPointer);
  EXPECT_EQ(error(), "format: @/model.safetensors" + expected);
  write_file(at("tokenizer.json"), kPointer);
  EXPECT_EQ(error_of([&] { Tokenizer::load(directory_.path()); }),
            "format: " + at("tokenizer.json") + expected);
  write_file(at("config.json"), kPointer);
  EXPECT_EQ(error(), "format: @/config.json" + expected);
}

TEST_F(OtherContent, DownloadsThatStopped) {
  const auto size = fs::file_size(at("model.safetensors"));
  fs::resize_file(at("model.safetensors"), size / 3);
  EXPECT_EQ(error(), "format: @/model.safetensors: the file is truncated: it has " +
                         size_text(size / 3) + " of the " + size_text(size) +
                         " that its header promises; download it again");
  fs::resize_file(at("model.safetensors"), 100);

  EXPECT_EQ(
      error().find("format: @/model.safetensors: the file is truncated: it has 100 bytes of the "),
      0u)
      << error();
  write_file(at("model.safetensors"), std::string(4096, '\0'));
  EXPECT_EQ(error(),
            "format: @/model.safetensors: expected a safetensors file, found zeros, as a download "
            "leaves that never began");
}

TEST_F(OtherContent, SizesAreWrittenAsPeopleWriteThem) {
  EXPECT_EQ(size_text(1), "1 byte");
  EXPECT_EQ(size_text(999), "999 bytes");
  EXPECT_EQ(size_text(1000), "1.0 KB");
  EXPECT_EQ(size_text(999949), "999.9 KB");
  EXPECT_EQ(size_text(999950), "1.0 MB");
  EXPECT_EQ(size_text(1300000), "1.3 MB");
  EXPECT_EQ(size_text(4900000000), "4.9 GB");
  EXPECT_EQ(size_text(UINT64_MAX), "18.4 EB");
}

TEST_F(OtherContent, OtherFilesOfWeights) {
  const std::string start = "format: @/model.safetensors: expected a safetensors file, found ";
  for (const auto& [bytes, name] :
       {std::pair("GGUF\3\0\0\0", "a GGUF file"),
        {"PK\x03\x04 and", "a ZIP archive, as PyTorch pickles weights"},
        {"\x80\x02}q\x01", "a Python pickle"},
        {"<!DOCTYPE html><html>", "a web page in place of a download"},
        {"Entry not found", "a server's answer, \"Entry not found\""}}) {
    write_file(at("model.safetensors"), std::string(bytes) + std::string(100, 'x'));
    EXPECT_EQ(error().substr(0, start.size() + std::string(name).size() - 1),
              (start + name).substr(0, start.size() + std::string(name).size() - 1));
  }
  fs::remove(at("model.safetensors"));
  write_file(at("pytorch_model.bin"), "PK\x03\x04");
  EXPECT_EQ(error(),
            "io: @: expected model.safetensors or model.safetensors.index.json in it, found "
            "pytorch_model.bin, which stet does not read (transformers' save_pretrained writes it "
            "as safetensors)");
}

// The length that begins a safetensors file may begin like a pickle, an archive or UTF-16.
TEST_F(OtherContent, LengthsThatLookLikeAnotherFormat) {
  const std::string whole = read_text(at("model.safetensors"));
  const auto length_of = [](const std::string& file) {
    uint64_t length = 0;
    for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(file[i]);
    return length;
  };
  const std::string fingerprint = Model::load(directory_.path(), 1)->fingerprint();
  for (const uint64_t end : {0x0280, 0x0380, 0x0480, 0x8b1f, 0xfeff, 0xfffe}) {
    const uint64_t longer = length_of(whole) <= end ? end : end + 0x10000;
    std::string file = whole;
    file.insert(8 + length_of(whole), longer - length_of(whole), ' ');
    for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(longer >> (8 * i));
    write_file(at("model.safetensors"), file);
    ASSERT_EQ(error(), kNoError) << longer;
    EXPECT_EQ(Model::load(directory_.path(), 1)->fingerprint(), fingerprint) << longer;
  }
}

// A GGUF file with 123 tensors has the "{" of a safetensors file.
TEST_F(OtherContent, AGgufFileThatLooksLikeSafetensors) {
  write_file(at("model.safetensors"),
             std::string("GGUF\3\0\0\0{\0\0\0\0\0\0\0", 16) + std::string(100, 'x'));
  EXPECT_EQ(error(), "format: @/model.safetensors: expected a safetensors file, found a GGUF file");
}

TEST_F(OtherContent, OtherTextsInPlaceOfJson) {
  write_file(at("config.json"), "<!doctype html>\n<html>");
  EXPECT_EQ(error(),
            "format: @/config.json: line 1, column 1: expected valid JSON, found a web page in "
            "place of a download");
  write_file(at("config.json"), std::string("\xff\xfe{\0}\0", 6));
  EXPECT_EQ(error(),
            "format: @/config.json: line 1, column 1: expected valid JSON, found UTF-16 text");
  write_file(at("config.json"), R"({"error": "Access to model x is restricted"})");
  EXPECT_EQ(error(),
            "format: @/config.json: error: this is a server's answer, not the config of a model; "
            "download the file again");
}

TEST_F(OtherContent, QuantizedWeightsOfOtherPrograms) {
  const std::string refused =
      " are not supported; take the checkpoint that they were made from, with --compute q8 or q4, "
      "or the model as a GGUF file";
  for (const char* method :
       {"gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors", "mxfp4", "torchao"}) {
    config([&](Json& j) { j["quantization_config"] = {{"quant_method", method}, {"bits", 4}}; });
    EXPECT_EQ(
        error(),
        "unsupported: @/config.json: quantization_config.quant_method: weights quantized by " +
            std::string(method) + refused);
  }
  config([](Json& j) { j["quantization_config"] = {{"bits", 4}}; });
  EXPECT_EQ(error(),
            R"(unsupported: @/config.json: quantization_config: weights quantized as {"bits":4})" +
                refused);
  config([](Json& j) {
    j["quantization_config"] = nullptr;
    j["quantization"] = {{"group_size", 64}, {"bits", 4}};
  });
  EXPECT_EQ(error(),
            "unsupported: @/config.json: quantization: weights quantized by MLX" + refused);
  config([](Json& j) { j["quantization"] = nullptr; });
  EXPECT_EQ(error(), kNoError);
}

TEST_F(OtherContent, PathsThatAreNoDirectory) {
  EXPECT_EQ(error("google/gemma-3-1b-it"),
            "io: google/gemma-3-1b-it: this is a name on the Hub; \"hf download "
            "google/gemma-3-1b-it --local-dir gemma-3-1b-it\" gets the files");
  for (const char* address : {"https://huggingface.co/Qwen/Qwen3-4B", "hf.co/Qwen/Qwen3-4B:Q4_K_M",
                              "https://huggingface.co/Qwen/Qwen3-4B/tree/main", "Qwen/Qwen3-4B"}) {
    EXPECT_NE(error(address).find("\"hf download Qwen/Qwen3-4B --local-dir Qwen3-4B\""),
              std::string::npos)
        << error(address);
  }
  EXPECT_EQ(error(at("none")),
            "io: @/none: expected a checkpoint directory or a .gguf file, found nothing of that "
            "name");
  const std::string one =
      ": expected a checkpoint directory or a .gguf file, here @, found one file of a checkpoint";
  EXPECT_EQ(error(at("config.json")), "io: @/config.json" + one);
  EXPECT_EQ(error(at("model.safetensors")), "io: @/model.safetensors" + one);
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  fs::remove(at("config.json"));
  EXPECT_EQ(error(at("pipe")),
            "io: @/pipe: expected a checkpoint directory or a .gguf file, found a device or pipe");
  EXPECT_EQ(error(at("model.safetensors")),
            "io: @/model.safetensors: expected a checkpoint directory or a .gguf file, found a "
            "safetensors file");
}

TEST_F(OtherContent, DirectoriesOfOtherKinds) {
  fs::remove(at("config.json"));
  fs::create_directories(at("snapshots/0123abc"));
  EXPECT_EQ(error(),
            "io: @: config.json: the file is missing; this is a cache of the Hub, whose files are "
            "in snapshots/0123abc");
  write_file(at("b.gguf"), "");
  EXPECT_EQ(error(), "io: @: config.json: the file is missing; to use b.gguf, give its path");
}

TEST_F(OtherContent, Adapters) {
  write_file(at("adapter_config.json"),
             R"({"peft_type": "LORA", "r": 8, "base_model_name_or_path": "meta/base"})");
  EXPECT_EQ(error(),
            "unsupported: @/adapter_config.json: an adapter of meta/base is beside the model; "
            "merge_and_unload of peft merges it, and without this file the base model runs alone");
  EXPECT_EQ(error_of([&] {
              Model::pack(*directory_source(directory_.path()), Contract::q8, at("p"));
            }).find("unsupported: " + at("adapter_config.json")),
            0u);
  fs::remove(at("config.json"));
  EXPECT_EQ(error(),
            "unsupported: @: adapter_config.json: this is an adapter alone of meta/base; "
            "merge_and_unload of peft merges it into its base model");
}

TEST_F(OtherContent, PythonNumbersInUnreadFields) {
  const std::string whole = read_text(at("config.json"));
  const auto with = [&](const std::string& field) {
    write_file(at("config.json"), "{" + field + ", " + whole.substr(whole.find('{') + 1));
    return error();
  };
  EXPECT_EQ(with(R"("unread": [0.0, Infinity, -Infinity, NaN])"), kNoError);
  write_file(at("generation_config.json"), R"({"unread": NaN, "temperature": 0.5})");
  EXPECT_EQ(with(R"("unread": {"NaN": NaN})"), kNoError);
  EXPECT_EQ(Model::load(directory_.path(), 1)->generation().temperature, 0.5);
  EXPECT_TRUE(Model::load(directory_.path(), 1)->generation().ignored.empty());
  write_file(at("generation_config.json"),
             R"({"num_beams": 4, "guidance_scale": 1, "suppress_tokens": [3], "stop_strings": [],
                 "begin_suppress_tokens": [], "sequence_bias": {}})");
  EXPECT_EQ(Model::load(directory_.path(), 1)->generation().ignored,
            (std::vector<std::string>{"num_beams", "suppress_tokens"}));
  write_file(at("generation_config.json"), R"({"temperature": Infinity})");
  EXPECT_EQ(error(),
            "format: @/generation_config.json: temperature: expected a number in 0.0..1000000.0, "
            "found Infinity");
}

}  // namespace
}  // namespace stet::test::other_content_tests

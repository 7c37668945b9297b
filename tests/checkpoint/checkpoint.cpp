#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "stet/checkpoint/checkpoint.hpp"
#include "stet/checkpoint/safetensors.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"

namespace stet::test::checkpoint_tests {
namespace {

using stet::Checkpoint;
using stet::DType;

// Writes a file of U8 tensors, each filled with the first letter of its name.
void write_tensors(const std::string& path, const std::vector<stet::TensorSpec>& tensors) {
  stet::SafeTensorsWriter writer(path, tensors);
  for (const stet::TensorSpec& tensor : tensors) {
    const int64_t count = stet::element_count(tensor.shape).value();
    writer.write(as_bytes(
        std::string(static_cast<size_t>(count) * stet::dtype_size(tensor.dtype), tensor.name[0])));
  }
  writer.commit();
}

void write_index(const TemporaryDirectory& dir, const std::string& weight_map) {
  write_file(dir / "model.safetensors.index.json",
             "{\"metadata\":{\"total_size\":14},\"weight_map\":" + weight_map + "}");
}

std::string opening(const std::string& path) {
  return error_of([&] { Checkpoint::open(path); });
}

TEST(Checkpoint, OpensOneFile) {
  const TemporaryDirectory dir;
  write_tensors(dir / "model.safetensors",
                {{"b", DType::bf16, {2, 3}}, {"a", DType::f32, {1}}, {"n", DType::i64, {}}});
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "n"}));
  EXPECT_EQ(checkpoint.source(), dir / "model.safetensors");
  const stet::TensorView& b = checkpoint.require("b", {2, 3});
  EXPECT_EQ(b.dtype, DType::bf16);
  EXPECT_EQ(b.bytes.size(), 12u);
  EXPECT_EQ(b.bytes[11], std::byte{'b'});
  EXPECT_EQ(checkpoint.find("n")->bytes.size(), 8u);
  EXPECT_EQ(checkpoint.find("c"), nullptr);
  checkpoint.drop(b);
  EXPECT_EQ(b.bytes[0], std::byte{'b'});
}

TEST(Checkpoint, OpensShards) {
  const TemporaryDirectory dir;
  write_tensors(dir / "model-1.safetensors", {{"a", DType::f16, {4}}, {"extra", DType::f32, {1}}});
  write_tensors(dir / "model-2.safetensors", {{"b", DType::f32, {1}}, {"a", DType::f32, {9}}});
  write_index(dir, R"({"a":"model-1.safetensors","b":"model-2.safetensors"})");
  Checkpoint opened = Checkpoint::open(dir.path());
  const Checkpoint checkpoint = std::move(opened);                      // views survive a move
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b"}));  // by the index only
  EXPECT_EQ(checkpoint.require("a", {4}).dtype, DType::f16);
  EXPECT_EQ(checkpoint.require("b", {1}).bytes[3], std::byte{'b'});
  EXPECT_EQ(checkpoint.file_of("b"), dir / "model-2.safetensors");
  EXPECT_EQ(checkpoint.file_of("c"), dir / "model.safetensors.index.json");
  checkpoint.drop(checkpoint.require("b", {1}));
}

TEST(Checkpoint, PrefersTheOneFileToTheIndex) {
  const TemporaryDirectory dir;
  write_tensors(dir / "model.safetensors", {{"a", DType::f32, {1}}});
  write_index(dir, R"({"z":"missing.safetensors"})");
  EXPECT_EQ(Checkpoint::open(dir.path()).names(), std::vector<std::string>{"a"});
}

TEST(Checkpoint, FollowsLinksAsDownloadCachesUseThem) {
  const TemporaryDirectory dir;
  ASSERT_EQ(::mkdir((dir / "blobs").c_str(), 0700), 0);
  ASSERT_EQ(::mkdir((dir / "snapshot").c_str(), 0700), 0);
  write_tensors(dir / "blobs/0123", {{"a", DType::f32, {1}}});
  std::filesystem::create_symlink("../blobs/0123", dir / "snapshot/model.safetensors");
  EXPECT_EQ(Checkpoint::open(dir / "snapshot").names(), std::vector<std::string>{"a"});
}

TEST(Checkpoint, RequireReportsExpectedAndFound) {
  const TemporaryDirectory dir;
  write_tensors(dir / "model.safetensors", {{"b", DType::bf16, {2, 3}}, {"n", DType::i64, {2}}});
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  const std::string file = dir / "model.safetensors";
  const auto refusal = [&](const std::string& name, const std::vector<int64_t>& shape) {
    return error_of([&] { checkpoint.require(name, shape); });
  };
  EXPECT_EQ(refusal("b", {3, 2}),
            "mismatch: " + file + ": b: expected F32, BF16 or F16 [3, 2], found BF16 [2, 3]");
  EXPECT_EQ(refusal("b", {6}),
            "mismatch: " + file + ": b: expected F32, BF16 or F16 [6], found BF16 [2, 3]");
  EXPECT_EQ(refusal("n", {2}),
            "unsupported: " + file + ": n: expected F32, BF16 or F16 [2], found I64 [2]");
  EXPECT_EQ(
      refusal("model.norm.weight", {2}),
      "format: " + file + ": model.norm.weight: expected F32, BF16 or F16 [2], found nothing");
}

TEST(Checkpoint, NamesMissingTensors) {
  const TemporaryDirectory dir;
  EXPECT_EQ(opening(dir / "none"),
            "io: " + dir / "none" + ": expected a checkpoint directory, found nothing");
  EXPECT_EQ(
      opening(dir.path()),
      "io: " + dir.path() +
          ": expected model.safetensors or model.safetensors.index.json in it, found neither");
  write_file(dir / "file", "x");
  EXPECT_EQ(opening(dir / "file"),
            "io: " + dir / "file" + ": expected a checkpoint directory, found a file");
  write_index(dir, R"({"a":"model-1.safetensors"})");
  EXPECT_EQ(opening(dir.path()),
            "io: " + dir / "model-1.safetensors" + ": cannot be read: No such file or directory");
  write_tensors(dir / "model-1.safetensors", {{"b", DType::f32, {1}}});
  EXPECT_EQ(opening(dir.path()),
            "format: " + dir / "model-1.safetensors" +
                ": a: expected a tensor, as model.safetensors.index.json says, found nothing");
}

TEST(Checkpoint, RefusesADamagedShardOrIndex) {
  const TemporaryDirectory dir;
  const std::string index = dir / "model.safetensors.index.json";
  write_file(dir / "model-1.safetensors", "short");
  write_index(dir, R"({"a":"model-1.safetensors"})");
  EXPECT_EQ(opening(dir.path()),
            "format: " + dir / "model-1.safetensors" +
                ": header length: expected 8 bytes at offset 0, found 5 before the end");
  write_index(dir, "[]");
  EXPECT_EQ(opening(dir.path()),
            "format: " + index + ": weight_map: expected an object, found an array");
  write_index(dir, R"({"a":1})");
  EXPECT_EQ(opening(dir.path()), "format: " + index + ": weight_map.a: expected a string, found 1");
  write_index(dir, R"({"a":"x","a":"y"})");
  EXPECT_EQ(opening(dir.path()),
            "format: " + index + ": weight_map.a: expected each key once, found a second value");
  write_file(index, "{}");
  EXPECT_EQ(opening(dir.path()),
            "format: " + index + ": weight_map: expected an object, found nothing");
  write_file(index, "");
  EXPECT_EQ(
      opening(dir.path()),
      "format: " + index + ": line 1, column 1: expected valid JSON, found the end of the text");
  write_file(dir / "model.safetensors", "");
  EXPECT_EQ(opening(dir.path()), "format: " + dir / "model.safetensors" +
                                     ": expected a file with content, found 0 bytes");
}

TEST(Checkpoint, AnIndexNamesFilesOfItsDirectoryOnly) {
  const TemporaryDirectory dir;
  ASSERT_EQ(::mkdir((dir / "sub").c_str(), 0700), 0);
  write_tensors(dir / "a.safetensors", {{"a", DType::f32, {1}}});
  write_tensors(dir / "sub/a.safetensors", {{"a", DType::f32, {1}}});
  const std::string prefix =
      "format: " + dir / "model.safetensors.index.json" +
      ": weight_map.a: expected the plain name of a file beside the index, found ";
  for (const std::string name :
       {"", ".", "..", "../a.safetensors", "sub/a.safetensors", "/etc/passwd", "./a.safetensors"}) {
    write_index(dir, "{\"a\":\"" + name + "\"}");
    EXPECT_EQ(opening(dir.path()), prefix + "\"" + name + "\"");
  }
  write_index(dir, R"({"a":"a.safetensors\u0000x"})");
  EXPECT_EQ(opening(dir.path()), prefix + "\"a.safetensors\\u0000x\"");
  write_index(dir, R"({"a":"b\\a.safetensors"})");
  EXPECT_EQ(opening(dir.path()), prefix + "\"b\\\\a.safetensors\"");
  write_index(dir, R"({"a":"sub"})");
  EXPECT_EQ(opening(dir.path()), "io: " + dir / "sub" + ": cannot be read: Is a directory");
  write_index(dir, R"({"a":"a.safetensors"})");
  EXPECT_EQ(opening(dir.path()), "no error");
}

TEST(Checkpoint, OpensTheBundledOnes) {
  const Checkpoint gemma = Checkpoint::open(STET_ROOT "/assets/pocket-gemma3");
  EXPECT_EQ(gemma.require("model.embed_tokens.weight", {1620, 256}).dtype, DType::bf16);
  EXPECT_EQ(gemma.names().size(), 119u);
  const Checkpoint llama = Checkpoint::open(STET_ROOT "/assets/pocket-llama3");
  EXPECT_EQ(llama.require("model.layers.7.mlp.down_proj.weight", {192, 512}).dtype, DType::bf16);
  EXPECT_EQ(llama.names().size(), 74u);
}

}  // namespace
}  // namespace stet::test::checkpoint_tests

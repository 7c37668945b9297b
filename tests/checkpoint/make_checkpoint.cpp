#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "stet/checkpoint/checkpoint.hpp"
#include "stet/generate/generate.hpp"
#include "tests/support/files.hpp"

namespace stet::test::make_checkpoint_tests {
namespace {

using stet::Checkpoint;

struct Result {
  int status;
  std::string output;  // stdout and stderr
};

Result run(const std::string& arguments, const std::string& before = "") {
  const std::string command =
      before + "'" STET_BUILD "/tools/make_checkpoint' " + arguments + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {-1, ""};
  std::string output;
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe))
    output.append(buffer, count);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000, output};
}

nlohmann::json read_json(const std::string& path) { return nlohmann::json::parse(read_text(path)); }

// Two layers with small sizes that have few common divisors.
const char* const kGemma =
    R"({"model_type":"gemma3_text","architectures":["Gemma3ForCausalLM"],"hidden_size":72,
  "intermediate_size":100,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":24,
  "vocab_size":301,"layer_types":["sliding_attention","full_attention"],"bos_token_id":2,"eos_token_id":[1,106],
  "torch_dtype":"bfloat16","note":"kept"})";

std::string make(const TemporaryDirectory& dir, const char* config, const std::string& name,
                 const std::string& options = "") {
  write_file(dir / "config.json", config);
  const Result result = run(dir / "config.json" + " -o " + dir / name + " " + options);
  EXPECT_EQ(result.status, 0) << result.output;
  return dir / name;
}

float as_float(const stet::TensorView& tensor, size_t i) {
  uint32_t bits = 0;
  if (tensor.dtype == stet::DType::f32) {
    std::memcpy(&bits, tensor.bytes.data() + 4 * i, 4);
  } else if (tensor.dtype == stet::DType::bf16) {
    uint16_t half = 0;
    std::memcpy(&half, tensor.bytes.data() + 2 * i, 2);
    bits = static_cast<uint32_t>(half) << 16;
  } else {
    uint16_t half = 0;
    std::memcpy(&half, tensor.bytes.data() + 2 * i, 2);
    const int exponent = half >> 10 & 31;
    const int mantissa = (half & 1023) + (exponent > 0 ? 1024 : 0);
    return std::ldexp(static_cast<float>(half & 0x8000 ? -mantissa : mantissa),
                      std::max(exponent, 1) - 25);
  }
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

std::vector<float> values_of(const Checkpoint& checkpoint, const std::string& name) {
  const stet::TensorView* tensor = checkpoint.find(name);
  if (tensor == nullptr) return {};
  std::vector<float> values(tensor->bytes.size() / stet::dtype_size(tensor->dtype));
  for (size_t i = 0; i < values.size(); ++i) values[i] = as_float(*tensor, i);
  return values;
}

TEST(MakeCheckpoint, NamedShapesHaveThePublishedSizes) {
  const std::pair<const char*, const char*> expected[] = {
      {"gemma2-2b", "2614341888 weights in 288 tensors, 5228683776 bytes of BF16, 2 files"},
      {"gemma3-270m", "268098176 weights in 236 tensors, 536196352 bytes of BF16, 1 file"},
      {"gemma3-1b", "999885952 weights in 340 tensors, 1999771904 bytes of BF16, 1 file"},
      {"gemma3-4b", "3880263168 weights in 444 tensors, 7760526336 bytes of BF16, 2 files"},
      {"gemma3-12b", "11766034176 weights in 626 tensors, 23532068352 bytes of BF16, 5 files"},
      {"gemma3-27b", "27009346304 weights in 808 tensors, 54018692608 bytes of BF16, 11 files"},
      {"gpt-oss-20b", "11956805184 weights in 459 tensors, 13761264768 bytes of BF16, 3 files"},
      {"gpt2", "124439808 weights in 148 tensors, 497759232 bytes of F32, 1 file"},
      {"llama2-7b", "6738415616 weights in 291 tensors, 13476831232 bytes of F16, 3 files"},
      {"llama3.1-8b", "8030261248 weights in 291 tensors, 16060522496 bytes of BF16, 4 files"},
      {"llama3.2-1b", "1235814400 weights in 146 tensors, 2471628800 bytes of BF16, 1 file"},
      {"llama3.2-3b", "3212749824 weights in 254 tensors, 6425499648 bytes of BF16, 2 files"},
      {"llama3.3-70b", "70553706496 weights in 723 tensors, 141107412992 bytes of BF16, 30 files"},
      {"mistral-7b", "7241732096 weights in 291 tensors, 14483464192 bytes of BF16, 3 files"},
      {"qwen2.5-0.5b", "494032768 weights in 290 tensors, 988065536 bytes of BF16, 1 file"},
      {"qwen3-0.6b", "596049920 weights in 310 tensors, 1192099840 bytes of BF16, 1 file"},
      {"qwen3-30b-a3b",
       "30532122624 weights in 18867 tensors, 61064245248 bytes of BF16, 13 files"},
      {"gemma4-e2b", "4628569379 weights in 540 tensors, 9257138758 bytes of BF16, 3 files"},
      {"gemma4-e4b", "7463013418 weights in 665 tensors, 14926026836 bytes of BF16, 4 files"},
      {"gemma4-12b", "11907350320 weights in 666 tensors, 23814700640 bytes of BF16, 5 files"},
      {"gemma4-26b-a4b", "25233141790 weights in 657 tensors, 50466283580 bytes of BF16, 11 files"},
      {"gemma4-31b", "30697345340 weights in 832 tensors, 61394690680 bytes of BF16, 13 files"},
  };
  const std::string help = run("--help").output;
  for (const auto& [name, size] : expected) {
    EXPECT_EQ(run(std::string(name) + " --dry-run").output, std::string(name) + ": " + size + "\n");
    EXPECT_NE(help.find(name), std::string::npos) << name;
  }
}

TEST(MakeCheckpoint, WritesTheTensorsOfGemma3) {
  const TemporaryDirectory dir;
  const Checkpoint checkpoint = Checkpoint::open(make(dir, kGemma, "m"));
  EXPECT_EQ(checkpoint.names().size(), 2u * 13 + 2);
  checkpoint.require("model.embed_tokens.weight", {301, 72});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    checkpoint.require(layer + "self_attn.q_proj.weight", {96, 72});
    checkpoint.require(layer + "self_attn.k_proj.weight", {48, 72});
    checkpoint.require(layer + "self_attn.v_proj.weight", {48, 72});
    checkpoint.require(layer + "self_attn.o_proj.weight", {72, 96});
    checkpoint.require(layer + "self_attn.q_norm.weight", {24});
    checkpoint.require(layer + "self_attn.k_norm.weight", {24});
    checkpoint.require(layer + "mlp.gate_proj.weight", {100, 72});
    checkpoint.require(layer + "mlp.up_proj.weight", {100, 72});
    checkpoint.require(layer + "mlp.down_proj.weight", {72, 100});
    for (const char* norm : {"input", "post_attention", "pre_feedforward", "post_feedforward"}) {
      checkpoint.require(layer + norm + "_layernorm.weight", {72});
    }
  }
  checkpoint.require("model.norm.weight", {72});
  EXPECT_EQ(read_json(dir / "m/config.json"), nlohmann::json::parse(kGemma));
  EXPECT_EQ(read_json(dir / "m/generation_config.json"),
            nlohmann::json::parse(R"({"bos_token_id":2,"eos_token_id":[1,106]})"));
}

TEST(MakeCheckpoint, WritesTheTensorsOfOtherLayouts) {
  const TemporaryDirectory dir;
  const Checkpoint llama =
      Checkpoint::open(make(dir, R"({"model_type":"llama","hidden_size":64,"intermediate_size":80,
      "num_hidden_layers":1,"num_attention_heads":4,"vocab_size":50,"attention_bias":true,"mlp_bias":true})",
                            "llama"));
  EXPECT_EQ(llama.names().size(), 3u + 9 + 7);
  llama.require("lm_head.weight", {50, 64});
  llama.require("model.layers.0.self_attn.k_proj.weight", {64, 64});
  llama.require("model.layers.0.self_attn.o_proj.bias", {64});
  llama.require("model.layers.0.mlp.up_proj.bias", {80});

  const Checkpoint nested =
      Checkpoint::open(make(dir, R"({"model_type":"gemma3","text_config":{"hidden_size":64,
      "intermediate_size":80,"num_hidden_layers":1,"vocab_size":50}})",
                            "nested"));
  nested.require("language_model.model.embed_tokens.weight", {50, 64});
  nested.require("language_model.model.layers.0.self_attn.q_proj.weight", {8 * 256, 64});
  nested.require("language_model.model.layers.0.self_attn.k_proj.weight", {4 * 256, 64});
  EXPECT_EQ(nested.find("language_model.lm_head.weight"), nullptr);
}

TEST(MakeCheckpoint, WritesTheTensorsOfGpt2) {
  const TemporaryDirectory dir;
  const Checkpoint gpt2 =
      Checkpoint::open(make(dir, R"({"model_type":"gpt2","n_embd":48,"n_layer":2,"n_head":4,
      "n_positions":32,"vocab_size":50,"n_inner":null})",
                            "gpt2"));
  EXPECT_EQ(gpt2.names().size(), 2u + 2 * 12 + 2);
  gpt2.require("wpe.weight", {32, 48});
  gpt2.require("h.1.attn.c_attn.weight", {48, 144});
  gpt2.require("h.1.attn.c_attn.bias", {144});
  gpt2.require("h.1.mlp.c_proj.weight", {192, 48});
  gpt2.require("ln_f.bias", {48});
}

// Every family's generated checkpoint loads and generates tokens.
TEST(MakeCheckpoint, EveryFamilyRuns) {
  for (const char* name : {"gpt2-tiny", "gemma-tiny", "gemma2-tiny", "gemma3-tiny", "llama31-tiny",
                           "mistral-tiny", "qwen2-tiny", "qwen3-tiny"}) {
    const TemporaryDirectory dir;
    const std::string config = std::string(STET_ROOT "/tests/data/models/") + name + "/config.json";
    const Result result = run(config + " --layers 2 -o " + dir / "m");
    ASSERT_EQ(result.status, 0) << result.output;
    const auto model = stet::Model::load(dir / "m", 1);
    EXPECT_EQ(model->config().layers, 2) << name;
    stet::Session session(model);
    session.append(std::vector<int32_t>{2, 77, 31});
    EXPECT_EQ(stet::generate(session, nullptr, {.max_tokens = 5, .ignore_eos = true}).ids.size(),
              5u)
        << name;
    for (const float logit : session.logits()) ASSERT_TRUE(std::isfinite(logit)) << name;
  }
}

TEST(MakeCheckpoint, WeightsAreThisFunctionOfSeedNameAndIndex) {
  const TemporaryDirectory dir;
  const Checkpoint checkpoint = Checkpoint::open(make(dir, kGemma, "m", "--seed 42 --dtype f32"));
  const auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  const uint64_t key = mix(hash ^ mix(42 + 0x9e3779b97f4a7c15));
  const std::vector<float> values = values_of(checkpoint, name);
  ASSERT_EQ(values.size(), 7200u);
  for (const size_t i : {0u, 1u, 99u, 7199u}) {
    const uint64_t bits = mix(key + (i + 1) * 0x9e3779b97f4a7c15);
    int sum = -131070;
    for (int lane = 0; lane < 4; ++lane) sum += static_cast<int>(bits >> (16 * lane) & 0xffff);
    EXPECT_EQ(values[i], 0.1f / 37837.227f * static_cast<float>(sum)) << i;
  }
}

TEST(MakeCheckpoint, BytesDoNotDependOnThreadsOrShards) {
  const TemporaryDirectory dir;
  // Large enough for several threads: 1,500 × 300 elements.
  const char* config =
      R"({"model_type":"llama","hidden_size":300,"intermediate_size":320,"num_hidden_layers":1,
      "num_attention_heads":4,"vocab_size":1500})";
  const std::string one = read_text(make(dir, config, "one", "--threads 1") + "/model.safetensors");
  EXPECT_EQ(read_text(make(dir, config, "five", "--threads 5") + "/model.safetensors"), one);
  EXPECT_NE(read_text(make(dir, config, "other", "--seed 1") + "/model.safetensors"), one);

  const Checkpoint whole = Checkpoint::open(dir / "one");
  const Checkpoint sharded = Checkpoint::open(make(dir, config, "sharded", "--shard-size 600KB"));
  EXPECT_EQ(sharded.source(), dir / "sharded/model.safetensors.index.json");
  ASSERT_EQ(sharded.names(), whole.names());
  for (const std::string& name : whole.names()) {
    EXPECT_EQ(values_of(sharded, name), values_of(whole, name)) << name;
  }
  EXPECT_EQ(sharded.file_of("model.embed_tokens.weight"),
            dir / "sharded/model-00001-of-00005.safetensors");
  EXPECT_EQ(sharded.file_of("lm_head.weight"), dir / "sharded/model-00005-of-00005.safetensors");
  uint64_t total = 0;
  for (const std::string& name : whole.names()) total += whole.find(name)->bytes.size();
  EXPECT_EQ(read_json(dir / "sharded/model.safetensors.index.json")["metadata"]["total_size"],
            total);
}

TEST(MakeCheckpoint, WeightsAreRoundedToNearest) {
  const TemporaryDirectory dir;
  const Checkpoint exact = Checkpoint::open(make(dir, kGemma, "f32", "--dtype f32"));
  const Checkpoint bf16 = Checkpoint::open(make(dir, kGemma, "bf16"));
  const Checkpoint f16 = Checkpoint::open(make(dir, kGemma, "f16", "--dtype f16"));
  EXPECT_EQ(read_json(dir / "f16/config.json")["torch_dtype"], "float16");
  EXPECT_EQ(read_json(dir / "f32/config.json")["torch_dtype"], "float32");
  size_t denormals = 0;
  for (const std::string& name : exact.names()) {
    const std::vector<float> x = values_of(exact, name), b = values_of(bf16, name),
                             h = values_of(f16, name);
    ASSERT_EQ(b.size(), x.size());
    ASSERT_EQ(h.size(), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      int exponent = 0;
      std::frexp(x[i], &exponent);  // 0.5 <= |x| / 2^exponent < 1
      ASSERT_LE(std::abs(b[i] - x[i]), std::ldexp(0.5f, exponent - 8)) << x[i];
      ASSERT_LE(std::abs(h[i] - x[i]), std::ldexp(0.5f, std::max(exponent - 11, -24))) << x[i];
      denormals += exponent < -13;
    }
  }
  EXPECT_GT(denormals, 50u);
}

TEST(MakeCheckpoint, ActivationsKeepTheirScale) {
  const TemporaryDirectory dir;
  const auto moments = [](const std::vector<float>& values) {
    double sum = 0, squares = 0;
    for (const float x : values) sum += x, squares += double{x} * x;
    const double mean = sum / static_cast<double>(values.size());
    return std::pair(mean, std::sqrt(squares / static_cast<double>(values.size()) - mean * mean));
  };
  const Checkpoint gemma = Checkpoint::open(make(dir, kGemma, "gemma"));
  const auto [mean, deviation] =
      moments(values_of(gemma, "model.layers.0.mlp.down_proj.weight"));  // 7,200 values
  EXPECT_NEAR(mean, 0, 5 * 0.1 / std::sqrt(7200.0));
  EXPECT_NEAR(deviation, 0.1, 5 * 0.1 / std::sqrt(2 * 7200.0));
  EXPECT_NEAR(moments(values_of(gemma, "model.norm.weight")).first, 0, 5 * 0.1 / std::sqrt(72.0));
  const Checkpoint llama =
      Checkpoint::open(make(dir, R"({"model_type":"llama","hidden_size":64,"intermediate_size":80,
      "num_hidden_layers":1,"num_attention_heads":4,"vocab_size":50})",
                            "llama"));
  EXPECT_NEAR(moments(values_of(llama, "model.norm.weight")).first, 1, 5 * 0.1 / std::sqrt(64.0));
}

TEST(MakeCheckpoint, LayersCanBeCut) {
  const TemporaryDirectory dir;
  const std::string cut = make(dir, kGemma, "cut", "--layers 1");
  EXPECT_EQ(read_json(cut + "/config.json")["num_hidden_layers"], 1);
  EXPECT_EQ(read_json(cut + "/config.json")["layer_types"], nlohmann::json({"sliding_attention"}));
  EXPECT_EQ(Checkpoint::open(cut).names().size(), 15u);
  const Checkpoint whole = Checkpoint::open(make(dir, kGemma, "whole"));
  EXPECT_EQ(values_of(Checkpoint::open(cut), "model.norm.weight"),
            values_of(whole, "model.norm.weight"));
  const Result result = run(dir / "config.json" + " --layers 3 --dry-run");
  EXPECT_EQ(result.output, "make_checkpoint: " + dir / "config.json" +
                               ": layer_types: expected 3 layers, found 2\n");
  EXPECT_EQ(result.status, 2);
}

// Every layer of gpt-oss has 19 tensors and the same number of bytes. Most are of its 32 experts:
// 2880 * 8640 weights each, in blocks of 17 bytes. Embeddings, head and final norm are never cut.
TEST(MakeCheckpoint, LayersOfNamedShapesCanBeCut) {
  const int64_t ends = 2 * (2 * int64_t{201088} * 2880 + 2880), layer = (13761264768 - ends) / 24;
  for (const int64_t n : {1, 6, 24}) {
    const Result result = run("gpt-oss-20b --dry-run --layers " + std::to_string(n));
    EXPECT_NE(result.output.find(" weights in " + std::to_string(19 * n + 3) + " tensors, " +
                                 std::to_string(ends + n * layer) + " bytes"),
              std::string::npos)
        << result.output;
  }
  EXPECT_EQ(layer % 2, 0);
  EXPECT_GT(layer, int64_t{32} * 2880 * 8640 / 32 * 17);
  for (const char* name : {"qwen3-30b-a3b", "gemma4-e2b", "gemma4-e4b", "gemma4-12b",
                           "gemma4-26b-a4b", "gemma4-31b"}) {
    const Result result = run(std::string(name) + " --dry-run --layers 7");
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_EQ(result.output.find(std::string(name) + ": "), 0u);
  }
}

TEST(MakeCheckpoint, ReplacesACheckpointOnlyOnRequest) {
  const TemporaryDirectory dir;
  const std::string old = make(dir, kGemma, "m", "--shard-size 20KB");
  write_file(dir / "m/notes.txt", "mine");
  const Result refused = run(dir / "config.json" + " -o " + old);
  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(
      refused.output.rfind(
          "make_checkpoint: " + old + ": expected an empty directory (or --force), found ", 0),
      0u)
      << refused.output;
  EXPECT_EQ(run(dir / "config.json" + " -o " + old + " --force").status, 0);
  const Checkpoint replaced = Checkpoint::open(old);
  EXPECT_EQ(replaced.source(), old + "/model.safetensors");
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(old))
    files += entry.is_regular_file();
  EXPECT_EQ(files, 4u);
  EXPECT_EQ(read_text(dir / "m/notes.txt"), "mine");
}

TEST(MakeCheckpoint, FailuresAreOneLineAndLeaveNothing) {
  const TemporaryDirectory dir;
  const auto expect = [&](const std::string& arguments, int status, const std::string& text) {
    const Result result = run(arguments);
    EXPECT_EQ(result.status, status);
    EXPECT_EQ(result.output, "make_checkpoint: " + text + "\n");
  };
  const std::string config = dir / "config.json", out = " -o " + dir / "m";
  expect("gemma9-1b" + out, 2,
         "SHAPE: expected gemma2-2b, gemma3-270m, gemma3-1b, gemma3-4b, gemma3-12b, gemma3-27b, "
         "gpt2, gpt-oss-20b, llama2-7b, "
         "llama3.1-8b, llama3.2-1b, llama3.2-3b, llama3.3-70b, mistral-7b, qwen2.5-0.5b, "
         "qwen3-0.6b, qwen3-30b-a3b, gemma4-e2b, gemma4-e4b, gemma4-12b, gemma4-26b-a4b, "
         "gemma4-31b, qwen3.5-0.8b, qwen3.5-2b, qwen3.5-4b, qwen3.5-9b, qwen3.5-35b-a3b, "
         "qwen3-next-80b, lfm2-350m, lfm2-1.2b, lfm2-2.6b, lfm2-8b-a1b, granite-4-micro, "
         "granite-4-h-micro, granite-4-h-tiny, granite-4-h-small or the path of "
         "a config.json, found gemma9-1b");
  expect(dir / "none.json" + out, 1,
         dir / "none.json" + ": cannot be read: No such file or directory");
  write_file(config, "{\"model_type\":");
  expect(config + out, 1,
         config + ": line 1, column 15: expected valid JSON, found the end of the text");
  write_file(config, "{\"model_type\":\"mamba\"}");
  expect(
      config + out, 1,
      config +
          ": model_type: expected one of gemma, gemma2, gemma3, gemma3_text, gpt2, gpt_oss, llama, "
          "mistral, qwen2, "
          "qwen3, qwen3_moe, found mamba");
  write_file(config,
             "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":80,\"num_hidden_"
             "layers\":1099511627776}");
  expect(config + out, 1,
         config + ": num_hidden_layers: expected an integer in 1..1024, found 1099511627776");
  EXPECT_FALSE(std::filesystem::exists(dir / "m"));

  write_file(config, kGemma);
  expect(config + " -o " + config, 1,
         config + ": expected a directory to write to, found Not a directory");
  expect(config + " -o " + config + "/m", 1,
         config + "/m: expected a directory to write to, found Not a directory");

  // The second shard exceeds the file size limit of 16 KiB.
  const Result full = run(config + " --shard-size 16KB" + out, "ulimit -f 32; ");
  EXPECT_EQ(full.status, 1);
  EXPECT_NE(full.output.find(": cannot write "), std::string::npos) << full.output;
  EXPECT_NE(full.output.find(": File too large\n"), std::string::npos) << full.output;
  EXPECT_TRUE(std::filesystem::is_empty(dir / "m"));
}

TEST(MakeCheckpoint, ACommandLineAtFaultIsStatus2) {
  for (const char* arguments :
       {"", "gemma3-1b", "gemma3-1b --dry-run --layers 0", "gemma3-1b --dry-run --dtype int8",
        "gemma3-1b --dry-run --seed x", "gemma3-1b --dry-run --shard-size 0",
        "gemma3-1b --dry-run --shard-size 99999999999999999999GB", "gemma3-1b --no-such"}) {
    EXPECT_EQ(run(arguments).status, 2) << arguments;
  }
  EXPECT_EQ(run("--help").status, 0);
}

}  // namespace
}  // namespace stet::test::make_checkpoint_tests

// Experts rounded to MXFP4: the published form of gpt-oss, out of the bfloat16 that it widens to.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "stet/checkpoint/gguf.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/numbers.hpp"
#include "tests/support/checkpoint_parts.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::mxfp4_tests {
namespace {

constexpr const char* kName = "gptoss-mxfp4-tiny";

// Widens the published tensors [experts][outputs][blocks][16] of codes and [experts][outputs][blocks]
// of exponents to bfloat16 [experts][inputs][outputs].
CheckpointParts::Tensor widened(const std::string& name, const CheckpointParts::Tensor& codes,
                                const CheckpointParts::Tensor& scales) {
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const auto experts = static_cast<size_t>(codes.spec.shape[0]),
             outputs = static_cast<size_t>(codes.spec.shape[1]),
             blocks = static_cast<size_t>(codes.spec.shape[2]), inputs = 32 * blocks;
  CheckpointParts::Tensor t{{name, DType::bf16, {codes.spec.shape[0], 0, codes.spec.shape[1]}}, {}};
  t.spec.shape[1] = static_cast<int64_t>(inputs);
  t.bytes.resize(2 * experts * inputs * outputs);
  for (size_t i = 0; i < experts * outputs * inputs; ++i) {
    const size_t row = i / inputs, k = i % inputs;
    const auto byte = static_cast<unsigned>(codes.bytes[i / 2]),
               code = k % 2 == 0 ? byte & 15 : byte >> 4;
    const float magnitude =
        std::ldexp(kValues[code & 7], static_cast<int>(scales.bytes[i / 32]) - 127);
    const uint16_t bits = round_bf16(code < 8 ? magnitude : -magnitude);
    const size_t to = (row / outputs * inputs + k) * outputs + row % outputs;
    std::memcpy(&t.bytes[2 * to], &bits, sizeof bits);
  }
  return t;
}

std::string write_widened(const std::string& directory) {
  CheckpointParts parts(kName);
  parts.config.erase("quantization_config");
  for (int layer = 0; layer < parts.config["num_hidden_layers"]; ++layer) {
    for (const char* const matrix : {"gate_up_proj", "down_proj"}) {
      const std::string name = fmt::format("model.layers.{}.mlp.experts.{}", layer, matrix);
      const auto find = [&](const std::string& ending) {
        return *std::ranges::find_if(parts.tensors(),
                                     [&](const auto& t) { return t.spec.name == name + ending; });
      };
      parts.tensors().push_back(widened(name, find("_blocks"), find("_scales")));
      parts.remove(name + "_blocks");
      parts.remove(name + "_scales");
    }
  }
  return parts.write(directory);
}

std::string rounded(const std::string& directory, const std::string& to) {
  pack_checkpoint(*directory_source(directory), Contract::ggml, to, 2, nullptr,
                  BlockRounding{DType::mxfp4});
  return to;
}
std::string gguf(const std::string& directory, const std::string& to, GgufWeights weights) {
  write_gguf(*directory_source(directory), to, {weights, GgufTokenizer::none, 2});
  return read_text(to);
}
std::vector<float> logits_of(const std::shared_ptr<const Model>& m) {
  Session session(m, options(2, STET_DEFAULT_ISA, 512, Contract::ggml));
  return all_logits(session, random_tokens(*m, 40));
}

TEST(Mxfp4, WideWeightsOfGptOssBecomeThePublishedOnes) {
  const TemporaryDirectory scratch;
  const std::string published = data_path(std::string("models/") + kName),
                    wide = write_widened(scratch / "wide");
  const auto m = Model::load(directory_source(published), 2, Contract::ggml);
  for (const std::string& from : {wide, published}) {
    const auto again = Model::load(rounded(from, scratch / (from == wide ? "a" : "b")));
    EXPECT_EQ(again->fingerprint(), m->fingerprint());
    EXPECT_EQ(logits_of(again), logits_of(m));
  }
  // The codes are the published ones, but in one block that has no 4 or 6. Its largest numbers, 3,
  // are also the 6 of the next lower exponent.
  const std::string file = gguf(published, scratch / "a.gguf", GgufWeights::stored),
                    other = gguf(wide, scratch / "b.gguf", GgufWeights::mxfp4);
  ASSERT_EQ(other.size(), file.size());
  std::vector<size_t> differ;
  for (size_t i = 0; i < file.size(); ++i) {
    if (file[i] != other[i]) differ.push_back(i);
  }
  ASSERT_EQ(differ.size(), 17u);
  EXPECT_EQ(differ.back() - differ.front(), 16u);
  EXPECT_EQ(gguf(scratch / "a", scratch / "c.gguf", GgufWeights::stored) == other, true);
}

// All matrices but those of experts keep their types. Both commands round alike.
TEST(Mxfp4, OnlyExpertsAreRounded) {
  const TemporaryDirectory scratch;
  const std::string from = data_path("models/olmoe-tiny"), to = scratch / "rounded";
  const Outcome quantized = run_stet({"quantize", "-m", from, "--to", "mxfp4", "-o", to});
  EXPECT_EQ(quantized.status, 0) << quantized.err;
  const auto m = Model::load(to);
  EXPECT_EQ(m->types(), "ggml(*=bf16,ffn_down_exps=mxfp4,ffn_gate_exps=mxfp4,ffn_up_exps=mxfp4)");
  const std::string file = gguf(to, scratch / "a.gguf", GgufWeights::stored);
  const Outcome converted = run_stet(
      {"convert-model", from, "-o", scratch / "b.gguf", "--type", "mxfp4", "--tokenizer", "none"});
  EXPECT_EQ(converted.status, 0) << converted.err;
  EXPECT_EQ(read_text(scratch / "b.gguf") == file, true);
}

TEST(Mxfp4, AnotherModelIsRefused) {
  const TemporaryDirectory scratch;
  const std::string dense = data_path("models/qwen3-tiny"),
                    narrow = data_path("models/gemma4-moe-tiny"), to = scratch / "no";
  const auto refused = [&](const Args& args) {
    const Outcome o = run_stet(args);
    EXPECT_EQ(o.status, 1);
    return o.err;
  };
  const std::string none =
      "/config.json: MXFP4 is for matrices of experts, and this model has none; take q4 or a K "
      "type\n";
  EXPECT_EQ(refused({"quantize", "-m", dense, "--to", "mxfp4", "-o", to}), "stet: " + dense + none);
  EXPECT_EQ(refused({"convert-model", dense, "--type", "mxfp4", "-o", to}),
            "stet: " + dense + none);
  EXPECT_EQ(
      refused({"quantize", "-m", narrow, "--to", "mxfp4", "-o", to}),
      "stet: " + narrow +
          "/model.safetensors: model.layers.0.experts.0.down_proj.weight: expected columns of "
          "a multiple of 32 to round to blocks, found 24\n");
  EXPECT_EQ(refused({"convert-model", narrow, "--type", "mxfp4", "-o", to}),
            "stet: " + to +
                ": blk.0.ffn_down_exps.weight: expected rows of a multiple of 32 elements, found "
                "24\n");
  const Outcome o = run_stet({"quantize", "-m", narrow, "--to", "mxfp4", "--importance",
                              narrow + "/config.json", "-o", to});
  EXPECT_EQ(o.status, 2);
  EXPECT_EQ(o.err, "stet: --importance is for --to q4k, q5k and q6k only (stet --help)\n");
}

}  // namespace
}  // namespace stet::test::mxfp4_tests

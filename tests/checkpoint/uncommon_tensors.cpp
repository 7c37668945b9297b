// Tensors of layouts that no fixture has: matrices whose parts have different types, and gated
// attention without a recurrent layer.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "stet/kernels/numbers.hpp"
#include "tests/support/checkpoint_parts.hpp"
#include "tests/support/models.hpp"

namespace stet::test::uncommon_tensors_tests {
namespace {

std::vector<float> logits_of(const CheckpointParts& parts, const SessionOptions& chosen = {}) {
  TemporaryDirectory directory;
  const auto m = Model::load(parts.write(directory.path()), 1);
  Session s(m, chosen);
  return all_logits(s, random_tokens(*m, 24));
}

// Cuts the numbers of a float32 tensor to those of bfloat16. Stores them as such, or as float32.
void cut(CheckpointParts& parts, const std::string& name, bool narrow) {
  for (CheckpointParts::Tensor& t : parts.tensors()) {
    if (t.spec.name != name) continue;
    const size_t count = t.bytes.size() / sizeof(float);
    std::vector<std::byte> to;
    for (size_t i = 0; i < count; ++i) {
      float x;
      std::memcpy(&x, t.bytes.data() + i * sizeof x, sizeof x);
      const uint16_t bits = round_bf16(x);
      x = widen_bf16(bits);
      const size_t size = narrow ? sizeof bits : sizeof x, at = to.size();
      to.resize(at + size);
      if (narrow)
        std::memcpy(to.data() + at, &bits, size);
      else
        std::memcpy(to.data() + at, &x, size);
    }
    t.bytes = std::move(to);
    if (narrow) t.spec.dtype = DType::bf16;
    return;
  }
  FAIL() << name;
}

void expect_any_type(const std::string& model, const std::string& name) {
  CheckpointParts wide(model), narrow(model);
  cut(wide, name, false);
  cut(narrow, name, true);
  EXPECT_EQ(logits_of(wide), logits_of(narrow)) << name;
}

TEST(UncommonTensors, PartsOfAMatrixHaveTypesOfTheirOwn) {
  expect_any_type("llama31-tiny", "model.layers.1.self_attn.v_proj.weight");
  expect_any_type("llama31-tiny", "model.layers.0.mlp.gate_proj.weight");
  expect_any_type("qwen3moe-tiny", "model.layers.0.mlp.experts.1.up_proj.weight");
  expect_any_type("qwen3moe-tiny", "model.layers.2.mlp.experts.0.down_proj.weight");
}

// A layer of attention alone is what it is in a checkpoint whose tensors show a recurrent layer.
TEST(UncommonTensors, GatedAttentionWithoutRecurrentLayers) {
  CheckpointParts attention("qwen35-tiny");
  std::erase_if(attention.tensors(), [](const CheckpointParts::Tensor& t) {
    return t.spec.name.starts_with("model.layers.") && !t.spec.name.starts_with("model.layers.3.");
  });
  attention.rename("model.layers.3.", "model.layers.0.");
  attention.config["num_hidden_layers"] = 1;
  attention.config["layer_types"] = {"full_attention"};
  CheckpointParts shown = attention;
  shown.add("model.layers.7.linear_attn.norm.weight", {16}, 1);
  EXPECT_EQ(logits_of(attention), logits_of(shown));
}

// Returns the error of loading the model whose tensors that end in `ending` have another shape.
// Messages begin with the name of the file that has the tensor.
std::string error_of_shape(const std::string& name, const std::string& ending,
                           const std::vector<int64_t>& shape) {
  CheckpointParts parts(name);
  for (CheckpointParts::Tensor& t : parts.tensors()) {
    if (t.spec.name.ends_with(ending)) t.spec.shape = shape;
  }
  TemporaryDirectory directory;
  const std::string path = parts.write(directory.path());
  const std::string error = error_of([&] { Model::load(path, 1); });
  const size_t at = error.find(path);
  return at == std::string::npos ? error : error.substr(at + path.size() + 1);
}

// The numbers of a transposed convolution are as many, so only its shape shows that it is one.
TEST(UncommonTensors, ATransposedConvolutionIsRefused) {
  EXPECT_EQ(error_of_shape("lfm2-tiny", ".conv.conv.weight", {3, 1, 64}),
            "model.safetensors: model.layers.0.conv.conv.weight: expected [channels, 1, 3], "
            "found BF16 [3, 1, 64]");
  EXPECT_EQ(error_of_shape("lfm2-tiny", ".conv.conv.weight", {64, 3, 1}),
            "model.safetensors: model.layers.0.conv.conv.weight: expected [channels, 1, 3], "
            "found BF16 [64, 3, 1]");
  EXPECT_EQ(error_of_shape("qwen35-tiny", ".linear_attn.conv1d.weight", {4, 1, 128}),
            "model.safetensors: model.layers.0.linear_attn.conv1d.weight: expected "
            "[channels, 1, 4], found F32 [4, 1, 128]");
  EXPECT_EQ(error_of_shape("granite-h-tiny", ".mamba.conv1d.weight", {4, 1, 160}),
            "model.safetensors: model.layers.0.mamba.conv1d.weight: expected [channels, 1, 4], "
            "found BF16 [4, 1, 160]");
  CheckpointParts parts("lfm2-tiny");
  parts.config["conv_L_cache"] = 4;
  TemporaryDirectory directory;
  const std::string path = parts.write(directory.path());
  EXPECT_EQ(error_of([&] { Model::load(path, 1); }),
            "format: " + path +
                "/model.safetensors: model.layers.0.conv.conv.weight: expected [channels, 1, 4], "
                "found BF16 [64, 1, 3]");
}

TEST(UncommonTensors, ErrorsNameTensorsThatTheFileHas) {
  EXPECT_EQ(error_of_shape("granite-h-tiny", ".block_sparse_moe.input_linear.weight", {384, 64}),
            "model.safetensors: model.layers.0.block_sparse_moe.input_linear.weight: expected "
            "F32, BF16 or F16 [experts, outputs, inputs], found BF16 [384, 64]");
  EXPECT_EQ(error_of_shape("granite-h-tiny", ".block_sparse_moe.input_linear.weight", {8, 64, 48}),
            "model.safetensors: model.layers.0.block_sparse_moe.experts.0.gate_proj.weight (made "
            "of model.layers.0.block_sparse_moe.input_linear.weight): expected F32, BF16 or F16 "
            "[24, 64], found BF16 [32, 48]");
  EXPECT_EQ(error_of_shape("granite-h-tiny", ".A_log", {1, 8}),
            "model.safetensors: model.layers.0.mamba.A (made of model.layers.0.mamba.A_log): "
            "expected F32, BF16 or F16 [8], found F32 [1, 8]");
  EXPECT_EQ(error_of_shape("qwen35moe-fused-tiny", ".experts.gate_up_proj", {384, 64}),
            "model.safetensors: model.layers.0.mlp.experts.gate_up_proj: expected F32, BF16 or "
            "F16 [experts, outputs, inputs], found BF16 [384, 64]");
}

// A model without experts is dense, and needs no sizes of experts.
TEST(UncommonTensors, AMixtureMayHaveNoExperts) {
  CheckpointParts stated("qwen3moe-tiny");
  stated.config["num_hidden_layers"] = 1;
  std::erase_if(stated.tensors(), [](const CheckpointParts::Tensor& t) {
    return t.spec.name.starts_with("model.layers.") && !t.spec.name.starts_with("model.layers.1.");
  });
  stated.rename("model.layers.1.", "model.layers.0.");
  stated.config["mlp_only_layers"] = {0};
  CheckpointParts none = stated;
  none.config["num_experts"] = 0;
  for (const char* const field : {"mlp_only_layers", "moe_intermediate_size", "norm_topk_prob"})
    none.config.erase(field);
  EXPECT_EQ(logits_of(stated), logits_of(none));
}

}  // namespace
}  // namespace stet::test::uncommon_tensors_tests

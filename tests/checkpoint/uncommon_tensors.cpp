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

}  // namespace
}  // namespace stet::test::uncommon_tensors_tests

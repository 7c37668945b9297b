// Checkpoints in uncommon shapes, written as GGUF: the same model again, or refused by name.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "src/gguf/gguf.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/kernels/ggml.hpp"
#include "tests/support/checkpoint_parts.hpp"
#include "tests/support/models.hpp"

namespace stet::test::conversion_tests {
namespace {

using Json = nlohmann::json;

class Conversion : public testing::Test {
 protected:
  // Writes the checkpoint, and that as a GGUF file.
  void convert(const CheckpointParts& parts, GgufWeights weights = GgufWeights::stored) {
    left_out_ = write_gguf(*directory_source(parts.write(directory_)), path_,
                           {.weights = weights, .tokenizer = GgufTokenizer::none});
  }
  // Returns the error of convert(), which leaves no file.
  std::string refusal(const CheckpointParts& parts) {
    std::filesystem::remove(path_);
    const std::string error = message_of([&] { convert(parts); });
    EXPECT_FALSE(std::filesystem::exists(path_));
    return error;
  }
  Gguf file() const { return Gguf::parse(directory_source(scratch_.path())->open("m.gguf")); }
  uint32_t type_of(const std::string& name) const {
    const Gguf written = file();
    for (const GgufTensor& t : written.tensors()) {
      if (t.name == name) return t.type;
    }
    return ~0u;
  }
  void expect_same_model() const {
    const auto given = Model::load(directory_source(directory_), 1),
               found = Model::load(gguf_source(path_), 1);
    EXPECT_EQ(found->config().canonical(), given->config().canonical());
    EXPECT_EQ(found->fingerprint(), given->fingerprint());
    Session a(given, options(1)), b(found, options(1));
    a.append(random_tokens(*given, 9));
    b.append(random_tokens(*given, 9));
    EXPECT_TRUE(same_state(a, b));
  }

  TemporaryDirectory scratch_;
  std::string directory_ = scratch_ / "m", path_ = scratch_ / "m.gguf";
  GgufLeftOut left_out_;
};

// Rounds a float32 tensor to a type of 16 bits.
void round_to(DType type, CheckpointParts::Tensor& t) {
  ASSERT_EQ(t.spec.dtype, DType::f32);
  for (size_t i = 0; i * 4 < t.bytes.size(); ++i) {
    float x;
    std::memcpy(&x, &t.bytes[i * 4], 4);
    quantize_ggml(ggml_number(type), &x, 1, &t.bytes[i * 2], nullptr);
  }
  t.bytes.resize(t.bytes.size() / 2);
  t.spec.dtype = type;
}

// Gives the dense layer of the fixture the experts of another one.
CheckpointParts qwen3_moe() {
  CheckpointParts parts("qwen3moe-tiny");
  const std::string from = "model.layers.0.mlp.", to = "model.layers.1.mlp.";
  std::erase_if(parts.tensors(), [&](const auto& t) { return t.spec.name.starts_with(to); });
  for (const CheckpointParts::Tensor& t : std::vector(parts.tensors())) {
    if (!t.spec.name.starts_with(from)) continue;
    parts.tensors().push_back(t);
    parts.tensors().back().spec.name.replace(0, from.size(), to);
  }
  parts.config["mlp_only_layers"] = Json::array();
  return parts;
}

TEST_F(Conversion, ExpertsOfDifferentTypesLoseNothing) {
  using enum DType;
  for (const auto& [first, other, expected] : {std::tuple(bf16, f32, f32),
                                               {f32, bf16, f32},
                                               {f16, f32, f32},
                                               {bf16, f16, f32},
                                               {bf16, bf16, bf16},
                                               {f16, f16, f16}}) {
    CheckpointParts parts = qwen3_moe();
    for (CheckpointParts::Tensor& t : parts.tensors()) {
      if (t.spec.name.find(".experts.") == std::string::npos) continue;
      const DType type = t.spec.name.find(".experts.0.") != std::string::npos ? first : other;
      if (type != f32) round_to(type, t);
    }
    convert(parts);
    EXPECT_EQ(type_of("blk.1.ffn_up_exps.weight"), ggml_number(expected));
    expect_same_model();
  }
}

TEST_F(Conversion, MatricesOfOneTensorMayHaveDifferentTypes) {
  CheckpointParts parts("gemma3n-tiny");
  const std::string first = "altup_projections.0.weight", other = "altup_projections.1.weight";
  for (CheckpointParts::Tensor& t : parts.tensors()) {
    if (t.spec.name.ends_with(first)) round_to(DType::bf16, t);
    if (t.spec.name.ends_with(other)) round_to(DType::f16, t);
  }
  convert(parts);
  EXPECT_EQ(type_of("altup_proj.weight"), ggml_number(DType::f32));
  expect_same_model();
}

// Puts attention into some layers of qwen35-tiny in place of the recurrence.
CheckpointParts qwen35(const std::vector<std::string>& types) {
  CheckpointParts parts("qwen35-tiny");
  const std::vector<CheckpointParts::Tensor> all = parts.tensors();
  std::erase_if(parts.tensors(),
                [](const auto& t) { return t.spec.name.find("attn") != std::string::npos; });
  for (size_t i = 0; i < types.size(); ++i) {
    const std::string layer = types[i] == "full_attention" ? "model.layers.3." : "model.layers.0.";
    for (const CheckpointParts::Tensor& t : all) {
      if (!t.spec.name.starts_with(layer) || t.spec.name.find("attn") == std::string::npos)
        continue;
      parts.tensors().push_back(t);
      parts.tensors().back().spec.name =
          "model.layers." + std::to_string(i) + "." + t.spec.name.substr(layer.size());
    }
  }
  parts.config.erase("full_attention_interval");
  parts.config["layer_types"] = types;
  return parts;
}

TEST_F(Conversion, LlamaCppFindsTheRecurrentLayers) {
  const std::string full = "full_attention", linear = "linear_attention",
                    interval = "qwen35.full_attention_interval",
                    each = "qwen35.attention.recurrent_layers";
  for (const auto& [types, expected] : {std::pair(std::vector{linear, linear, linear, full}, 4),
                                        {{linear, full, linear, full}, 2},
                                        {{linear, linear, full, linear}, 3},
                                        {{linear, linear, linear, linear}, 5}}) {
    convert(qwen35(types));
    EXPECT_EQ(file().integer(interval, 0, 99), expected);
    EXPECT_FALSE(file().has(each));
    expect_same_model();
  }
  convert(qwen35({full, full, linear, full}));
  EXPECT_FALSE(file().has(interval));
  const Gguf irregular = file();
  ASSERT_NE(irregular.numbers(each), nullptr);
  EXPECT_EQ(*irregular.numbers(each), (std::vector<double>{0, 0, 1, 0}));
  expect_same_model();
}

TEST_F(Conversion, GraniteHasASwitchForPositions) {
  for (const char* const positions : {"rope", "nope"}) {
    for (const auto& [name, key] :
         {std::pair("granite-dense-tiny", "granite.rope.scaling.finetuned"),
          {"granite-h-tiny", "granitehybrid.rope.scaling.finetuned"}}) {
      CheckpointParts parts(name);
      parts.config["position_embedding_type"] = positions;
      convert(parts);
      EXPECT_EQ(file().boolean(key), positions == std::string("rope")) << name;
      expect_same_model();
    }
  }
}

// Mixtral with the names and the config of a Granite 3 with experts.
CheckpointParts granite_moe() {
  CheckpointParts parts("mixtral-tiny");
  parts.rename("block_sparse_moe.gate.", "block_sparse_moe.router.layer.");
  parts.rename(".w1.", ".gate_proj.");
  parts.rename(".w2.", ".down_proj.");
  parts.rename(".w3.", ".up_proj.");
  parts.config["architectures"] = {"GraniteMoeForCausalLM"};
  parts.config["model_type"] = "granitemoe";
  return parts;
}

TEST_F(Conversion, AGraniteWithExpertsHasPositions) {
  const std::string key = "granitemoe.rope.scaling.finetuned";
  convert(granite_moe());
  EXPECT_EQ(file().boolean(key), true);
  expect_same_model();
  std::string bytes = read_text(path_);
  bytes.at(bytes.find(key) + key.size() + 4) = 0;  // after the key's type
  write_file(path_, bytes);
  EXPECT_EQ(message_of([&] { Model::load(gguf_source(path_), 1); }),
            path_ + ": " + key + ": expected true, found false");
}

TEST_F(Conversion, GptOssMayScaleLinearly) {
  CheckpointParts parts("gptoss-tiny");
  for (const Json& scaling : {Json{{"rope_type", "linear"}, {"factor", 2.0}}, Json(nullptr)}) {
    parts.config["rope_scaling"] = scaling;
    convert(parts);
    expect_same_model();
  }
}

// A checkpoint whose attention has 56 columns.
CheckpointParts with_rows_of_56() {
  CheckpointParts parts("qwen3-tiny");
  const auto layers = parts.config["num_hidden_layers"].get<int>();
  parts.config["head_dim"] = 14;
  parts.config["num_attention_heads"] = 4;
  parts.config["num_key_value_heads"] = 2;
  const auto hidden = parts.config["hidden_size"].get<int64_t>();
  for (int i = 0; i < layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".self_attn.";
    for (const auto& [stem, shape] :
         std::map<std::string, std::vector<int64_t>>{{"q_proj", {56, hidden}},
                                                     {"k_proj", {28, hidden}},
                                                     {"v_proj", {28, hidden}},
                                                     {"o_proj", {hidden, 56}},
                                                     {"q_norm", {14}},
                                                     {"k_norm", {14}}}) {
      parts.remove(at + stem + ".weight");
      parts.add(at + stem + ".weight", shape, 0.5f);
    }
  }
  return parts;
}

TEST_F(Conversion, RowsThatAreNoWholeBlocksAreF16) {
  const CheckpointParts parts = with_rows_of_56();
  for (const auto& [weights, type] : {std::pair(GgufWeights::q8_0, DType::q8_0),
                                      {GgufWeights::q4_0, DType::q4_0},
                                      {GgufWeights::q4_k, DType::q8_0},
                                      {GgufWeights::bf16, DType::bf16}}) {
    convert(parts, weights);
    EXPECT_EQ(type_of("blk.0.attn_q.weight"), ggml_number(type));
    EXPECT_EQ(type_of("blk.0.attn_output.weight"),
              ggml_number(type == DType::bf16 ? DType::bf16 : DType::f16));
    const auto source = gguf_source(path_);
    const auto loaded = Model::load(source, 1, contract_of_weights(*source));
    Session session(loaded, options(1, STET_DEFAULT_ISA, 512, contract_of_weights(*source)));
    session.append(random_tokens(*loaded, 9));
  }
}

TEST_F(Conversion, AMixtureWhoseLayersAreAllDense) {
  CheckpointParts parts("lfm2-tiny");
  parts.config.update({{"model_type", "lfm2_moe"},
                       {"architectures", {"Lfm2MoeForCausalLM"}},
                       {"intermediate_size", 80},
                       {"moe_intermediate_size", 8},
                       {"num_experts", 4},
                       {"num_experts_per_tok", 2},
                       {"num_dense_layers", 5},
                       {"use_expert_bias", true}});
  convert(parts);
  expect_same_model();
}

TEST_F(Conversion, WhatLlamaCppDoesNotLoadIsRefusedByName) {
  const auto only = [&](const char* field, const char* architecture, const char* what) {
    return directory_ + "/config.json: " + field + ": llama.cpp loads models of the architecture " +
           architecture + " only with " + what + "; use the checkpoint itself, or stet prepare";
  };
  EXPECT_EQ(refusal(CheckpointParts("qwen3moe-tiny")),
            only("experts.dense", "qwen3moe", "experts in every layer"));
  EXPECT_EQ(refusal(CheckpointParts("lfm2-odd-tiny")),
            only("recurrence.projection_bias", "lfm2", "recurrent layers without biases"));
  EXPECT_EQ(refusal(CheckpointParts("granite-odd-tiny")),
            only("recurrence.projection_bias", "granitehybrid", "recurrent layers without biases"));
  EXPECT_EQ(refusal(CheckpointParts("qwen35-odd-tiny")),
            only("recurrence.value_dim", "qwen35", "values as wide as keys"));
  EXPECT_EQ(refusal(qwen35(std::vector<std::string>(4, "full_attention"))),
            only("recurrent_of", "qwen35", "recurrent layers"));
}

TEST_F(Conversion, LimitsOfTimeStepsAreRefused) {
  CheckpointParts parts("granite-h-tiny");
  parts.config["time_step_limit"] = {0.125, 0.5};
  EXPECT_EQ(
      refusal(parts),
      directory_ +
          "/config.json: recurrence.least_step: llama.cpp assumes null, the model has 0.125: a "
          "GGUF file cannot say that; use the checkpoint itself, or stet prepare");
}

// llama.cpp reads windows of some families only.
TEST_F(Conversion, WindowsThatLlamaCppDoesNotReadAreRefused) {
  CheckpointParts mixtral("mixtral-tiny"), qwen = qwen3_moe();
  mixtral.config["sliding_window"] = qwen.config["sliding_window"] = 4;
  qwen.config["use_sliding_window"] = true;
  for (const CheckpointParts& parts : {mixtral, qwen})
    EXPECT_EQ(refusal(parts),
              directory_ +
                  "/config.json: window[0]: llama.cpp assumes 0, the model has 4: a "
                  "GGUF file cannot say that; use the checkpoint itself, or stet "
                  "prepare");
  convert(qwen3_moe());
  EXPECT_EQ(left_out_.window, 0);
  CheckpointParts mistral("mistral-tiny");
  convert(mistral);
  EXPECT_EQ(left_out_.window, 8);
  expect_same_model();
}

TEST_F(Conversion, KeysThatLlamaCppRequires) {
  for (const char* const name : {"qwen35-tiny", "qwen35moe-tiny"}) {
    convert(CheckpointParts(name));
    const Gguf written = file();
    const std::string key =
        *written.text("general.architecture") + ".rope.dimension_sections";  // of 4 pairs
    ASSERT_NE(written.numbers(key), nullptr);
    EXPECT_EQ(*written.numbers(key), (std::vector<double>{2, 1, 1, 0}));
  }
  convert(CheckpointParts("granite-h-tiny"));
  EXPECT_EQ(file().integer("granitehybrid.feed_forward_length", 0, 999), 24);
  EXPECT_EQ(file().integer("granitehybrid.expert_shared_feed_forward_length", 0, 999), 48);
}

}  // namespace
}  // namespace stet::test::conversion_tests

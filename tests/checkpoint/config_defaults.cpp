// Fields that a config leaves out have transformers' defaults.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "stet/model/config.hpp"
#include "tests/support/checkpoint_parts.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/models.hpp"

namespace stet::test::config_defaults_tests {
namespace {

using Json = nlohmann::json;

Json config_of(const std::string& model) {
  return Json::parse(read_text(data_path("models/" + model + "/config.json")));
}

std::string canonical(const Json& json) {
  return parse_model_config(json.dump(), "config.json").canonical();
}

// Expects that a model whose config has these fields is the one whose config has none of them.
void expect_defaults(const std::string& model, const Json& fields, const Json& others = {}) {
  Json stated = config_of(model);
  if (!others.is_null()) stated.update(others);
  Json absent = stated;
  for (const auto& [name, value] : fields.items()) {
    stated[name] = value;
    absent.erase(name);
  }
  EXPECT_EQ(canonical(stated), canonical(absent)) << model;
  EXPECT_NE(canonical(stated), canonical(config_of(model))) << model;
}

TEST(ConfigDefaults, NumbersOfExpertsAndHeads) {
  expect_defaults("mixtral-tiny", {{"num_local_experts", 8}, {"num_experts_per_tok", 2}},
                  {{"num_attention_heads", 16}, {"num_key_value_heads", 16}});
  expect_defaults("mixtral-tiny", {{"num_key_value_heads", 8}},
                  {{"num_attention_heads", 16}, {"head_dim", 4}});
  expect_defaults("qwen3moe-tiny",
                  {{"num_experts", 128}, {"num_experts_per_tok", 8}, {"num_key_value_heads", 4}});
  expect_defaults("olmoe-tiny", {{"num_experts", 64}, {"num_experts_per_tok", 8}});
  expect_defaults("gptoss-tiny",
                  {{"num_local_experts", 128}, {"num_experts_per_tok", 4}, {"head_dim", 64}});
  expect_defaults("lfm2moe-tiny", {{"num_experts", 32}, {"num_experts_per_tok", 4}});
  expect_defaults("granite-hd-tiny", {{"num_local_experts", 8}, {"num_experts_per_tok", 2}});
  expect_defaults("qwen3next-tiny", {{"num_experts", 512},
                                     {"num_experts_per_tok", 10},
                                     {"shared_expert_intermediate_size", 512}});
  expect_defaults(
      "qwen35moe-tiny",
      {{"num_experts", 256}, {"num_experts_per_tok", 8}, {"shared_expert_intermediate_size", 512}});
  expect_defaults("qwen35-tiny", {{"num_key_value_heads", 4}});
}

// Null is not a missing field: it means one head of keys for each head of queries.
TEST(ConfigDefaults, NullHeadsOfKeysAreThoseOfQueries) {
  Json json = config_of("mixtral-tiny");
  json.update({{"num_attention_heads", 16}, {"head_dim", 4}, {"num_key_value_heads", nullptr}});
  EXPECT_EQ(parse_model_config(json.dump(), "config.json").kv_heads, 16);
}

TEST(ConfigDefaults, AMissingWidthOfExpertsIsNamed) {
  for (const char* const model : {"qwen35moe-tiny", "qwen3next-tiny"}) {
    Json json = config_of(model);
    json.erase("moe_intermediate_size");
    json.erase("intermediate_size");
    const std::string error = error_of([&] { canonical(json); });
    EXPECT_EQ(error.find("format: config.json: moe_intermediate_size: expected "), 0u) << error;
  }
}

TEST(ConfigDefaults, AllLayersMayBeDense) {
  Json json = config_of("lfm2moe-tiny");
  json.update({{"num_hidden_layers", 1}, {"layer_types", {"conv"}}});
  json.erase("num_dense_layers");  // 2
  EXPECT_EQ(parse_model_config(json.dump(), "config.json").experts.dense, std::vector<int64_t>{0});
}

// transformers reads these fields in Qwen 3 and Qwen3-Next alone.
TEST(ConfigDefaults, MixturesOfQwen35HaveOneRule) {
  const Json others = {
      {"norm_topk_prob", false}, {"mlp_only_layers", {0}}, {"decoder_sparse_step", 2}};
  Json json = config_of("qwen35moe-tiny");
  json.update(others);
  EXPECT_EQ(canonical(json), canonical(config_of("qwen35moe-tiny")));
  json = config_of("qwen3next-tiny");
  json.update(others);
  const ModelConfig next = parse_model_config(json.dump(), "config.json");
  EXPECT_EQ(next.experts.rule, RouterRule::softmax);
  EXPECT_EQ(next.experts.dense.front(), 0);
}

TEST(ConfigDefaults, NoExpertsAreNoMixture) {
  Json json = config_of("qwen35-tiny");
  json["num_experts"] = 0;
  EXPECT_EQ(canonical(json), canonical(config_of("qwen35-tiny")));
  json = config_of("qwen3moe-tiny");
  json["num_experts"] = -1;
  EXPECT_EQ(error_of([&] { canonical(json); }),
            "format: config.json: num_experts: expected an integer in 0..1024, found -1");
}

TEST(ConfigDefaults, LayersOfGraniteHaveTwoNames) {
  Json json = config_of("granite-h-tiny");
  json["layers_block_type"] = json["layer_types"];
  json.erase("layer_types");
  EXPECT_EQ(canonical(json), canonical(config_of("granite-h-tiny")));
  json["layers_block_type"] = {"mamba"};
  EXPECT_EQ(error_of([&] { canonical(json); }),
            "format: config.json: layers_block_type: expected one entry for each of 5 layers, "
            "found an array");
}

// The last layer of Gemma 4 sees all positions, whatever the config says.
TEST(ConfigDefaults, TheLastLayerOfGemma4IsFull) {
  Json json = config_of("gemma4-dense-tiny");
  json["layer_types"].back() = "sliding_attention";
  EXPECT_EQ(canonical(json), canonical(config_of("gemma4-dense-tiny")));
  json.erase("layer_types");
  json["num_hidden_layers"] = 8;
  EXPECT_EQ(parse_model_config(json.dump(), "config.json").window,
            (std::vector<int64_t>{8, 8, 8, 8, 8, 0, 8, 0}));
}

// Null is not a missing field: full layers then have the heads of the others.
TEST(ConfigDefaults, NullHeadsOfFullLayersAreThoseOfTheOthers) {
  Json json = config_of("gemma4-dense-tiny");
  json["global_head_dim"] = nullptr;
  EXPECT_EQ(parse_model_config(json.dump(), "config.json").head_dim_of,
            std::vector<int64_t>(6, 16));
  json.erase("global_head_dim");
  EXPECT_EQ(parse_model_config(json.dump(), "config.json").head_dim_of.back(), 512);
}

// Configs of models that were cut to their first layers still name the others.
TEST(ConfigDefaults, LayersBeyondTheLastCountForNothing) {
  Json json = config_of("lfm2-tiny");
  const std::string whole = canonical(json);
  json["full_attn_idxs"] = {0, 99};  // layer_types goes before it
  EXPECT_EQ(canonical(json), whole);
  json.erase("layer_types");
  const std::string listed = canonical(json);
  json["full_attn_idxs"] = {0};
  EXPECT_EQ(canonical(json), listed);
  json = config_of("qwen35moe-tiny");
  const std::string mixture = canonical(json);
  json["mlp_only_layers"] = {99};
  EXPECT_EQ(canonical(json), mixture);
}

TEST(ConfigDefaults, RotaryPositions) {
  expect_defaults("gptoss-tiny", {{"rope_theta", 150000.0},
                                  {"rope_scaling",
                                   {{"rope_type", "yarn"},
                                    {"factor", 32.0},
                                    {"original_max_position_embeddings", 4096},
                                    {"beta_fast", 32.0},
                                    {"beta_slow", 1.0},
                                    {"truncate", false}}}});
  Json none = config_of("gptoss-tiny");
  none["rope_scaling"] = nullptr;
  EXPECT_EQ(parse_model_config(none.dump(), "config.json").ropes.at(0).scaling,
            Rope::Scaling::none);
  const Json proportional = {
      {"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}};
  const Json plain = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  expect_defaults(
      "gemma4-small-tiny",
      {{"rope_parameters", {{"full_attention", proportional}, {"sliding_attention", plain}}}},
      {{"sliding_window", 9}});
}

// A config of gpt-oss without rotary settings has the published YaRN. With null, or with the default
// of newer configs, it has none. Linear scaling by 1 changes no bit.
TEST(ConfigDefaults, GptOssWithoutYarn) {
  for (const char* const name : {"gptoss-tiny", "gptoss-mxfp4-tiny"}) {
    const TemporaryDirectory scratch;
    const auto with = [&](const std::string& which, const Json& fields) {
      CheckpointParts parts(name);
      parts.config.erase("rope_scaling");
      parts.config.update(fields);
      return Model::load(parts.write(scratch / which));
    };
    const auto logits = [](const std::shared_ptr<const Model>& m) {
      Session session(m, options(1));
      return all_logits(session, random_tokens(*m, 40));
    };
    const Json plain = {{"rope_type", "default"}, {"rope_theta", 150000}};
    const Json once = {{"rope_type", "linear"}, {"factor", 1.0}};
    const Json published = {
        {"rope_type", "yarn"}, {"factor", 32.0},   {"original_max_position_embeddings", 4096},
        {"beta_fast", 32.0},   {"beta_slow", 1.0}, {"truncate", false}};
    const auto none = with("null", {{"rope_scaling", nullptr}}),
               newer = with("newer", {{"rope_parameters", plain}}),
               both = with("both", {{"rope_scaling", nullptr}, {"rope_parameters", plain}}),
               linear = with("linear", {{"rope_scaling", once}}),
               absent = with("absent", Json::object()),
               newer_null = with("newer_null", {{"rope_parameters", nullptr}}),
               yarn = with("yarn", {{"rope_scaling", published}});
    EXPECT_EQ(newer->fingerprint(), none->fingerprint()) << name;
    EXPECT_EQ(both->fingerprint(), none->fingerprint()) << name;
    EXPECT_EQ(logits(linear), logits(none)) << name;
    EXPECT_EQ(absent->fingerprint(), yarn->fingerprint()) << name;
    EXPECT_EQ(newer_null->fingerprint(), yarn->fingerprint()) << name;
    EXPECT_NE(none->fingerprint(), yarn->fingerprint()) << name;
    EXPECT_NE(logits(none), logits(yarn)) << name;
  }
}

// Beside a rope_scaling, rope_parameters is not read.
TEST(ConfigDefaults, TheRotatedPartIsWhereTheScalingIs) {
  Json json = config_of("qwen35-tiny");
  json["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 1.0}};
  const auto rotary_dim = [&] { return parse_model_config(json.dump(), "config.json").rotary_dim; };
  EXPECT_EQ(rotary_dim(), 0);
  json["rope_scaling"] = Json::object();
  EXPECT_EQ(rotary_dim(), 0);
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(rotary_dim(), 8);
  json["rope_scaling"]["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(rotary_dim(), 16);
}

TEST(ConfigDefaults, SharingAndSparsityOfGemma3n) {
  std::vector<double> parts(20, 0.0);
  std::fill_n(parts.begin(), 10, 0.95);
  Json json = config_of("gemma3n-tiny");
  const Json deep = {
      {"num_hidden_layers", 20}, {"intermediate_size", 64}, {"layer_types", nullptr}};
  expect_defaults("gemma3n-tiny",
                  {{"activation_sparsity_pattern", parts}, {"num_kv_shared_layers", 15}}, deep);
  // A model of fewer layers than share has no layer to share with, and no layer is sparse.
  json.erase("activation_sparsity_pattern");
  json.erase("num_kv_shared_layers");
  const ModelConfig c = parse_model_config(json.dump(), "config.json");
  EXPECT_TRUE(c.owner_of.empty());
  EXPECT_TRUE(c.gate_floor.empty());
}

// The normal quantile of one half is 0, which stands for layers that drop nothing.
TEST(ConfigDefaults, HalfOfTheGatesMayBeDropped) {
  Json json = config_of("gemma3n-tiny");
  json["activation_sparsity_pattern"] = {0.5, 0.0, 0.25, 0.0, 0.0};
  const ModelConfig c = parse_model_config(json.dump(), "config.json");
  EXPECT_GT(static_cast<float>(c.gate_floor.at(0)), 0.0f);
  EXPECT_LT(c.gate_floor.at(0), 1e-30);
  EXPECT_EQ(c.gate_floor.at(1), 0.0);
  EXPECT_LT(c.gate_floor.at(2), -0.5);
  EXPECT_EQ(ModelConfig::from_canonical(c.canonical(), "").gate_floor, c.gate_floor);
}

TEST(ConfigDefaults, OlderNameOfTiedHeadTakesPrecedence) {
  Json json = config_of("lfm2-tiny");
  json.update({{"tie_embedding", false}, {"tie_word_embeddings", true}});
  EXPECT_FALSE(parse_model_config(json.dump(), "config.json").tied_head);
}

TEST(GenerationDefaults, TemperatureZeroIsGreedy) {
  const auto parse = [](const char* text) {
    return parse_generation_config(text, "generation_config.json", 100);
  };
  const GenerationConfig g = parse(R"({"do_sample": true, "temperature": 0.0, "top_k": 5})");
  EXPECT_FALSE(g.sample);
  EXPECT_EQ(g.temperature, 1.0);
  EXPECT_TRUE(parse(R"({"do_sample": true, "temperature": 0.5})").sample);
  EXPECT_EQ(error_of([&] { parse(R"({"temperature": 1e-40})"); }),
            "format: generation_config.json: temperature: expected a number in 1e-30..1000000.0, "
            "found 1e-40");
  EXPECT_EQ(error_of([&] { parse(R"({"typical_p": 0})"); }),
            "format: generation_config.json: typical_p: expected a number in 1e-30..1.0, found 0");
  EXPECT_EQ(parse(R"({"min_new_tokens": 3, "stop_strings": ["x"]})").ignored,
            (std::vector<std::string>{"min_new_tokens", "stop_strings"}));
}

}  // namespace
}  // namespace stet::test::config_defaults_tests

// Mixtures of experts: settings and layouts that no golden has, against the float64 reference; and
// what is refused.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "stet/checkpoint/packed.hpp"
#include "tests/support/checkpoint_parts.hpp"
#include "tests/support/models.hpp"
#include "tests/support/reference_model.hpp"

namespace stet::test::experts_tests {
namespace {

using Json = nlohmann::json;

using Parts = CheckpointParts;

void expect_reference(const std::string& directory) {
  const auto m = Model::load(directory, 1);
  const std::vector<int32_t> ids = random_tokens(*m, 40);
  const std::vector<double> expected = ReferenceModel(directory).run(ids).logits;
  Session s(m, options(2));
  const std::vector<float> logits = all_logits(s, ids);
  ASSERT_EQ(logits.size(), expected.size());
  double squares = 0, worst = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    squares += expected[i] * expected[i];
    worst = std::max(worst, std::abs(static_cast<double>(logits[i]) - expected[i]));
  }
  EXPECT_LE(worst, 1e-4 * std::max(1.0, std::sqrt(squares / static_cast<double>(logits.size()))));
}

TEST(Experts, OtherSettingsAgreeWithTheReference) {
  const TemporaryDirectory dir;
  Parts plain("qwen3moe-tiny");
  plain.config["norm_topk_prob"] = false;
  plain.config["use_sliding_window"] = true;
  plain.config["sliding_window"] = 5;
  expect_reference(plain.write(dir / "plain"));
  Parts window("mixtral-tiny");
  window.config["sliding_window"] = 7;
  window.config["num_experts_per_tok"] = 8;
  expect_reference(window.write(dir / "window"));
  Parts clipped("olmoe-tiny");
  clipped.config["clip_qkv"] = 0.6;
  clipped.config["norm_topk_prob"] = true;
  expect_reference(clipped.write(dir / "clipped"));
}

TEST(Experts, ClipQkvBindsAndIsInTheFingerprint) {
  const TemporaryDirectory dir;
  Parts clipped("olmoe-tiny");
  clipped.config["clip_qkv"] = 0.6;
  const auto m = Model::load(clipped.write(dir / "m"), 1),
             other = model(data_path("models/olmoe-tiny"));
  EXPECT_NE(m->fingerprint(), other->fingerprint());
  Session a(m, options(1)), b(other, options(1));
  const std::vector<int32_t> ids = random_tokens(*m, 5);
  EXPECT_NE(all_logits(a, ids), all_logits(b, ids));
  const ModelConfig& c = m->config();
  EXPECT_EQ(ModelConfig::from_canonical(c.canonical(), "").canonical(), c.canonical());
}

// The published layout of Granite's mixtures: all experts of a layer in two tensors.
Parts granite_moe() {
  Parts p("mixtral-tiny");
  const auto layers = p.config["num_hidden_layers"].get<int64_t>(),
             experts = p.config["num_local_experts"].get<int64_t>();
  for (int64_t i = 0; i < layers; ++i) {
    const std::string moe = fmt::format("model.layers.{}.block_sparse_moe.", i);
    p.stack(moe + "experts", experts, {"w1", "w3"}, moe + "input_linear.weight");
    p.stack(moe + "experts", experts, {"w2"}, moe + "output_linear.weight");
    p.rename(moe + "gate.", moe + "router.layer.");
  }
  p.config["architectures"] = {"GraniteMoeForCausalLM"};
  p.config["model_type"] = "granitemoe";
  p.config.update({{"embedding_multiplier", 6.0},
                   {"attention_multiplier", 0.2},
                   {"residual_multiplier", 0.3},
                   {"logits_scaling", 4.0}});
  return p;
}

TEST(Experts, GraniteAgreesWithTheReference) {
  const TemporaryDirectory dir;
  expect_reference(granite_moe().write(dir / "m"));
}

TEST(Experts, StackedTensorsAreTheSameModel) {
  const TemporaryDirectory dir;
  for (const char* name : {"qwen3moe-tiny", "mixtral-tiny"}) {
    Parts p(name);
    const bool mixtral = name == std::string("mixtral-tiny");
    const auto config = parse_model_config(p.config.dump(), "config.json");
    for (int64_t i = 0; i < config.layers; ++i) {
      if (!config.has_experts(i)) continue;
      const std::string at =
          fmt::format("model.layers.{}.{}.experts", i, mixtral ? "block_sparse_moe" : "mlp");
      const std::vector<std::string> gates = mixtral
                                                 ? std::vector<std::string>{"w1", "w3"}
                                                 : std::vector<std::string>{"gate_proj", "up_proj"};
      p.stack(at, config.experts.count, gates, at + ".gate_up_proj");
      p.stack(at, config.experts.count, {mixtral ? "w2" : "down_proj"}, at + ".down_proj");
    }
    const auto stacked = Model::load(p.write(dir / name), 2),
               one_by_one = model(data_path(std::string("models/") + name));
    EXPECT_EQ(stacked->fingerprint(), one_by_one->fingerprint());
    Session a(stacked, options(2)), b(one_by_one, options(2));
    const std::vector<int32_t> ids = random_tokens(*stacked, 20);
    EXPECT_EQ(all_logits(a, ids), all_logits(b, ids));
  }
}

// Rows of a batch have the bits that they have alone, whichever experts they share.
TEST(Experts, ChunksAndThreadsHaveTheSameBits) {
  const auto m = model(data_path("models/olmoe-tiny"));
  const std::vector<int32_t> ids = random_tokens(*m, 90);
  Session first(m, options(1, "portable", 1));
  const std::vector<float> expected = all_logits(first, ids);
  for (const int64_t chunk : {2, 16, 17, 33, 90}) {
    Session s(m, options(3, STET_DEFAULT_ISA, chunk));
    EXPECT_EQ(all_logits(s, ids), expected) << chunk;
  }
}

Intervention weights_set(int64_t layer, std::vector<float> values) {
  Intervention w;
  w.point = Point::expert_weights;
  w.layers = {layer};
  w.op = Intervention::Op::set;
  w.values = std::make_shared<const std::vector<float>>(std::move(values));
  return w;
}

// An intervention sets the weights of all experts. Those that were 0 are then computed, too, in
// chunks of few and of many rows.
TEST(Experts, ChangedWeightsAreComputed) {
  const auto m = model(data_path("models/qwen3moe-tiny"));
  const std::vector<int32_t> ids = random_tokens(*m, 60);
  const auto run = [&](std::vector<float> values, int64_t chunk, int threads) {
    Session s(m, options(threads, STET_DEFAULT_ISA, chunk));
    s.attach(weights_set(2, std::move(values)));
    return all_logits(s, ids);
  };
  const std::vector<float> all = {0.5f, -0.25f, 0.125f, 1, 0.75f, -0.5f, 0.25f, 2}, none(8, 0.0f);
  const std::vector<float> expected = run(all, 1, 1);
  EXPECT_EQ(run(all, 60, 3), expected);
  EXPECT_EQ(run(all, 5, 2), expected);
  const std::vector<float> without = run(none, 1, 1);
  EXPECT_EQ(run(none, 60, 2), without);
  EXPECT_NE(without, expected);
  const std::vector<double> reference =
      ReferenceModel(data_path("models/qwen3moe-tiny"))
          .run(ids,
               [&](const std::string& point, size_t, ReferenceModel::Vec& x) {
                 if (point == "blocks.2.mlp.hook_expert_weights") x.assign(all.begin(), all.end());
               })
          .logits;
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(expected[i], reference[i], 1e-3) << i;
}

TEST(Experts, AnIndexCannotBeChanged) {
  const auto m = model(data_path("models/qwen3moe-tiny"));
  Session s(m, options(1));
  Intervention w = weights_set(0, {1, 2});
  w.point = Point::expert_indices;
  EXPECT_EQ(error_of([&] { s.attach(w); }, ErrorKind::argument),
            "intervention: point: expected one that can be changed, found mlp.hook_expert_indices");
}

// After the error the session is unchanged and can continue.
TEST(Experts, ALogitThatIsNotFiniteNamesLayerAndPosition) {
  const TemporaryDirectory dir;
  Parts p("qwen3moe-tiny");
  std::vector<std::byte>& router = p.bytes("model.layers.2.mlp.gate.weight");
  const float huge = std::numeric_limits<float>::max();
  for (size_t i = 0; i < 64; ++i) std::memcpy(router.data() + i * 4, &huge, 4);
  const auto m = Model::load(p.write(dir / "m"), 1);
  for (const int64_t chunk : {1, 30}) {
    Session s(m, options(2, STET_DEFAULT_ISA, chunk));
    const std::vector<int32_t> ids = random_tokens(*m, 30);
    const std::string found = error_of([&] { s.append(ids); }, ErrorKind::argument);
    EXPECT_EQ(found,
              "blocks.2.mlp.hook_router_logits, position 0: expected finite numbers, found others");
    EXPECT_EQ(s.size(), 0);
  }
  Session s(model(data_path("models/qwen3moe-tiny")), options(2));
  Intervention w = weights_set(3, std::vector<float>(8, 3e38f));
  w.point = Point::router_logits, w.op = Intervention::Op::add;
  w.begin = 7;
  s.append(random_tokens(s.model(), 6));
  for (int twice = 0; twice < 2; ++twice) s.attach(w);  // the sum of both is not finite
  EXPECT_EQ(error_of([&] { s.append(random_tokens(s.model(), 5)); }, ErrorKind::argument),
            "blocks.3.mlp.hook_router_logits, position 7: expected finite numbers, found others");
  EXPECT_EQ(s.size(), 6);
}

TEST(Experts, ConfigsThatCannotBeAreRefused) {
  const auto refused = [](const char* name, const char* field, const Json& value) {
    Json j = Parts(name).config;
    j[field] = value;
    return error_of([&] { parse_model_config(j.dump(), "config.json"); }, ErrorKind::format);
  };
  EXPECT_EQ(refused("qwen3moe-tiny", "num_experts_per_tok", 9),
            "config.json: num_experts_per_tok: expected an integer in 1..8, found 9");
  EXPECT_EQ(refused("mixtral-tiny", "num_local_experts", 0),
            "config.json: num_local_experts: expected an integer in 1..1024, found 0");
  EXPECT_EQ(refused("qwen3moe-tiny", "mlp_only_layers", Json::array({-1})),
            "config.json: mlp_only_layers[0]: expected an integer in 0..1024, found -1");
}

TEST(Experts, DenseLayersOfQwen3) {
  Json j = Parts("qwen3moe-tiny").config;
  EXPECT_EQ(parse_model_config(j.dump(), "").experts.dense, (std::vector<int64_t>{1}));
  j["decoder_sparse_step"] = 2;
  j["mlp_only_layers"] = Json::array({3});
  EXPECT_EQ(parse_model_config(j.dump(), "").experts.dense, (std::vector<int64_t>{0, 2, 3}));
  j["mlp_only_layers"] = Json::array({3, 99});  // of a model that was cut to its first layers
  EXPECT_EQ(parse_model_config(j.dump(), "").experts.dense, (std::vector<int64_t>{0, 2, 3}));
  j["mlp_only_layers"] = nullptr;
  EXPECT_EQ(parse_model_config(j.dump(), "").experts.dense, (std::vector<int64_t>{0, 2}));
}

}  // namespace
}  // namespace stet::test::experts_tests

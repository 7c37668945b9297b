// Shared experts: a family that has them, with a gate and without one, against the float64
// reference and against the contract in plain C++.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "stet/model/decoder.hpp"
#include "stet/model/experts.hpp"
#include "tests/support/checkpoint_parts.hpp"
#include "tests/support/models.hpp"
#include "tests/support/reference_model.hpp"

namespace stet::test::shared_expert_tests {
namespace {

constexpr int64_t kWidth = 40;  // width of the shared expert: no multiple of a kernel's blocks
constexpr const char *kGated = "GatedSharedExpertForCausalLM", *kPlain = "SharedExpertForCausalLM";

// Qwen3-MoE without norms of heads and dense layers, and with a shared expert.
template <bool gated>
class WithShared : public Decoder {
 public:
  WithShared(ModelConfig config, WeightLoader& w) : Decoder(std::move(config), w, 0) {
    const ModelConfig& c = config_;
    each_layer([&](const std::string& at) {
      const std::string gate = gated ? at + "mlp.shared_expert_gate" : "";
      layers_.push_back(
          {AttentionLayers(w, c, at),
           load_rms_norm(w, at + "input_layernorm", c.hidden_size),
           load_rms_norm(w, at + "post_attention_layernorm", c.hidden_size),
           {w.exact("mlp", {at + "mlp.gate", c.experts.count}, c.hidden_size, false)},
           load_experts(w, c, at, {"mlp.experts", "gate_proj", "up_proj", "down_proj"}),
           load_shared_expert(w, c, at + "mlp.shared_expert.", gate)});
    });
  }

 private:
  void layer(const LayerPass& at) const override {
    const Layer& l = layers_[at.index];
    const Pass& p = at.p;
    const Qkv x = attention_input(at, l.input_norm, l.qkv);
    rotate(at, x);
    attend(at, x);
    attention_output(at, l.o);
    add_attention(at);
    norm(at, Point::ln2, l.mlp_norm, p.x, p.normed);
    experts(at, l.router, l.experts, l.shared, Gate::silu, p.normed);
    add_mlp(at);
  }

  struct Layer : AttentionLayers {
    Norm input_norm, mlp_norm;
    ExpertRouter router;
    Experts experts;
    SharedExpert shared;
  };
  std::vector<Layer> layers_;
};

ModelConfig read_shared(const JsonReader& json) {
  ModelConfig c = read_common(json, "shared_expert_test");
  c.ropes = {read_rope(json, "", 10000)};
  c.experts = read_experts(json, {.width = "moe_intermediate_size"});
  c.experts.shared = json.integer("shared_expert_intermediate_size", 1, kMaxSize);
  return c;
}

void add_families() {
  static const bool once = [] {
    const auto add = [](const char* architecture, const char* type, auto* load) {
      register_family(
          {{architecture}, {type}, read_shared, "embed_tokens.weight", {"model."}, load});
    };
    add(kGated, "gated_shared_expert", load_model<WithShared<true>>);
    add(kPlain, "shared_expert", load_model<WithShared<false>>);
    return true;
  }();
  (void)once;
}

// Returns qwen3moe-tiny with a shared expert, if `gated` with a gate.
CheckpointParts parts_of_model(bool gated) {
  add_families();
  CheckpointParts p("qwen3moe-tiny");
  const int64_t hidden = p.config["hidden_size"], layers = p.config["num_hidden_layers"];
  const int64_t experts = p.config["num_experts"], width = p.config["moe_intermediate_size"];
  p.config["architectures"] = {gated ? kGated : kPlain};
  p.config["shared_expert_intermediate_size"] = kWidth;
  p.config["mlp_only_layers"] = nlohmann::json::array();
  for (int64_t i = 0; i < layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i), mlp = at + "mlp.";
    for (const char* name : {"q_norm", "k_norm"}) p.remove(at + "self_attn." + name + ".weight");
    for (const char* name : {"gate_proj", "up_proj"})
      p.add(mlp + "shared_expert." + name + ".weight", {kWidth, hidden}, 0.3f);
    p.add(mlp + "shared_expert.down_proj.weight", {hidden, kWidth}, 0.3f);
    if (gated) p.add(mlp + "shared_expert_gate.weight", {1, hidden}, 0.5f);
    if (i != 1) continue;  // the dense layer of qwen3moe-tiny
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) p.remove(mlp + name + ".weight");
    p.add(mlp + "gate.weight", {experts, hidden}, 0.5f);
    for (int64_t e = 0; e < experts; ++e) {
      for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
        const bool down = name == std::string("down_proj");
        p.add(fmt::format("{}experts.{}.{}.weight", mlp, e, name),
              {down ? hidden : width, down ? width : hidden}, 0.3f);
      }
    }
  }
  return p;
}

std::string write_model(const std::string& directory, bool gated) {
  return parts_of_model(gated).write(directory);
}

using Captured = std::map<std::string, std::vector<float>>;

Captured captured(Session& s, std::span<const int32_t> ids) {
  Captured all;
  const Watch watch = {points_of(s.model().config()), [&](const PointAt& at, int64_t, Rows r) {
                         if (is_attention(at.point)) return;
                         std::vector<float>& to = all[point_name(at)];
                         for (size_t i = 0; i < r.count; ++i)
                           to.insert(to.end(), r.row(i), r.row(i) + r.width);
                       }};
  s.append(ids, nullptr, nullptr, nullptr, &watch);
  return all;
}

class SharedExperts : public testing::TestWithParam<bool> {
 protected:
  SharedExperts() : directory(write_model(dir / "m", GetParam())), m(Model::load(directory, 1)) {}

  const TemporaryDirectory dir;
  const std::string directory;
  const std::shared_ptr<const Model> m;
  const std::vector<int32_t> ids = random_tokens(*m, 40);
};

// Compares the logits and every point. The points of the MLP are those of the shared expert.
TEST_P(SharedExperts, AgreeWithTheReference) {
  std::map<std::string, std::vector<double>> points;
  const std::vector<double> logits =
      ReferenceModel(directory)
          .run(ids, [&](const std::string& point, size_t,
                        auto& x) { points[point].insert(points[point].end(), x.begin(), x.end()); })
          .logits;
  Session s(m, options(2));
  const std::vector<float> found = all_logits(s, ids);
  ASSERT_EQ(found.size(), logits.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], logits[i], 1e-4) << i;
  Session again(m, options(2));
  const Captured all = captured(again, ids);
  EXPECT_EQ(all.at("blocks.0.mlp.hook_post").size(), ids.size() * kWidth);
  for (const auto& [name, rows] : all) {
    const std::vector<double>& expected = points.at(name);
    ASSERT_EQ(rows.size(), expected.size()) << name;
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(rows[i], expected[i], 2e-4) << name;
  }
}

// Attaches a change of one point of layer 0 to a session.
void set_zero(Session& s, Point point, size_t width) {
  Intervention w;
  w.point = point;
  w.layers = {0};
  w.op = Intervention::Op::set;
  w.values = std::make_shared<const std::vector<float>>(width, 0.0f);
  s.attach(w);
}

// The output is the mixture's plus the shared expert's by one addition. The gate is a sigmoid of one
// chain of fused multiply-adds, which multiplies the shared expert's output.
TEST_P(SharedExperts, AreAddedByOneAddition) {
  const std::string out = "blocks.0.hook_mlp_out", in = "blocks.0.ln2.hook_normalized";
  const auto hidden = static_cast<size_t>(m->config().hidden_size);
  Session whole(m, options(2)), mixture(m, options(2)), shared(m, options(2));
  set_zero(mixture, Point::mlp_post, kWidth);
  set_zero(shared, Point::expert_weights, static_cast<size_t>(m->config().experts.count));
  const Captured all = captured(whole, ids);
  const std::vector<float> a = captured(mixture, ids).at(out), b = captured(shared, ids).at(out);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(all.at(out)[i], a[i] + b[i]) << i;
  if (!GetParam()) return;

  const TemporaryDirectory other;
  Session without(Model::load(write_model(other / "m", false), 1), options(2));
  set_zero(without, Point::expert_weights, static_cast<size_t>(m->config().experts.count));
  const std::vector<float> plain = captured(without, ids).at(out);
  const std::vector<float> w = Golden(directory + "/model.safetensors")
                                   .floats("model.layers.0.mlp.shared_expert_gate.weight");
  for (size_t t = 0; t < ids.size(); ++t) {
    const float* const x = all.at(in).data() + t * hidden;
    float g = 0, e = 0;
    for (size_t k = 0; k < hidden; k += 2)
      g = std::fma(x[k], w[k], std::fma(x[k + 1], w[k + 1], g));
    const float negative = -g;
    kernels_portable.exp(&negative, &e, 1);
    const float gate = 1.0f / (1.0f + e);
    for (size_t i = 0; i < hidden; ++i)
      ASSERT_EQ(b[t * hidden + i], gate * plain[t * hidden + i]) << t;
  }
}

TEST_P(SharedExperts, ChunksThreadsAndInstructionSetsHaveTheSameBits) {
  Session first(m, options(1, "portable", 1));
  const std::vector<float> expected = all_logits(first, ids);
  for (const int64_t chunk : {3, 17, 40}) {
    Session s(m, options(3, STET_DEFAULT_ISA, chunk));
    EXPECT_EQ(all_logits(s, ids), expected) << chunk;
  }
}

// The gate is multiplied in float32 under every contract.
TEST_P(SharedExperts, OtherContractsHaveTheSameBitsInEveryChunk) {
  CheckpointParts p = parts_of_model(GetParam());
  p.cut_to_bf16();
  const std::string bf16 = p.write(dir / "bf16");
  for (const Contract contract : {Contract::bf16, Contract::q8, Contract::q4}) {
    const auto rounded = Model::load(directory_source(bf16), 1, contract);
    Session first(rounded, options(1, "portable", 1, contract));
    const std::vector<float> expected = all_logits(first, ids);
    Session s(rounded, options(2, STET_DEFAULT_ISA, 40, contract));
    EXPECT_EQ(all_logits(s, ids), expected) << contract_name(contract);
  }
}

INSTANTIATE_TEST_SUITE_P(Gate, SharedExperts, testing::Bool());

TEST(SharedExpert, WidthAndFactorAreInTheConfig) {
  const TemporaryDirectory dir;
  ModelConfig c = Model::load(write_model(dir / "m", true), 1)->config();
  EXPECT_EQ(c.layer(0).intermediate, kWidth);
  c.experts.factor = 2.5;
  const ModelConfig again = ModelConfig::from_canonical(c.canonical(), "");
  EXPECT_EQ(again.experts, c.experts);
  c.experts.factor = 1;
  EXPECT_NE(again.canonical(), c.canonical());
}

}  // namespace
}  // namespace stet::test::shared_expert_tests

// Importance matrices: their content, and the gain from rounding with them.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/quantize.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/model/importance.hpp"
#include "stet/model/weight_loader.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::importance_tests {
namespace {

namespace fs = std::filesystem;

void measure(Importance& importance, const std::shared_ptr<const Model>& model,
             const std::vector<int32_t>& ids, int64_t chunk = 512) {
  const Watch watch{importance.points(),
                    [&](const PointAt& at, int64_t, Rows rows) { importance.add(at, rows); }};
  SessionOptions options;
  options.compute.chunk = chunk;
  Session(model, options).append(ids, nullptr, nullptr, nullptr, &watch);
}

TEST(Importance, CoversEveryMultipliedMatrixOfEveryFamily) {
  int families = 0;
  for (const auto& entry : fs::directory_iterator(data_path("models"))) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    ++families;
    const std::string directory = entry.path().string();
    const auto source = directory_source(directory);
    const auto model = Model::load(source);
    Importance importance(model->config());
    EXPECT_TRUE(importance.of("layers.0.mlp.up_proj.weight").empty());
    measure(importance, model, {1, 2, 3, 4, 5});
    for (const WeightSpec& need : Model::weights_of(*source, Checkpoint::open(*source))) {
      const std::vector<float> of = importance.of(need.canonical);
      const bool embedding = need.canonical.find("emb") == 0 || need.canonical.find("wte") == 0;
      // Routers are not rounded. Inputs of experts' last matrices are not measured, nor those of
      // Gemma 4's experts. The same holds for matrices beside attention and the MLP (Gemma 3n and 4),
      // and for the last ones of recurrent layers.
      const bool unmeasured =
          need.exact || need.canonical.find("per_layer_") != std::string::npos ||
          need.canonical.find("altup") != std::string::npos ||
          need.canonical.find("laurel") != std::string::npos ||
          (need.canonical.ends_with(".out_proj.weight") &&
           need.canonical.find("self_attn.") == std::string::npos) ||
          (need.canonical.find("experts.") != std::string::npos &&
           (need.canonical.ends_with("down_proj.weight") || need.canonical.ends_with("w2.weight") ||
            model->config().family == "gemma4"));
      if (unmeasured || need.is_vector || need.looked_up ||
          (embedding && !need.canonical.starts_with("embed_out") && !model->config().tied_head)) {
        EXPECT_TRUE(of.empty()) << directory << ": " << need.canonical;
        continue;
      }
      ASSERT_EQ(static_cast<int64_t>(of.size()), need.columns)
          << directory << ": " << need.canonical;
      double sum = 0;
      for (const float x : of) {
        EXPECT_GT(x, 0.0f) << directory << ": " << need.canonical;
        sum += static_cast<double>(x);
      }
      EXPECT_NEAR(sum / static_cast<double>(of.size()), 1, 1e-5) << need.canonical;
    }
  }
  EXPECT_GE(families, 15);
}

TEST(Importance, DoesNotDependOnChunks) {
  const auto model = Model::load(asset_path("pocket-llama3"));
  const std::vector<int32_t> ids = stepped_ids(70, 7, 1620);
  Importance whole(model->config()), parts(model->config());
  measure(whole, model, ids);
  measure(parts, model, ids, 9);
  for (const char* name : {"layers.0.self_attn.k_proj.weight", "layers.2.mlp.down_proj.weight",
                           "layers.1.self_attn.o_proj.weight", "embed_tokens.weight"}) {
    EXPECT_FALSE(whole.of(name).empty());
    EXPECT_EQ(whole.of(name), parts.of(name));
  }
}

// Returns the sum of squared errors of blocks, each weighted with the importance of the weight's
// input.
double weighted_error(DType type, const std::vector<float>& x, const std::vector<float>& worth,
                      const float* importance) {
  const auto round = type == DType::q4_k   ? round_super_q4
                     : type == DType::q5_k ? round_super_q5
                                           : round_super_q6;
  std::vector<std::byte> block(ggml_type(ggml_number(type))->bytes);
  std::vector<float> back(kSuperBlock);
  double error = 0;
  for (size_t b = 0; b < x.size(); b += kSuperBlock) {
    round(std::span<const float, kSuperBlock>(&x[b], kSuperBlock), importance,
          reinterpret_cast<uint8_t*>(block.data()));
    dequantize_ggml(ggml_number(type), block.data(), 1, back.data());
    for (size_t i = 0; i < kSuperBlock; ++i) {
      const double miss = static_cast<double>(back[i]) - static_cast<double>(x[b + i]);
      error += static_cast<double>(worth[i]) * miss * miss;
    }
  }
  return error;
}

TEST(Importance, MovesErrorsToWhereTheyMatterLess) {
  std::mt19937 bits(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(64 * kSuperBlock), worth(kSuperBlock), even(kSuperBlock, 1.0f);
  for (float& v : x) v = normal(bits);
  for (float& v : worth) v = std::exp(2 * normal(bits));
  for (const DType type : {DType::q4_k, DType::q5_k, DType::q6_k}) {
    const double with = weighted_error(type, x, worth, worth.data()),
                 without = weighted_error(type, x, worth, nullptr);
    EXPECT_LT(with, 0.97 * without) << dtype_name(type);
    if (type == DType::q6_k) continue;  // its search always weights errors by squares
    EXPECT_EQ(weighted_error(type, x, worth, even.data()), without) << dtype_name(type);
  }
}

// Measures how far a model with rounded weights diverges from the original on held-out text.
class Divergence {
 public:
  Divergence(const std::string& directory, const std::vector<std::vector<int32_t>>& texts)
      : texts_(texts) {
    for (const auto& text : texts_) truth_.push_back(logs(Model::load(directory), text));
  }
  double of(const std::string& packed) const {
    const auto model = Model::load(directory_source(packed), 0, Contract::ggml);
    double sum = 0;
    for (size_t i = 0; i < texts_.size(); ++i) {
      const std::vector<double> other = logs(model, texts_[i]);
      for (size_t j = 0; j < other.size(); ++j)
        sum += std::exp(truth_[i][j]) * (truth_[i][j] - other[j]);
    }
    return sum;
  }

 private:
  static std::vector<double> logs(const std::shared_ptr<const Model>& model,
                                  const std::vector<int32_t>& ids) {
    SessionOptions options;
    options.compute.contract = contract_of_weights(model->source());
    Session session(model, options);
    std::vector<double> all;
    session.append(ids, [&](int64_t, Rows rows) {
      for (size_t i = 0; i < rows.count; ++i) {
        double sum = 0;
        for (size_t v = 0; v < rows.width; ++v)
          sum += std::exp(static_cast<double>(rows.row(i)[v]));
        for (size_t v = 0; v < rows.width; ++v)
          all.push_back(static_cast<double>(rows.row(i)[v]) - std::log(sum));
      }
    });
    return all;
  }

  std::vector<std::vector<int32_t>> texts_;
  std::vector<std::vector<double>> truth_;
};

TEST(Importance, LeavesMoreOfTheModel) {
  const std::string pocket = asset_path("pocket-llama3");
  const auto conversations =
      nlohmann::json::parse(read_text(data_path("pocket/golden-llama3/conversations.json")));
  const auto model = Model::load(pocket);
  Importance importance(model->config());
  std::vector<std::vector<int32_t>> held_out;
  for (size_t i = 0; i < 12; ++i) {
    auto ids = conversations[i]["ids"].get<std::vector<int32_t>>();
    if (i < 8)
      measure(importance, model, ids);
    else
      held_out.push_back(std::move(ids));
  }
  const Divergence divergence(pocket, held_out);
  const TemporaryDirectory scratch;
  for (const auto& [name, given] :
       {std::pair<const char*, const Importance*>("without", nullptr), {"with", &importance}}) {
    pack_checkpoint(*directory_source(pocket), Contract::ggml, scratch / name, 0, nullptr,
                    BlockRounding{DType::q4_k, given});
  }
  EXPECT_LT(divergence.of(scratch / "with"), 0.9 * divergence.of(scratch / "without"));
}

TEST(Importance, IsMeasuredByTheCommand) {
  const TemporaryDirectory scratch;
  const std::string text = scratch / "text";
  write_file(text, "Let a = 3. What is a? a is 3. Set b to 9. What is a + b?\n");
  const auto quantize = [&](const std::string& name, const Args& more) {
    Args args = {"quantize", "-m",          asset_path("pocket-llama3"), "--to", "q4k",
                 "-o",       scratch / name};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome o = run_stet(args);
    EXPECT_EQ(o.status, 0) << o.err;
    return read_text((scratch / name) + "/packed.safetensors");
  };
  const std::string one = quantize("one", {"--importance", text, "--threads", "1"});
  EXPECT_EQ(one == quantize("two", {"--importance", text, "--threads", "2"}), true);
  EXPECT_EQ(one == quantize("none", {}), false);
  const auto refused = [&](const Args& more) {
    Args args = {"quantize", "-m", asset_path("pocket-llama3"), "-o", scratch / "no"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome o = run_stet(args);
    EXPECT_NE(o.status, 0);
    EXPECT_FALSE(fs::exists(scratch / "no"));
    return o.err;
  };
  EXPECT_EQ(refused({"--to", "q8", "--importance", text}),
            "stet: --importance is for --to q4k, q5k and q6k only (stet --help)\n");
  write_file(text, "");
  EXPECT_EQ(refused({"--to", "q4k", "--importance", text}),
            "stet: " + text + ": expected some text, found none\n");
}

}  // namespace
}  // namespace stet::test::importance_tests

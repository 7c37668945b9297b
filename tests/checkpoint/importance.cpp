// Importance matrices: their content, and the gain from rounding with them.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <regex>

#include "kernels/quantize.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/model/importance.hpp"
#include "stet/model/named_weights.hpp"
#include "stet/model/weight_loader.hpp"
#include "tests/support/checkpoint_parts.hpp"
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

// Sums of squares of the inputs of each expert's last matrix, by layer and expert: [width].
using ExpertSquares = std::map<std::pair<int64_t, int64_t>, std::vector<double>>;

ExpertSquares squares_of_experts(const std::shared_ptr<const Model>& model,
                                 const std::vector<int32_t>& ids) {
  const ModelConfig& c = model->config();
  Watch watch;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    if (!c.has_experts(layer)) continue;
    watch.points.push_back({Point::expert_post, layer});
    watch.points.push_back({Point::expert_indices, layer});
  }
  std::map<int64_t, std::vector<float>> inputs, chosen;
  watch.sink = [&](const PointAt& at, int64_t, Rows rows) {
    std::vector<float>& to = (at.point == Point::expert_post ? inputs : chosen)[at.layer];
    for (size_t i = 0; i < rows.count; ++i)
      to.insert(to.end(), rows.row(i), rows.row(i) + rows.width);
  };
  Session(model).append(ids, nullptr, nullptr, nullptr, &watch);
  ExpertSquares all;
  for (const auto& [layer, experts] : chosen) {
    const size_t width = inputs[layer].size() / experts.size();
    for (size_t i = 0; i < experts.size(); ++i) {
      std::vector<double>& sums = all[{layer, static_cast<int64_t>(experts[i])}];
      sums.resize(width);
      for (size_t k = 0; k < width; ++k) {
        const double x = inputs[layer][i * width + k];
        sums[k] += x * x;
      }
    }
  }
  return all;
}

// Returns the layer and the expert of an expert's last matrix; nothing for another matrix.
std::optional<std::pair<int64_t, int64_t>> last_of_expert(const std::string& name) {
  std::smatch m;
  const std::regex of_expert(R"(layers\.(\d+)\..*experts\.(\d+)\.(down_proj|w2)\.weight)");
  if (!std::regex_match(name, m, of_expert)) return std::nullopt;
  return std::pair(std::stoll(m[1]), std::stoll(m[2]));
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
    const std::vector<int32_t> ids = {1, 2, 3, 4, 5};
    measure(importance, model, ids);
    const ExpertSquares experts = squares_of_experts(model, ids);
    for (const WeightSpec& need : Model::weights_of(*source, Checkpoint::open(*source))) {
      const std::vector<float> of = importance.of(need.canonical);
      const bool embedding = need.canonical.find("emb") == 0 || need.canonical.find("wte") == 0;
      // Routers are not rounded. Some experts read nothing. Not measured are the inputs of matrices
      // beside attention and the MLP (Gemma 3n and 4), and of the last ones of recurrent layers.
      const auto expert = last_of_expert(need.canonical);
      const bool unmeasured = need.exact ||
                              need.canonical.find("per_layer_") != std::string::npos ||
                              need.canonical.find("altup") != std::string::npos ||
                              need.canonical.find("laurel") != std::string::npos ||
                              (need.canonical.ends_with(".out_proj.weight") &&
                               need.canonical.find("self_attn.") == std::string::npos) ||
                              (expert && !experts.contains(*expert));
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

TEST(Importance, OfAnExpertsLastMatrixIsThatOfItsOwnInputs) {
  for (const char* const name :
       {"qwen3moe-tiny", "gptoss-mxfp4-tiny", "mixtral-tiny", "gemma4-moe-tiny", "lfm2moe-tiny"}) {
    const std::string directory = data_path(std::string("models/") + name);
    const auto m = model(directory);
    const std::vector<int32_t> ids = stepped_ids(70, 7, m->config().vocab_size);
    Importance importance(m->config());
    measure(importance, m, ids, 33);
    const ExpertSquares experts = squares_of_experts(m, ids);
    EXPECT_GT(experts.size(), 8u) << name;
    const auto source = directory_source(directory);
    size_t compared = 0;
    for (const WeightSpec& need : Model::weights_of(*source, Checkpoint::open(*source))) {
      const auto expert = last_of_expert(need.canonical);
      if (!expert || !experts.contains(*expert)) continue;
      const std::vector<double>& squares = experts.at(*expert);
      double mean = 0;
      for (const double s : squares) mean += s;
      mean /= static_cast<double>(squares.size());
      std::vector<float> expected;
      for (const double s : squares)
        expected.push_back(static_cast<float>((s / mean + 1e-4) / (1 + 1e-4)));
      EXPECT_EQ(importance.of(need.canonical), expected) << name << ": " << need.canonical;
      ++compared;
    }
    EXPECT_EQ(compared, experts.size()) << name;
  }
}

// Gemma 4's experts read another norm of the residual stream than the MLP beside them.
TEST(Importance, OfFirstMatricesOfGemmasExpertsIsThatOfTheirOwnNorm) {
  const std::string directory = data_path("models/gemma4-moe-tiny");
  const auto m = model(directory);
  const ModelConfig& c = m->config();
  const std::vector<int32_t> ids = stepped_ids(70, 7, c.vocab_size);
  Importance importance(c);
  measure(importance, m, ids, 33);
  std::map<int64_t, std::vector<double>> sums;
  Watch watch;
  for (int64_t layer = 0; layer < c.layers; ++layer)
    watch.points.push_back({Point::expert_in, layer});
  watch.sink = [&](const PointAt& at, int64_t, Rows rows) {
    sums[at.layer].resize(rows.width);
    for (size_t i = 0; i < rows.count; ++i) {
      for (size_t k = 0; k < rows.width; ++k) {
        const double x = rows.row(i)[k];
        sums[at.layer][k] += x * x;
      }
    }
  };
  Session(m).append(ids, nullptr, nullptr, nullptr, &watch);
  for (const auto& [layer, squares] : sums) {
    const double mean =
        std::accumulate(squares.begin(), squares.end(), 0.0) / static_cast<double>(squares.size());
    std::vector<float> expected;
    for (const double s : squares)
      expected.push_back(static_cast<float>((s / mean + 1e-4) / (1 + 1e-4)));
    const std::string at = "layers." + std::to_string(layer);
    EXPECT_EQ(importance.of(at + ".experts.0.gate_proj.weight"), expected);
    EXPECT_EQ(importance.of(at + ".experts.1.up_proj.weight"), expected);
    EXPECT_NE(importance.of(at + ".mlp.up_proj.weight"), expected);
  }
}

// Rounding an expert's last matrix to blocks of 256 leaves less error where that expert's own inputs
// are large.
TEST(Importance, OfAnExpertMakesItsWeightedErrorSmaller) {
  const TemporaryDirectory scratch;
  CheckpointParts parts("olmoe-tiny");
  const int64_t hidden = parts.config["hidden_size"], width = 256;
  parts.config["intermediate_size"] = width;
  for (int layer = 0; layer < parts.config["num_hidden_layers"]; ++layer) {
    for (int e = 0; e < parts.config["num_experts"]; ++e) {
      const std::string at = fmt::format("model.layers.{}.mlp.experts.{}.", layer, e);
      for (const char* const name : {"gate_proj", "up_proj", "down_proj"}) {
        const bool last = name == std::string("down_proj");
        parts.remove(at + name + ".weight");
        parts.add(at + name + ".weight",
                  last ? std::vector{hidden, width} : std::vector{width, hidden}, 0.3f);
      }
    }
  }
  const std::string directory = parts.write(scratch / "plain");
  const auto plain = Model::load(directory);
  Importance importance(plain->config());
  measure(importance, plain, stepped_ids(100, 7, plain->config().vocab_size));
  for (const auto& [name, given] :
       {std::pair<const char*, const Importance*>("without", nullptr), {"with", &importance}}) {
    pack_checkpoint(*directory_source(directory), Contract::ggml, scratch / name, 0, nullptr,
                    BlockRounding{DType::q4_k, given});
  }
  const auto with = Model::load(scratch / "with"), without = Model::load(scratch / "without");
  size_t compared = 0;
  for (const NamedWeight& weight : named_weights(*plain)) {
    if (!last_of_expert(weight.name)) continue;
    const std::vector<float> worth = importance.of(weight.name);
    const auto x = load_named_weight(*plain, weight.name);
    const auto error = [&](const std::shared_ptr<const Model>& rounded) {
      const auto y = load_named_weight(*rounded, weight.name);
      double sum = 0;
      for (size_t i = 0; i < x->size(); ++i) {
        const double miss = static_cast<double>((*y)[i]) - static_cast<double>((*x)[i]);
        sum += (worth.empty() ? 1 : static_cast<double>(worth[i % worth.size()])) * miss * miss;
      }
      return sum;
    };
    if (worth.empty())
      EXPECT_EQ(error(with), error(without)) << weight.name;
    else
      EXPECT_LT(error(with), error(without)) << weight.name;
    compared += worth.empty() ? 0 : 1;
  }
  EXPECT_GT(compared, 12u);
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

// Logits, hidden states, keys, values and greedy continuations compared with transformers
// (tests/data/models).
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "tests/support/models.hpp"

namespace stet::test::golden_logits_tests {
namespace {

double deviation(const std::vector<float>& x) {
  double sum = 0, squares = 0;
  for (float v : x) sum += v;
  const double mean = sum / static_cast<double>(x.size());
  for (float v : x) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(x.size()));
}

void expect_close(const std::vector<float>& got, const std::vector<float>& golden,
                  const std::string& what) {
  ASSERT_EQ(got.size(), golden.size()) << what;
  const double bound = 1e-4 * std::max(1.0, deviation(golden));
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << what << " element " << i;
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - golden[i]));
  }
  EXPECT_LE(worst, bound) << what;
}

// Returns the reference of a hidden state. If a model has several residual streams
// ([streams][T][hidden]), it is the one that layers read.
std::vector<float> hidden_state(const Golden& golden, const ModelConfig& c, size_t index) {
  const std::string name = "hidden." + std::to_string(index);
  std::vector<float> all = golden.floats(name);
  if (golden.view(name).shape.size() == 2) return all;
  const size_t each = all.size() / static_cast<size_t>(c.streams);
  const auto begin = all.begin() + c.active_stream * static_cast<std::ptrdiff_t>(each);
  return {begin, begin + static_cast<std::ptrdiff_t>(each)};
}

class GoldenModel : public testing::TestWithParam<std::string> {
 protected:
  std::string directory() const { return data_path("models/" + GetParam()); }
};

TEST_P(GoldenModel, LogitsAndHiddenStates) {
  const Golden golden(directory() + "/golden.safetensors");
  const std::vector<int32_t> ids = golden.ids("input_ids");
  Session session(model(directory()));
  std::vector<float> logits;
  std::vector<std::vector<float>> hidden(static_cast<size_t>(session.model().config().layers) + 1);
  session.append(
      ids,
      [&](int64_t, Rows r) {
        for (size_t i = 0; i < r.count; ++i)
          logits.insert(logits.end(), r.row(i), r.row(i) + r.width);
      },
      [&](size_t index, int64_t, Rows r) {
        for (size_t i = 0; i < r.count; ++i)
          hidden[index].insert(hidden[index].end(), r.row(i), r.row(i) + r.width);
      });
  expect_close(logits, golden.floats("logits"), "logits");
  for (size_t i = 0; i < hidden.size(); ++i) {
    expect_close(hidden[i], hidden_state(golden, session.model().config(), i),
                 "hidden." + std::to_string(i));
  }
}

TEST_P(GoldenModel, KeysAndValues) {
  const Golden golden(directory() + "/golden.safetensors");
  Session session(model(directory()));
  session.append(golden.ids("input_ids"));
  const KvCache& kv = session.kv();
  const KvShape& shape = kv.shape();
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const bool keys : {true, false}) {
      const std::string name = (keys ? "k." : "v.") + std::to_string(layer);
      ASSERT_EQ(shape.owns(layer), golden.has(name)) << name;
      if (!shape.owns(layer)) continue;
      const KvLayer l = shape.layer(layer);
      const int64_t dim = keys ? l.key_dim : l.value_dim;
      // A sliding layer may hold only its last positions.
      const int64_t held = golden.view(name).shape[1];
      std::vector<float> got;
      for (int64_t head = 0; head < l.kv_heads; ++head) {
        for (int64_t t = kv.size() - held; t < kv.size(); ++t) {
          const std::byte* block = kv.block(t / kBlockPositions);
          const float* base = reinterpret_cast<const float*>(
              block + (keys ? shape.k_offset(layer, head) : shape.v_offset(layer, head)));
          const int64_t slot = t % kBlockPositions;
          for (int64_t d = 0; d < dim; ++d)
            got.push_back(keys ? base[d * kBlockPositions + slot] : base[slot * dim + d]);
        }
      }
      expect_close(got, golden.floats(name), name);
    }
  }
}

// Compares the arrays of recurrent layers with the reference's after all tokens, or after a third
// of them. It has convolutions' inputs as [channels][inputs], and Mamba's states as
// [heads][columns][rows].
void expect_states(const Golden& golden, const Session& at, const std::string& end) {
  Session session = at.fork();
  const RecurrentState arrays = session.state().recurrent;
  const bool mamba = session.model().config().recurrence.kind == Recurrence::Kind::mamba2;
  for (size_t layer = 0; layer < arrays.shape().layers.size(); ++layer) {
    for (size_t i = 0; i < arrays.shape().layers[layer].size(); ++i) {
      const RecurrentArray& a = arrays.shape().layers[layer][i];
      const std::span<const float> x = arrays.array(static_cast<int64_t>(layer), i);
      std::vector<float> got(x.begin(), x.end());
      const auto rows = static_cast<size_t>(a.dims[a.dims.size() - 2]),
                 columns = static_cast<size_t>(a.dims.back()), each = rows * columns;
      for (size_t n = 0; n < x.size() && (a.name == "conv" || mamba); ++n)
        got[n / each * each + n % columns * rows + n % each / columns] = x[n];
      const std::string name = a.name + end + "." + std::to_string(layer);
      expect_close(got, golden.floats(name), name);
    }
  }
}

TEST_P(GoldenModel, RecurrentStates) {
  const Golden golden(directory() + "/golden.safetensors");
  Session session(model(directory()));
  if (session.model().config().recurrent_of.empty()) GTEST_SKIP() << "no recurrent layers";
  const std::vector<int32_t> ids = golden.ids("input_ids");
  const std::span<const int32_t> all(ids);
  const size_t third = ids.size() / 3;
  session.append(all.first(third));
  expect_states(golden, session, "_mid");
  session.append(all.subspan(third));
  expect_states(golden, session, "");
}

TEST_P(GoldenModel, GreedyContinuation) {
  const Golden golden(directory() + "/golden.safetensors");
  Session session(model(directory()));
  session.append(golden.ids("input_ids"));
  std::vector<int32_t> greedy;
  for (size_t i = 0; i < 24; ++i) {
    greedy.push_back(argmax(session.logits()));
    session.append({&greedy.back(), 1});
  }
  EXPECT_EQ(greedy, golden.ids("greedy"));
}

// The chosen experts of each row, best first.
TEST_P(GoldenModel, RouterChoices) {
  const Golden golden(directory() + "/golden.safetensors");
  Session session(model(directory()));
  const ModelConfig& c = session.model().config();
  if (c.experts.count == 0) GTEST_SKIP() << "no experts";
  std::map<int64_t, std::vector<int32_t>> found;
  Watch watch;
  for (int64_t i = 0; i < c.layers; ++i) {
    if (c.has_experts(i)) watch.points.push_back({Point::expert_indices, i});
  }
  watch.sink = [&](const PointAt& at, int64_t, Rows r) {
    for (size_t i = 0; i < r.count; ++i)
      found[at.layer].insert(found[at.layer].end(), r.row(i), r.row(i) + r.width);
  };
  session.append(golden.ids("input_ids"), nullptr, nullptr, nullptr, &watch);
  ASSERT_FALSE(found.empty());
  for (const auto& [layer, chosen] : found)
    EXPECT_EQ(chosen, golden.ids("router_topk." + std::to_string(layer))) << "layer " << layer;
}

// Left padding moves the tokens to later positions, where RoPE gives the same relative angles. Up
// to rounding the logits of the real tokens equal those of the unpadded run.
TEST_P(GoldenModel, PaddedReferenceAgrees) {
  const Golden golden(directory() + "/golden.safetensors");
  if (!golden.has("padded.logits")) GTEST_SKIP() << "no padded reference";
  Session session(model(directory()));
  const std::vector<float> logits = all_logits(session, golden.ids("input_ids"));
  expect_close(logits, golden.floats("padded.logits"), "padded.logits");
}

// The same model with the config that newer versions of transformers write.
TEST_P(GoldenModel, NewerConfigIsTheSameModel) {
  const std::string newer = directory() + "/config.v5.json";
  if (!std::filesystem::exists(newer)) GTEST_SKIP() << "no config.v5.json";
  const std::string older = directory() + "/config.json";
  const ModelConfig a = parse_model_config(read_text(older), older);
  const ModelConfig b = parse_model_config(read_text(newer), newer);
  EXPECT_EQ(a.canonical(), b.canonical());
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenModel,
                         testing::Values("gemma3-tiny", "gemma3-tiny-bf16", "gemma3-vision-tiny",
                                         "llama31-tiny", "llama32-tiny-bf16", "llama2-tiny-f16",
                                         "gpt2-tiny", "gemma2-tiny", "mistral-tiny", "qwen3-tiny",
                                         "qwen3moe-tiny", "mixtral-tiny", "olmoe-tiny",
                                         "gptoss-tiny", "gptoss-mxfp4-tiny", "gemma4-dense-tiny",
                                         "gemma4-small-tiny", "gemma4-vl-tiny", "gemma4-moe-tiny",
                                         "gemma3n-tiny", "qwen35-tiny", "qwen35-vl-tiny",
                                         "qwen35moe-tiny", "qwen35moe-fused-tiny", "qwen3next-tiny",
                                         "lfm2-tiny", "lfm2moe-tiny", "granite-h-tiny",
                                         "granite-hd-tiny", "granite-dense-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace stet::test::golden_logits_tests

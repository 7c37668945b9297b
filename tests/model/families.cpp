// The meaning of each family's config. Compares families with an independent float64
// implementation, which transformers' goldens validate.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/models.hpp"
#include "tests/support/reference_model.hpp"

#define main own_architecture  // turns the example's program into a function
#include "examples/own_architecture.cpp"
#undef main

namespace stet::test::families_tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string tiny(const std::string& name) { return data_path("models/" + name); }

Json config_of(const std::string& name) {
  return Json::parse(std::ifstream(tiny(name) + "/config.json"));
}

ModelConfig parsed(
    const std::string& name, const std::function<void(Json&)>& change = [](Json&) {}) {
  Json json = config_of(name);
  change(json);
  return parse_model_config(json.dump(), "config.json");
}

// Copies a checkpoint with a changed config. Returns its directory.
std::string changed_copy(const TemporaryDirectory& dir, const std::string& name,
                         const std::function<void(Json&)>& config) {
  fs::copy(tiny(name), dir.path(),
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  Json json = config_of(name);
  config(json);
  fs::remove(dir / "config.json");
  write_file(dir / "config.json", json.dump());
  return dir.path();
}

// ---------------------------------------------------------------- the float64 implementation

// Uses the bound of tests/model/golden_logits.cpp.
template <class A, class B>
void expect_close(const std::vector<A>& got, const std::vector<B>& expected,
                  const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double mean = 0, variance = 0, worst = 0;
  for (B e : expected) mean += static_cast<double>(e) / static_cast<double>(expected.size());
  for (B e : expected) variance += (e - mean) * (e - mean) / static_cast<double>(expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference =
        std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    ASSERT_TRUE(std::isfinite(difference)) << what << " element " << i;
    worst = std::max(worst, difference);
  }
  EXPECT_LE(worst, 1e-4 * std::max(1.0, std::sqrt(variance))) << what;
  testing::Test::RecordProperty(what, fmt::format("{:.2g}", worst));
}

class Reference : public testing::TestWithParam<const char*> {};

TEST_P(Reference, AgreesWithTransformers) {
  const Golden golden(tiny(GetParam()) + "/golden.safetensors");
  const ReferenceModel::Result r = ReferenceModel(tiny(GetParam())).run(golden.ids("input_ids"));
  expect_close(r.logits, golden.floats("logits"), "logits");
  for (size_t i = 0; i < r.hidden.size(); ++i) {
    expect_close(r.hidden[i], golden.floats("hidden." + std::to_string(i)),
                 "hidden." + std::to_string(i));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Reference,
                         testing::Values("llama2-tiny-f16", "gemma2-tiny", "mistral-tiny",
                                         "qwen3-tiny"),
                         [](const auto& info) { return fmt::format("{}", info.index); });

// Compares logits, hidden states, keys and values of `directory` after 60 tokens with the
// reference.
void expect_reference(const std::string& directory) {
  const auto m = Model::load(directory, 1);
  const std::vector<int32_t> ids = random_tokens(*m, 60);
  const ReferenceModel::Result r = ReferenceModel(directory).run(ids);
  Session s(m, options(2));
  std::vector<float> logits;
  std::vector<std::vector<float>> hidden(r.hidden.size());
  const auto append = [](std::vector<float>& to, Rows rows) {
    for (size_t i = 0; i < rows.count; ++i)
      to.insert(to.end(), rows.row(i), rows.row(i) + rows.width);
  };
  s.append(
      ids, [&](int64_t, Rows rows) { append(logits, rows); },
      [&](size_t i, int64_t, Rows rows) { append(hidden[i], rows); });
  expect_close(logits, r.logits, "logits");
  for (size_t i = 0; i < hidden.size(); ++i)
    expect_close(hidden[i], r.hidden[i], "hidden." + std::to_string(i));
  const KvShape& shape = s.kv().shape();
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    std::vector<float> keys, values;
    for (int64_t t = 0; t < s.size(); ++t) {
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        const float* k =
            reinterpret_cast<const float*>(s.kv().block(0) + shape.k_offset(layer, head));
        const float* v =
            reinterpret_cast<const float*>(s.kv().block(0) + shape.v_offset(layer, head));
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          keys.push_back(k[d * kBlockPositions + t]);
          values.push_back(v[t * shape.head_dim + d]);
        }
      }
    }
    expect_close(keys, r.k[static_cast<size_t>(layer)], "k." + std::to_string(layer));
    expect_close(values, r.v[static_cast<size_t>(layer)], "v." + std::to_string(layer));
  }
}

TEST(Families, Gemma1AgreesWithTheReference) { expect_reference(tiny("gemma-tiny")); }

TEST(Families, Qwen2AgreesWithTheReference) {
  expect_reference(tiny("qwen2-tiny"));  // windows on the last two of three layers
  const TemporaryDirectory dir;
  expect_reference(
      changed_copy(dir, "qwen2-tiny", [](Json& j) { j["use_sliding_window"] = false; }));
}

class NewerFamily : public testing::TestWithParam<const char*> {};

// Also compares greedy tokens, each of which the reference computes from all tokens before it.
TEST_P(NewerFamily, AgreesWithTheReference) {
  expect_reference(tiny(GetParam()));
  const auto m = model(tiny(GetParam()));
  const ReferenceModel reference(tiny(GetParam()));
  std::vector<int32_t> ids = random_tokens(*m, 40, 3);
  Session s(m, options(2));
  s.append(ids);
  for (int i = 0; i < 12; ++i) {
    const std::vector<double> logits = reference.run(ids).logits;
    const auto last = logits.end() - m->config().vocab_size;
    const auto best = static_cast<int32_t>(std::max_element(last, logits.end()) - last);
    ASSERT_EQ(argmax(s.logits()), best) << "after " << ids.size();
    ids.push_back(best);
    s.append({&ids.back(), 1});
  }
}

INSTANTIATE_TEST_SUITE_P(Families, NewerFamily,
                         testing::Values("granite-tiny", "olmo2-tiny", "olmo3-tiny", "smollm3-tiny",
                                         "pythia-tiny", "phi3-tiny", "phi4-tiny"),
                         [](const auto& info) { return fmt::format("{}", info.index); });

// Attention and MLP in sequence, and rotation of all dimensions.
TEST(Families, OtherGptNeoXAgreeWithTheReference) {
  const TemporaryDirectory dir;
  expect_reference(
      changed_copy(dir, "pythia-tiny", [](Json& j) { j["use_parallel_residual"] = false; }));
  expect_reference(changed_copy(dir, "pythia-tiny", [](Json& j) { j["rotary_pct"] = 1.0; }));
}

// LongRoPE uses short factors up to the positions of the original training, long factors beyond.
TEST(Families, LongRopeIsShortOrLongByTheModelsPositions) {
  const ModelConfig c = parsed("phi3-tiny");
  EXPECT_TRUE(c.ropes[0].is_long);
  EXPECT_EQ(c.window, (std::vector<int64_t>{24, 24, 24}));
  EXPECT_FLOAT_EQ(rope_magnitude(c.ropes[0]), 1.2247449f);  // sqrt(1 + ln 8 / ln 64)
  const TemporaryDirectory dir;
  const auto shorter = [](Json& j) { j["max_position_embeddings"] = 64; };
  EXPECT_FALSE(parsed("phi3-tiny", shorter).ropes[0].is_long);
  expect_reference(changed_copy(dir, "phi3-tiny", shorter));
  EXPECT_EQ(parsed("phi3-tiny",
                   [](Json& j) {
                     const Json old = j["rope_scaling"];
                     j["rope_parameters"] = {{"rope_theta", 10000.0},
                                             {"rope_type", "longrope"},
                                             {"short_factor", old["short_factor"]},
                                             {"long_factor", old["long_factor"]}};
                     j.erase("rope_scaling");
                     j.erase("rope_theta");
                   })
                .canonical(),
            c.canonical());
  EXPECT_EQ(ModelConfig::from_canonical(c.canonical(), "").canonical(), c.canonical());
  EXPECT_EQ(
      error_of(
          [] {
            parsed("phi3-tiny", [](Json& j) { j["rope_scaling"]["long_factor"] = {1.0, 2.0}; });
          },
          ErrorKind::format),
      "config.json: long_factor: expected 8 numbers, one for each pair of rotated dimensions, "
      "found 2");
  EXPECT_EQ(parsed("phi4-tiny").rotated(), 12);
  EXPECT_EQ(parsed("pythia-tiny").rotated(), 4);
}

// Positions far beyond the range that YaRN stretches, with a custom factor and ramp.
TEST(Families, YarnAgreesWithTheReference) {
  const TemporaryDirectory dir;
  expect_reference(changed_copy(dir, "olmo3-tiny", [](Json& j) {
    j["rope_scaling"] = {{"rope_type", "yarn"},     {"factor", 3.0},
                         {"beta_fast", 8},          {"beta_slow", 2},
                         {"attention_factor", 0.9}, {"original_max_position_embeddings", 32}};
  }));
  expect_reference(changed_copy(dir, "llama2-tiny-f16", [](Json& j) {
    j["rope_scaling"] = {
        {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}};
  }));
}

TEST(Families, TheExamplesOwnFamilyAgreesWithTheReference) {
  const TemporaryDirectory dir;
  std::string model = changed_copy(dir, "llama2-tiny-f16", [](Json& j) {
    j["architectures"] = {"ParallelForCausalLM"};
    j["model_type"] = "parallel";
  });
  std::string state = dir / "s.stet", program = "own_architecture";
  EXPECT_TRUE(error_of([&] { Model::load(model, 1); }).starts_with("unsupported"));
  char* arguments[] = {program.data(), model.data(), state.data()};
  EXPECT_EQ(own_architecture(3, arguments), 0);
  expect_reference(model);
}

// A program's own family may set any value. One that would end the process, or that no snapshot could
// hold, is refused when the model is loaded.
TEST(Families, ValuesThatAnOwnFamilySetsAreChecked) {
  static std::function<void(ModelConfig&)> change;
  const auto read = [](const JsonReader& json) {
    ModelConfig c = read_common(json, "mistaken");
    c.ropes = {read_rope(json, "", 10000)};
    change(c);
    return c;
  };
  const auto load = [](ModelConfig, WeightLoader&) { return std::unique_ptr<Model>(); };
  register_family({{"MistakenForCausalLM"}, {}, read, "embed_tokens.weight", {"model."}, load});
  Json config = Json::parse(read_text(data_path("models/llama2-tiny-f16/config.json")));
  config["architectures"] = {"MistakenForCausalLM"};
  const auto refusal = [&](std::function<void(ModelConfig&)> mistake) {
    change = std::move(mistake);
    return error_of([&] { parse_model_config(config.dump(), "c"); }, ErrorKind::format);
  };
  EXPECT_EQ(refusal([](ModelConfig& c) { c.layers = -1; }),
            "c: layers: expected an integer in 1..1024, found -1");
  EXPECT_EQ(refusal([](ModelConfig& c) { c.max_positions = -5; }),
            "c: max_positions: expected an integer in 1..16777216, found -5");
  EXPECT_EQ(refusal([](ModelConfig& c) { c.ropes.clear(); }),
            "c: rope_of[0]: expected an integer in -1..-1, found 0");
  EXPECT_EQ(refusal([](ModelConfig& c) { c.norm_eps = std::nan(""); }),
            "c: norm_eps: expected a finite number, found nan");
  EXPECT_EQ(error_of([&] {
              register_family({{""}, {}, read, "embed_tokens.weight", {"model."}, load});
            }),
            "argument: architectures: expected names, found an empty one");
}

// Settings that no golden covers: Qwen 3 with windows, Mistral without, Gemma 2 without caps.
TEST(Families, OtherSettingsAgreeWithTheReference) {
  const TemporaryDirectory dir;
  expect_reference(changed_copy(dir, "qwen3-tiny", [](Json& j) {
    j["use_sliding_window"] = true;
    j["sliding_window"] = 8;
    j["max_window_layers"] = 1;
  }));
  expect_reference(
      changed_copy(dir, "mistral-tiny", [](Json& j) { j["sliding_window"] = nullptr; }));
  expect_reference(changed_copy(dir, "gemma2-tiny", [](Json& j) {
    j["attn_logit_softcapping"] = nullptr;
    j["final_logit_softcapping"] = nullptr;
    j["query_pre_attn_scalar"] = 40;
  }));
  expect_reference(changed_copy(dir, "gemma2-tiny", [](Json& j) {
    j["attn_logit_softcapping"] = 0.5;
  }));  // bends scores strongly
}

// ---------------------------------------------------------------- configs

using Windows = std::vector<int64_t>;

TEST(Families, WindowsOfMistral) {
  EXPECT_EQ(parsed("mistral-tiny").window, (Windows{8, 8, 8}));
  EXPECT_EQ(parsed("mistral-tiny", [](Json& j) { j["sliding_window"] = nullptr; }).window,
            (Windows{0, 0, 0}));
  EXPECT_EQ(parsed("mistral-tiny", [](Json& j) { j.erase("sliding_window"); }).window,
            (Windows{4096, 4096, 4096}));
}

TEST(Families, WindowsOfQwen) {
  EXPECT_EQ(parsed("qwen2-tiny").window, (Windows{0, 8, 8}));
  EXPECT_EQ(parsed("qwen2-tiny", [](Json& j) { j["use_sliding_window"] = false; }).window,
            (Windows{0, 0, 0}));
  EXPECT_EQ(parsed("qwen2-tiny", [](Json& j) { j.erase("max_window_layers"); }).window,
            (Windows{0, 0, 0}));
  EXPECT_EQ(parsed("qwen2-tiny", [](Json& j) { j["sliding_window"] = nullptr; }).window,
            (Windows{0, 0, 0}));
  const auto types = [](Json& j) {
    j["layer_types"] = {"full_attention", "full_attention", "sliding_attention"};
  };
  EXPECT_EQ(parsed("qwen2-tiny", types).window, (Windows{0, 0, 8}));
  EXPECT_EQ(parsed("qwen3-tiny").window, (Windows{0, 0, 0}));
}

TEST(Families, WindowsAndCapsOfGemma2) {
  const ModelConfig c = parsed("gemma2-tiny");
  EXPECT_EQ(c.window, (Windows{8, 0, 8, 0}));
  EXPECT_EQ(c.attention_softcap, 50);
  EXPECT_EQ(c.logit_softcap, 30);
  EXPECT_EQ(c.attention_scale, 0.25);
  EXPECT_EQ(c.embedding_scale, 8);
  EXPECT_TRUE(c.tied_head);
  const ModelConfig left_out = parsed("gemma2-tiny", [](Json& j) {
    for (const char* field : {"attn_logit_softcapping", "final_logit_softcapping", "sliding_window",
                              "query_pre_attn_scalar"})
      j.erase(field);
  });
  EXPECT_EQ(left_out.attention_softcap, 50);
  EXPECT_EQ(left_out.logit_softcap, 30);
  EXPECT_EQ(left_out.window, (Windows{4096, 0, 4096, 0}));
  EXPECT_EQ(left_out.attention_scale, 0.0625);
  EXPECT_EQ(parsed("gemma2-tiny", [](Json& j) { j["attn_logit_softcapping"] = nullptr; })
                .attention_softcap,
            0);
}

TEST(Families, ActivationsOfGemma1) {
  for (const char* name : {"gelu", "gelu_pytorch_tanh"}) {
    EXPECT_NO_THROW(parsed("gemma-tiny", [&](Json& j) { j["hidden_act"] = name; }));
  }
  EXPECT_NO_THROW(
      parsed("gemma-tiny", [](Json& j) { j["hidden_activation"] = "gelu_pytorch_tanh"; }));
  EXPECT_NO_THROW(parsed("gemma-tiny", [](Json& j) { j.erase("hidden_act"); }));
}

TEST(Families, LayersOfSmolLm3ThatDoNotRotate) {
  EXPECT_EQ(parsed("smollm3-tiny").rope_of, (std::vector<int>{0, 0, 0, -1}));
  EXPECT_EQ(parsed("smollm3-tiny", [](Json& j) { j.erase("no_rope_layers"); }).rope_of,
            (std::vector<int>{0, 0, 0, -1}));
  EXPECT_EQ(parsed("smollm3-tiny",
                   [](Json& j) {
                     j["no_rope_layers"] = {0, 1, 0, 1};
                   })
                .rope_of,
            (std::vector<int>{-1, 0, -1, 0}));
  EXPECT_EQ(error_of([] { parsed("smollm3-tiny", [](Json& j) {
                            j["no_rope_layers"] = {0, 1};
                          }); },
                     ErrorKind::format),
            "config.json: no_rope_layers: expected one entry per layer, found an array");
}

TEST(Families, WindowsAndRopesOfOlmo3) {
  const ModelConfig c = parsed("olmo3-tiny");
  EXPECT_EQ(c.window, (Windows{8, 8, 8, 0}));
  EXPECT_EQ(c.rope_of, (std::vector<int>{1, 1, 1, 0}));
  EXPECT_EQ(c.ropes[0].scaling, Rope::Scaling::yarn);
  EXPECT_EQ(c.ropes[1].scaling, Rope::Scaling::none);
  EXPECT_EQ(c.ropes[1].theta, c.ropes[0].theta);
  EXPECT_EQ(parsed("olmo3-tiny", [](Json& j) { j.erase("layer_types"); }).canonical(),
            c.canonical());
}

TEST(Families, FactorsOfGranite) {
  const ModelConfig c = parsed("granite-tiny");
  EXPECT_EQ(c.embedding_scale, 3);
  EXPECT_EQ(c.attention_scale, 0.078125);
  EXPECT_EQ(c.residual_scale, 0.4);
  EXPECT_EQ(c.logit_divisor, 2);
}

TEST(Families, HeadDimOfItsOwn) {
  EXPECT_EQ(parsed("mistral-tiny", [](Json& j) { j["head_dim"] = 40; }).head_dim,
            40);  // Nemo: differs from hidden / heads
  EXPECT_EQ(parsed("mistral-tiny", [](Json& j) { j.erase("head_dim"); }).head_dim, 16);
  EXPECT_EQ(parsed("qwen3-tiny", [](Json& j) { j.erase("head_dim"); }).head_dim, 128);
  EXPECT_EQ(parsed("gemma-tiny", [](Json& j) { j.erase("head_dim"); }).head_dim, 256);
  EXPECT_EQ(parsed("qwen2-tiny").head_dim, 16);
}

TEST(Families, SizesOfGpt2) {
  const ModelConfig c = parsed("gpt2-tiny");
  EXPECT_EQ(c.intermediate_size, 256);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.kv_heads, 4);
  EXPECT_EQ(c.max_positions, 128);
  EXPECT_TRUE(c.ropes.empty() && c.tied_head);
  EXPECT_EQ(c.eos_ids, std::vector<int32_t>{0});
  EXPECT_EQ(parsed("gpt2-tiny", [](Json& j) { j["n_inner"] = nullptr; }).intermediate_size, 256);
  EXPECT_EQ(parsed("gpt2-tiny", [](Json& j) { j["n_inner"] = 100; }).intermediate_size, 100);
  EXPECT_EQ(parsed("gpt2-tiny", [](Json& j) { j.erase("n_positions"); }).max_positions,
            128);  // n_ctx
  EXPECT_EQ(parsed("gpt2-tiny", [](Json& j) { j["scale_attn_weights"] = false; }).attention_scale,
            1);
}

// Newer versions of transformers write rope_parameters and layer_types.
TEST(Families, NewerConfigsAreTheSameModels) {
  for (const char* name :
       {"gemma-tiny", "gemma2-tiny", "mistral-tiny", "qwen2-tiny", "qwen3-tiny"}) {
    const ModelConfig older = parsed(name);
    const ModelConfig newer = parsed(name, [&](Json& j) {
      j["rope_parameters"] = {{"rope_theta", j["rope_theta"]}, {"rope_type", "default"}};
      j.erase("rope_theta");
      j.erase("rope_scaling");
      for (int64_t window : older.window)
        j["layer_types"].push_back(window > 0 ? "sliding_attention" : "full_attention");
    });
    EXPECT_EQ(newer.canonical(), older.canonical()) << name;
  }
}

// The config in a snapshot is read back unchanged.
TEST(Families, CanonicalConfigsAreReadBack) {
  for (const Subject& subject : subjects()) {
    const std::string canonical = model(subject.directory)->config().canonical();
    EXPECT_EQ(ModelConfig::from_canonical(canonical, "CONFIG").canonical(), canonical)
        << subject.name;
  }
}

// ---------------------------------------------------------------- GPT-2

// transformers writes "transformer." before the names; published checkpoints do not, and some
// contain the causal mask.
TEST(Gpt2, NamesWithAndWithoutPrefixAreOneModel) {
  const TemporaryDirectory dir;
  changed_copy(dir, "gpt2-tiny", [](Json&) {});
  const Golden original(tiny("gpt2-tiny") + "/model.safetensors");
  const std::vector<std::byte> mask(128 * 128);
  std::vector<TensorSpec> specs = {{"transformer.h.0.attn.bias", DType::u8, {1, 1, 128, 128}}};
  for (const TensorView& t : original.all())
    specs.push_back({"transformer." + t.name, t.dtype, t.shape});
  SafeTensorsWriter writer(dir / "model.safetensors", specs);
  writer.write(mask);
  for (const TensorView& t : original.all()) writer.write(t.bytes);
  writer.commit();
  const auto prefixed = Model::load(dir.path()), plain = model(tiny("gpt2-tiny"));
  Session a(prefixed, options(1)), b(plain, options(1));
  a.append(random_tokens(*plain, 50));
  b.append(random_tokens(*plain, 50));
  EXPECT_TRUE(same_state(a, b));
}

TEST(Gpt2, AHeadOfItsOwn) {
  const TemporaryDirectory dir;
  const std::string path =
      changed_copy(dir, "gpt2-tiny", [](Json& j) { j["tie_word_embeddings"] = false; });
  EXPECT_EQ(
      error_of([&] { Model::load(path); }, ErrorKind::format),
      path +
          "/model.safetensors: lm_head.weight: expected F32, BF16 or F16 [320, 64], found nothing");
}

TEST(Gpt2, EndsWhereItsPositionsEnd) {
  const auto m = model(tiny("gpt2-tiny"));
  SessionOptions o = options(1);
  o.capacity = 129;
  EXPECT_EQ(error_of([&] { Session(m, o); }, ErrorKind::argument),
            "ctx: expected 1 .. 128 (n_positions), found 129");
  Session s(m, options(1));
  const std::vector<int32_t> ids = random_tokens(*m, 129);
  EXPECT_EQ(error_of([&] { s.append(ids); }, ErrorKind::capacity)
                .rfind("tokens: expected at most 128 positions", 0),
            0u);
  EXPECT_EQ(s.size(), 0);
  s.append(std::span(ids).first(128));
  Session again = s.fork();
  again.rewind(127);
  again.append(std::span(ids).subspan(127, 1));
  EXPECT_TRUE(same_state(again, s));
}

TEST(Gpt2, PruneKeepsPositionsAndCannotShiftThem) {
  const auto m = model(tiny("gpt2-tiny"));
  const std::vector<int32_t> ids = random_tokens(*m, 110);
  Session s(m, options(1));
  s.append(std::span(ids).first(100));
  const PruneOptions shift{.keep_last = 30, .sinks = 4, .shift = true},
      keep{.keep_last = 30, .sinks = 4, .shift = false};
  EXPECT_EQ(error_of([&] { s.prune(shift); }, ErrorKind::unsupported),
            "positions: expected keep (keys of this model carry no rotary position), found shift");
  EXPECT_EQ(s.size(), 100);
  EXPECT_EQ(s.prune(keep), 66);
  const TemporaryDirectory dir;
  Snapshot::save(s, dir / "s.stet");
  Session back = Snapshot::open(dir / "s.stet").restore(m, {.session = options(1)});
  EXPECT_TRUE(same_state(back, s));
  back.append(std::span(ids).subspan(100));
  s.append(std::span(ids).subspan(100));
  EXPECT_TRUE(same_state(back, s));
  Session whole(m, options(1));
  whole.append(ids);
  EXPECT_FALSE(same_bytes(whole.logits(), s.logits()));  // the pruned positions are invisible
}

// ---------------------------------------------------------------- snapshots

class SnapshotOfEachFamily : public testing::TestWithParam<Subject> {};

TEST_P(SnapshotOfEachFamily, ResumesAndVerifies) {
  const auto m = model(GetParam().directory);
  const std::vector<int32_t> ids = random_tokens(*m, 120);
  Session straight(m, options(1)), s(m, options(1));
  straight.append(ids);
  s.append(std::span(ids).first(70));
  const TemporaryDirectory dir;
  for (const SnapshotForm form : {SnapshotForm::full, SnapshotForm::recipe}) {
    const std::string path = dir / snapshot_form_name(form);
    Snapshot::save(s, path, {.form = form});
    Session back = Snapshot::open(path).restore(m, {.session = options(1), .check = true});
    EXPECT_FALSE(verify(Snapshot::open(path), m, options(1), form == SnapshotForm::recipe));
    back.append(std::span(ids).subspan(70));
    EXPECT_TRUE(same_state(back, straight)) << snapshot_form_name(form);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SnapshotOfEachFamily, testing::ValuesIn(subjects()), subject_name);

}  // namespace
}  // namespace stet::test::families_tests

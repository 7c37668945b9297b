// Rotary positions in config.json: every place where published configs have them, in transformers'
// order of precedence. Fields that nothing reads are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "stet/model/config.hpp"
#include "tests/support/models.hpp"

namespace stet::test::rope_config_tests {
namespace {

using Json = nlohmann::json;
using Change = std::function<void(Json&)>;

Json config_of(const std::string& model, const Change& change) {
  Json json = Json::parse(read_text(data_path("models/" + model + "/config.json")));
  change(json);
  return json;
}

std::vector<Rope> ropes(const std::string& model, const Change& change) {
  return parse_model_config(config_of(model, change).dump(), "config.json").ropes;
}

std::string refusal(const std::string& model, const Change& change) {
  return error_of([&] { ropes(model, change); });
}

const Json kLlama3 = {{"rope_type", "llama3"},
                      {"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 64}};

void without(Json& j) {
  for (const char* name : {"rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq"})
    j.erase(name);
}

TEST(RopeConfig, ThetaStandsInAnyOfThreePlaces) {
  struct Place {
    const char* name;
    Change put;
    double theta;
  };
  const Place places[] = {{"rope_parameters",
                           [](Json& j) {
                             j["rope_parameters"] = kLlama3;
                             j["rope_parameters"]["rope_theta"] = 5e5;
                           },
                           5e5},
                          {"beside rope_parameters",
                           [](Json& j) {
                             j["rope_parameters"] = kLlama3;
                             j["rope_theta"] = 4e5;
                           },
                           4e5},
                          {"rope_scaling",
                           [](Json& j) {
                             j["rope_scaling"] = kLlama3;
                             j["rope_scaling"]["rope_theta"] = 3e5;
                           },
                           3e5},
                          {"beside rope_scaling",
                           [](Json& j) {
                             j["rope_scaling"] = kLlama3;
                             j["rope_theta"] = 2e5;
                           },
                           2e5},
                          {"rope_parameters before the top",
                           [](Json& j) {
                             j["rope_parameters"] = kLlama3;
                             j["rope_parameters"]["rope_theta"] = 5e5;
                             j["rope_theta"] = 7e5;
                           },
                           5e5},
                          {"rope_scaling before rope_parameters",
                           [](Json& j) {
                             j["rope_scaling"] = kLlama3;
                             j["rope_scaling"]["rope_theta"] = 6e5;
                             j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
                           },
                           6e5},
                          {"rope_parameters, not read beside rope_scaling",
                           [](Json& j) {
                             j["rope_scaling"] = kLlama3;
                             j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
                           },
                           10000},
                          {"nowhere", [](Json& j) { j["rope_scaling"] = kLlama3; }, 10000}};
  for (const Place& place : places) {
    const std::vector<Rope> found = ropes("llama31-tiny", [&](Json& j) {
      without(j);
      place.put(j);
    });
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].theta, place.theta) << place.name;
    EXPECT_EQ(found[0].scaling, Rope::Scaling::llama3) << place.name;
    EXPECT_EQ(found[0].factor, 8) << place.name;
    EXPECT_EQ(found[0].original_positions, 64) << place.name;
  }
}

// The ends of gpt-oss's YaRN ramp: pairs 8.0928 and 17.3980 of 32, and the whole numbers to which
// `truncate` rounds them.
TEST(RopeConfig, YarnKeepsOrRoundsItsCorners) {
  for (const bool truncate : {false, true}) {
    const Rope rope = ropes("llama31-tiny", [&](Json& j) {
      without(j);
      j["rope_theta"] = 150000;
      j["rope_scaling"] = {
          {"rope_type", "yarn"}, {"factor", 32.0},   {"original_max_position_embeddings", 4096},
          {"beta_fast", 32.0},   {"beta_slow", 1.0}, {"truncate", truncate}};
    })[0];
    const double low = truncate ? 8 : 8.0928, high = truncate ? 18 : 17.3980;
    const std::vector<float> found = inverse_frequencies(rope, 64);
    ASSERT_EQ(found.size(), 32u);
    for (size_t i = 0; i < found.size(); ++i) {
      const double base = std::pow(150000.0, -2.0 * static_cast<double>(i) / 64),
                   part = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0),
                   expected = base * (1 - part) + base / 32 * part;
      EXPECT_NEAR(found[i] / expected, 1, 1e-4) << i;
    }
    EXPECT_FLOAT_EQ(rope_magnitude(rope), 1.3465736f);  // 0.1 ln 32 + 1
  }
}

// An empty rope_scaling means none, as in Python.
TEST(RopeConfig, AnEmptyObjectIsNone) {
  const std::vector<Rope> found = ropes("llama31-tiny", [](Json& j) {
    without(j);
    j["rope_scaling"] = Json::object();
    j["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5e5}};
  });
  EXPECT_EQ(found[0].theta, 5e5);
  EXPECT_EQ(found[0].scaling, Rope::Scaling::linear);
}

TEST(RopeConfig, TwoThetasOfGemma3) {
  const Change both = [](Json& j) {
    without(j);
    j["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}}},
                            {"sliding_attention", {{"rope_type", "default"}}}};
    j["rope_theta"] = 2e6;
    j["rope_local_base_freq"] = 20000.0;
  };
  const auto expect = [](const std::vector<Rope>& found, double full, double local,
                         Rope::Scaling scaling) {
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found[0].theta, full);
    EXPECT_EQ(found[0].scaling, scaling);
    EXPECT_EQ(found[1].theta, local);
    EXPECT_EQ(found[1].scaling, Rope::Scaling::none);
  };
  expect(ropes("gemma3-tiny", both), 2e6, 20000, Rope::Scaling::linear);
  expect(ropes("gemma3-tiny",
               [&](Json& j) {
                 both(j);
                 j["rope_parameters"]["full_attention"]["rope_theta"] = 3e6;
                 j["rope_parameters"]["sliding_attention"]["rope_theta"] = 30000;
               }),
         3e6, 30000, Rope::Scaling::linear);
  expect(ropes("gemma3-tiny",
               [&](Json& j) {
                 without(j);
                 j["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
                 j["rope_local_base_freq"] = 40000;
               }),
         1e6, 40000, Rope::Scaling::linear);
  expect(ropes("gemma3-tiny", without), 1e6, 10000, Rope::Scaling::none);
  EXPECT_EQ(refusal("gemma3-tiny",
                    [](Json& j) {
                      without(j);
                      j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 2e6}};
                    }),
            "format: config.json: rope_parameters: expected full_attention and sliding_attention "
            "in it, found an object");
}

TEST(RopeConfig, ThetasOfOtherFamilies) {
  EXPECT_EQ(ropes("pythia-tiny", [](Json& j) { j["rotary_emb_base"] = 20000; })[0].theta, 20000);
  EXPECT_EQ(ropes("pythia-tiny",
                  [](Json& j) {
                    j.erase("rotary_emb_base");
                    j["rope_parameters"] = {{"rope_theta", 30000.0},
                                            {"rope_type", "default"},
                                            {"partial_rotary_factor", 0.25}};
                  })[0]
                .theta,
            30000);
  const std::vector<Rope> olmo = ropes("olmo3-tiny", [](Json& j) {
    const Json scaling = j["rope_scaling"];
    without(j);
    j["rope_parameters"] = {
        {"full_attention", scaling},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 70000.0}}}};
    j["rope_parameters"]["full_attention"]["rope_theta"] = 80000.0;
  });
  EXPECT_EQ(olmo[0].theta, 80000);
  EXPECT_EQ(olmo[0].scaling, Rope::Scaling::yarn);
  EXPECT_EQ(olmo[1].theta, 70000);
}

// The older name goes before the usual one, as for LFM2's other fields.
TEST(RopeConfig, TwoNamesOfLfm2) {
  const auto theta = [](const Json& fields) {
    return ropes("lfm2-tiny",
                 [&](Json& j) {
                   without(j);
                   j.erase("theta");
                   j.update(fields);
                 })[0]
        .theta;
  };
  EXPECT_EQ(theta({{"theta", 100.0}, {"rope_theta", 2e6}}), 100);
  EXPECT_EQ(theta({{"theta", nullptr}, {"rope_theta", 2e6}}), 2e6);
  EXPECT_EQ(theta({{"rope_theta", 2e6}}), 2e6);
  EXPECT_EQ(theta(Json::object()), 1e6);
}

TEST(RopeConfig, TwoObjectsOfDifferentTypesAreRefused) {
  const auto refused = [](const char* model, const Json& scaling, const Json& full) {
    return refusal(model, [&](Json& j) {
      without(j);
      j["rope_scaling"] = scaling;
      j["rope_parameters"] = {{"full_attention", full},
                              {"sliding_attention", {{"rope_type", "default"}}}};
    });
  };
  const Json linear = {{"rope_type", "linear"}, {"factor", 2.0}},
             plain = {{"rope_type", "default"}};
  const std::string types =
      "expected default, linear, llama3, yarn, longrope or proportional, found ";
  const auto other = [](const char* type, const char* found) {
    return std::string("unsupported: config.json: rope_parameters.full_attention.rope_type: ") +
           "expected " + type + ", the type of rope_scaling, or no rope_scaling, found " + found;
  };
  for (const char* const model : {"gemma3-tiny", "olmo3-tiny", "gemma4-dense-tiny"}) {
    EXPECT_EQ(refused(model, {{"type", "banana"}}, plain),
              "unsupported: config.json: rope_scaling.type: " + types + "banana");
    EXPECT_EQ(refused(model, {{"type", "yarn"}, {"factor", 8.0}}, linear),
              other("yarn", "\"linear\""));
    EXPECT_EQ(refused(model, {{"rope_type", "yarn"}, {"factor", 8.0}}, plain),
              other("yarn", "\"default\""));
  }
  EXPECT_EQ(ropes("gemma3-tiny",
                  [&](Json& j) {
                    without(j);
                    j["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
                    j["rope_parameters"] = {{"full_attention", linear}};
                  })[0]
                .factor,
            4);
}

TEST(RopeConfig, UnusedPartsOfGemma4AreRefused) {
  const std::string fields =
      "expected only these fields of the type default: rope_type, type, "
      "rope_theta, original_max_position_embeddings, found 0.5";
  for (const char* const type : {"full_attention", "sliding_attention"})
    EXPECT_EQ(refusal("gemma4-dense-tiny",
                      [&](Json& j) {
                        j["rope_parameters"][type] = {{"rope_type", "default"},
                                                      {"partial_rotary_factor", 0.5}};
                      }),
              std::string("unsupported: config.json: rope_parameters.") + type +
                  ".partial_rotary_factor: " + fields);
  EXPECT_EQ(refusal("gemma4-dense-tiny", [](Json& j) { j["partial_rotary_factor"] = 0.5; }),
            "unsupported: config.json: partial_rotary_factor: expected only these rotary fields: "
            "rope_scaling, rope_parameters, rope_theta, found 0.5");
}

// transformers takes original_max_position_embeddings of the config, else that of rope_scaling,
// else max_position_embeddings.
TEST(RopeConfig, PositionsOfTheFirstTraining) {
  const auto found = [](const Change& change) {
    return ropes("llama31-tiny",
                 [&](Json& j) {
                   j["max_position_embeddings"] = 256;
                   j["rope_scaling"] = kLlama3;
                   change(j);
                 })[0]
        .original_positions;
  };
  EXPECT_EQ(found([](Json&) {}), 64);
  EXPECT_EQ(found([](Json& j) { j["original_max_position_embeddings"] = 128; }), 128);
  EXPECT_EQ(found([](Json& j) { j["rope_scaling"].erase("original_max_position_embeddings"); }),
            256);
}

// The two mscale numbers form a ratio: equal numbers scale nothing (arXiv 2309.00071 has only 0.1
// ln s + 1).
TEST(RopeConfig, ScalesOfYarn) {
  const auto factor = [](const Json& more) {
    return ropes("llama31-tiny",
                 [&](Json& j) {
                   j["rope_scaling"] = {{"rope_type", "yarn"},
                                        {"factor", 16.0},
                                        {"original_max_position_embeddings", 64}};
                   j["rope_scaling"].update(more);
                 })[0]
        .attention_factor;
  };
  EXPECT_NEAR(factor(Json::object()), 1.2772588722239782, 1e-12);  // 0.1 ln 16 + 1
  EXPECT_EQ(factor({{"mscale", 1.0}, {"mscale_all_dim", 1.0}}), 1);
  EXPECT_NEAR(factor({{"mscale", 0.707}, {"mscale_all_dim", 1.0}}), 0.9363975061530204, 1e-12);
  EXPECT_EQ(factor({{"mscale", 1.0}, {"mscale_all_dim", 1.0}, {"attention_factor", 0.5}}), 0.5);
}

TEST(RopeConfig, UnreadFieldsAreRefused) {
  const auto at = [](const char* object, const char* name, const Json& value) {
    return [=](Json& j) { (*object == '\0' ? j : j[object])[name] = value; };
  };
  const std::string known =
      "expected only these fields of the type llama3: rope_type, type, rope_theta, factor, "
      "low_freq_factor, "
      "high_freq_factor, original_max_position_embeddings, found ";
  EXPECT_EQ(refusal("llama31-tiny", at("rope_scaling", "mscale", 0.7)),
            "unsupported: config.json: rope_scaling.mscale: " + known + "0.7");
  EXPECT_EQ(refusal("llama31-tiny", at("rope_scaling", "short_factor", {1, 2})),
            "unsupported: config.json: rope_scaling.short_factor: " + known + "[1,2]");
  EXPECT_EQ(refusal("llama31-tiny", at("rope_scaling", "partial_rotary_factor", 0.5)),
            "unsupported: config.json: rope_scaling.partial_rotary_factor: " + known + "0.5");
  EXPECT_EQ(refusal("llama31-tiny", at("", "rope_interleaved", true)),
            "unsupported: config.json: rope_interleaved: expected only these rotary fields: "
            "rope_scaling, rope_parameters, rope_theta, found true");
  for (const char* name : {"rotary_pct", "rope_local_base_freq", "rotary_dim", "rope_ratio"}) {
    EXPECT_EQ(refusal("llama31-tiny", at("", name, 0.5))
                  .find(std::string("unsupported: config.json: ") + name + ": "),
              0u)
        << name;
  }
  EXPECT_EQ(
      refusal("llama31-tiny",
              [](Json& j) {
                j["rope_scaling"] = {{"factor", 4.0}};
              })
          .find("unsupported: config.json: rope_scaling.factor: expected only these fields of "
                "the type default: "),
      0u);
}

TEST(RopeConfig, FieldsWithoutEffectAndNullAreNot) {
  const std::vector<Rope> plain = ropes("llama31-tiny", [](Json&) {});
  EXPECT_EQ(ropes("llama31-tiny",
                  [](Json& j) {
                    j["rope_scaling"]["mscale"] = nullptr;
                    j["rope_scaling"]["finetuned"] = true;
                    j["rope_scaling"]["partial_rotary_factor"] = 1.0;
                    j["rope_interleaved"] = false;
                    j["rope_ratio"] = nullptr;
                    j["partial_rotary_factor"] = 1;
                  }),
            plain);
}

}  // namespace
}  // namespace stet::test::rope_config_tests

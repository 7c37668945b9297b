// `stet diff` shows every part of two snapshots, as a table and as JSON.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::diff_tests {
namespace {

using Json = nlohmann::json;

const std::string kTiny = data_path("models/gemma3-tiny");

struct DiffCommand : testing::Test {
  std::string saved(const std::string& name, const std::string& ids, const Args& more = {}) const {
    const std::string path = scratch / name;
    const Outcome o = run_stet(Args{"save", "-m", kTiny, "--ids", ids, "-o", path} + more);
    EXPECT_EQ(o.status, 0) << o.err;
    return path;
  }
  Json diff(const std::string& a, const std::string& b, const Args& more = {}) const {
    const Outcome o = run_stet(Args{"diff", a, b, "--json"} + more);
    const Json j = Json::parse(o.out);
    EXPECT_EQ(o.status, j["equal"] == true ? 0 : 1) << o.err;
    return j;
  }
  static Json part(const Json& j, const std::string& name) {
    for (const Json& p : j["parts"]) {
      if (p["part"] == name) return p;
    }
    return nullptr;
  }

  TemporaryDirectory scratch;
};

TEST_F(DiffCommand, APrefixIsReported) {
  const std::string a = saved("a.stet", "1,2,3"), b = saved("b.stet", "1,2,3,4,5");
  const Json j = diff(a, b);
  EXPECT_EQ(j["prefix"], "a");
  EXPECT_EQ(diff(b, a)["prefix"], "b");
  EXPECT_EQ(j["common_tokens"], 3);
  EXPECT_EQ(j["equal_positions"], 3);
  EXPECT_EQ(part(j, "tokens")["difference"]["expected"], 3);
  EXPECT_TRUE(part(j, "tokens")["difference"]["found"].is_number_integer());
  EXPECT_EQ(part(j, "keys")["equal"], true);
  EXPECT_EQ(part(j, "logits")["equal"], false);
  EXPECT_TRUE(part(j, "logits")["difference"]["found"].is_number_float());
  EXPECT_GT(j["kl_nats"]["a_from_b"].get<double>(), 0);
  EXPECT_GT(j["kl_nats"]["b_from_a"].get<double>(), 0);
  const Outcome text = run_stet({"diff", a, b});
  EXPECT_EQ(text.status, 1);
  EXPECT_NE(text.out.find("\na is a prefix of b: 3 common tokens; keys and values of the first 3 "
                          "positions are equal\n"),
            std::string::npos)
      << text.out;
  EXPECT_TRUE(text.out.ends_with("\ndifferent: tokens, logits, generation\n") ||
              text.out.ends_with("\ndifferent: tokens, logits\n"))
      << text.out;
}

TEST_F(DiffCommand, AnotherTokenAndItsKeys) {
  const std::string a = saved("a.stet", "1,2,3,4"), b = saved("b.stet", "1,2,9,4");
  const Json j = diff(a, b);
  EXPECT_EQ(
      part(j, "tokens")["difference"],
      Json::parse(
          R"({"what":"token","position":2,"layer":null,"head":null,"element":null,"expected":3,"found":9})"));
  EXPECT_EQ(part(j, "keys")["difference"]["position"], 2);
  EXPECT_EQ(part(j, "values")["difference"]["layer"], 0);
  EXPECT_EQ(j["equal_positions"], 2);
  EXPECT_EQ(j["prefix"], nullptr);
  ASSERT_FALSE(j["layers"].empty());
  EXPECT_GT(j["layers"][0]["keys"]["largest"].get<double>(),
            j["layers"][0]["keys"]["rms"].get<double>());
}

TEST_F(DiffCommand, SettingsAreShownWhole) {
  const std::string stop(1000, 'x'), gemma = asset_path("pocket-gemma3"), a = scratch / "a.stet",
                                     b = scratch / "b.stet";
  ASSERT_EQ(run_stet({"save", "-m", gemma, "--ids", "1,2,3", "-o", a}).status, 0);
  if (run_stet({"resume", a, "-n", "0", "--stop", stop, "--save", b}).status != 0)
    GTEST_SKIP() << "built without a library for the tokenizers";
  const Outcome text = run_stet({"diff", a, b});
  EXPECT_EQ(text.status, 1);
  EXPECT_NE(text.out.find("generation: none in a, stop_strings \"" + stop + "\" in b\n"),
            std::string::npos)
      << text.out;
  EXPECT_EQ(part(diff(a, b), "generation")["equal"], false);
}

TEST_F(DiffCommand, ParentsOfEach) {
  const std::string parent = saved("parent.stet", "1,2,3");
  const std::string full = scratch / "full.stet", delta = scratch / "delta.stet";
  ASSERT_EQ(
      run_stet({"resume", parent, "-m", kTiny, "--ids", "4", "-n", "0", "--save", full}).status, 0);
  ASSERT_EQ(run_stet({"convert", full, "--form", "delta", "--against", parent, "-o", delta}).status,
            0);
  std::filesystem::create_directory(scratch / "elsewhere");
  const std::string moved = scratch / "elsewhere/p.stet";
  std::filesystem::rename(parent, moved);
  EXPECT_EQ(run_stet({"diff", delta, full}).status, 1);
  EXPECT_EQ(diff(delta, full, {"--parent", moved})["equal"], true);
  EXPECT_EQ(diff(full, delta, {"--other-parent", moved})["equal"], true);
  EXPECT_EQ(run_stet({"diff", full, delta, "--parent", moved}).status, 2);  // full is no delta
}

TEST_F(DiffCommand, RecipesReportSkippedParts) {
  const std::string a = saved("a.stet", "1,2,3"), b = saved("b.stet", "1,2,3,4,5"),
                    recipe = scratch / "recipe.stet";
  ASSERT_EQ(run_stet({"convert", a, "--form", "recipe", "-o", recipe}).status, 0);
  EXPECT_EQ(diff(a, recipe)["equal"], true);
  const Json j = diff(recipe, b);
  EXPECT_EQ(part(j, "keys and values")["compared"], false);
  EXPECT_EQ(part(j, "keys and values")["equal"], nullptr);
  EXPECT_EQ(j["kl_nats"]["a_from_b"], nullptr);
  EXPECT_NE(run_stet({"diff", recipe, b}).out.find(" (not compared: keys and values)\n"),
            std::string::npos);
}

}  // namespace
}  // namespace stet::test::diff_tests

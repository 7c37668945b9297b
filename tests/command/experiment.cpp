// `stet experiment`: seeds, files, probabilities, and equal counts in every output format.
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "stet/generate/generate.hpp"
#include "stet/sampling/sampler.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::experiment_tests {
namespace {

using Json = nlohmann::json;

const std::string kTiny = data_path("models/gemma3-tiny");  // has no tokenizer: token ids only

class ExperimentCommand : public testing::Test {
 protected:
  Json json(const Args& more) const {
    return Json::parse(succeed(base + more + Args{"--json"}).out);
  }

  const Args base = {"experiment", "-m", kTiny, "--ids", "1,2,3",
                     "--threads",  "1",  "-n",  "6",     "--ignore-eos"};
  TemporaryDirectory scratch;
};

TEST_F(ExperimentCommand, SeedsAreRangesAndLists) {
  const Json j = json({"--seeds", "1,2,10..12", "--temperature", "1"});
  std::vector<uint64_t> seeds;
  for (const Json& run : j["runs"]) seeds.push_back(run["seed"]);
  EXPECT_EQ(seeds, (std::vector<uint64_t>{1, 2, 10, 11, 12}));
  const Json top =
      json({"--seeds", "18446744073709551614..18446744073709551615", "--temperature", "1"});
  EXPECT_EQ(top["runs"][1]["seed"], UINT64_MAX);
  for (const char* wrong :
       {"3..1", "1..", "..2", "a", "-1", "1...2", "0..1000000", "18446744073709551616", "1.5"}) {
    const Outcome o = run_stet(base + Args{"--seeds", wrong});
    EXPECT_EQ(o.status, 2) << wrong;
    EXPECT_TRUE(o.err.starts_with("stet: --seeds: expected seeds in 0..2^64-1: ")) << o.err;
  }
}

TEST_F(ExperimentCommand, RunsCountFromOneInJsonAndCsv) {
  const Args twice = {"--seeds", "4,5,4", "--temperature", "3"};
  const Json runs = json(twice)["runs"];
  std::istringstream csv(succeed(base + twice + Args{"--csv"}).out);
  std::string line;
  std::getline(csv, line);
  ASSERT_EQ(line,
            "run,seed,temperature,top-k,top-p,min-p,typical,repetition-penalty,tokens,stop,same_as,"
            "log_probability,seconds,state,file,text\r");
  for (const Json& run : runs) {
    ASSERT_TRUE(std::getline(csv, line));
    std::vector<std::string> cells;
    std::istringstream cut(line);
    for (std::string cell; std::getline(cut, cell, ',');) cells.push_back(cell);
    EXPECT_EQ(cells[0], std::to_string(run["run"].get<int>()));
    EXPECT_EQ(cells[10], std::to_string(run["same_as"].get<int>()));
    EXPECT_EQ(std::stod(cells[11]), run["log_probability"].get<double>());
    EXPECT_EQ(cells[13], run["state"].get<std::string>());
  }
  EXPECT_EQ(runs[0]["run"], 1);
  EXPECT_EQ(runs[0]["same_as"], 1);
  EXPECT_EQ(runs[2]["same_as"], 1);
  for (const auto& [name, value] : runs[1].items()) {
    const bool text = name == "text" || name == "stop" || name == "state" || name == "id";
    EXPECT_TRUE(name == "ids" ? value.is_array()
                : text        ? value.is_string()
                              : value.is_number())
        << name;
  }
}

TEST_F(ExperimentCommand, EachContinuationIsASnapshotThatGoesOn) {
  const std::string directory = scratch / "runs/all";
  const Args seeds = {"--seeds", "1..3", "--temperature", "2"};
  const Json runs = json(seeds + Args{"--save-dir", directory})["runs"];
  const Json plain = json(seeds)["runs"];
  for (size_t i = 0; i < 3; ++i) {
    const std::string file = directory + "/run-0" + std::to_string(i + 1) + ".stet";
    EXPECT_EQ(runs[i]["file"], file);
    EXPECT_EQ(runs[i]["state"], plain[i]["state"]);
    EXPECT_EQ(digest_text(Snapshot::open(file).digests().state),
              runs[i]["state"].get<std::string>());
    const auto continued = [&](const Args& from) {
      return Json::parse(
          succeed(from + Args{"-m", kTiny, "--threads", "1", "--ignore-eos", "--json"}).out);
    };
    const Json rest = continued({"resume", file, "-n", "4"});
    const Json whole = continued({"generate", "--ids", "1,2,3", "-n", "10", "--temperature", "2",
                                  "--seed", std::to_string(i + 1)});
    EXPECT_EQ(rest["digests"], whole["digests"]) << i;
  }
  const Outcome again = run_stet(base + seeds + Args{"--save-dir", directory});
  EXPECT_EQ(again.status, 1);
  EXPECT_EQ(again.out, "");
  EXPECT_EQ(again.err, "stet: --save-dir: " + directory +
                           "/run-01.stet exists already; choose an empty directory\n");
  EXPECT_EQ(run_stet(base + Args{"--save-dir", ""}).status, 2);
}

// Computes each token's probability before penalty, temperature and filters, in another order and
// with libm.
TEST_F(ExperimentCommand, LogProbabilityIsTheModels) {
  const Json run = json({"--seeds", "7", "--temperature", "5", "--top-k", "900",
                         "--repetition-penalty", "1.7"})["runs"][0];
  Session session(model(kTiny), {});
  session.append(std::vector<int32_t>{1, 2, 3});
  double expected = 0;
  for (const int32_t id : run["ids"].get<std::vector<int32_t>>()) {
    double sum = 0;
    const auto logits = session.logits();
    for (size_t i = logits.size(); i > 0; --i) sum += std::exp(static_cast<double>(logits[i - 1]));
    expected += logits[static_cast<size_t>(id)] - std::log(sum);
    session.append({&id, 1});
  }
  EXPECT_NEAR(run["log_probability"].get<double>(), expected, 1e-9);
  EXPECT_LT(expected, -1);
}

TEST_F(ExperimentCommand, AnObserverChangesNoDraw) {
  GenerateOptions watched{20, true};
  std::vector<int32_t> seen;
  watched.observe = [&](int32_t id, std::span<const float> logits) {
    EXPECT_EQ(logits.size(), 320u);
    seen.push_back(id);
  };
  const auto draw = [&](const GenerateOptions& how, Reply* reply) {
    Session s(model(kTiny), {});
    append_prompt(s, std::vector<int32_t>{1, 2, 3});
    s.generation().sampling = {.greedy = false, .temperature = 2, .seed = 9};
    *reply = generate(s, nullptr, how);
    return digests_of(s).state;
  };
  Reply with, without;
  EXPECT_EQ(draw(watched, &with), draw({20, true}, &without));
  EXPECT_EQ(with.ids, without.ids);
  EXPECT_EQ(seen, with.ids);
}

TEST_F(ExperimentCommand, SeedsWithoutSamplingAreReported) {
  EXPECT_EQ(
      succeed(base + Args{"--seeds", "1..2"}).err,
      "no effect while greedy, where the best token is taken: --seeds (--temperature T samples)\n");
  EXPECT_EQ(
      succeed(base + Args{"--seeds", "1..2", "--temperature", "0"}).err,
      "no effect while greedy, where the best token is taken: --seeds (--temperature T samples)\n");
  EXPECT_EQ(succeed(base).err, "");
  const Outcome drawn = succeed(base + Args{"--seeds", "1..2", "--top-k", "500"});
  EXPECT_EQ(drawn.err, "");
  EXPECT_NE(drawn.out.find("2 distinct"), std::string::npos) << drawn.out;
}

}  // namespace
}  // namespace stet::test::experiment_tests

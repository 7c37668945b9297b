// The bundled trained checkpoints compared with transformers: whole conversations, greedy replies,
// the scripted conversation (tests/data/pocket).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/models.hpp"

namespace stet::test::pocket_models_tests {
namespace {

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

// Generates greedily up to and including a stop token. Returns the tokens.
std::vector<int32_t> reply(Session& session) {
  std::vector<int32_t> ids;
  const std::vector<int32_t>& stops = session.model().generation().eos_ids;
  while (ids.size() < 64) {
    ids.push_back(argmax(session.logits()));
    session.append({&ids.back(), 1});
    if (std::find(stops.begin(), stops.end(), ids.back()) != stops.end()) break;
  }
  return ids;
}

// Returns -log softmax(logits)[id], computed in double.
double surprise(std::span<const float> logits, int32_t id) {
  double most = -INFINITY, sum = 0;
  for (float x : logits) most = std::max(most, static_cast<double>(x));
  for (float x : logits) sum += std::exp(static_cast<double>(x) - most);
  return most + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(id)]);
}

// Returns the sum over ids[1 ..] of the negative log-likelihood given the tokens before.
double negative_log_likelihood(Session& session, const std::vector<int32_t>& ids) {
  double nll = 0;
  session.append(ids, [&](int64_t first, Rows rows) {
    for (size_t r = 0; r < rows.count; ++r) {
      const size_t next = static_cast<size_t>(first) + r + 1;
      if (next < ids.size()) nll += surprise({rows.row(r), rows.width}, ids[next]);
    }
  });
  return nll;
}

double deviation(std::span<const float> x) {
  double sum = 0, squares = 0;
  for (float v : x) sum += static_cast<double>(v);
  const double mean = sum / static_cast<double>(x.size());
  for (float v : x) squares += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean);
  return std::sqrt(squares / static_cast<double>(x.size()));
}

class Pocket : public testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<const Model> m = model(asset_path("pocket-" + GetParam()));
  const std::string folder = data_path("pocket/golden-" + GetParam());
  const nlohmann::json conversations = read_json(folder + "/conversations.json");
  const size_t step = all_ways() ? 1 : 4;  // ten of the conversations, or all 40
};

TEST_P(Pocket, GreedyRepliesAreEqual) {
  ASSERT_EQ(conversations.size(), 40u);
  for (size_t i = 0; i < conversations.size(); i += step) {
    Session session(m, options(2));
    session.append(conversations[i]["prompt_ids"].get<std::vector<int32_t>>());
    ComputeOptions one = session.compute();
    one.threads = 1;
    session.set_compute(one);
    EXPECT_EQ(reply(session), conversations[i]["greedy"].get<std::vector<int32_t>>())
        << "conversation " << i;
  }
}

TEST_P(Pocket, LikelihoodsOfWholeConversations) {
  const std::unique_ptr<Golden> golden = std::make_unique<Golden>(folder + "/golden.safetensors");
  for (size_t i = 0; i < conversations.size();
       i += i + 1 < 3 ? 1 : step) {  // 0, 1 and 2 have logits
    const auto ids = conversations[i]["ids"].get<std::vector<int32_t>>();
    Session session(m, options(2));
    double nll = 0;
    std::vector<float> last;  // 24 rows
    session.append(ids, [&](int64_t first, Rows rows) {
      for (size_t r = 0; r < rows.count; ++r) {
        const size_t at = static_cast<size_t>(first) + r;
        const std::span<const float> row(rows.row(r), rows.width);
        if (at + 1 < ids.size()) nll += surprise(row, ids[at + 1]);
        if (at + 24 >= ids.size()) last.insert(last.end(), row.begin(), row.end());
      }
    });
    EXPECT_NEAR(nll, conversations[i]["nll"].get<double>(),
                1e-4 * static_cast<double>(ids.size() - 1))
        << i;
    const std::string name = "logits." + std::to_string(i);
    ASSERT_EQ(golden->has(name), i < 3);
    if (i >= 3) continue;
    const std::vector<float> expected = golden->floats(name);
    ASSERT_EQ(last.size(), expected.size());
    double worst = 0;
    for (size_t e = 0; e < last.size(); ++e) {
      ASSERT_TRUE(std::isfinite(last[e]));
      worst = std::max(worst,
                       std::abs(static_cast<double>(last[e]) - static_cast<double>(expected[e])));
    }
    EXPECT_LE(worst, 1e-4 * std::max(1.0, deviation(expected))) << name;
  }
}

// The other contracts compared with f32. The limits bound the change of the likelihood of a token, in
// nats: over all conversations, and in any one of them.
TEST_P(Pocket, LikelihoodsUnderTheOtherContracts) {
  struct Case {
    Contract contract;
    double all, one;
  };
  for (const auto& [contract, all, one] :
       {Case{Contract::bf16, 1e-3, 1e-2}, {Contract::q8, 1e-3, 1e-2}, {Contract::q4, 5e-3, 5e-2}}) {
    const std::string name = contract_name(contract);
    double sum = 0, sum_f32 = 0;
    size_t tokens = 0;
    for (size_t i = 0; i < conversations.size(); i += step) {
      const auto ids = conversations[i]["ids"].get<std::vector<int32_t>>();
      Session session(model(m->directory(), contract), options(2, STET_DEFAULT_ISA, 512, contract));
      const double nll = negative_log_likelihood(session, ids),
                   f32 = conversations[i]["nll"].get<double>();
      EXPECT_NEAR(nll, f32, one * static_cast<double>(ids.size() - 1)) << name << " " << i;
      sum += nll;
      sum_f32 += f32;
      tokens += ids.size() - 1;
    }
    RecordProperty("nats_per_token_f32", std::to_string(sum_f32 / static_cast<double>(tokens)));
    RecordProperty("nats_per_token_" + name, std::to_string(sum / static_cast<double>(tokens)));
    EXPECT_NE(sum, sum_f32);
    EXPECT_NEAR(sum, sum_f32, all * static_cast<double>(tokens)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Pocket, testing::Values("gemma3", "llama3"),
                         [](const auto& info) { return info.param; });

struct Script {
  std::vector<int32_t> ids;
  struct Turn {
    size_t begin, end;  // the reply's tokens, including the stop token
  };
  std::vector<Turn> turns;
};

Script read_script() {
  const nlohmann::json json = read_json(data_path("pocket/golden-gemma3/script.json"));
  Script s;
  s.ids = json["ids"].get<std::vector<int32_t>>();
  for (const auto& turn : json["turns"]) {
    s.turns.push_back({turn["reply_starts"].get<size_t>(), turn["reply_ends"].get<size_t>()});
  }
  return s;
}

class PocketScript : public testing::TestWithParam<Contract> {};
INSTANTIATE_TEST_SUITE_P(Contracts, PocketScript, testing::Values(Contract::f32, Contract::bf16),
                         [](const auto& info) {
                           return info.param == Contract::bf16 ? "bf16" : "f32";
                         });

// One session runs all eight turns and processes only new tokens.
TEST_P(PocketScript, EveryReplyIsExpected) {
  const Script script = read_script();
  ASSERT_EQ(script.turns.size(), 8u);
  Session session(model(asset_path("pocket-gemma3")),
                  options(1, STET_DEFAULT_ISA, 512, GetParam()));
  for (const auto& [begin, end] : script.turns) {
    const auto at = static_cast<size_t>(session.size());
    session.append(std::span(script.ids).subspan(at, begin - at));
    const std::vector<int32_t> expected(script.ids.begin() + static_cast<long>(begin),
                                        script.ids.begin() + static_cast<long>(end));
    EXPECT_EQ(reply(session), expected) << "reply at " << begin;
  }
  EXPECT_EQ(session.tokens(), script.ids);
}

// The checkpoint is trained so that lost state shows. Without the turns before it, no later
// question that depends on them is answered as in the script.
TEST(PocketScriptCut, Insight08_LostStateGivesVisiblyWrongAnswers) {
  const Script script = read_script();
  const auto bos = std::span(script.ids).first(1);
  for (size_t turn : {2, 4, 5, 6, 7}) {
    const auto [begin, end] = script.turns[turn];
    const std::span<const int32_t> ids(script.ids);
    Session alone(model(asset_path("pocket-gemma3")), options(1));
    alone.append(bos);
    const size_t from = script.turns[turn - 1].end + 1;  // skips the newline after the stop token
    alone.append(ids.subspan(from, begin - from));
    const std::vector<int32_t> expected(ids.begin() + static_cast<long>(begin),
                                        ids.begin() + static_cast<long>(end));
    EXPECT_NE(reply(alone), expected) << "turn " << turn;
  }
}

}  // namespace
}  // namespace stet::test::pocket_models_tests

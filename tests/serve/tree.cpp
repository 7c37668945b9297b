// Tests the tree of conversations (tools/serve/tree.hpp).
#include "tools/serve/tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace stet::test::tree_tests {
namespace {

using serve::conversation_tree;
using serve::kTreeRoot;
using serve::TreeItem;

struct Made {
  std::string id, parent;
  std::vector<int32_t> ids;
};

std::vector<size_t> tree_of(const std::vector<Made>& states) {
  std::vector<TreeItem> items;
  for (const Made& s : states) items.push_back({s.ids, s.id, s.parent});
  return conversation_tree(items);
}

bool continues(const std::vector<int32_t>& longer, const std::vector<int32_t>& shorter) {
  return !shorter.empty() && shorter.size() < longer.size() &&
         std::equal(shorter.begin(), shorter.end(), longer.begin());
}

// Finds the parent by the definition, comparing each state with each other one.
size_t expected(const std::vector<Made>& states, size_t i) {
  size_t best = kTreeRoot;
  for (size_t k = 0; k < states.size(); ++k) {
    if (!continues(states[i].ids, states[k].ids)) continue;
    if (best == kTreeRoot || states[k].ids.size() > states[best].ids.size()) best = k;
  }
  std::vector<size_t> walked;
  for (size_t at = i; best != kTreeRoot;) {
    const auto up = std::find_if(states.begin(), states.end(),
                                 [&](const Made& s) { return s.id == states[at].parent; });
    if (up == states.end()) break;
    at = static_cast<size_t>(up - states.begin());
    if (states[at].ids == states[best].ids) return at;
    if (std::find(walked.begin(), walked.end(), at) != walked.end()) break;
    walked.push_back(at);
  }
  return best;
}

}  // namespace

TEST(ConversationTree, RetriesAndEditsAreSiblingsOfTheOriginal) {
  const std::vector<Made> states = {
      {"asked", "", {1, 2, 3}},
      {"reply", "asked", {1, 2, 3, 4, 5}},
      {"more", "reply", {1, 2, 3, 4, 5, 6, 7}},
      {"retry", "more", {1, 2, 3, 4, 5, 6, 8}},
      {"edited", "more", {1, 2, 9}},
      {"edited reply", "edited", {1, 2, 9, 4}},
  };
  EXPECT_EQ(tree_of(states), (std::vector<size_t>{kTreeRoot, 0, 1, 1, kTreeRoot, 4}));
}

TEST(ConversationTree, EqualStatesAreSiblingsAndKeepTheirContinuations) {
  const std::vector<Made> states = {
      {"one", "", {1, 2}},
      {"fork", "one", {1, 2}},
      {"of the fork", "fork", {1, 2, 3}},
      {"after a prune", "of the fork", {1, 2, 3}},
      {"of one", "one", {1, 2, 4}},
      {"uploaded", "", {1, 2, 5}},
  };
  EXPECT_EQ(tree_of(states), (std::vector<size_t>{kTreeRoot, kTreeRoot, 1, 1, 0, 0}));
}

TEST(ConversationTree, ADeletedStateLeavesItsContinuationsInTheirPlace) {
  std::vector<Made> states = {{"a", "", {1}}, {"b", "a", {1, 2}}, {"c", "b", {1, 2, 3}}};
  states.erase(states.begin() + 1);
  EXPECT_EQ(tree_of(states), (std::vector<size_t>{kTreeRoot, 0}));
}

TEST(ConversationTree, AnEmptyStateBeginsNothing) {
  EXPECT_EQ(tree_of({{"empty", "", {}}, {"a", "empty", {1}}}),
            (std::vector<size_t>{kTreeRoot, kTreeRoot}));
  EXPECT_TRUE(tree_of({}).empty());
}

TEST(ConversationTree, OperationsThatLeadInACircleEnd) {
  const std::vector<Made> states = {
      {"a", "b", {1}}, {"b", "a", {1}}, {"c", "c", {1, 2}}, {"d", "b", {1, 2}}};
  EXPECT_EQ(tree_of(states), (std::vector<size_t>{kTreeRoot, kTreeRoot, 0, 1}));
}

TEST(ConversationTree, EqualsComparingAllPairs) {
  std::mt19937 draws(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Made> states;
    const size_t count = draws() % 40;
    for (size_t i = 0; i < count; ++i) {
      Made s{
          std::to_string(i), i == 0 || draws() % 4 == 0 ? "" : std::to_string(draws() % count), {}};
      if (i > 0 && draws() % 3 > 0) s.ids = states[draws() % i].ids;
      s.ids.resize(s.ids.size() - (s.ids.empty() ? 0 : draws() % s.ids.size()));
      for (size_t n = draws() % 4; n > 0; --n) s.ids.push_back(static_cast<int32_t>(draws() % 3));
      states.push_back(s);
    }
    const std::vector<size_t> found = tree_of(states);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(found[i], expected(states, i)) << i;
  }
}

// Comparing every pair would take 10^10 comparisons of tokens.
TEST(ConversationTree, TenThousandLongStatesTakeLinearTime) {
  std::vector<int32_t> ids(200, 5);
  std::vector<Made> states;
  for (size_t i = 0; i < 10000; ++i) {
    states.push_back({std::to_string(i), i == 0 ? "" : std::to_string(i - 1), ids});
    states.back().ids[i % 200] = static_cast<int32_t>(i);
  }
  EXPECT_EQ(tree_of(states), std::vector<size_t>(10000, kTreeRoot));
  for (size_t i = 0; i < 10000; ++i) states[i].ids.resize(i / 50);
  EXPECT_EQ(tree_of(states).size(), 10000u);
}

}  // namespace stet::test::tree_tests

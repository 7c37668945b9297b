#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/generate/stop.hpp"
#include "tests/support/error_of.hpp"

namespace stet::test::stop_tests {
namespace {

using stet::StopMatcher;

// Returns the text of the argument Error that a call throws.
template <class Call>
std::string refusal(const Call& call) {
  return error_of(call, stet::ErrorKind::argument);
}

TEST(Stop, WithoutStringsEverythingPasses) {
  StopMatcher m({});
  const auto r = m.push("abc");
  EXPECT_EQ(r.text, "abc");
  EXPECT_EQ(r.stop, -1);
  EXPECT_EQ(r.consumed, 3u);
  EXPECT_EQ(m.pending(), "");
}

TEST(Stop, HoldsBackPossibleBeginnings) {
  StopMatcher m({"</end>"});
  EXPECT_EQ(m.push("hello <").text, "hello ");
  EXPECT_EQ(m.pending(), "<");
  EXPECT_EQ(m.push("/e").text, "");
  EXPECT_EQ(m.pending(), "</e");
  EXPECT_EQ(m.push("m> </").text, "</em> ");
  const auto r = m.push("end> more");
  EXPECT_EQ(r.text, "");
  EXPECT_EQ(r.stop, 0);
  EXPECT_EQ(r.consumed, 4u);
  EXPECT_EQ(m.pending(), "");
  EXPECT_EQ(m.push("x").text, "x");  // starts over
}

TEST(Stop, FirstCompletedWinsThenTheLongest) {
  StopMatcher m({"abcd", "bc"});
  auto r = m.push("xabcd");
  EXPECT_EQ(r.text, "xa");
  EXPECT_EQ(r.stop, 1);
  EXPECT_EQ(r.consumed, 4u);
  StopMatcher n({"c", "bc", "abc"});
  r = n.push("xabc");
  EXPECT_EQ(r.text, "x");
  EXPECT_EQ(r.stop, 2);
  StopMatcher same({"ab", "ab"});
  EXPECT_EQ(same.push("ab").stop, 0);
}

TEST(Stop, FindsOverlappingBeginnings) {
  StopMatcher m({"aab"});
  const auto r = m.push("aaaab");
  EXPECT_EQ(r.text, "aa");
  EXPECT_EQ(r.stop, 0);
  StopMatcher n({"ababac"});
  EXPECT_EQ(n.push("ababab").text, "ab");
  EXPECT_EQ(n.pending(), "abab");
  EXPECT_EQ(n.push("ac").stop, 0);
}

TEST(Stop, FlushReturnsHeldBackText) {
  StopMatcher m({"STOP"});
  EXPECT_EQ(m.push("a ST").text, "a ");
  EXPECT_EQ(m.flush(), "ST");
  EXPECT_EQ(m.pending(), "");
  EXPECT_EQ(m.push("OP").stop, -1);  // the partial match is discarded
}

TEST(Stop, KeepsUtf8CharactersWhole) {
  StopMatcher m({"\xc3\xa9!"});  // é!
  EXPECT_EQ(m.push("a\xc3\xa8").text, "a\xc3\xa8");
  EXPECT_EQ(m.push("b\xc3\xa9").text, "b");
  EXPECT_EQ(m.pending(), "\xc3\xa9");
  EXPECT_EQ(m.push("?").text, "\xc3\xa9?");
}

TEST(Stop, TreatsEveryByteAlike) {
  const std::string stop("\0\xff\0", 3);
  StopMatcher m({stop});
  const auto r = m.push(std::string("a\0\0\xff\0z", 6));
  EXPECT_EQ(r.text, std::string("a\0", 2));
  EXPECT_EQ(r.stop, 0);
  EXPECT_EQ(r.consumed, 5u);
}

TEST(Stop, RefusesEmptyAndEndlessStrings) {
  EXPECT_EQ(refusal([] {
              StopMatcher m({"a", ""});
            }),
            "stop[1]: expected 1 to 65536 bytes, found 0");
  EXPECT_EQ(refusal([] { StopMatcher m({std::string(65537, 'a')}); }),
            "stop[0]: expected 1 to 65536 bytes, found 65537");
}

TEST(Stop, RestoreRefusesTextThatWasNotHeldBack) {
  StopMatcher m({"abab!"});
  m.push("xab");
  EXPECT_EQ(refusal([&] { m.restore("ba"); }),
            "pending stop text: expected the beginning of a stop string, found \"ba\"");
  EXPECT_EQ(refusal([&] { m.restore("abab!"); }),
            "pending stop text: expected the beginning of a stop string, found \"abab!\"");
  EXPECT_EQ(m.pending(), "ab");  // unchanged, and still matching
  EXPECT_EQ(m.push("ab!").stop, 0);
}

// Implements the definition in the most direct way.
StopMatcher::Result expected(const std::vector<std::string>& strings, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    StopMatcher::Result best;
    for (size_t i = 0; i < strings.size(); ++i) {
      const size_t size = strings[i].size();
      if (size > end || text.compare(end - size, size, strings[i]) != 0) continue;
      if (best.stop < 0 || size > strings[best.stop].size()) best.stop = static_cast<int>(i);
    }
    if (best.stop < 0) continue;
    best.text = text.substr(0, end - strings[best.stop].size());
    best.consumed = end;
    return best;
  }
  return {text, -1, text.size()};
}

// Returns the longest suffix of the text that is a prefix of a stop string.
std::string held(const std::vector<std::string>& strings, const std::string& text) {
  std::string longest;
  for (const std::string& s : strings) {
    for (size_t n = longest.size() + 1; n <= std::min(s.size(), text.size()); ++n) {
      if (text.compare(text.size() - n, n, s, 0, n) == 0) longest = s.substr(0, n);
    }
  }
  return longest;
}

TEST(Stop, AnyCuttingAndAnySavingGivesTheSameOutcome) {
  uint64_t state = 1;
  const auto below = [&](uint64_t n) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return (state >> 33) % n;
  };
  const auto word = [&](uint64_t longest) {
    std::string s(1 + below(longest), 'a');
    for (char& c : s) c = static_cast<char>('a' + below(2));
    return s;
  };
  int stops = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> strings(1 + below(3));
    for (std::string& s : strings) s = word(6);
    const std::string text = word(24);
    const auto want = expected(strings, text);

    StopMatcher m(strings);
    std::string shown;
    int stop = -1;
    size_t at = 0;
    while (at < text.size() && stop < 0) {
      const std::string piece = text.substr(at, below(5));
      const auto r = m.push(piece);
      shown += r.text;
      stop = r.stop;
      at += r.consumed;
      if (stop < 0) {
        ASSERT_EQ(m.pending(), held(strings, text.substr(0, at)));
        ASSERT_EQ(shown + m.pending(), text.substr(0, at));
        StopMatcher fresh(strings);
        fresh.restore(m.pending());
        m = fresh;
      }
    }
    shown += m.flush();
    ASSERT_EQ(stop, want.stop) << text;
    ASSERT_EQ(shown, want.text) << text;
    ASSERT_EQ(at, want.consumed) << text;
    stops += stop >= 0;
  }
  EXPECT_GT(stops, 1000);
  EXPECT_LT(stops, 19000);
}

// 16 MiB against a string that almost matches everywhere. A quadratic matcher would take hours.
TEST(Stop, TakesLinearTime) {
  StopMatcher m({std::string(60000, 'a') + "b"});
  const std::string piece(4096, 'a');
  size_t shown = 0;
  for (int i = 0; i < 4096; ++i) shown += m.push(piece).text.size();
  EXPECT_EQ(shown, 4096u * 4096 - 60000);
  EXPECT_EQ(m.push("b").stop, 0);
}

}  // namespace
}  // namespace stet::test::stop_tests

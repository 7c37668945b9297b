#include <gtest/gtest.h>

#include "stet/base/error.hpp"

namespace stet::test::error_tests {

TEST(Error, IsOneLineThatNamesFileFieldExpectedAndFound) {
  const stet::Error e(stet::ErrorKind::format, "a/config.json", "hidden_size",
                      "an integer in 1..1048576", "\"x\ny\"");
  EXPECT_STREQ(e.what(),
               "a/config.json: hidden_size: expected an integer in 1..1048576, found \"x\\ny\"");
}

TEST(Error, EscapesControlCharactersAndBrokenUtf8) {
  EXPECT_EQ(stet::printable("a\x1b[0m\xff\xc3\xa9\xe2\x82"), "a\\x1b[0m\\xff\xc3\xa9\\xe2\\x82");
  EXPECT_EQ(stet::printable(std::string(300, 'x')).size(), 203u);
}

// Escapes category Cc including C1, line and paragraph separators, and direction marks.
// Neighbouring code points stay as they are.
TEST(Error, ControlCharactersAreEscaped) {
  const std::string controls =
      "\x01\r\x1b\x7f\u0080\u009b\u009f\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069";
  EXPECT_EQ(stet::printable(controls + "\n\t"),
            "\\x01\\x0d\\x1b\\x7f\\u0080\\u009b\\u009f\\u061c\\u200e\\u200f\\u2028\\u2029\\u202a\\u"
            "202e\\u2066\\u2069\\n\\t");
  EXPECT_EQ(stet::for_terminal("a\n\tb" + controls.substr(2, 1) + "\xff"), "a\n\tb\\x1b\\xff");
  const std::string neighbours =
      " ~\u00a0\u061b\u061d\u200d\u2010\u2027\u202f\u2065\u206a\U0001f600";
  EXPECT_EQ(stet::printable(neighbours), neighbours);
  EXPECT_EQ(stet::for_terminal(neighbours), neighbours);
}

}  // namespace stet::test::error_tests

#include <gtest/gtest.h>

#include "stet/error.hpp"

TEST(Error, IsOneLineThatNamesFileFieldExpectedAndFound) {
  const stet::Error e(stet::ErrorKind::format, "a/config.json", "hidden_size", "an integer in 1..1048576", "\"x\ny\"");
  EXPECT_STREQ(e.what(), "a/config.json: hidden_size: expected an integer in 1..1048576, found \"x\\ny\"");
}

TEST(Error, EscapesControlCharactersAndBrokenUtf8) {
  EXPECT_EQ(stet::printable("a\x1b[0m\xff\xc3\xa9\xe2\x82"), "a\\x1b[0m\\xff\xc3\xa9\\xe2\\x82");
  EXPECT_EQ(stet::printable(std::string(300, 'x')).size(), 203u);
}

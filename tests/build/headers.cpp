// Includes every public header in alphabetical order; headers_again.cpp includes them in reverse. A
// header that needs another one first does not compile, and one that defines something twice does
// not link. The build writes all_headers.inc and all_headers_reversed.inc.
#include "all_headers.inc"
#include "all_headers.inc"  // a second time, to test the guards

#include <gtest/gtest.h>

namespace stet::test {

int headers_included_again();

TEST(Headers, TwoUnitsIncludeAllAndLink) {
  EXPECT_EQ(headers_included_again(), STET_HEADER_COUNT);
  EXPECT_GE(STET_HEADER_COUNT, 15);
}

}  // namespace stet::test

// Every public header, in alphabetical order here and in reverse in headers_again.cpp, linked into
// one program: a header that needs another first does not compile, one that defines something twice
// does not link. all_headers.inc and all_headers_reversed.inc are written by the build.
#include "all_headers.inc"
#include "all_headers.inc"  // and once more: guards

#include <gtest/gtest.h>

namespace stet::test {

int headers_included_again();

TEST(Headers, TwoUnitsIncludeAllAndLink) {
  EXPECT_EQ(headers_included_again(), STET_HEADER_COUNT);
  EXPECT_GE(STET_HEADER_COUNT, 15);
}

}  // namespace stet::test

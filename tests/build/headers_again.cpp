// The second unit of test_headers: the headers in reverse order.
#include "all_headers_reversed.inc"

namespace stet::test {
int headers_included_again();
int headers_included_again() { return STET_HEADER_COUNT; }
}  // namespace stet::test

// Runs the tests that --gtest_filter selects, except those that STET_LEAVE_OUT matches. Both have
// the same form. ctest runs each case by its name.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string>

int main(int argc, char** argv) {
  // A shell starts background jobs with SIGINT ignored, and the commands under test would inherit that.
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  testing::InitGoogleTest(&argc, argv);
  const char* const left_out = std::getenv("STET_LEAVE_OUT");
  if (left_out != nullptr && *left_out != '\0') {
    std::string& filter = testing::GTEST_FLAG(filter);
    filter += (filter.find('-') == std::string::npos ? "-" : ":") + std::string(left_out);
  }
  return RUN_ALL_TESTS();
}

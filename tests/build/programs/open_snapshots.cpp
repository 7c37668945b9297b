// Opens the committed snapshots, for builds that run no tests. Argument: the repository. Prints the
// content of tests/data/snapshots/expected.txt.
#include "tests/build/programs/open_snapshots.hpp"

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("open_snapshots: expected the repository");
    const std::string root = argv[1];
    for (const std::string& name : stet::test::snapshots_in(root + "/tests/data/snapshots")) {
      const bool skipped = name.ends_with("compressed") && !stet::have_zlib();
      std::printf("%s\n", skipped ? (name + " needs zlib").c_str()
                                  : stet::test::opened(root, name).c_str());
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

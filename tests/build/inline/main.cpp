// Prints the results of both units. Arguments: the directory of a checkpoint, a contract, a file of
// token ids, the type of keys and values.
#include <cstdio>
#include <exception>
#include <stdexcept>

#include "unit.hpp"

int main(int argc, char** argv) {
  try {
    if (argc != 5) throw std::runtime_error("expected DIRECTORY CONTRACT IDS.json KV");
    for (const Compute compute : {compute_fast, compute_plain})
      std::fputs(compute(argv[1], argv[2], argv[3], argv[4]).c_str(), stdout);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

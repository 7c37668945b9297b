#include "tools/run.hpp"

int main(int argc, char** argv) { return stet::tool::run_command(argc, argv); }

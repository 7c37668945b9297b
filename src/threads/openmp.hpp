// Runs teams on the OpenMP runtime. Only openmp.cpp has pragmas or functions of OpenMP. In a build
// without OpenMP, openmp_built() is false and nothing else may be called.
#pragma once

#include <functional>
#include <string>

#include "stet/threads/team.hpp"

namespace stet {

bool openmp_built();
// Returns whether programs can choose how long the runtime's threads spin, as with LLVM's and
// Intel's.
bool openmp_is_tunable();
std::string openmp_library();  // file name, such as "libomp.so.5"
// Throws an argument Error for an OMP_NUM_THREADS for which the runtime might end the process. Call
// it before anything else.
void check_openmp_environment();
int openmp_threads();  // as OMP_NUM_THREADS or omp_set_num_threads() set, or all processors

// Calls work(Team) on up to `size` threads of the runtime. If `operations` is set, other threads
// are optional, and are not used while they cost more than they save. Returns false and does
// nothing if the runtime is unusable. That is so if the system refuses that many threads, for which
// the runtime would end the process. It is also so after a fork that the runtime does not survive.
bool run_openmp(int size, bool operations, const std::function<void(Team)>& work);

}  // namespace stet

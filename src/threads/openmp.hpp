// Teams of the OpenMP runtime. What is here stands in openmp.cpp alone: no other file has a pragma
// or a function of OpenMP. Where the build has none, openmp_built() is false and nothing else is
// called.
#pragma once

#include <functional>
#include <string>

#include "stet/threads/team.hpp"

namespace stet {

bool openmp_built();
// Whether the runtime lets a program choose how long threads spin: LLVM's and Intel's do.
bool openmp_is_tunable();
std::string openmp_library();  // its file: "libomp.so.5"
// Throws an argument Error for an OMP_NUM_THREADS that the runtime may end the process for. To be
// called before anything else is asked of the runtime.
void check_openmp_environment();
int openmp_threads();  // as OMP_NUM_THREADS or omp_set_num_threads() say, else all processors

// work(Team) on up to `size` threads of the runtime; on the calling one alone when `operations`
// says that it may do without the others, and they have lately cost more than they did. False, and
// nothing is done, where it cannot be asked: the system refuses so many threads, for which it would
// end the process, or the process was forked from one that used a runtime which does not survive
// that.
bool run_openmp(int size, bool operations, const std::function<void(Team)>& work);

}  // namespace stet

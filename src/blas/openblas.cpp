#include "src/blas/openblas.hpp"

#include "stet/base/error.hpp"
#include "stet/model/product.hpp"

#ifdef STET_HAVE_BLAS
#include <dlfcn.h>

#include <string>
#endif

namespace stet {

#ifdef STET_HAVE_BLAS

namespace {

// Declared as in cblas.h, where enumerations are int.
constexpr int kRowMajor = 101, kNoTranspose = 111;
using Sgemm = void(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                   const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
using SetThreads = void(int threads);

constexpr const char* kFiles[] = {"libopenblas.so.0", "libopenblas.so"};

[[noreturn]] void throw_missing(const std::string& found) {
  throw Error(
      ErrorKind::unsupported, "", "gemm", "",
      std::string("OpenBLAS (") + kFiles[0] + " or " + kFiles[1] + ") cannot be loaded: " + found);
}

template <class Function>
Function* symbol_of(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Opens the library. If the program has loaded it before, the number of its threads is the
// program's choice.
void* opened() {
  std::string reasons;
  for (const char* file : kFiles) {
    if (void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return library;
  }
  for (const char* file : kFiles) {
    if (void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
      if (SetThreads* set = symbol_of<SetThreads>(library, "openblas_set_num_threads")) set(1);
      return library;
    }
    reasons += (reasons.empty() ? "" : "; ") + std::string(dlerror());
  }
  throw_missing(reasons);
}

Sgemm* find_sgemm() {
  Sgemm* const sgemm = symbol_of<Sgemm>(opened(), "cblas_sgemm");
  if (sgemm == nullptr) throw_missing(dlerror());
  return sgemm;
}

Sgemm* sgemm() {
  static Sgemm* const loaded = find_sgemm();  // the next call retries after a failure
  return loaded;
}

}  // namespace

bool have_blas() { return true; }
void load_openblas() { sgemm(); }

void openblas_multiply(BlasMatrix<const float> a, BlasMatrix<const float> b, BlasMatrix<float> c,
                       const BlasShape& shape, float keep) {
  const auto number = [](size_t n) { return static_cast<int>(n); };
  sgemm()(kRowMajor, kNoTranspose, kNoTranspose, number(shape.rows), number(shape.columns),
          number(shape.depth), 1.0f, a.data, number(a.stride), b.data, number(b.stride), keep,
          c.data, number(c.stride));
}

#else

bool have_blas() { return false; }
void load_openblas() {
  throw Error(ErrorKind::unsupported, "", "gemm", "",
              "blas is not available: this stet was built without OpenBLAS");
}
void openblas_multiply(BlasMatrix<const float>, BlasMatrix<const float>, BlasMatrix<float>,
                       const BlasShape&, float) {}

#endif

}  // namespace stet

// ik_llama.cpp's side of bench/peers/run. Runs prefill and decode on requests from standard input,
// as `stet bench --turns` does:
//   ik_turns GGUF PROMPT MOST_DECODED BATCH THREADS
// ik.mjs builds it against the installed ik_llama.cpp's llama.h. It is not part of stet's build.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "llama.h"

namespace {

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "ik_turns: %s\n", what.c_str());
  std::exit(1);
}

// Returns a stream for the answers. The library also prints to standard output, which is
// redirected.
FILE* take_output() {
  FILE* const out = fdopen(dup(STDOUT_FILENO), "w");
  if (out == nullptr || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
    fail("standard output: expected it to be open");
  return out;
}

void log_errors(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

// Opens a context with flash attention and a prompt in batches of `batch`. Weights are repacked
// while loading, which prevents mapping.
llama_context* open(const char* gguf, int prompt, int most_decoded, int batch, int threads) {
  llama_backend_init();
  llama_model_params m = llama_model_default_params();
  m.repack_tensors = true;
  m.use_mmap = false;
  llama_model* const model = llama_model_load_from_file(gguf, m);
  if (model == nullptr) fail(std::string(gguf) + ": expected a model that ik_llama.cpp loads");
  llama_context_params c = llama_context_default_params();
  c.n_ctx = static_cast<uint32_t>(prompt + most_decoded);
  c.n_batch = static_cast<uint32_t>(prompt);
  c.n_ubatch = static_cast<uint32_t>(batch);
  c.flash_attn = true;
  c.n_threads = c.n_threads_batch = static_cast<uint32_t>(threads);
  llama_context* const context = llama_init_from_model(model, c);
  if (context == nullptr) fail("expected a context, found none");
  return context;
}

class Session {
 public:
  Session(llama_context* context, int prompt) : context_(context) {
    const int vocabulary = llama_n_vocab(llama_get_model(context));
    for (long i = 0; i < prompt; ++i)
      ids_.push_back(static_cast<llama_token>((i * 7919 + 13) % vocabulary));
  }
  void clear() {
    llama_kv_cache_clear(context_);
    size_ = 0;
  }
  void prefill() { append(static_cast<int>(ids_.size())); }
  void decode(int n) {
    for (int i = 0; i < n; ++i) append(1);
  }

 private:
  void append(int n) {
    const int status = llama_decode(context_, llama_batch_get_one(ids_.data(), n, size_, 0));
    if (status != 0) fail("llama_decode: expected 0, found " + std::to_string(status));
    llama_synchronize(context_);
    size_ += n;
  }

  llama_context* const context_;
  std::vector<llama_token> ids_;
  int size_ = 0;
};

template <class F>
double time_of(F f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int number(const char* text) {
  char* end = nullptr;
  const long n = std::strtol(text, &end, 10);
  if (*end != '\0' || n < 1 || n > 1 << 24)
    fail(std::string("expected a number from 1, found ") + text);
  return static_cast<int>(n);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) fail("expected GGUF PROMPT MOST_DECODED BATCH THREADS");
  FILE* const out = take_output();
  llama_log_set(log_errors, nullptr);
  Session session(open(argv[1], number(argv[2]), number(argv[3]), number(argv[4]), number(argv[5])),
                  number(argv[2]));
  session.decode(1);  // touches the scratch memory before anything is measured
  std::fputs("{}\n", out);
  std::fflush(out);
  for (std::string line; std::getline(std::cin, line); std::fflush(out)) {
    double s = 0;
    if (line == "prefill") {
      session.clear();
      s = time_of([&] { session.prefill(); });
    } else if (line.rfind("decode ", 0) == 0) {
      const int n = number(line.c_str() + 7);
      s = time_of([&] { session.decode(n); });
    } else {
      fail("expected prefill or decode N, found " + line);
    }
    std::fprintf(out, "{\"s\": %.9f}\n", s);
  }
}

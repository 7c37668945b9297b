// Writes the weights of a GGUF file as ggml dequantizes them. `ik_widen GGUF` writes the float32 of
// all tensors to standard output in the order of the file. gguf_types.py builds it against the
// installed ik_llama.cpp's ggml.h. It is not part of stet's build.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ggml.h"

namespace {

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "ik_widen: %s\n", what.c_str());
  std::exit(1);
}

void widen(const ggml_tensor& t) {
  const auto elements = static_cast<size_t>(ggml_nelements(&t));
  std::vector<float> x(elements);
  if (t.type == GGML_TYPE_F32)
    x.assign(static_cast<const float*>(t.data), static_cast<const float*>(t.data) + elements);
  else
    ggml_internal_get_type_traits(t.type).to_float(t.data, x.data(),
                                                   static_cast<int64_t>(elements));
  if (std::fwrite(x.data(), sizeof(float), elements, stdout) != elements)
    fail("standard output: expected to write all");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) fail("expected GGUF");
  ggml_init_params start = {};
  start.mem_size = 1 << 20;
  ggml_free(ggml_init(start));  // fills the tables of float16
  ggml_context* tensors = nullptr;
  gguf_init_params params = {};
  params.ctx = &tensors;
  gguf_context* const file = gguf_init_from_file(argv[1], params);
  if (file == nullptr) fail(std::string(argv[1]) + ": expected a GGUF file");
  for (int i = 0; i < gguf_get_n_tensors(file); ++i)
    widen(*ggml_get_tensor(tensors, gguf_get_tensor_name(file, i)));
}

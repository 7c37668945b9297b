// Reads tokenizer.json, alone or with a tokenizer_config.json.
#include "tests/fuzz/use_tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return stet::fuzz::read_tokenizer("tokenizer.json", data, size);
}

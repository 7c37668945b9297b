// Reads generation_config.json.
#include "stet/model/config.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace stet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz::read_and_use([&] {
    constexpr int64_t kVocab = 320;
    const GenerationConfig g = parse_generation_config(std::string(fuzz::text_of(data, size)),
                                                       "generation_config.json", kVocab);
    for (const int32_t id : g.eos_ids)
      fuzz::must(id >= 0 && id < kVocab, "stop ids are of the vocabulary");
  });
}

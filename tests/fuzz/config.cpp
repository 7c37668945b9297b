// Reads config.json through the registry of families, as Model::load does.
#include "stet/model/config.hpp"
#include "stet/base/json_reader.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace stet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz::read_and_use([&] {
    const ModelConfig c = parse_model_config(std::string(fuzz::text_of(data, size)), "config.json");
    fuzz::must(c.window.size() == static_cast<size_t>(c.layers), "a window per layer");
    fuzz::must(c.rope_of.size() == (c.ropes.empty() ? 0 : c.window.size()),
               "a rope per layer, or none at all");
    for (const int index : c.rope_of)
      fuzz::must(index >= 0 && index < static_cast<int>(c.ropes.size()), "a rope of the list");
    for (const Rope& rope : c.ropes) {
      fuzz::must(
          inverse_frequencies(rope, c.rotated()).size() == static_cast<size_t>(c.rotated() / 2),
          "an angle per pair");
    }
    const JsonReader canonical = parse_json(c.canonical(), "canonical");
    fuzz::must(canonical.integer("vocab_size", 1, INT64_MAX) == c.vocab_size,
               "the canonical form is JSON");
  });
}

// Reads the header of a GGUF file: keys and tensors, and the config and tokenizer made from them.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "src/base/json_value.hpp"
#include "src/gguf/gguf.hpp"
#include "src/gguf/names.hpp"
#include "src/gguf/vocabulary.hpp"
#include "stet/model/config.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace stet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::make_shared<const std::string>(fuzz::text_of(data, size));
  return fuzz::read_and_use([&] {
    std::vector<Gguf> parts;
    parts.push_back(Gguf::parse(
        std::make_shared<const FileBytes>("m.gguf", std::as_bytes(std::span(*bytes)), bytes)));
    for (const GgufTensor& t : parts[0].tensors()) fuzz::touch(t.bytes);
    const GgufNames names(parts);
    for (const GgufTensor& t : parts[0].tensors()) names.published(t);
    vocabulary_files(parts[0], names.vocab_size());
    read_model_config(json_reader(names.config(), "config.json"));
  });
}

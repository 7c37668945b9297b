// Reads tokenizer.model, alone or with a tokenizer_config.json. Compares stet's own encoder, which
// builds without sentencepiece use, with the encoder of this build.
#include <optional>

#include "src/text/encoder.hpp"
#include "tests/fuzz/use_tokenizer.hpp"

namespace {

using stet::SentencePieceBy, stet::TokenizerParts;

// Returns the ids of a text, or nothing if a control piece would be among them.
std::optional<std::vector<int32_t>> ids_of(const TokenizerParts& parts, std::string_view text) {
  std::vector<int32_t> ids;
  try {
    parts.encoder->encode({{text, -1, true, false}}, ids);
  } catch (const stet::Error&) {
    return std::nullopt;
  }
  return ids;
}

void compare(std::string_view model) {
  const auto parts_by = [&](SentencePieceBy by) {
    TokenizerParts parts = stet::parse_sentencepiece_tokenizer(model, "tokenizer.model", true, by);
    parts.encoder->set_added(parts.added, parts.vocabulary.size());
    return parts;
  };
  const TokenizerParts own = parts_by(SentencePieceBy::own);
  const TokenizerParts library = parts_by(SentencePieceBy::library);
  std::string all;
  for (int32_t id = 0; id < std::min(own.vocabulary.size(), 300); ++id)
    all += own.vocabulary.piece(id);
  for (const std::string_view text :
       {std::string_view("Tell me  a.\u2581\u00E9\U0001F600 Now abc 12\t  's "),
        std::string_view(all)}) {
    const auto ids = ids_of(own, text);
    stet::fuzz::must(ids == ids_of(library, text), "both encoders give the same ids");
    if (!ids) continue;
    for (const int32_t id : *ids)
      stet::fuzz::must(id >= 0 && id < own.vocabulary.size(), "ids are of the vocabulary");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = stet::fuzz::text_of(data, size);
  stet::fuzz::read_and_use([&] { compare(input.substr(0, input.find(stet::fuzz::kSplit))); });
  return stet::fuzz::read_tokenizer("tokenizer.model", data, size);
}

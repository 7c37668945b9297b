// Code that both tokenizer targets share. An input is the vocabulary file, optionally followed by
// kSplit and tokenizer_config.json.
#pragma once

#include <algorithm>
#include <string>

#include "stet/text/tokenizer.hpp"
#include "stet/text/utf8.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace stet::fuzz {

inline constexpr std::string_view kSplit("\0--\0", 4);

// Returns the text of a stream that is saved and restored before every token.
inline std::string streamed(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  TextStream stream(tokenizer, false);
  std::string text;
  for (const int32_t id : ids) {
    TextStream next(tokenizer, false);
    next.restore(stream.state());
    text += next.push(id);
    stream = next;
  }
  return text + stream.finish();
}

inline void use_tokenizer(const Tokenizer& tokenizer) {
  const std::string texts[] = {
      "Tell me a.<start_of_turn> <|eot_id|>\n  \u00E9\U0001F600 Now abc 12\t  's", "",
      "\xFF\xC3 a\xE2\x82", std::string(300, 'a')};
  for (const std::string& text : texts) {
    for (const bool special : {true, false}) {
      const std::vector<int32_t> ids = tokenizer.encode(text, Tokenizer::Bos::automatic, special);
      for (const int32_t id : ids)
        must(id >= 0 && id < tokenizer.size(), "ids are of the vocabulary");
      const std::string back = tokenizer.decode(ids);
      must(utf8_valid(back), "text is UTF-8");
      must(streamed(tokenizer, ids) == back, "a stream gives the text of all ids");
    }
  }
  std::vector<int32_t> all;
  for (int32_t id = 0; id < std::min(tokenizer.size(), 2000); ++id) {
    all.push_back(id);
    const std::string piece = tokenizer.piece(id);
    must(piece.empty() || tokenizer.find_id(piece) == id, "a piece has one id");
  }
  must(utf8_valid(tokenizer.decode(all, true)), "text is UTF-8");
  must(streamed(tokenizer, all) == tokenizer.decode(all), "a stream gives the text of all ids");
  must(Tokenizer::load_from_files(tokenizer.files())->fingerprint() == tokenizer.fingerprint(),
       "its files make it again");
}

inline int read_tokenizer(const char* vocabulary, const uint8_t* data, size_t size) {
  const std::string_view input = text_of(data, size);
  const size_t split = std::min(input.find(kSplit), size);
  Tokenizer::Files files = {{vocabulary, std::string(input.substr(0, split))}};
  if (split < size)
    files.emplace_back("tokenizer_config.json", std::string(input.substr(split + kSplit.size())));
  return read_and_use([&] { use_tokenizer(*Tokenizer::load_from_files(std::move(files))); });
}

}  // namespace stet::fuzz

// stet's own encoder for tokenizer.model compared with the sentencepiece library's, and damaged
// files.
#include <bit>
#include <optional>

#include "src/text/encoder.hpp"
#include "src/text/sentencepiece.hpp"
#include "tests/support/files.hpp"
#include "tests/text/tokenizer_testing.hpp"

namespace stet::test::sentencepiece_tests {
namespace {

// Writes a sentencepiece model in protocol buffers' wire format.
class Proto {
 public:
  Proto& number(uint32_t field, uint64_t value) {
    varint(field << 3);
    return varint(value);
  }
  Proto& text(uint32_t field, std::string_view value) {
    varint(field << 3 | 2).varint(value.size());
    bytes_ += value;
    return *this;
  }
  Proto& real(uint32_t field, float value) {
    varint(field << 3 | 5);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Proto& varint(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
    return *this;
  }
  std::string bytes_;
};

struct Piece {
  std::string text;
  float score;
  uint64_t type;
};
struct Settings {
  bool byte_fallback = true, dummy_prefix = false, remove_extra = false;
};

std::string model_of(const std::vector<Piece>& pieces, const Settings& settings) {
  Proto model;
  for (const Piece& p : pieces)
    model.text(1, Proto().text(1, p.text).real(2, p.score).number(3, p.type).bytes());
  model.text(2, Proto().number(3, 2).number(35, settings.byte_fallback).bytes());
  return model
      .text(3, Proto()
                   .text(1, "identity")
                   .number(3, settings.dummy_prefix)
                   .number(4, settings.remove_extra)
                   .number(5, 1)
                   .bytes())
      .bytes();
}

// A tokenizer with one of the two encoders, without the processing around a text.
class OneWay {
 public:
  OneWay(const std::string& bytes, bool every_segment, SentencePieceBy by)
      : parts_(stet::parse_sentencepiece_tokenizer(bytes, "m", every_segment, by)) {
    for (stet::AddedToken& token : parts_.added) {
      token.reserved = token.special;
      finder_.add(token, token.text, "m");
    }
    finder_.build();
    parts_.encoder->set_added(parts_.added, parts_.vocabulary.size());
  }
  // Encodes text; if `plain`, as in a user's message, from which no special token can come.
  std::optional<Ids> encode(const std::string& text, bool plain) const {
    const stet::TextRange whole{0, text.size()};
    std::vector<stet::Segment> segments;
    finder_.split({text, -1, true, false}, std::span(&whole, plain ? 1 : 0), segments);
    Ids ids;
    try {
      parts_.encoder->encode(segments, ids);
    } catch (const stet::Error&) {
      return std::nullopt;
    }
    return ids;
  }
  std::string decode(const Ids& ids) const {
    std::string text;
    stet::TokenDecoder::State state = parts_.decoder.begin();
    for (const int32_t id : ids) parts_.decoder.push(parts_.vocabulary.piece(id), state, text);
    parts_.decoder.finish(state, text);
    return text;
  }
  const stet::TokenizerParts& parts() const { return parts_; }

 private:
  stet::TokenizerParts parts_;
  stet::AddedTokenFinder finder_;
};

// Returns texts of all kinds: random Unicode, pieces of the vocabulary side by side, runs of
// spaces, long texts.
std::string text_for(const stet::Vocabulary& vocabulary, std::mt19937& random) {
  std::string text;
  switch (random() % 8) {
    case 0:
      return random_text(random, random() % 60);
    case 1:  // invalid UTF-8, which is repaired first
      return stet::utf8_lossy(random_bytes(random, random() % 40));
    case 2:
      return std::string(random() % 70, ' ') + "a" + std::string(random() % 9, ' ');
    case 3:
      for (size_t n = random() % 400; n > 0; --n) text += static_cast<char>('a' + random() % 3);
      return text;
    default:
      for (size_t n = random() % 30; n > 0; --n) {
        const auto id = static_cast<int32_t>(random() % static_cast<unsigned>(vocabulary.size()));
        text += random() % 4 == 0 ? random_text(random, 1 + random() % 4)
                                  : replaced(std::string(vocabulary.piece(id)), "\u2581", " ");
        if (random() % 6 == 0) text += std::string(random() % 4, random() % 3 ? ' ' : '\n');
      }
      return text;
  }
}

// Compares both encoders on random texts. Returns how many texts gave ids.
size_t compare(const std::string& bytes, bool every_segment, size_t texts, unsigned seed) {
  const OneWay own(bytes, every_segment, SentencePieceBy::own),
      library(bytes, every_segment, SentencePieceBy::library);
  EXPECT_EQ(own.parts().settings, library.parts().settings);
  EXPECT_EQ(own.parts().table, library.parts().table);
  std::mt19937 random(seed);
  size_t encoded = 0, failures = 0;
  for (size_t i = 0; i < texts && failures < 5; ++i) {
    const std::string text = text_for(own.parts().vocabulary, random);
    const bool plain = random() % 2 == 0;
    const auto mine = own.encode(text, plain), theirs = library.encode(text, plain);
    EXPECT_EQ(mine, theirs) << "seed " << seed << ", text " << i << ": "
                            << nlohmann::json(text).dump();
    failures += mine != theirs;
    if (!mine || !theirs) continue;
    EXPECT_EQ(own.decode(*mine), library.decode(*theirs));
    ++encoded;
  }
  return encoded;
}

// Returns a model of few characters and random settings, so that all kinds of pieces occur.
std::string random_model(std::mt19937& random) {
  const std::string characters[] = {"a", "b", "c", "\u2581", "\n", "\u00E9", "\U0001F600", " "};
  Settings settings;
  settings.byte_fallback = random() % 2 == 0;
  settings.dummy_prefix = random() % 2 == 0;
  settings.remove_extra = random() % 2 == 0;
  std::vector<Piece> pieces{{random() % 8 == 0 ? "c" : "<unk>", 0, 2}, {"<s>", 0, 3}};
  stet::Vocabulary known;
  known.add(pieces[0].text, 0);
  known.add("<s>", 1);
  const auto add = [&](const std::string& text, uint64_t type) {
    const auto score = -static_cast<float>(random() % 12);
    if (known.add(text, static_cast<int32_t>(pieces.size()))) pieces.push_back({text, score, type});
  };
  for (int b = 0; settings.byte_fallback && b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(b));
    add(name, 6);
  }
  for (size_t n = 5 + random() % 60; n > 0; --n) {
    std::string text;
    for (size_t length = 1 + random() % (random() % 6 == 0 ? 9 : 4); length > 0; --length)
      text += characters[random() % std::size(characters)];
    const uint64_t types[] = {1, 1, 1, 1, 1, 5, 5, 4, 3};
    add(text, types[random() % std::size(types)]);
  }
  return model_of(pieces, settings);
}

const std::string kModels = STET_ROOT "/tests/data/tokenizer/";

}  // namespace

TEST(SentencePiece, PocketGemmaHasTheIdsOfTheLibrary) {
  NEEDS(Sentencepiece);
  const std::string bytes = read_text(kGemma + "/tokenizer.model");
  EXPECT_EQ(compare(bytes, false, 1500, 1), 1500u);
  EXPECT_EQ(compare(bytes, true, 500, 2), 500u);
}

TEST(SentencePiece, AModelThatPutsSpacesFirstHasTheIdsOfTheLibrary) {
  NEEDS(Sentencepiece);
  const std::string bytes = read_text(kModels + "bpe.model");
  EXPECT_EQ(compare(bytes, false, 500, 3), 500u);
  EXPECT_EQ(compare(bytes, true, 500, 4), 500u);
}

TEST(SentencePiece, RandomModelsHaveTheIdsOfTheLibrary) {
  NEEDS(Sentencepiece);
  std::mt19937 random(5);
  size_t encoded = 0;
  for (unsigned i = 0; i < 300; ++i)
    encoded += compare(random_model(random), random() % 2 == 0, 20, 100 + i);
  EXPECT_GT(encoded, 3000u);  // the rest contain a control piece, and both refuse them
}

// transformers made the conversations' ids, so a build without the library is tested against them,
// too.
TEST(SentencePiece, PocketGemmaHasTheIdsOfItsConversations) {
  const OneWay own(read_text(kGemma + "/tokenizer.model"), true, SentencePieceBy::own);
  const auto script = nlohmann::json::parse(read_text(kGoldens + "gemma3/script.json"));
  std::string text = "<bos>";
  for (const auto& turn : script["turns"]) {
    text += "<start_of_turn>user\n" + std::string(turn["user"]) + "<end_of_turn>\n";
    text += "<start_of_turn>model\n" + std::string(turn["model"]) + "<end_of_turn>\n";
  }
  text.pop_back();
  EXPECT_EQ(own.encode(text, false), Ids(script["ids"]));
  EXPECT_EQ(own.decode(Ids(script["ids"])), text);
}

TEST(SentencePiece, LongTextsTakeLittleTime) {
  const OneWay own(read_text(kGemma + "/tokenizer.model"), false, SentencePieceBy::own);
  std::vector<Piece> pieces{{"<unk>", 0, 2}};
  for (size_t n = 1; n <= 1000; ++n)
    pieces.push_back({std::string(n, 'a'), static_cast<float>(n), 1});
  const OneWay greedy(model_of(pieces, {.byte_fallback = false}), false, SentencePieceBy::own);
  std::mt19937 random(6);
  EXPECT_EQ(own.encode(std::string(400'000, 'a'), false)->size() > 0, true);
  EXPECT_EQ(own.decode(*own.encode(std::string(400'000, ' '), false)), std::string(400'000, ' '));
  const std::string text = random_text(random, 100'000);
  EXPECT_EQ(own.decode(*own.encode(text, false)), replaced(text, "\u2581", " "));
  EXPECT_EQ(greedy.encode(std::string(400'000, 'a'), false)->size(), 400u);
}

// Long texts are encoded in parts. Here parts are short, and pieces cross most of their borders.
TEST(SentencePiece, PartsHaveTheIdsOfTheWhole) {
  std::mt19937 random(7);
  size_t parts = 0;
  const auto encode = [](const auto& encoder, std::string_view text) -> std::optional<Ids> {
    Ids ids;
    try {
      encoder->encode(text, ids);
    } catch (const stet::Error&) {
      return std::nullopt;
    }
    return ids;
  };
  for (int i = 0; i < 3000; ++i) {
    const std::string bytes =
        i % 10 == 0 ? read_text(kGemma + "/tokenizer.model") : random_model(random);
    const stet::SentencePieceModel model = stet::parse_sentencepiece_model(bytes, "m");
    const auto encoder = stet::sentencepiece_bpe(model, "m");
    const stet::SentencePieceCuts cuts(model);
    std::string text;
    for (size_t n = random() % 60; n > 0; --n)
      text += std::string(1, "abc  \n"[random() % 6]) + (random() % 9 == 0 ? "\u2581" : "");
    const std::optional<Ids> whole = encode(encoder, text);
    Ids ids;
    std::string_view rest = text;
    while (whole && !rest.empty()) {
      const size_t size = cuts.part(rest, 1 + random() % 6);
      const auto some = encode(encoder, rest.substr(0, size));
      ASSERT_TRUE(some);
      ids.insert(ids.end(), some->begin(), some->end());
      rest.remove_prefix(size);
      parts += rest.empty() ? 0 : 1;
    }
    if (whole) {
      ASSERT_EQ(ids, *whole) << nlohmann::json(text).dump();
    }
  }
  EXPECT_GT(parts, 1000u);
}

TEST(SentencePiece, LongTextsHaveTheIdsOfTheirParts) {
  const auto tokenizer = stet::Tokenizer::load(kGemma);
  const std::string part = " Let a = 3. What is a?";
  std::string text;
  while (text.size() < 300'000) text += part;
  const Ids once = tokenizer->encode(part, stet::Tokenizer::Bos::off),
            all = tokenizer->encode(text, stet::Tokenizer::Bos::off);
  ASSERT_EQ(all.size(), once.size() * (text.size() / part.size()));
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], once[i % once.size()]);
}

TEST(SentencePiece, RefusesModelsThatOnlyTheLibraryReads) {
  const auto error = [](const std::string& bytes) {
    return message_of([&] { OneWay(bytes, false, SentencePieceBy::own); });
  };
  const std::string unknown = Proto().text(1, Proto().text(1, "u").number(3, 2).bytes()).bytes();
  EXPECT_EQ(error(unknown),
            "m: trainer_spec.model_type: expected 2 (BPE), or a build with sentencepiece, found 1");
  const std::string map =
      std::string("\0\4\0\0", 4) + std::string(1024, '\0') + std::string("a\0", 2);
  EXPECT_EQ(error(unknown + Proto().text(2, Proto().number(3, 2).bytes()).bytes() +
                  Proto().text(3, Proto().text(2, map).bytes()).bytes()),
            "m: normalizer_spec.precompiled_charsmap: expected none, or a build with "
            "sentencepiece, found 1030 bytes");
  EXPECT_EQ(error(model_of({{"u", 0, 2}, {"<0xzz>", 0, 6}}, {})),
            "m: pieces[1]: expected <0x00>..<0xFF> for a piece of type BYTE, found <0xzz>");
}

TEST(SentencePiece, DamagedModelsGiveErrorsOrIds) {
  std::mt19937 random(7);
  const std::string pocket = read_text(kGemma + "/tokenizer.model");
  size_t loaded = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string bytes = i % 10 == 0 ? pocket : random_model(random);
    try {
      const OneWay own(damaged(bytes, random), i % 2 == 0, SentencePieceBy::own);
      ++loaded;
      const int32_t size = own.parts().vocabulary.size();
      for (int n = 0; n < 3; ++n) {
        const auto ids = own.encode(text_for(own.parts().vocabulary, random), n == 0);
        if (!ids) continue;
        for (const int32_t id : *ids) EXPECT_TRUE(id >= 0 && id < size) << id;
        EXPECT_TRUE(stet::utf8_valid(own.decode(*ids)));
      }
    } catch (const stet::Error& e) {
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    }
  }
  EXPECT_GT(loaded, 200u);
}

}  // namespace stet::test::sentencepiece_tests

// Helpers of the tokenizer tests: reading files, a small tokenizer.json, random text.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/text/tokenizer.hpp"
#include "stet/text/utf8.hpp"
#include "tests/support/error_of.hpp"

namespace stet::test {

using Ids = std::vector<int32_t>;
using stet::Tokenizer;
using Bos = stet::Tokenizer::Bos;

inline std::string fixtures() {
  const char* given = std::getenv("STET_FIXTURES");
  return given ? given : STET_ROOT "/../shared/fixtures";
}

// Without fixtures the tests are skipped for a person, but fail on a CI machine.
inline bool is_ci() {
  const char* ci = std::getenv("CI");
  return ci != nullptr && std::string(ci) == "true";
}
#define NEEDS_FIXTURE(path)                                                           \
  if (!std::filesystem::exists(path)) {                                               \
    if (is_ci()) FAIL() << "no " << (path) << ": STET_FIXTURES names where they are"; \
    GTEST_SKIP() << "no " << (path) << ": STET_FIXTURES names where they are";        \
  }

#ifdef STET_HAVE_SENTENCEPIECE
inline constexpr bool kHaveSentencepiece = true;
#else
inline constexpr bool kHaveSentencepiece = false;
#endif
#ifdef STET_HAVE_PCRE2
inline constexpr bool kHavePcre2 = true;
#else
inline constexpr bool kHavePcre2 = false;
#endif
#ifdef STET_HAVE_UTF8PROC
inline constexpr bool kHaveUtf8proc = true;
#else
inline constexpr bool kHaveUtf8proc = false;
#endif
#define NEEDS(library) \
  if (!kHave##library) GTEST_SKIP() << "built without " #library

inline const std::string kGemma = STET_ROOT "/assets/pocket-gemma3";
inline const std::string kLlama = STET_ROOT "/assets/pocket-llama3";
inline const std::string kGoldens = STET_ROOT "/tests/data/pocket/golden-";

// Returns characters of one to four bytes: letters, marks, white space, emoji.
inline std::string random_text(std::mt19937& random, size_t characters) {
  static const std::vector<uint32_t> picks = {' ',   '\n', 'a',    'e',    '5',     '\'',
                                              0x301, 0xE9, 0x2581, 0x4E2D, 0x1F600, 0x200D};
  std::string text;
  for (size_t i = 0; i < characters; ++i) {
    size_t code = 0;
    switch (random() % 4) {
      case 0:
        code = picks[random() % picks.size()];
        break;
      case 1:
        code = 1 + random() % 0x7F;
        break;
      case 2:
        code = 1 + random() % 0xD7FF;
        break;
      default:
        code = 'a' + random() % 26;
    }
    stet::utf8_append(text, static_cast<uint32_t>(code));
  }
  return text;
}

inline std::string random_bytes(std::mt19937& random, size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(random()));
  return bytes;
}

inline std::string replaced(const std::string& text, const std::string& from,
                            const std::string& to) {
  std::string out;
  size_t done = 0;
  for (size_t at; (at = text.find(from, done)) != std::string::npos; done = at + from.size()) {
    out.append(text, done, at - done).append(to);
  }
  return out.append(text, done);
}

// Returns the text of ids through a TextStream, checking that each part is UTF-8.
inline std::string streamed(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                            bool skip_special) {
  stet::TextStream stream(tokenizer, skip_special);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = stream.push(id);
    EXPECT_TRUE(stet::utf8_valid(part));
    text += part;
  }
  const std::string rest = stream.finish();
  EXPECT_TRUE(stet::utf8_valid(rest));
  return text + rest;
}

// Returns a small tokenizer.json: a BPE model of a few pieces, without byte-level encoding.
inline nlohmann::json small_json() {
  return nlohmann::json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
      "vocab": {"<unk>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5, " ": 6, "_": 7, "_a": 8},
      "merges": [["a", "b"], "ab c", ["_", "a"]]}
  })");
}

inline std::shared_ptr<const Tokenizer> from_json(const nlohmann::json& json,
                                                  const std::string& config = "") {
  Tokenizer::Files files{{"tokenizer.json", json.dump()}};
  if (!config.empty()) files.emplace_back("tokenizer_config.json", config);
  return Tokenizer::load_from_files(files);
}

// Makes one to three changes: flips a bit, replaces a byte, or removes, doubles or moves a run.
inline std::string damaged(std::string bytes, std::mt19937& random) {
  for (size_t n = 1 + random() % 3; n > 0 && !bytes.empty(); --n) {
    const size_t at = random() % bytes.size(),
                 size = std::min<size_t>(1 + random() % 40, bytes.size() - at);
    switch (random() % 5) {
      case 0:
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 2:
        bytes[at] = static_cast<char>(random());
        break;
      case 3:
        bytes.erase(at, size);
        break;
      default:
        bytes.insert(random() % bytes.size(), bytes.substr(at, size));
    }
  }
  return bytes;
}

}  // namespace stet::test

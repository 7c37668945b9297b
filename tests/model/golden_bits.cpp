// Golden bits: digests, committed in tests/data/golden_bits, that every compiler, instruction set,
// number of threads and chunking must reproduce. For each checkpoint NAME, NAME.ids.json is an
// array of token ids, and digests.txt has two lines, "NAME logits DIGEST" and "NAME kv DIGEST".
// Models with recurrent layers have a third one, "NAME recurrent DIGEST".
//
// All are XXH3-128. The first covers the logits of all positions ([T][vocab], little-endian
// float32). The second covers the bytes of all blocks of keys and values in order, and the third the
// arrays of recurrent layers. "NAME@bf16", "@q8" and "@q4" use that contract. "+q8" stores keys and
// values as q8.
#include <fmt/format.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/support/models.hpp"

namespace stet::test::golden_bits_tests {
namespace {

std::map<std::string, std::string> committed() {
  std::ifstream file(data_path("golden_bits/digests.txt"));
  std::map<std::string, std::string> digests;
  std::string name, what, digest;
  while (file >> name >> what >> digest) digests[name + " " + what] = digest;
  return digests;
}

// Calls check(instruction set, threads, chunk) with all combinations, or with a sixth of them. Each
// name then has every value of each, and two names of different `half` have every pair of values.
void for_each_way(size_t half, const std::function<void(const char*, int, int64_t)>& check) {
  constexpr int kThreads[] = {1, 2, 3};
  constexpr int64_t kChunks[] = {1, 7, 64, 512};
  const char* const* const isas = kernel_names();
  for (size_t i = 0; isas[i] != nullptr; ++i) {
    for (size_t c = 0; c < std::size(kChunks); ++c) {
      for (size_t t = 0; t < std::size(kThreads); ++t) {
        if (all_ways() || ((i + c) % 2 == half && t == (i + c) % std::size(kThreads)))
          check(isas[i], kThreads[t], kChunks[c]);
      }
    }
  }
}

void reproduce(const Subject& subject, const std::string& name, KvType kv) {
  const auto expected = committed();
  std::ifstream file(
      data_path("golden_bits/" + name.substr(0, name.find_first_of("@+")) + ".ids.json"));
  const auto ids = nlohmann::json::parse(file).get<std::vector<int32_t>>();
  const auto check = [&](const char* isa, int threads, int64_t chunk) {
    // Large checkpoints take small chunks on one thread only: many threads would spend their time
    // at the barriers of each token.
    if (ids.size() > 100 && chunk < 64 && threads > 1) {
      if (all_ways()) return;
      threads = 1;
    }
    const std::string how = fmt::format("{}, {} threads, chunk {}", isa, threads, chunk);
    SessionOptions o = options(threads, isa, chunk, subject.contract);
    o.kv_type = kv;
    Session session(model(subject.directory, subject.contract), o);
    const std::vector<float> logits = all_logits(session, ids);
    EXPECT_EQ(digest_text(digest_of(std::as_bytes(std::span(logits)))),
              expected.at(name + " logits"))
        << how;
    EXPECT_EQ(digest_text(digest_of(kv_bytes(session.kv()))), expected.at(name + " kv")) << how;
    const std::span<const float> arrays = session.state().recurrent.numbers();
    if (arrays.empty()) return;
    EXPECT_EQ(digest_text(digest_of(std::as_bytes(arrays))), expected.at(name + " recurrent"))
        << how;
  };
  for_each_way(std::hash<std::string>{}(name) % 2, check);
}

class GoldenBits : public testing::TestWithParam<Subject> {};

TEST_P(GoldenBits, Reproduced) { reproduce(GetParam(), GetParam().name, KvType::f32); }

TEST(GoldenBitsOfQ8, Reproduced) {
  for (const char* name :
       {"gemma3-tiny", "llama31-tiny", "gpt2-tiny", "gemma2-tiny", "gemma4-small-tiny"}) {
    const Subject subject{name, data_path(std::string("models/") + name)};
    reproduce(subject, std::string(name) + "+q8", KvType::q8);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenBits, testing::ValuesIn(subjects_and_contracts()),
                         subject_name);
INSTANTIATE_TEST_SUITE_P(Recurrent, GoldenBits, testing::ValuesIn(recurrent_subjects()),
                         subject_name);

}  // namespace
}  // namespace stet::test::golden_bits_tests

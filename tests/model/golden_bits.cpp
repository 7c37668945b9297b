// Golden bits: digests, committed in tests/data/golden_bits, that every compiler, instruction set,
// number of threads and chunking must reproduce. For each checkpoint NAME, NAME.ids.json is an
// array of token ids, and digests.txt has two lines, "NAME logits DIGEST" and "NAME kv DIGEST":
// XXH3-128 of the logits of all positions ([T][vocab], little-endian float32) and of the bytes of
// all blocks of keys and values, in order. "NAME@bf16" is the same under the contract bf16; "@q8"
// and "@q4" likewise; "+q8" with keys and values of that type.
#include <fmt/format.h>

#include <fstream>
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

void reproduce(const Subject& subject, const std::string& name, KvType kv) {
  const auto expected = committed();
  std::ifstream file(
      data_path("golden_bits/" + name.substr(0, name.find_first_of("@+")) + ".ids.json"));
  const auto ids = nlohmann::json::parse(file).get<std::vector<int32_t>>();
  for (const char* const* isa = kernel_names(); *isa != nullptr; ++isa) {
    for (int threads : {1, 2, 3}) {
      for (int64_t chunk : {1, 7, 64, 512}) {
        // The larger checkpoints take their small chunks on one thread: a token costs the same, its
        // barriers not.
        if (ids.size() > 100 && threads > 1 && chunk < 64) continue;
        const std::string how = fmt::format("{}, {} threads, chunk {}", *isa, threads, chunk);
        SessionOptions o = options(threads, *isa, chunk, subject.contract);
        o.kv_type = kv;
        Session session(model(subject.directory, subject.contract), o);
        const std::vector<float> logits = all_logits(session, ids);
        EXPECT_EQ(digest_text(digest_of(std::as_bytes(std::span(logits)))),
                  expected.at(name + " logits"))
            << how;
        EXPECT_EQ(digest_text(digest_of(kv_bytes(session.kv()))), expected.at(name + " kv")) << how;
      }
    }
  }
}

class GoldenBits : public testing::TestWithParam<Subject> {};

TEST_P(GoldenBits, Reproduced) { reproduce(GetParam(), GetParam().name, KvType::f32); }

TEST(GoldenBitsOfQ8, Reproduced) {
  for (const char* name : {"gemma3-tiny", "llama31-tiny", "gpt2-tiny", "gemma2-tiny"}) {
    const Subject subject{name, data_path(std::string("models/") + name)};
    reproduce(subject, std::string(name) + "+q8", KvType::q8);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenBits, testing::ValuesIn(subjects_and_contracts()),
                         subject_name);

}  // namespace
}  // namespace stet::test::golden_bits_tests

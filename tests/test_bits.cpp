// The promise: the same bits whatever the chunking, the threads, the instruction set, the history.
#include <random>

#include "stet/math.hpp"
#include "support.hpp"

namespace stet::test {
namespace {

const char* const kModels[] = {"models/gemma3-tiny", "models/gemma3-tiny-bf16", "models/gemma3-vision-tiny",
                               "models/llama31-tiny", "models/llama32-tiny-bf16", "models/llama2-tiny-f16"};
const char* const kPocket[] = {"pocket-gemma3", "pocket-llama3"};

struct Subject {
  std::string name, directory;
};

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const char* name : kModels) all.push_back({name, data_path(name)});
  for (const char* name : kPocket) all.push_back({name, asset_path(name)});
  return all;
}

// Tokens of a fixed pseudo-random sequence, below the vocabulary's size.
std::vector<int32_t> tokens(const Model& m, size_t n, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(m.config().vocab_size));
  return ids;
}

struct Outcome {
  std::vector<float> logits;
  std::vector<std::byte> kv;
};

void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  ASSERT_EQ(a.logits.size(), b.logits.size()) << what;
  for (size_t i = 0; i < a.logits.size(); ++i) {
    ASSERT_EQ(std::memcmp(&a.logits[i], &b.logits[i], 4), 0) << what << ": logit " << i;
  }
  ASSERT_EQ(a.kv.size(), b.kv.size()) << what;
  for (size_t i = 0; i < a.kv.size(); ++i) ASSERT_EQ(a.kv[i], b.kv[i]) << what << ": KV byte " << i;
}

Outcome run(const std::shared_ptr<const Model>& m, std::span<const int32_t> ids, const SessionOptions& options) {
  Session s(m, options);
  Outcome o;
  o.logits = all_logits(s, ids);
  o.kv = kv_bytes(s.kv());
  return o;
}

class Bits : public testing::TestWithParam<Subject> {
 protected:
  std::shared_ptr<const Model> m = model(GetParam().directory);
  size_t window() const {
    int64_t widest = 8;
    for (int64_t w : m->config().window) {
      if (w < 512) widest = std::max(widest, w);
    }
    return static_cast<size_t>(widest);
  }
};

TEST_P(Bits, ChunkingDoesNotMatter) {
  const auto ids = tokens(*m, 200);
  const Outcome whole = run(m, ids, options(1));
  for (int64_t chunk : {1, 2, 7, 63, 64, 65}) {
    expect_same(run(m, ids, options(1, "", chunk)), whole, "chunk " + std::to_string(chunk));
  }
}

TEST_P(Bits, ThreadsDoNotMatter) {
  const auto ids = tokens(*m, 150);
  const Outcome one = run(m, ids, options(1));
  for (int threads : {2, 3, 5}) {
    expect_same(run(m, ids, options(threads)), one, std::to_string(threads) + " threads");
    expect_same(run(m, ids, options(threads, "", 1)), one, std::to_string(threads) + " threads, token by token");
  }
}

TEST_P(Bits, InstructionSetDoesNotMatter) {
  const auto ids = tokens(*m, 100);
  const Outcome portable = run(m, ids, options(2, "portable"));
  for (const char* const* isa = kernel_names(); *isa != nullptr; ++isa) {
    expect_same(run(m, ids, options(2, *isa)), portable, *isa);
    expect_same(run(m, ids, options(2, *isa, 1)), portable, std::string(*isa) + ", token by token");
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Bits, testing::ValuesIn(subjects()), [](const auto& info) {
  std::string name = info.param.name.substr(info.param.name.find('/') + 1);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace stet::test

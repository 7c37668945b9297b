// Chunking, threads, instruction set and history never change a bit.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "stet/kernels/math.hpp"
#include "stet/kernels/numbers.hpp"
#include "tests/support/models.hpp"

namespace stet::test::bits_tests {
namespace {

// Three windows, or three blocks if the window is wider or there is none, and two positions.
constexpr size_t kLength = 3 * 64 + 2;

// Returns n, or the number of positions that a session of `m` can hold if that is less.
size_t at_most(const Model& m, size_t n) {
  return std::min(n, static_cast<size_t>(m.config().max_positions));
}

class Bits : public testing::TestWithParam<Subject> {
 protected:
  std::shared_ptr<const Model> m = model(GetParam().directory, GetParam().contract);
  const size_t length = at_most(*m, kLength);
  const std::vector<int32_t> ids = random_tokens(*m, length);

  SessionOptions options(int threads, const std::string& isa = STET_DEFAULT_ISA,
                         int64_t chunk = 512) const {
    return test::options(threads, isa, chunk, GetParam().contract);
  }
  // Logits of every position, and the session that has processed them.
  struct Run {
    Session session;
    std::vector<float> logits;
  };
  Run run(std::span<const int32_t> prompt, const SessionOptions& o) const {
    Run r{Session(m, o), {}};
    r.logits = all_logits(r.session, prompt);
    return r;
  }
  static void expect_same(Run a, Run& b, const std::string& what) {
    EXPECT_TRUE(same_bytes(a.logits, b.logits)) << what;
    EXPECT_TRUE(same_state(a.session, b.session)) << what;
  }

  // Returns lengths at and around the boundaries of blocks and of this model's windows.
  std::vector<int64_t> boundaries() const {
    std::vector<int64_t> steps = {kBlockPositions};
    for (int64_t window : m->config().window) {
      if (window > 0 && window < kBlockPositions) steps.push_back(window);
    }
    std::vector<int64_t> all = {0};
    for (int64_t step : steps) {
      all.insert(all.end(), {step - 1, step, step + 1, 2 * step, 3 * step + 1});
      if (all_ways()) all.insert(all.end(), {2 * step - 1, 2 * step + 1, 3 * step - 1, 3 * step});
    }
    std::erase_if(all, [&](int64_t at) { return at > static_cast<int64_t>(length); });
    std::sort(all.begin(), all.end(), std::greater<>());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }
};

TEST_P(Bits, ChunkingDoesNotMatter) {
  Run whole = run(ids, options(1));
  for (int64_t chunk : {1, 2, 7, 63, 64, 65}) {
    if (!all_ways() && (chunk == 1 || chunk == 7 || chunk == 64)) continue;  // see GoldenBits
    expect_same(run(ids, options(1, STET_DEFAULT_ISA, chunk)), whole,
                "chunk " + std::to_string(chunk));
  }
}

TEST_P(Bits, RandomChunkingDoesNotMatter) {
  Run whole = run(ids, options(1));
  std::mt19937 random(7);
  for (int i = 0; i < (all_ways() ? 12 : 4); ++i) {
    Run parts{Session(m, options(1 + i % 2, STET_DEFAULT_ISA, 1 + random() % 90)), {}};
    std::string what = "appended";
    for (size_t at = 0; at < ids.size();) {
      const size_t n = std::min<size_t>(1 + random() % (i % 3 == 0 ? 9 : 130), ids.size() - at);
      const std::vector<float> logits = all_logits(parts.session, std::span(ids).subspan(at, n));
      parts.logits.insert(parts.logits.end(), logits.begin(), logits.end());
      what += fmt::format(" {}", n);
      at += n;
    }
    what += ", chunk " + std::to_string(parts.session.compute().chunk);
    expect_same(std::move(parts), whole, what);
  }
}

// Each team has each number of threads and each chunk. With more threads than processors every token
// waits for all threads, so fewer tokens are taken one by one.
TEST_P(Bits, ThreadsDoNotMatter) {
  Run one = run(ids, options(1));
  const auto few = std::span(ids).first(20);
  Run few_by_one = run(few, options(1, STET_DEFAULT_ISA, 1));
  size_t way = 0;
  for (const std::string& team : team_backends()) {
    const auto on = [&](int threads, int64_t chunk) {
      SessionOptions o = options(threads, STET_DEFAULT_ISA, chunk);
      o.compute.team = *team_backend_of(team);
      return o;
    };
    for (int threads : {2, 3, 5}) {
      const std::string what = team + ", " + std::to_string(threads) + " threads";
      const auto chosen = [&](size_t kind) { return all_ways() || way % 3 == kind; };
      if (chosen(0)) expect_same(run(ids, on(threads, 512)), one, what);
      if (chosen(1)) expect_same(run(ids, on(threads, 63)), one, what + ", chunk 63");
      if (chosen(2)) expect_same(run(few, on(threads, 1)), few_by_one, what + ", token by token");
      ++way;
    }
    ++way;
  }
}

// Runs the members one after the other, the last first.
TEST_P(Bits, AnExecutorDoesNotMatter) {
  struct Backwards : Executor {
    void run(int size, const std::function<void(int rank)>& member) override {
      for (int rank = size - 1; rank >= 0; --rank) member(rank);
      ++runs;
    }
    int runs = 0;
  } executor;
  Run one = run(ids, options(1));
  SessionOptions o = options(3, STET_DEFAULT_ISA, 63);
  o.compute.executor = &executor;
  expect_same(run(ids, o), one, "an executor");
  EXPECT_GE(executor.runs, 2);
}

// A single query's blocks are split among threads; here it has several.
TEST_P(Bits, ThreadsDoNotMatterToADeepToken) {
  Run one = run(ids, options(1));
  for (int threads : {2, 3, 5}) {
    Run r = run(std::span(ids).first(length - 4), options(threads));
    ComputeOptions c = r.session.compute();
    c.chunk = 1;
    r.session.set_compute(c);
    const std::vector<float> rest = all_logits(r.session, std::span(ids).last(4));
    r.logits.insert(r.logits.end(), rest.begin(), rest.end());
    expect_same(std::move(r), one, std::to_string(threads) + " threads");
  }
}

TEST_P(Bits, InstructionSetDoesNotMatter) {
  const auto part = std::span(ids).first(100);
  Run portable = run(part, options(2, "portable"));
  for (const char* const* isa = kernel_names(); *isa != nullptr; ++isa) {
    expect_same(run(part, options(2, *isa)), portable, *isa);
    if (!all_ways()) continue;  // GoldenBits has each instruction set with each chunk
    expect_same(run(part, options(1, *isa, 1)), portable, std::string(*isa) + ", token by token");
  }
}

// Compares prompt lengths with a session that takes one token at a time: all up to two vectors,
// those around a block, and every 29th. With STET_ALL_WAYS, all lengths are compared.
TEST_P(Bits, EveryPromptLengthEqualsTokenByToken) {
  Session stepping(m, options(1));
  for (size_t n = 1; n <= length; ++n) {
    stepping.append({&ids[n - 1], 1});
    if (!all_ways() && n > 18 && (n < 62 || n > 66) && n % 29 != 0 && n != length) continue;
    Session at_once(m, options(1));
    at_once.append(std::span(ids).first(n));
    ASSERT_TRUE(same_state(at_once, stepping)) << "prompt of " << n;
  }
}

TEST_P(Bits, RewoundAndContinuedEqualsUnbroken) {
  Session unbroken(m, options(1));
  unbroken.append(ids);
  Session wandering(m, options(1));
  wandering.append(ids);
  const std::vector<int32_t> others = random_tokens(*m, 70, 2);
  for (int64_t to : boundaries()) {
    wandering.rewind(to);
    Session fresh(m, options(1));
    fresh.append(std::span(ids).first(static_cast<size_t>(to)));
    ASSERT_TRUE(same_state(wandering, fresh)) << "rewound to " << to;
    const size_t room =
        at_most(*m, others.size() + static_cast<size_t>(to)) - static_cast<size_t>(to);
    wandering.append(std::span(others).first(room));  // another continuation leaves no trace
    wandering.rewind(to);
    wandering.append(std::span(ids).subspan(static_cast<size_t>(to)));
    ASSERT_TRUE(same_state(wandering, unbroken)) << "continued from " << to;
  }
}

// Asking for the logits after a rewind computes only the logits.
TEST_P(Bits, LogitsAfterRewindLeaveKeysAndValuesAlone) {
  Session s(m, options(1));
  s.append(ids);
  for (int64_t to : {int64_t{130}, int64_t{129}, int64_t{128}, int64_t{65}, int64_t{1}}) {
    if (to > s.size()) continue;
    s.rewind(to);
    const std::byte* before = s.kv().block((to - 1) / kBlockPositions);
    const std::vector<std::byte> bytes = kv_bytes(s.kv());
    ASSERT_EQ(s.logits().size(), static_cast<size_t>(m->config().vocab_size));
    ASSERT_EQ(s.kv().block((to - 1) / kBlockPositions), before) << to;
    ASSERT_EQ(kv_bytes(s.kv()), bytes) << to;
  }
  s.rewind(0);
  EXPECT_TRUE(s.logits().empty());
}

TEST_P(Bits, ForkEqualsUnbrokenOnEitherSide) {
  Session unbroken(m, options(1));
  unbroken.append(ids);
  const std::vector<int32_t> others = random_tokens(*m, length, 3);
  for (int64_t at :
       {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{65}, int64_t{100}, int64_t{128}}) {
    if (!all_ways() && (at == 1 || at == 65 || at == 128)) continue;
    const auto head = std::span(ids).first(static_cast<size_t>(at)),
               tail = std::span(ids).subspan(head.size());
    const auto other = std::span(others).subspan(head.size());
    Session original(m, options(1));
    original.append(head);
    Session with_other(m, options(1));
    with_other.append(head);
    with_other.append(other);

    Session changed = original.fork();  // the fork is changed, the original continues
    Session kept = original.fork();
    changed.append(other);
    changed.rewind(at / 2);
    original.append(tail);
    ASSERT_TRUE(same_state(original, unbroken)) << "fork at " << at;
    original.rewind(at / 2);  // the original is changed, a fork continues
    original.append(other);
    kept.append(other);
    ASSERT_TRUE(same_state(kept, with_other)) << "fork at " << at;
  }
}

class BitsOfKvType : public testing::TestWithParam<std::tuple<Subject, KvType>> {};

// Chunks, threads, instruction sets and history with a narrower type of keys and values.
TEST_P(BitsOfKvType, ChunksThreadsAndHistoryDoNotMatter) {
  const auto m = model(std::get<0>(GetParam()).directory);
  const auto ids = random_tokens(*m, at_most(*m, 150));
  const auto with = [&](int threads, const std::string& isa, int64_t chunk) {
    SessionOptions o = options(threads, isa, chunk);
    o.kv_type = std::get<1>(GetParam());
    return Session(m, o);
  };
  Session whole = with(1, STET_DEFAULT_ISA, 512);
  const std::vector<float> logits = all_logits(whole, ids);
  for (int64_t chunk : {1, 7, 64, 65}) {
    Session s = with(1 + static_cast<int>(chunk % 2), STET_DEFAULT_ISA, chunk);
    EXPECT_TRUE(same_bytes(all_logits(s, ids), logits)) << "chunk " << chunk;
    EXPECT_TRUE(same_state(s, whole)) << "chunk " << chunk;
    s.rewind(100);
    Session other = s.fork();
    other.append(std::span(ids).first(at_most(*m, 100 + ids.size()) - 100));
    s.append(std::span(ids).subspan(100));
    EXPECT_TRUE(same_state(s, whole)) << "rewound and forked, chunk " << chunk;
  }
  for (const char* const* isa = kernel_names(); *isa != nullptr; ++isa) {
    Session s = with(2, *isa, 70);
    EXPECT_TRUE(same_bytes(all_logits(s, ids), logits)) << *isa;
    EXPECT_TRUE(same_state(s, whole)) << *isa;
  }
}

// Checks every q8 key and value against the formula of kv_block.hpp.
void quantized_once(const Session& wide, const Session& narrow) {
  const KvShape &from = wide.kv().shape(), &to = narrow.kv().shape();
  const auto dim = static_cast<size_t>(from.head_dim);
  std::vector<float> x(dim), y(dim);
  for (int64_t p = 0; p < wide.size(); ++p) {
    for (int64_t head = 0; head < from.kv_heads; ++head) {
      for (const bool key : {true, false}) {
        read_row(from, key, wide.kv().block(p / 64) + from.offset(key, 0, head), p % 64, x);
        read_row(to, key, narrow.kv().block(p / 64) + to.offset(key, 0, head), p % 64, y);
        float a = 0;
        for (const float f : x) a = std::max(a, std::fabs(f));
        const float factor = 127.0f / a, scale = a / 127.0f;
        for (size_t d = 0; d < dim; ++d) {
          ASSERT_EQ(y[d], static_cast<float>(std::nearbyint(double{x[d] * factor})) * scale)
              << p << ", " << d;
        }
      }
    }
  }
}

// Keys and values of the first layer do not depend on attention, so they are those of the f32 cache
// rounded once.
TEST_P(BitsOfKvType, RoundedOnceWhenWritten) {
  const auto m = model(std::get<0>(GetParam()).directory);
  const KvType type = std::get<1>(GetParam());
  const auto ids = random_tokens(*m, 70);
  SessionOptions o = options(1);
  Session wide(m, o);
  o.kv_type = type;
  Session narrow(m, o);
  wide.append(ids);
  narrow.append(ids);
  const KvShape &from = wide.kv().shape(), &to = narrow.kv().shape();
  if (type == KvType::q8) return quantized_once(wide, narrow);
  for (int64_t block = 0; block < wide.kv().blocks(); ++block) {
    const float* exact =
        reinterpret_cast<const float*>(wide.kv().block(block) + from.k_offset(0, 0));
    const uint16_t* rounded =
        reinterpret_cast<const uint16_t*>(narrow.kv().block(block) + to.k_offset(0, 0));
    const size_t layer = static_cast<size_t>(from.kv_heads * from.head_dim * kBlockPositions * 2);
    for (size_t i = 0; i < layer; ++i) {
      const uint16_t expected = type == KvType::bf16 ? round_bf16(exact[i]) : round_f16(exact[i]);
      ASSERT_EQ(rounded[i], expected) << "block " << block << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Bits, testing::ValuesIn(subjects_and_contracts()), subject_name);
// Returns each subject with one of the types in turn, or with all of them.
std::vector<std::tuple<Subject, KvType>> kv_types_of_subjects() {
  constexpr KvType kTypes[] = {KvType::q8, KvType::bf16, KvType::f16};
  std::vector<std::tuple<Subject, KvType>> all;
  size_t number = 0;
  for (const Subject& subject : subjects()) {
    for (size_t i = 0; i < std::size(kTypes); ++i) {
      if (all_ways() || i == number % std::size(kTypes)) all.emplace_back(subject, kTypes[i]);
    }
    ++number;
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(
    Models, BitsOfKvType, testing::ValuesIn(kv_types_of_subjects()), [](const auto& info) {
      const testing::TestParamInfo<Subject> subject(std::get<0>(info.param), info.index);
      return subject_name(subject) + "_" + kv_type_name(std::get<1>(info.param));
    });

}  // namespace
}  // namespace stet::test::bits_tests

// attention() on a small hand-made pass is compared with the contract restated in plain C++, and
// with float64 within a derived bound. Threads, other sequences and masked positions must not
// change a bit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "stet/kernels/numbers.hpp"
#include "stet/kv/kv_writer.hpp"
#include "stet/model/ops.hpp"
#include "tests/support/all_ways.hpp"
#include "tests/support/kernel_testing.hpp"

namespace stet::test::attention_tests {
namespace {

struct Scene {
  size_t kv_heads = 1, group = 1, head_dim = 16;
  int64_t positions = 100;  // positions in the cache
  int64_t first = 0;        // queries are positions first .. positions-1
  int64_t window = 0;
  double softcap = 0;
  KvType type = KvType::f32;
  uint64_t seed = 1;
  std::vector<float> sinks = {};  // [heads], or none

  size_t heads() const { return kv_heads * group; }
  size_t count() const { return static_cast<size_t>(positions - first); }
  size_t q_width() const { return heads() * head_dim; }
  size_t kv_width() const { return kv_heads * head_dim; }
  double scale() const { return 0.9 / std::sqrt(static_cast<double>(head_dim)); }
  AttentionShape shape() const {
    return {1,        heads(),  kv_heads,
            head_dim, head_dim, window,
            scale(),  softcap,  sinks.empty() ? nullptr : sinks.data()};
  }
  bool sees(int64_t query, int64_t position) const {
    return position <= query && (window == 0 || position > query - window);
  }
  std::string text() const {
    return std::to_string(kv_heads) + " kv heads x " + std::to_string(group) + ", head_dim " +
           std::to_string(head_dim) + ", queries " + std::to_string(first) + ".." +
           std::to_string(positions) + ", window " + std::to_string(window) + ", " +
           kv_type_name(type);
  }
};

// Replaces one key or value x by its q8 integers, following the formula and the steps of
// kv_block.hpp. Returns the scale.
float quantized(float* x, size_t n) {
  float a = 0;
  for (size_t i = 0; i < n; ++i) a = std::max(a, std::fabs(x[i]));
  const float factor = 127.0f / a;
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(std::nearbyint(double{x[i] * factor}));
  return a / 127.0f;
}

float stored(KvType type, float x) {
  return type == KvType::f32    ? x
         : type == KvType::bf16 ? widen_bf16(round_bf16(x))
                                : widen_f16(round_f16(x));
}

Rows rows_of(std::vector<float>& memory, size_t width) {
  return {memory.data(), width, width, memory.size() / width};
}

// One session's queries, keys and values, and a cache of two layers of which the second is used.
struct Sequence {
  Scene s;
  std::vector<float> q, k, v;  // q[count][heads][head_dim]; k, v[positions][kv_heads][head_dim]
  std::vector<float> k_scale, v_scale;  // [positions][kv_heads]; only if k and v are integers of q8
  KvCache cache;

  explicit Sequence(const Scene& setup)
      : s(setup),
        q(numbers(s.count() * s.q_width(), s.seed)),
        k(numbers(static_cast<size_t>(s.positions) * s.kv_width(), s.seed + 1)),
        v(numbers(static_cast<size_t>(s.positions) * s.kv_width(), s.seed + 2)),
        cache({2, static_cast<int64_t>(s.kv_heads), static_cast<int64_t>(s.head_dim), s.type},
              s.positions + 70) {
    for (float& x : q) x *= 4;
    const Span span{&cache, 0, 0, static_cast<size_t>(s.positions)};
    Pass pass{};
    pass.spans = {&span, 1};
    KvWriter(cache).prepare(s.positions);
    run_team(1, [&](Team t) {
      store_kv(t, pass, 1, rows_of(k, s.kv_width()), rows_of(v, s.kv_width()));
    });
    KvWriter(cache).commit(s.positions);
    if (s.type == KvType::q8) {
      for (size_t i = 0; i < k.size(); i += s.head_dim) {
        k_scale.push_back(quantized(k.data() + i, s.head_dim));
        v_scale.push_back(quantized(v.data() + i, s.head_dim));
      }
      return;
    }
    for (float& x : k) x = stored(s.type, x);
    for (float& x : v) x = stored(s.type, x);
  }
  float scale_of(const std::vector<float>& scales, int64_t position, size_t head) const {
    return scales.empty() ? 1 : scales[static_cast<size_t>(position) * s.kv_heads + head];
  }
  const float* key(int64_t position, size_t head) const {
    return k.data() + (static_cast<size_t>(position) * s.kv_heads + head) * s.head_dim;
  }
  const float* value(int64_t position, size_t head) const {
    return v.data() + (static_cast<size_t>(position) * s.kv_heads + head) * s.head_dim;
  }
};

// Runs `sequences` side by side in one pass. Returns their output, [queries][heads * head_dim].
std::vector<float> run(std::vector<Sequence*> sequences, const std::string& isa = "",
                       int threads = 1) {
  const Scene& s = sequences[0]->s;
  std::vector<float> q;
  std::vector<Span> spans;
  int64_t longest = 0;
  for (Sequence* one : sequences) {
    spans.push_back({&one->cache, one->s.first, q.size() / s.q_width(), one->s.count()});
    q.insert(q.end(), one->q.begin(), one->q.end());
    longest = std::max(longest, one->s.positions);
  }
  std::vector<float> y(q.size(), kNan);
  ModelConfig config;
  config.layers = 2;
  config.hidden_size = config.intermediate_size = 16;
  config.heads = static_cast<int64_t>(s.heads());
  config.kv_heads = static_cast<int64_t>(s.kv_heads);
  config.head_dim = static_cast<int64_t>(s.head_dim);
  Scratch scratch = make_scratch(config, 16, threads, longest);
  for (const Memory& local : scratch.local) {  // other operations may leave any numbers
    std::fill_n(local.as<float>(), local.size() / sizeof(float), kNan);
  }
  Pass pass{};
  pass.kernels = isa.empty() ? &best_kernels() : find_kernels(isa.c_str());
  pass.spans = spans;
  pass.scratch = &scratch;
  run_team(threads, [&](Team t) {
    attention(t, pass, s.shape(), rows_of(q, s.q_width()), rows_of(y, s.q_width()));
  });
  return y;
}

// Computes attention with plain_attend on each block in order, merged with plain_merge.
std::vector<float> plain(const Sequence& a) {
  const Scene& s = a.s;
  std::vector<float> y;
  const float scale = static_cast<float>(s.scale()), cap = static_cast<float>(s.softcap);
  for (int64_t query = s.first; query < s.positions; ++query) {
    for (size_t h = 0; h < s.heads(); ++h) {
      const float* q =
          a.q.data() + (static_cast<size_t>(query - s.first) * s.heads() + h) * s.head_dim;
      PlainPart sum{-kInf, 0, std::vector<float>(s.head_dim, 0.0f)};
      if (!s.sinks.empty()) sum.m = s.sinks[h], sum.l = 1;
      for (int64_t begin = 0; begin < s.positions; begin += 64) {
        std::vector<float> k(s.head_dim * 64), v(64 * s.head_dim), k_scale(64), v_scale(64);
        uint64_t mask = 0;
        for (int64_t t = 0; t < 64 && begin + t < s.positions; ++t) {
          for (size_t d = 0; d < s.head_dim; ++d) {
            k[d * 64 + static_cast<size_t>(t)] = a.key(begin + t, h / s.group)[d];
            v[static_cast<size_t>(t) * s.head_dim + d] = a.value(begin + t, h / s.group)[d];
          }
          k_scale[static_cast<size_t>(t)] = a.scale_of(a.k_scale, begin + t, h / s.group);
          v_scale[static_cast<size_t>(t)] = a.scale_of(a.v_scale, begin + t, h / s.group);
          if (s.sees(query, begin + t)) mask |= uint64_t{1} << t;
        }
        const bool scaled = s.type == KvType::q8;
        if (mask != 0)
          plain_merge(sum, plain_attend(q, k.data(), v.data(), s.head_dim, s.head_dim, mask, scale,
                                        cap, scaled ? k_scale.data() : nullptr,
                                        scaled ? v_scale.data() : nullptr));
      }
      for (float o : sum.o) y.push_back(o / sum.l);
    }
  }
  return y;
}

// Checks outputs against softmax in float64 within a bound, derived step by step. u = 2^-24; gamma
// and expm1 make the first-order terms rigorous.
//   score:   The chain over d and the scale give E = gamma(d + 1) * scale * sum |q k|. q8 has one more
//            scale. A soft cap c tanh(s / c) has a slope <= 1, two roundings and tanh's 1.371 ULP
//            (<= 2 * 1.371 u), which adds 5 u |s'|.
//   weight:  exp(score - m), then one factor exp(m - m') for each of B merged blocks. Each argument is
//            rounded by u R (R: the largest distance of scores), and exp adds 0.94 ULP (<= 2 u). One
//            multiplication each adds 2 u. So eta = expm1(E + (B + 1) (u R + 4 u)).
//   sums:    n weights in any order give gamma(n + B). q8 has one more factor, the value's scale.
// The output is a quotient of two sums of positive weights. With each term off by at most these
// factors, and the quotient's own rounding, the error is at most
//   ((1 + eta)(1 + gamma)(1 + u) / ((1 - eta)(1 - gamma)) - 1) * sum w |v|
void check_against_float64(const Sequence& a, const std::vector<float>& y) {
  const Scene& s = a.s;
  size_t at = 0;
  for (int64_t query = s.first; query < s.positions; ++query) {
    for (size_t h = 0; h < s.heads(); ++h) {
      const float* q =
          a.q.data() + (static_cast<size_t>(query - s.first) * s.heads() + h) * s.head_dim;
      std::vector<double> score, weight;
      std::vector<int64_t> seen;
      double error = 0;
      const double scale = static_cast<float>(s.scale());
      for (int64_t t = 0; t < s.positions; ++t) {
        if (!s.sees(query, t)) continue;
        double sum = 0, size = 0;
        for (size_t d = 0; d < s.head_dim; ++d) {
          const double product = static_cast<double>(q[d]) * a.key(t, h / s.group)[d] *
                                 a.scale_of(a.k_scale, t, h / s.group);
          sum += product;
          size += std::fabs(product);
        }
        const double raw = sum * scale,
                     capped = s.softcap == 0 ? raw : s.softcap * std::tanh(raw / s.softcap);
        const double steps = static_cast<double>(s.head_dim) + (s.type == KvType::q8 ? 2 : 1);
        error = std::max(error, gamma(steps) * scale * size +
                                    (s.softcap == 0 ? 0 : 5 * kUnit * std::fabs(capped)));
        score.push_back(capped);
        seen.push_back(t);
      }
      if (!s.sinks.empty()) score.push_back(double{s.sinks[h]});  // a sink adds weight, not value
      const auto [low, high] = std::minmax_element(score.begin(), score.end());
      const double range = *high - *low + 2 * error, n = static_cast<double>(score.size());
      ASSERT_LT(range, 80) << "weights must stay normal for the bound to hold";
      const double blocks =
          static_cast<double>(seen.back() / 64 - seen.front() / 64 + (s.sinks.empty() ? 1 : 2));
      const double eta = std::expm1(error + (blocks + 1) * kUnit * (range + 4)),
                   g = gamma(n + blocks + (s.type == KvType::q8 ? 1 : 0));
      const double factor = (1 + eta) * (1 + g) * (1 + kUnit) / ((1 - eta) * (1 - g)) - 1;
      double total = 0;
      for (double x : score) total += weight.emplace_back(std::exp(x - *high));
      for (size_t d = 0; d < s.head_dim; ++d, ++at) {
        double expected = 0, size = 0;
        for (size_t i = 0; i < seen.size(); ++i) {
          const double term = weight[i] / total * a.value(seen[i], h / s.group)[d] *
                              a.scale_of(a.v_scale, seen[i], h / s.group);
          expected += term;
          size += std::fabs(term);
        }
        ASSERT_LE(std::fabs(y[at] - expected), factor * size + 0x1p-45)
            << s.text() << ": query " << query << ", head " << h << ", " << d;
      }
    }
  }
}

class AttentionOnEachIsa : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Attention, AttentionOnEachIsa, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

void check(const Scene& s, const std::string& isa) {
  Sequence a(s);
  const std::vector<float> y = run({&a}, isa);
  ASSERT_TRUE(equal_bits(y, plain(a))) << s.text();
  check_against_float64(a, y);
}

TEST_P(AttentionOnEachIsa, Groups) {
  for (size_t group : {1, 2, 3, 4, 8, 12}) {
    check({.kv_heads = 2, .group = group, .head_dim = 16, .positions = 70, .first = 55},
          GetParam());
  }
}

TEST_P(AttentionOnEachIsa, HeadDimensions) {
  for (size_t head_dim : {8, 16, 24, 64, 80, 256}) {
    for (KvType type : kKvTypes) {
      check({.kv_heads = 2,
             .group = 2,
             .head_dim = head_dim,
             .positions = 131,
             .first = 124,
             .type = type,
             .seed = head_dim},
            GetParam());
    }
  }
}

// The window's edge falls before, on and after a block boundary.
TEST_P(AttentionOnEachIsa, SlidingWindows) {
  for (int64_t window : {1, 2, 8, 63, 64, 65, 127, 128, 129, 200}) {
    for (int64_t last : {62, 63, 64, 65, 127, 128, 129, 191, 192}) {
      check({.kv_heads = 1,
             .group = 2,
             .head_dim = 8,
             .positions = last + 1,
             .first = std::max<int64_t>(0, last - 4),
             .window = window,
             .seed = static_cast<uint64_t>(last)},
            GetParam());
    }
  }
}

// Windows and causal edges cut q8 blocks, too, both in decoding and in a prompt.
TEST_P(AttentionOnEachIsa, EdgesOfQ8) {
  for (int64_t window : {0, 1, 63, 65, 130}) {
    for (int64_t first : {0, 100, 139}) {
      check({.kv_heads = 2,
             .group = 3,
             .head_dim = 24,
             .positions = 140,
             .first = first,
             .window = window,
             .softcap = window == 63 ? 2.0 : 0,
             .type = KvType::q8},
            GetParam());
    }
  }
}

// A long prompt in one pass: several tasks of 48 queries, with tiles that straddle blocks.
TEST_P(AttentionOnEachIsa, WholePrompts) {
  for (int64_t window : {0, 40})
    check({.kv_heads = 1, .group = 3, .head_dim = 8, .positions = 150, .window = window},
          GetParam());
}

// A sink is below, among or above the scores, in decoding and in a prompt. One that is far above
// takes nearly all of the softmax.
TEST_P(AttentionOnEachIsa, Sinks) {
  for (const float sink : {-20.0f, 0.5f, 12.0f}) {
    for (const int64_t first : {int64_t{0}, int64_t{139}}) {
      for (const int64_t window : {0, 8, 70}) {
        Scene s{.kv_heads = 2,
                .group = 4,
                .head_dim = 24,
                .positions = 140,
                .first = first,
                .window = window,
                .softcap = window == 70 ? 2.0 : 0,
                .type = window == 8 ? KvType::q8 : KvType::f32};
        for (size_t h = 0; h < s.heads(); ++h)
          s.sinks.push_back(sink + static_cast<float>(h) * 0.25f);
        check(s, GetParam());
      }
    }
  }
}

TEST_P(AttentionOnEachIsa, Softcap) {
  check({.kv_heads = 2, .group = 2, .head_dim = 24, .positions = 90, .first = 80, .softcap = 3.0},
        GetParam());
}

// With one query and few heads, threads take blocks of positions. Merging their results must equal
// one thread's result. Tests every pair of values of heads, position and window, or with
// STET_ALL_WAYS every combination.
TEST_P(AttentionOnEachIsa, SplitOverThreadsGivesTheSameBits) {
  size_t way = 0;
  for (size_t kv_heads : {1, 2, 3}) {
    for (size_t group : {1, 4, 8}) {
      for (int64_t position : {0, 63, 64, 400}) {
        ++way;
        for (int64_t window : {0, 1, 70}) {
          if (way++ % 3 != 0 && !all_ways()) continue;
          Sequence a({.kv_heads = kv_heads,
                      .group = group,
                      .head_dim = 24,
                      .positions = position + 1,
                      .first = position,
                      .window = window,
                      .type = kv_heads == 2 ? KvType::q8 : KvType::bf16,
                      .seed = group});
          const std::vector<float> one = run({&a}, GetParam(), 1);
          for (int threads : {2, 5})
            ASSERT_TRUE(equal_bits(run({&a}, GetParam(), threads), one))
                << a.s.text() << ", " << threads << " threads";
          if (position <= 64) {
            ASSERT_TRUE(equal_bits(one, plain(a))) << a.s.text();
          }
        }
      }
    }
  }
}

TEST(Attention, ThreadsDoNotMatter) {
  Sequence a(
      {.kv_heads = 2, .group = 3, .head_dim = 24, .positions = 140, .first = 20, .window = 50});
  const std::vector<float> one = run({&a});
  for (int threads : {2, 3, 5}) EXPECT_TRUE(equal_bits(run({&a}, "", threads), one)) << threads;
}

TEST(Attention, QueriesDoNotDependOnTheirCompanions) {
  const Scene whole{.kv_heads = 2, .group = 3, .head_dim = 24, .positions = 135, .first = 100};
  Sequence a(whole);
  const std::vector<float> together = run({&a});
  for (int64_t from = 0; from < 35; ++from) {
    for (int64_t count : {1, 2, 5}) {
      if (from + count > 35) continue;
      Sequence part(whole);
      part.s.first = 100 + from;
      part.s.positions = 100 + from + count;  // the cache holds later keys, which are invisible
      const auto begin = static_cast<int64_t>(whole.q_width()) * from,
                 size = static_cast<int64_t>(whole.q_width()) * count;
      part.q.assign(a.q.begin() + begin, a.q.begin() + begin + size);
      ASSERT_TRUE(equal_bits(run({&part}), std::span(together).subspan(static_cast<size_t>(begin),
                                                                       static_cast<size_t>(size))))
          << from << " + " << count;
    }
  }
}

// Two sessions of different lengths in one pass.
TEST(Attention, SpansOfOnePassAreIndependent) {
  Sequence a({.kv_heads = 2, .group = 2, .head_dim = 16, .positions = 70, .first = 60, .seed = 5}),
      b({.kv_heads = 2, .group = 2, .head_dim = 16, .positions = 130, .first = 129, .seed = 9});
  std::vector<float> apart = run({&a});
  const std::vector<float> second = run({&b});
  apart.insert(apart.end(), second.begin(), second.end());
  for (int threads : {1, 2, 3})
    EXPECT_TRUE(equal_bits(run({&a, &b}, "", threads), apart)) << threads;
}

// Slots outside the window and after the query hold NaN or infinity, which must not change a bit.
TEST_P(AttentionOnEachIsa, MaskedPositionsDoNotMatter) {
  for (KvType type : {KvType::f32, KvType::bf16}) {
    for (size_t head_dim : {16, 24}) {
      for (float poison : {kNan, kInf, -kInf}) {
        Sequence a({.kv_heads = 2,
                    .group = 2,
                    .head_dim = head_dim,
                    .positions = 171,
                    .first = 170,
                    .window = 70,
                    .type = type});
        const std::vector<float> clean = run({&a}, GetParam());
        for (int64_t position = 0; position < 192; ++position) {
          if (a.s.sees(170, position)) continue;
          std::byte* block = KvWriter(a.cache).writable(position / 64);
          for (int64_t head = 0; head < 2; ++head) {
            for (size_t d = 0; d < head_dim; ++d) {
              const size_t size = a.cache.shape().element_size(),
                           slot = static_cast<size_t>(position % 64);
              const uint16_t half = round_bf16(poison);
              const void* from = type == KvType::f32 ? static_cast<const void*>(&poison) : &half;
              std::memcpy(block + a.cache.shape().k_offset(1, head) + (d * 64 + slot) * size, from,
                          size);
              std::memcpy(block + a.cache.shape().v_offset(1, head) + (slot * head_dim + d) * size,
                          from, size);
            }
          }
        }
        ASSERT_TRUE(equal_bits(run({&a}, GetParam()), clean)) << poison;
        ASSERT_TRUE(equal_bits(run({&a}, GetParam(), 3), clean)) << poison << ", split";
        for (float x : clean) ASSERT_TRUE(std::isfinite(x));
      }
    }
  }
}

// Keys and values are rounded once, when they are written to the slot of their position. All other
// bytes stay zero.
TEST(Attention, StoredBytes) {
  for (KvType type : {KvType::f32, KvType::bf16, KvType::f16}) {
    Sequence a({.kv_heads = 2, .group = 1, .head_dim = 8, .positions = 70, .type = type});
    const KvShape& shape = a.cache.shape();
    for (int64_t b = 0; b < 2; ++b) {
      std::vector<std::byte> expected(shape.block_bytes(), std::byte{0});
      for (int64_t position = b * 64; position < std::min<int64_t>(70, b * 64 + 64); ++position) {
        for (size_t head = 0; head < 2; ++head) {
          for (size_t d = 0; d < 8; ++d) {
            const size_t slot = static_cast<size_t>(position % 64), size = shape.element_size();
            const auto put = [&](size_t at,
                                 float x) {  // x is the number that the cache rounds
              const uint16_t half = type == KvType::bf16 ? round_bf16(x) : round_f16(x);
              std::memcpy(expected.data() + at,
                          type == KvType::f32 ? static_cast<const void*>(&x) : &half, size);
            };
            put(shape.k_offset(1, static_cast<int64_t>(head)) + (d * 64 + slot) * size,
                a.key(position, head)[d]);
            put(shape.v_offset(1, static_cast<int64_t>(head)) + (slot * 8 + d) * size,
                a.value(position, head)[d]);
          }
        }
      }
      EXPECT_EQ(std::memcmp(a.cache.block(b), expected.data(), expected.size()), 0)
          << kv_type_name(type) << ", block " << b;
    }
  }
}

// A q8 block holds the integers, then the 64 scales.
TEST(Attention, StoredBytesOfQ8) {
  Sequence a({.kv_heads = 2, .group = 1, .head_dim = 8, .positions = 70, .type = KvType::q8});
  const KvShape& shape = a.cache.shape();
  ASSERT_EQ(shape.part_bytes(shape.head_dim), 8 * 64 + 64 * 4u);
  for (int64_t b = 0; b < 2; ++b) {
    std::vector<std::byte> expected(shape.block_bytes(), std::byte{0});
    for (int64_t position = b * 64; position < std::min<int64_t>(70, b * 64 + 64); ++position) {
      for (size_t head = 0; head < 2; ++head) {
        const size_t slot = static_cast<size_t>(position % 64),
                     k = (2 + head) * 2 * (8 * 64 + 64 * 4), v = k + 8 * 64 + 64 * 4;
        for (size_t d = 0; d < 8; ++d) {
          expected[k + d * 64 + slot] =
              static_cast<std::byte>(static_cast<int8_t>(a.key(position, head)[d]));
          expected[v + slot * 8 + d] =
              static_cast<std::byte>(static_cast<int8_t>(a.value(position, head)[d]));
        }
        const float scales[] = {a.scale_of(a.k_scale, position, head),
                                a.scale_of(a.v_scale, position, head)};
        std::memcpy(expected.data() + k + 8 * 64 + slot * 4, &scales[0], 4);
        std::memcpy(expected.data() + v + 8 * 64 + slot * 4, &scales[1], 4);
      }
    }
    EXPECT_EQ(std::memcmp(a.cache.block(b), expected.data(), expected.size()), 0) << b;
  }
}

// Rounds numbers with known quotients, ties, NaN, infinities and values near zero.
TEST(Attention, RowsOfQ8) {
  const KvShape shape{1, 1, 4, KvType::q8};
  std::vector<std::byte> part(shape.part_bytes(shape.head_dim));
  const auto stored_as = [&](bool key, std::vector<float> x, std::vector<int> q, float scale) {
    std::fill(part.begin(), part.end(), std::byte{7});
    write_row(shape, key, x, part.data(), 5);
    std::vector<std::byte> expected(part.size(), std::byte{7});
    for (size_t d = 0; d < 4; ++d)
      expected[key ? d * 64 + 5 : 5 * 4 + d] = static_cast<std::byte>(static_cast<int8_t>(q[d]));
    std::memcpy(expected.data() + 4 * 64 + 5 * 4, &scale, 4);
    EXPECT_EQ(part, expected) << x[0];
    std::vector<float> back(4);
    read_row(shape, key, part.data(), 5, back);
    for (size_t d = 0; d < 4; ++d) {
      if (std::isnan(scale))
        EXPECT_TRUE(std::isnan(back[d]));
      else
        EXPECT_EQ(back[d], static_cast<float>(q[d]) * scale);
    }
  };
  for (const bool key : {true, false}) {
    stored_as(key, {127, -64.5f, 0.5f, 1.5f}, {127, -64, 0, 2}, 1);
    stored_as(key, {0, -254, 3, 5}, {0, -127, 2, 2}, 2);
    stored_as(key, {0, -0.0f, 0, 0}, {0, 0, 0, 0}, 0);
    stored_as(key, {0x1p-101f, -0x1.8p-101f, 0, 0}, {0, 0, 0, 0}, 0);
    stored_as(key, {0x1p-100f, 0, 0, 0}, {127, 0, 0, 0}, 0x1p-100f / 127);
    stored_as(key, {0x1.fffffep127f, 1, 0, 0}, {127, 0, 0, 0}, 0x1.fffffep127f / 127);
    const float nan = std::bit_cast<float>(0x7FC00000u);
    for (const float bad : {kNan, -kNan, kInf, -kInf})
      stored_as(key, {1, bad, 2, 3}, {0, 0, 0, 0}, nan);
  }
}

}  // namespace
}  // namespace stet::test::attention_tests

// Attention kernels of every instruction set give the bits of the contract and touch only their
// operands.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "stet/kernels/numbers.hpp"
#include "stet/model/matrix.hpp"
#include "tests/support/all_ways.hpp"
#include "tests/support/kernel_testing.hpp"

namespace stet::test::attention_kernels_tests {
namespace {

class AttentionKernels : public EachIsa {};

INSTANTIATE_TEST_SUITE_P(All, AttentionKernels, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

struct BlockCase {
  size_t head_dim, ldv;
  int rows;
  std::vector<float> q, k, v;  // q[rows][head_dim], k[head_dim][64], v[64][ldv]

  BlockCase(size_t dim, int count, uint64_t seed)
      : head_dim(dim),
        ldv((dim + 15) / 16 * 16),
        rows(count),
        q(numbers(static_cast<size_t>(count) * dim, seed)),
        k(numbers(dim * 64, seed + 1)),
        v(numbers(64 * ldv, seed + 2)) {}

  std::vector<float> k_scale, v_scale;  // [64]; q8 only

  // Rounds keys and values to values of `type`; for q8, to integers.
  void round_to(WeightType type) {
    if (type == WeightType::q8) {
      k_scale = numbers(64, 31), v_scale = numbers(64, 32);
      for (std::vector<float>* x : {&k, &v}) {
        for (float& f : *x) f = std::nearbyint(std::clamp(f * 60, -127.0f, 127.0f));
      }
      return;
    }
    for (std::vector<float>* x : {&k, &v}) {
      for (float& f : *x)
        f = type == WeightType::f32    ? f
            : type == WeightType::bf16 ? widen_bf16(round_bf16(f))
                                       : widen_f16(round_f16(f));
    }
  }
  static Fenced<std::byte> stored(const std::vector<float>& x, WeightType type) {
    Fenced<std::byte> out(x.size() * (type == WeightType::f32  ? 4
                                      : type == WeightType::q8 ? 1
                                                               : 2));
    for (size_t i = 0; type == WeightType::q8 && i < x.size(); ++i)
      out[i] = static_cast<std::byte>(static_cast<int8_t>(x[i]));
    if (type == WeightType::q8) return out;
    for (size_t i = 0; i < x.size(); ++i) {
      const uint16_t half = type == WeightType::bf16 ? round_bf16(x[i]) : round_f16(x[i]);
      if (type == WeightType::f32)
        std::memcpy(out.data() + 4 * i, &x[i], 4);
      else
        std::memcpy(out.data() + 2 * i, &half, 2);
    }
    return out;
  }

  // Returns m[rows], l[rows] and o[rows][ldv], one after another. Runs the tile alone and between
  // two others with the same rows and other masks, and expects the same bits.
  std::vector<float> run(const Kernels& kernels, const std::vector<uint64_t>& mask, float scale,
                         float softcap, WeightType type = WeightType::f32) const {
    const size_t n = static_cast<size_t>(rows);
    const Fenced<float> packed(head_dim * kTileRows);
    const Fenced<std::byte> keys = stored(k, type), values = stored(v, type);
    for (size_t i = 0; i < packed.size(); ++i) {
      const size_t row = i % kTileRows;
      packed[i] = row < n ? q[row * head_dim + i / kTileRows] : kNan;
    }
    AttendBlock block = {keys.data(), values.data(), head_dim, ldv, scale, softcap};
    const Fenced<float> key_scales(k_scale), value_scales(v_scale);
    if (type == WeightType::q8)
      block.k_scale = key_scales.data(), block.v_scale = value_scales.data();
    std::vector<uint64_t> turned(mask.rbegin(), mask.rend());
    const Fenced<uint64_t> masks(mask), others(turned);
    std::vector<float> alone;
    for (const size_t count : {1, 3}) {
      std::vector<Fenced<float>> m, l, o;
      std::vector<AttendTile> tiles;
      for (size_t i = 0; i < count; ++i) {
        m.emplace_back(n), l.emplace_back(n), o.emplace_back(n * ldv);
        tiles.push_back({packed.data(),
                         rows,
                         i == count / 2 ? masks.data() : others.data(),
                         {m[i].data(), l[i].data(), o[i].data()}});
      }
      if (count > 1)
        block.next = {keys.data(), head_dim * 1000};  // prefetching unmapped memory changes nothing
      kernels.attend[static_cast<int>(type)](block, tiles.data(), count);
      for (size_t i = 0; i < count; ++i)
        EXPECT_TRUE(m[i].untouched() && l[i].untouched() && o[i].untouched());
      std::vector<float> out(m[count / 2].data(), m[count / 2].data() + n);
      out.insert(out.end(), l[count / 2].data(), l[count / 2].data() + n);
      out.insert(out.end(), o[count / 2].data(), o[count / 2].data() + n * ldv);
      if (count == 1) alone = out;
      EXPECT_TRUE(equal_bits(alone, out)) << "beside other tiles";
    }
    return alone;
  }
  std::vector<float> plain(const std::vector<uint64_t>& mask, float scale, float softcap) const {
    const size_t n = static_cast<size_t>(rows);
    std::vector<float> out(2 * n + n * ldv);
    for (size_t r = 0; r < n; ++r) {
      const PlainPart part = plain_attend(
          q.data() + r * head_dim, k.data(), v.data(), head_dim, ldv, mask[r], scale, softcap,
          k_scale.empty() ? nullptr : k_scale.data(), v_scale.empty() ? nullptr : v_scale.data());
      out[r] = part.m;
      out[n + r] = part.l;
      std::copy(part.o.begin(), part.o.end(), out.begin() + static_cast<int64_t>(2 * n + r * ldv));
    }
    return out;
  }
  // Zeroes the columns past head_dim, which are padding with arbitrary values.
  void drop_padding(std::vector<float>& out) const {
    const size_t n = static_cast<size_t>(rows);
    for (size_t i = 2 * n; i < out.size(); ++i) {
      if ((i - 2 * n) % ldv >= head_dim) out[i] = 0.0f;
    }
  }
};

constexpr uint64_t kAll = ~uint64_t{0};
// Masks of visible positions: stretches from either end, single positions, gaps, and none.
constexpr uint64_t kMasks[] = {kAll,
                               0,
                               1,
                               uint64_t{1} << 63,
                               0xFFFF,
                               0x1FFFF,
                               kAll << 1,
                               kAll >> 1,
                               kAll << 17,
                               kAll >> 49,
                               0x5555555555555555,
                               0xAAAAAAAAAAAAAAAA,
                               0xFFFF0000FFFF0000,
                               0x8000000000000001,
                               0x7FFFFFFFFFFFFFFE,
                               0xF0F000000000F0F1,
                               0x0000000100000000};

TEST_P(AttentionKernels, AttendIsTheContractRestated) {
  uint64_t seed = 1;
  const auto check = [&](size_t head_dim, int rows, float softcap, WeightType type) {
    BlockCase c(head_dim, rows, ++seed);
    c.round_to(type);
    for (size_t first = 0; first < std::size(kMasks); first += 3) {
      std::vector<uint64_t> mask;
      for (size_t r = 0; r < static_cast<size_t>(rows); ++r)
        mask.push_back(kMasks[(first + r * 5) % std::size(kMasks)]);
      std::vector<float> got = c.run(k, mask, 0.3f, softcap, type);
      c.drop_padding(got);
      ASSERT_TRUE(equal_bits(got, c.plain(mask, 0.3f, softcap)))
          << "head_dim " << head_dim << ", rows " << rows << ", masks from " << first << ", type "
          << static_cast<int>(type);
    }
  };
  for (size_t head_dim : {1, 8, 16, 24, 64, 80, 256}) {
    for (int rows : {1, 2, 5, 6}) {
      for (float softcap : {0.0f, 2.5f}) {
        for (WeightType type :
             {WeightType::f32, WeightType::bf16, WeightType::f16, WeightType::q8}) {
          // Tests each pair of rows, softcap and type, or with STET_ALL_WAYS all combinations.
          const bool capped = softcap > 0, chosen = (rows + static_cast<int>(type)) % 2 == 0;
          if (capped != chosen && !all_ways()) continue;
          ASSERT_NO_FATAL_FAILURE(check(head_dim, rows, softcap, type));
        }
      }
    }
  }
}

// Scales of masked positions may have any value.
TEST_P(AttentionKernels, MaskedScalesDoNotMatter) {
  for (float poison : {kNan, kInf, -kInf}) {
    for (uint64_t hole : kMasks) {
      BlockCase c(24, 3, 41);
      c.round_to(WeightType::q8);
      const std::vector<uint64_t> mask = {~hole, ~hole & 0xFFFFFFFFFFFF0000,
                                          ~hole & 0x0F0F0F0F0F0F0F0F};
      const std::vector<float> clean = c.run(k, mask, 0.5f, 0.0f, WeightType::q8);
      for (size_t t = 0; t < 64; ++t) {
        if ((hole >> t & 1) != 0) c.k_scale[t] = c.v_scale[t] = poison;
      }
      const std::vector<float> poisoned = c.run(k, mask, 0.5f, 0.0f, WeightType::q8);
      ASSERT_EQ(std::memcmp(clean.data(), poisoned.data(), clean.size() * 4), 0)
          << poison << ", hole " << hole;
    }
  }
}

// Causal tiles: row r sees one position more than row r - 1; a window cuts the other end.
TEST_P(AttentionKernels, AttendOnCausalAndWindowEdges) {
  const BlockCase c(24, kTileRows, 900);
  for (int last = 0; last < 64; ++last) {
    for (int window : {1, 5, 16, 64}) {
      std::vector<uint64_t> mask(kTileRows);
      for (int r = 0; r < kTileRows; ++r) {
        const int to = std::min(63, last + r), from = std::max(0, last + r - window + 1);
        if (from <= to) mask[static_cast<size_t>(r)] = (kAll >> (63 - to)) & (kAll << from);
      }
      std::vector<float> got = c.run(k, mask, 1.0f, 0.0f);
      c.drop_padding(got);
      ASSERT_TRUE(equal_bits(got, c.plain(mask, 1.0f, 0.0f)))
          << "last " << last << ", window " << window;
    }
  }
}

// Masked keys and values may be anything: the kernels select them away and never multiply by zero.
TEST_P(AttentionKernels, MaskedKeysAndValuesDoNotMatter) {
  for (float poison : {kNan, kInf, -kInf, 0x1.fffffep127f}) {
    for (uint64_t hole : kMasks) {
      BlockCase c(24, 3, 40);
      const std::vector<uint64_t> mask = {~hole, ~hole & 0xFFFFFFFFFFFF0000,
                                          ~hole & 0x0F0F0F0F0F0F0F0F};
      const std::vector<float> clean = c.run(k, mask, 0.5f, 0.0f);
      for (size_t t = 0; t < 64; ++t) {
        if ((hole >> t & 1) == 0) continue;
        for (size_t d = 0; d < c.head_dim; ++d) c.k[d * 64 + t] = poison;
        for (size_t d = 0; d < c.ldv; ++d) c.v[t * c.ldv + d] = poison;
      }
      const std::vector<float> poisoned = c.run(k, mask, 0.5f, 0.0f);
      ASSERT_EQ(std::memcmp(clean.data(), poisoned.data(), clean.size() * 4), 0)
          << poison << ", hole " << hole;
    }
  }
}

// A row gives the same bits whichever rows share its tile.
TEST_P(AttentionKernels, AttendRowsAreIndependent) {
  const BlockCase six(80, 6, 60);
  const std::vector<uint64_t> mask = {kAll, 0xFF00FF, 0, kAll << 40, 0x8000000000000001, kAll >> 3};
  const std::vector<float> together = six.run(k, mask, 0.2f, 0.0f);
  for (size_t r = 0; r < 6; ++r) {
    BlockCase one = six;
    one.rows = 1;
    one.q.assign(six.q.begin() + static_cast<int64_t>(r * 80),
                 six.q.begin() + static_cast<int64_t>((r + 1) * 80));
    const std::vector<float> alone = one.run(k, {mask[r]}, 0.2f, 0.0f);
    EXPECT_TRUE(same_bits(alone[0], together[r]) && same_bits(alone[1], together[6 + r]));
    EXPECT_TRUE(
        equal_bits(std::span(alone).subspan(2), std::span(together).subspan(12 + r * 80, 80)))
        << r;
  }
}

TEST_P(AttentionKernels, RowsThatSeeNothing) {
  const BlockCase c(16, 2, 70);
  const std::vector<float> out = c.run(k, {0, 0}, 1.0f, 0.0f);
  EXPECT_EQ(out[0], -kInf);
  EXPECT_EQ(out[1], -kInf);
  for (size_t i = 2; i < out.size(); ++i) EXPECT_EQ(bits_of(out[i]), 0u) << i;
}

TEST_P(AttentionKernels, MergeIsTheContractRestated) {
  const float tops[] = {-kInf, -200.0f, -3.25f, 0.0f, 1e-3f, 95.0f, 3e38f};
  for (float m : tops) {
    for (float mb : tops) {
      if (m == -kInf && mb == -kInf) continue;  // blocks without a visible position are not merged
      for (size_t ldv : {16, 80}) {
        for (unsigned seen : {0u, 1u, 0b100000u, 0b101010u, 0b111111u}) {
          // The memory ends after the last visible row.
          const auto rows = static_cast<size_t>(std::bit_width(seen));
          const Fenced<float> top(rows), l(rows), o(rows * ldv), next_top(rows), next_l(rows),
              next_o(rows * ldv);
          std::vector<PlainPart> expected;
          for (size_t r = 0; r < rows; ++r) {
            PlainPart sum{m, m == -kInf ? 0.0f : 2.5f,
                          m == -kInf ? std::vector<float>(ldv) : numbers(ldv, r)};
            const PlainPart next{mb, mb == -kInf ? 0.0f : 1.75f, numbers(ldv, 10 + r)};
            top[r] = sum.m, l[r] = sum.l, next_top[r] = next.m, next_l[r] = next.l;
            std::copy(sum.o.begin(), sum.o.end(), o.data() + r * ldv);
            std::copy(next.o.begin(), next.o.end(), next_o.data() + r * ldv);
            if (seen >> r & 1) plain_merge(sum, next);
            expected.push_back(sum);
          }
          k.merge({top.data(), l.data(), o.data()}, {next_top.data(), next_l.data(), next_o.data()},
                  ldv, seen);
          for (size_t r = 0; r < rows; ++r) {
            ASSERT_TRUE(same_bits(top[r], expected[r].m) && same_bits(l[r], expected[r].l))
                << m << " with " << mb << ", row " << r;
            ASSERT_TRUE(equal_bits(o.span().subspan(r * ldv, ldv), expected[r].o))
                << m << " with " << mb << ", row " << r;
          }
          ASSERT_TRUE(top.untouched() && l.untouched() && o.untouched());
        }
      }
    }
  }
}

}  // namespace
}  // namespace stet::test::attention_kernels_tests

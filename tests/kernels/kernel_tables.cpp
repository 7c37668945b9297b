// The choice of a table of kernels, and what derived tables share.
#include <algorithm>
#include <array>

#include "kernels/processor.hpp"
#include "tests/support/kernel_testing.hpp"

namespace stet::test::kernel_tables_tests {
namespace {

TEST(Isa, UnknownNamesGiveNothing) {
  for (const char* name : {"", "AVX2", "avx", "avx2 ", "avx5120", "sse", "NEON"})
    EXPECT_EQ(find_kernels(name), nullptr) << name;
}

TEST(Isa, AForcedTableIsTheOneAskedFor) {
  const std::vector<std::string> names = isa_names();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names[0], "portable");
  EXPECT_EQ(names.back(), best_kernels().name);
  for (const std::string& name : names) {
    const Kernels* k = find_kernels(name.c_str());
    ASSERT_NE(k, nullptr) << name;
    EXPECT_EQ(k->name, name);
  }
  for (const char* name : {"portable", "avx2", "avx512", "avx512bf16", "neon", "neondot"}) {
    EXPECT_EQ(find_kernels(name) != nullptr, std::count(names.begin(), names.end(), name) == 1)
        << name;
  }
}

// A linker that folds identical code, or a table filled from another one, would make the choice of
// a table meaningless. The VNNI and BF16 tables are derived from another table on purpose: see
// below.
TEST(Isa, TablesShareNoFunction) {
  const std::vector<std::string> names = isa_names();
  for (size_t i = 0; i < names.size() && names[i] != "avx512vnni" && names[i] != "neondot"; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Kernels &a = *find_kernels(names[i].c_str()), &b = *find_kernels(names[j].c_str());
      for (int t = 0; t < kFloatWeightTypes; ++t) {
        EXPECT_NE(a.gemv[t], b.gemv[t]);
        EXPECT_NE(a.widen_panel[t], b.widen_panel[t]);
        EXPECT_NE(a.widen[t], b.widen[t]);
        EXPECT_NE(a.attend[t], b.attend[t]);
      }
      EXPECT_NE(a.pack_rows, b.pack_rows);
      EXPECT_NE(a.tile, b.tile);
      EXPECT_NE(a.merge, b.merge);
      EXPECT_NE(a.divide, b.divide);
      EXPECT_NE(a.rms_norm, b.rms_norm);
      EXPECT_NE(a.layer_norm, b.layer_norm);
      EXPECT_NE(a.add, b.add);
      EXPECT_NE(a.scale, b.scale);
      EXPECT_NE(a.silu_mul, b.silu_mul);
      EXPECT_NE(a.gelu_tanh_mul, b.gelu_tanh_mul);
      EXPECT_NE(a.clamped_silu_mul, b.clamped_silu_mul);
      EXPECT_NE(a.gelu_tanh, b.gelu_tanh);
      EXPECT_NE(a.gelu, b.gelu);
      EXPECT_NE(a.rope, b.rope);
      EXPECT_NE(a.exp, b.exp);
      EXPECT_NE(a.tanh, b.tanh);
      EXPECT_NE(a.probe_read, b.probe_read);
      EXPECT_NE(a.probe_fma, b.probe_fma);
      EXPECT_NE(a.round_pairs, b.round_pairs);
      EXPECT_NE(a.gemv_pairs, b.gemv_pairs);
      EXPECT_NE(a.pack_pairs, b.pack_pairs);
      EXPECT_NE(a.tile_pairs, b.tile_pairs);
      EXPECT_TRUE(a.tile_flushed == nullptr || a.tile_flushed != b.tile_flushed);
      EXPECT_NE(a.probe_dot, b.probe_dot);
    }
  }
}

// Expects two tables to share all functions except the quantized products or the products of pairs.
void expect_shared_but(const Kernels& a, const Kernels& b, bool quants, bool pairs) {
  EXPECT_EQ(a.gemv_q8 != b.gemv_q8, quants);
  EXPECT_EQ(a.gemv_q4 != b.gemv_q4, quants);
  EXPECT_EQ(a.gemv_q5 != b.gemv_q5, quants);
  EXPECT_EQ(a.gemv_mxfp4 != b.gemv_mxfp4, quants);
  EXPECT_EQ(a.tile_mxfp4 != b.tile_mxfp4, quants);
  EXPECT_EQ(a.tile_q8 != b.tile_q8, quants);
  EXPECT_EQ(a.tile_q4 != b.tile_q4, quants);
  for (int t = 0; t < kSuperTypes; ++t) {
    EXPECT_EQ(a.gemv_super[t] != b.gemv_super[t], quants);
    EXPECT_EQ(a.tile_super[t] != b.tile_super[t], quants);
  }
  EXPECT_EQ(a.probe_bytes != b.probe_bytes, quants);
  EXPECT_EQ(a.round_pairs != b.round_pairs, pairs);
  EXPECT_EQ(a.gemv_pairs != b.gemv_pairs, pairs);
  EXPECT_EQ(a.pack_pairs != b.pack_pairs, pairs);
  EXPECT_EQ(a.tile_pairs != b.tile_pairs, pairs);
  EXPECT_EQ(a.probe_dot != b.probe_dot, pairs);
  EXPECT_EQ(a.tile, b.tile);
  EXPECT_EQ(a.exp, b.exp);
  for (int t = 0; t < kStoredTypes; ++t) EXPECT_EQ(a.attend[t], b.attend[t]);
}

TEST(Isa, DerivedTablesShareUnchangedFunctions) {
  bool any = false;
  for (const auto& [base, bytes, pairs] : {std::array{"avx512", "avx512vnni", "avx512bf16"},
                                           std::array{"neon", "neondot", "neonbf16"}}) {
    const Kernels *const plain = find_kernels(base), *const dot = find_kernels(bytes),
                         *const bf16 = find_kernels(pairs);
    if (dot == nullptr) continue;
    any = true;
    expect_shared_but(*plain, *dot, true, false);
    if (bf16 != nullptr) expect_shared_but(*dot, *bf16, false, true);
  }
  if (!any) GTEST_SKIP() << "no products of bytes on this machine";
}

// The table with VDPBF16PS leaves prompts to FMA on the Intel models where that is faster.
TEST(Isa, PromptsOfBfloat16AreReadByTheFasterInstruction) {
  for (const int model : {0x8F, 0xCF, 0xAD, 0xAE})
    EXPECT_TRUE(reads_prompts_by_fma({true, 6, model})) << model;
  for (const int model : {0x55, 0x6A, 0x8E, 0x9F, 0x0F, 0})  // Cooper Lake and Ice Lake among them
    EXPECT_FALSE(reads_prompts_by_fma({true, 6, model})) << model;
  EXPECT_FALSE(reads_prompts_by_fma({false, 6, 0x8F}));  // another maker's
  EXPECT_FALSE(reads_prompts_by_fma({true, 15, 0x8F}));
  EXPECT_FALSE(reads_prompts_by_fma({false, 0x19, 0x8F}));
  EXPECT_FALSE(reads_prompts_by_fma({false, 0x1A, 2}));
}

}  // namespace
}  // namespace stet::test::kernel_tables_tests

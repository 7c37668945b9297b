// Heap allocations of the token path, counted and made to fail through operator new.
#include "src/blas/openblas.hpp"
#include "stet/model/product.hpp"
#include "tests/support/heap.hpp"
#include "tests/support/models.hpp"

namespace stet::test::allocation_tests {
namespace {

using heap::allocations;
using heap::allocations_left;

class Allocation : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
#ifdef STET_OPERATOR_NEW_IS_TAKEN
    GTEST_SKIP() << "operator new is the sanitizer's";
#endif
  }
  std::shared_ptr<const Model> m = model(data_path("models/gemma3-tiny-bf16"));
  const std::vector<int32_t> ids = random_tokens(*m, 300);
};

// After a session's first token, the only allocations are the bookkeeping of a new block, once in
// 64 tokens.
TEST_P(Allocation, ATokenAllocatesNothing) {
  Session s(m, options(GetParam()));
  s.append(std::span(ids).first(60));
  for (size_t i = 60; i < 200; ++i) {
    const int64_t before = allocations;
    s.append({&ids[i], 1});
    s.logits();
    EXPECT_EQ(allocations - before, i % 64 == 0 ? 2 : 0) << "token " << i;
  }
}

TEST_P(Allocation, ATokenOfABatchAllocatesNothing) {
  std::vector<Session> sessions;
  std::vector<BatchEntry> batch;
  for (size_t i = 0; i < 3; ++i) {
    sessions.emplace_back(m, options(GetParam()));
    sessions.back().append(std::span(ids).first(20 + i));
  }
  for (Session& s : sessions) batch.push_back({&s, {}});
  for (size_t step = 0; step < 100; ++step) {
    int64_t blocks = 0;
    for (BatchEntry& e : batch) {
      e.ids = std::span(ids).subspan(step, 1);
      blocks += e.session->size() % 64 == 0 ? 1 : 0;
    }
    const int64_t before = allocations;
    append(batch);
    EXPECT_TRUE(step == 0 || allocations - before == 2 * blocks)
        << "step " << step << ": " << allocations - before;
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, Allocation, testing::Values(1, 2),
                         testing::PrintToStringParamName());

// Makes every allocation of every call fail in turn. The session must be unchanged and must work
// afterwards.
class FailingAllocation : public Allocation {
 protected:
  template <class Call>
  void sweep(const Session& start, Session& expected, Call call) {
    int failures = 0;
    for (int64_t n = 0;; ++n) {
      Session s = start.fork(), before = start.fork();
      bool failed = false;
      allocations_left = n;
      try {
        call(s);
      } catch (const std::bad_alloc&) {
        failed = true;
      } catch (const Error&) {
        failed = true;  // a fork's arena, reported with the size that did not fit
      }
      allocations_left = -1;
      if (!failed) {
        ASSERT_TRUE(same_state(s, expected));
        break;
      }
      ++failures;
      ASSERT_TRUE(same_state(s, before)) << "allocation " << n;
      call(s);
      ASSERT_TRUE(same_state(s, expected)) << "after allocation " << n;
    }
    EXPECT_GT(failures, 0);
  }
};

TEST_P(FailingAllocation, AppendChangesNothing) {
  for (size_t size : {1u, 64u, 100u, 128u}) {
    Session start(m, options(1, STET_DEFAULT_ISA, 50)), whole(m, options(1));
    start.append(std::span(ids).first(size));
    whole.append(ids);
    sweep(start, whole, [&](Session& s) { s.append(std::span(ids).subspan(size)); });
  }
}

TEST_P(FailingAllocation, ABatchIsUnchanged) {
  Session first(m, options(1, STET_DEFAULT_ISA, 50)), start(m, options(1)), whole(m, options(1));
  first.append(std::span(ids).first(100));
  start.append(std::span(ids).first(64));
  whole.append(ids);
  sweep(start, whole, [&](Session& s) {
    Session other = first.fork();
    const BatchEntry batch[] = {{&other, std::span(ids).first(30)},
                                {&s, std::span(ids).subspan(64)}};
    try {
      append(batch);
    } catch (...) {
      allocations_left = -1;
      EXPECT_TRUE(same_state(other, first));
      throw;
    }
  });
}

// Nothing may fail inside the team, where bad_alloc would end the process.
TEST_P(FailingAllocation, AppendThroughBlasChangesNothing) {
  SessionOptions blas = options(2, STET_DEFAULT_ISA, 50);
  if (have_blas()) blas.compute.contract = Contract::f32_blas;
  Session start(m, blas);
  start.append(std::span(ids).first(100));
  Session whole = start.fork();
  whole.append(std::span(ids).subspan(100));
  sweep(start, whole, [&](Session& s) { s.append(std::span(ids).subspan(100)); });
}

TEST_P(FailingAllocation, RewindChangesNothing) {
  Session start(m, options(1)), whole(m, options(1));
  start.append(ids);
  whole.append(std::span(ids).first(290));
  sweep(start, whole, [&](Session& s) { s.rewind(290); });
}

// The last token is computed again. A failure must not leave the session without it.
TEST_P(FailingAllocation, LogitsChangeNothing) {
  for (int64_t size : {64, 65, 130}) {
    Session start(m, options(1)), whole(m, options(1));
    start.append(ids);
    start.rewind(size);
    whole.append(std::span(ids).first(static_cast<size_t>(size)));
    sweep(start, whole, [](Session& s) { s.logits(); });
  }
}

INSTANTIATE_TEST_SUITE_P(Sessions, FailingAllocation, testing::Values(1));

}  // namespace
}  // namespace stet::test::allocation_tests

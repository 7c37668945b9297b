// One test for each failure mode of saved key/value caches that a session alone can show, with its
// number and name. Modes of snapshots, templates and tokenizers are tested in their rooms.
#include <cstring>
#include <functional>
#include <thread>
#include <type_traits>

#include "stet/generate/generate.hpp"
#include "stet/generate/score.hpp"
#include "stet/generate/speculate.hpp"
#include "stet/session/lens.hpp"
#include "stet/session/trace.hpp"
#include "tests/support/models.hpp"

namespace stet::test::failure_modes_tests {
namespace {

std::shared_ptr<const Model> gemma() { return model(data_path("models/gemma3-tiny")); }

Session fresh(std::span<const int32_t> ids) {
  Session s(gemma(), options(1));
  s.append(ids);
  return s;
}

// A cache belongs to one session. Using another session of the same model in between has no effect.
TEST(FailureModes, Mode01_ASessionOwnsItsCache) {
  const auto a = random_tokens(*gemma(), 90, 1), b = random_tokens(*gemma(), 90, 2);
  Session first(gemma(), options(1)), second(gemma(), options(1));
  for (size_t i = 0; i < a.size(); i += 9) {
    first.append(std::span(a).subspan(i, 9));
    second.append(std::span(b).subspan(i, 9));
  }
  Session alone_a = fresh(a), alone_b = fresh(b);
  EXPECT_TRUE(same_state(first, alone_a));
  EXPECT_TRUE(same_state(second, alone_b));
}

template <class S>
concept TakesAPosition = requires(S& s, std::span<const int32_t> ids, int64_t position) {
  s.append(ids, position);
};

// The session counts positions from 0 over all appends. No call takes a position.
TEST(FailureModes, Mode02_And15_PositionsAreNotArguments) {
  struct WithPositions {
    void append(std::span<const int32_t> ids, int64_t first);
  };
  static_assert(TakesAPosition<WithPositions> && !TakesAPosition<Session>);
  Session s(gemma(), options(1, STET_DEFAULT_ISA, 10));
  std::vector<int64_t> positions;
  const auto ids = random_tokens(*gemma(), 75);
  for (const auto part :
       {std::span(ids).first(30), std::span(ids).subspan(30, 1), std::span(ids).subspan(31)}) {
    s.append(part, [&](int64_t first, Rows rows) {
      for (size_t i = 0; i < rows.count; ++i) positions.push_back(first + static_cast<int64_t>(i));
    });
  }
  ASSERT_EQ(positions.size(), ids.size());
  for (size_t i = 0; i < positions.size(); ++i) EXPECT_EQ(positions[i], static_cast<int64_t>(i));
}

TEST(FailureModes, Mode03_TheCursorCountsTokens) {
  Session s(gemma(), options(1));
  const auto ids = random_tokens(*gemma(), 12);
  s.append(std::span(ids).first(7));
  EXPECT_EQ(s.size(), 7);
  s.append({});
  EXPECT_EQ(s.size(), 7);
  s.append(std::span(ids).subspan(7));
  EXPECT_EQ(s.size(), 12);
  EXPECT_EQ(s.kv().size(), 12);
  EXPECT_EQ(s.tokens(), ids);
}

// References obtained before a pass show the state after it.
TEST(FailureModes, Mode04_TheSessionChangesInPlace) {
  Session s(gemma(), options(1));
  const KvCache& kv = s.kv();
  const std::vector<int32_t>& tokens = s.tokens();
  s.append(random_tokens(*gemma(), 5));
  EXPECT_EQ(kv.size(), 5);
  EXPECT_EQ(tokens.size(), 5u);
  EXPECT_EQ(&kv, &s.kv());
}

// Tokens sampled one by one get the positions that they have in a single prompt.
TEST(FailureModes, Mode06_EverySampledTokenAdvancesTheCursor) {
  Session s = fresh(random_tokens(*gemma(), 20));
  for (int i = 0; i < 60; ++i) {
    const int32_t id = argmax(s.logits());
    s.append({&id, 1});
    ASSERT_EQ(s.size(), 21 + i);
  }
  Session at_once = fresh(s.tokens());
  EXPECT_TRUE(same_state(s, at_once));
}

TEST(FailureModes, Mode07_CapacityIsANamedErrorThatChangesNothing) {
  SessionOptions o = options(1);
  o.capacity = 70;
  Session s(gemma(), o);
  const auto ids = random_tokens(*gemma(), 71);
  s.append(std::span(ids).first(66));
  Session before = s.fork();
  const std::byte* tail = s.kv().block(1);
  EXPECT_EQ(error_of([&] { s.append(std::span(ids).subspan(66)); }, ErrorKind::capacity),
            "tokens: expected at most 70 positions (--ctx), found 66 + 5");
  EXPECT_TRUE(same_state(s, before));
  EXPECT_EQ(s.kv().block(1), tail);
  s.append(std::span(ids).subspan(66, 4));  // usable up to the last position
  EXPECT_EQ(s.size(), s.capacity());
  Session whole = fresh(std::span(ids).first(70));
  EXPECT_TRUE(same_state(s, whole));
  EXPECT_EQ(error_of([&] { s.append(std::span(ids).first(1)); }, ErrorKind::capacity),
            "tokens: expected at most 70 positions (--ctx), found 70 + 1");
}

// Cache memory is reserved but not filled: bytes that no token has reached are zero.
TEST(FailureModes, Mode07_NothingIsPrimed) {
  Session s(gemma(), options(1));
  EXPECT_EQ(s.kv().blocks(), 0);
  s.append(random_tokens(*gemma(), 3));
  ASSERT_EQ(s.kv().blocks(), 1);
  const KvShape& shape = s.kv().shape();
  const float* k = reinterpret_cast<const float*>(s.kv().block(0) + shape.k_offset(0, 0));
  const float* v = reinterpret_cast<const float*>(s.kv().block(0) + shape.v_offset(0, 0));
  for (int64_t slot = 3; slot < kBlockPositions; ++slot) {
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      ASSERT_EQ(k[d * kBlockPositions + slot], 0.0f);
      ASSERT_EQ(v[slot * shape.head_dim + d], 0.0f);
    }
  }
}

// Whatever the dtype of the weights, keys and values have the requested type, and the contract is
// named.
TEST(FailureModes, Mode10_And16_OneContractOneType) {
  for (const Subject& subject : subjects()) {
    Session s(model(subject.directory), options(1));
    s.append(random_tokens(s.model(), 3));
    EXPECT_EQ(s.kv().shape().type, KvType::f32) << subject.name;
    EXPECT_EQ(contract_name(s.compute().contract), std::string("f32")) << subject.name;
  }
}

TEST(FailureModes, Mode11_ForkIsTheOnlyCopy) {
  static_assert(!std::is_copy_constructible_v<Session> && !std::is_copy_assignable_v<Session>);
  const auto ids = random_tokens(*gemma(), 100), others = random_tokens(*gemma(), 60, 2);
  Session original = fresh(ids);
  const std::vector<std::byte> bytes = kv_bytes(original.kv());
  const std::vector<float> logits(original.logits().begin(), original.logits().end());
  Session copy = original.fork();
  copy.append(others);
  copy.rewind(3);
  copy.append(others);
  EXPECT_EQ(kv_bytes(original.kv()), bytes);
  EXPECT_TRUE(same_bytes(original.logits(), logits));

  Session second = original.fork();
  original.rewind(70);
  original.append(others);
  EXPECT_EQ(kv_bytes(second.kv()), bytes);
  EXPECT_TRUE(same_bytes(second.logits(), logits));
}

TEST(FailureModes, Mode11_AForkOutlivesItsOriginal) {
  const auto ids = random_tokens(*gemma(), 150);
  auto original = std::make_unique<Session>(fresh(std::span(ids).first(100)));
  Session copy = original->fork();
  original.reset();
  copy.append(std::span(ids).subspan(100));
  Session whole = fresh(ids);
  EXPECT_TRUE(same_state(copy, whole));
}

TEST(FailureModes, Mode13_OnlyTheTokensAskedForAreFed) {
  for (const Subject& subject : subjects()) {
    Session s(model(subject.directory), options(1));
    EXPECT_EQ(s.size(), 0);
    EXPECT_TRUE(s.logits().empty());  // without tokens there are no logits to continue from
    const std::vector<int32_t> one = {7};
    s.append(one);
    EXPECT_EQ(s.tokens(), one);
  }
}

// Sliding layers keep every position: rewinding past the window restores what had left it.
TEST(FailureModes, Mode17_OlderEntriesAreKeptAndTheWindowIsStated) {
  EXPECT_EQ(gemma()->config().window, (std::vector<int64_t>{8, 8, 8, 8, 8, 0, 8}));
  const auto ids = random_tokens(*gemma(), 60);
  Session s = fresh(ids);
  EXPECT_EQ(s.capacity(), 512);
  s.rewind(20);
  Session whole = fresh(std::span(ids).first(20));
  EXPECT_TRUE(same_state(s, whole));
}

TEST(FailureModes, Mode18_RewindIsExact) {
  const auto ids = random_tokens(*gemma(), 70), others = random_tokens(*gemma(), 30, 2);
  Session s = fresh(ids);
  EXPECT_EQ(error_of([&] { s.rewind(71); }, ErrorKind::argument),
            "rewind: expected a position in 0..70, found 71");
  EXPECT_EQ(error_of([&] { s.rewind(-1); }, ErrorKind::argument),
            "rewind: expected a position in 0..70, found -1");
  s.rewind(0);
  EXPECT_EQ(s.size(), 0);
  EXPECT_EQ(s.kv().blocks(), 0);
  EXPECT_TRUE(s.logits().empty());
  s.append(others);
  Session alone = fresh(others);
  EXPECT_TRUE(same_state(s, alone));
}

// A fork shares the memory of full blocks and copies the bytes of the last one.
TEST(FailureModes, Mode21_BlocksAreCopiedAsBytes) {
  Session s = fresh(random_tokens(*gemma(), 100));
  Session copy = s.fork();
  const int32_t id = 5;
  copy.append({&id, 1});
  EXPECT_EQ(copy.kv().block(0), s.kv().block(0));
  EXPECT_NE(copy.kv().block(1), s.kv().block(1));
  copy.rewind(100);
  EXPECT_EQ(kv_bytes(copy.kv()), kv_bytes(s.kv()));
}

TEST(FailureModes, Mode22_WeightsAreReadOnly) {
  static_assert(std::is_same_v<decltype(std::declval<Session&>().model()), const Model&>);
  static_assert(std::is_same_v<decltype(Model::load("")), std::shared_ptr<const Model>>);
  const auto loaded = Model::load(data_path("models/gemma3-tiny"), 1);
  Session s(loaded, options(1));
  s.append(random_tokens(*loaded, 80));
  EXPECT_EQ(Model::load(data_path("models/gemma3-tiny"), 2)->fingerprints(),
            loaded->fingerprints());
}

TEST(FailureModes, Mode25_TheLastLogitsAreKept) {
  const auto ids = random_tokens(*gemma(), 66);
  Session s(gemma(), options(1));
  const std::vector<float> all = all_logits(s, ids);
  const size_t vocab = static_cast<size_t>(gemma()->config().vocab_size);
  EXPECT_TRUE(same_bytes(s.logits(), std::span(all).last(vocab)));
  Session copy = s.fork();
  EXPECT_TRUE(same_bytes(copy.logits(), std::span(all).last(vocab)));
  s.rewind(64);
  EXPECT_TRUE(same_bytes(s.logits(), std::span(all).subspan(63 * vocab, vocab)));
}

TEST(FailureModes, Mode27_NoTokenIsFedTwice) {
  const auto ids = random_tokens(*gemma(), 66);
  Session s = fresh(std::span(ids).first(65));
  s.rewind(64);
  s.logits();  // computes the last token again, which must not appear twice
  s.logits();
  EXPECT_EQ(s.size(), 64);
  s.append(std::span(ids).subspan(64));
  Session whole = fresh(ids);
  EXPECT_TRUE(same_state(s, whole));
}

// ---- other faults that a session must withstand ----

TEST(Session, BadTokenIdChangesNothing) {
  const auto ids = random_tokens(*gemma(), 66);
  Session s = fresh(ids);
  Session before = s.fork();
  const std::vector<int32_t> high = {3, 320}, low = {-1};
  EXPECT_EQ(error_of([&] { s.append(high); }, ErrorKind::argument),
            "ids[1]: expected a token id in 0..319, found 320");
  EXPECT_EQ(error_of([&] { s.append(low); }, ErrorKind::argument),
            "ids[0]: expected a token id in 0..319, found -1");
  EXPECT_TRUE(same_state(s, before));
}

TEST(Session, OptionsOutOfRangeAreNamed) {
  const auto make = [](auto change) {
    return [change] {
      SessionOptions o;
      change(o);
      Session s(gemma(), o);
    };
  };
  const auto argument = [&](auto change) { return error_of(make(change), ErrorKind::argument); };
  EXPECT_EQ(argument([](SessionOptions& o) {
              o.compute.isa = "avx9";
            }).rfind("isa: expected one that this CPU has: portable", 0),
            0u);
  EXPECT_EQ(argument([](SessionOptions& o) { o.compute.threads = -1; }),
            "threads: expected 0 .. 8192, found -1");
  EXPECT_EQ(argument([](SessionOptions& o) { o.compute.threads = 8193; }),
            "threads: expected 0 .. 8192, found 8193");
  EXPECT_EQ(argument([](SessionOptions& o) { o.compute.chunk = 0; }),
            "chunk: expected 1 .. 65536, found 0");
  EXPECT_EQ(argument([](SessionOptions& o) { o.compute.chunk = int64_t{1} << 40; }),
            "chunk: expected 1 .. 65536, found 1099511627776");
  EXPECT_EQ(argument([](SessionOptions& o) { o.capacity = -5; }),
            "ctx: expected 1 .. 512 (max_position_embeddings), found -5");
  EXPECT_EQ(argument([](SessionOptions& o) { o.capacity = 513; }),
            "ctx: expected 1 .. 512 (max_position_embeddings), found 513");
  EXPECT_EQ(parse_kv_type("f64"), std::nullopt);

  Session s(gemma(), options(1));
  ComputeOptions bad;
  bad.chunk = -1;
  EXPECT_EQ(error_of([&] { s.set_compute(bad); }, ErrorKind::argument),
            "chunk: expected 1 .. 65536, found -1");
  EXPECT_EQ(s.compute().chunk, 512);
}

TEST(Session, NothingInPlaceOfAnObjectIsRefused) {
  EXPECT_EQ(error_of([] { Session s(nullptr); }, ErrorKind::argument),
            "model: expected a model, found null");
  EXPECT_EQ(error_of([] { Session s(nullptr, State(), {}); }, ErrorKind::argument),
            "model: expected a model, found null");
  EXPECT_EQ(error_of([] { Speculator s(nullptr); }, ErrorKind::argument),
            "drafter: expected a drafter, found null");
  EXPECT_EQ(error_of([] { Model::load(std::shared_ptr<const FileSource>()); }, ErrorKind::argument),
            "source: expected a source of files, found null");
}

TEST(Session, ArgumentsOutOfRangeAreRefused) {
  const auto ids = random_tokens(*gemma(), 70);
  Session s = fresh(ids), before = s.fork();
  const auto error = [](const auto& call) { return error_of(call, ErrorKind::argument); };
  EXPECT_EQ(error([&] { s.lower_capacity(513); }),
            "capacity: expected at most the present 512, found 513");
  s.lower_capacity(3);
  EXPECT_EQ(s.capacity(), 70);
  EXPECT_EQ(error([&] { s.process_again(71); }), "position: expected 0..70, found 71");
  EXPECT_EQ(error([&] { s.process_again(-1); }), "position: expected 0..70, found -1");
  EXPECT_EQ(s.process_again(70), 70);
  const Watch deaf{{{Point::ln_final, 0}}, nullptr};
  Session other = before.fork();
  const HiddenSink hidden = [](size_t, int64_t, Rows) {};
  for (const HiddenSink& sink : {HiddenSink(), hidden})
    EXPECT_EQ(error([&] { other.append(ids, nullptr, sink, nullptr, &deaf); }),
              "watch: expected a sink for its points, found none");
  EXPECT_TRUE(same_state(other, before));
}

// Calls to a session that was moved from are refused, until another is assigned to it.
TEST(Session, OneThatWasMovedFromIsRefused) {
  const auto ids = random_tokens(*gemma(), 5);
  Session s = fresh(ids), other = std::move(s);
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"append", [&] { s.append(ids); }},
      {"rewind", [&] { s.rewind(0); }},
      {"fork", [&] { s.fork(); }},
      {"logits", [&] { s.logits(); }},
      {"logits", [&] { s.state(); }},
      {"set_compute", [&] { s.set_compute({}); }},
      {"model", [&] { s.model(); }},
      {"rewind_cost", [&] { s.rewind_cost(0); }},
      {"model", [&] { generate(s, nullptr, {}); }},
      {"prune_cost", [&] { s.prune_cost(0, 1, false); }},
      {"model", [&] { Trace(s, ids); }},
      {"model", [&] { lens_logits(s, {}); }},
      {"model", [&] { score(s, std::vector<ScoreRequest>(1)); }}};
  for (const auto& [name, call] : calls)
    EXPECT_EQ(error_of(call, ErrorKind::argument),
              std::string(name) + ": expected a session, found one that was moved from");
  s = other.fork();
  EXPECT_TRUE(same_state(s, other));
}

// If a sink throws, in any chunk and at any row, the session is unchanged to the byte.
TEST(Session, ExceptionOfASinkChangesNothing) {
  const auto ids = random_tokens(*gemma(), 200);
  Session s(gemma(), options(1, STET_DEFAULT_ISA, 40));
  s.append(std::span(ids).first(70));
  Session before = s.fork();
  for (int64_t stop : {70, 93, 109, 110, 128, 199}) {
    const auto sink = [&](int64_t first, Rows rows) {
      if (first + static_cast<int64_t>(rows.count) > stop) throw std::runtime_error("sink");
    };
    EXPECT_THROW(s.append(std::span(ids).subspan(70), sink), std::runtime_error);
    ASSERT_TRUE(same_state(s, before)) << stop;
    EXPECT_EQ(s.kv().blocks(), 2);
    EXPECT_THROW(s.append(std::span(ids).subspan(70), nullptr,
                          [&](size_t index, int64_t first, Rows rows) {
                            if (index == 3) sink(first, rows);
                          }),
                 std::runtime_error);
    ASSERT_TRUE(same_state(s, before)) << stop;
  }
  s.append(std::span(ids).subspan(70));
  Session whole = fresh(ids);
  EXPECT_TRUE(same_state(s, whole));
}

// A call from a sink that would change or copy a half-finished pass is refused. The pass is then
// undone.
TEST(Session, CallsFromASinkAreRefused) {
  const auto ids = random_tokens(*gemma(), 100);
  Session s = fresh(std::span(ids).first(50));
  Session before = s.fork();
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"append", [&] { s.append(std::span(ids).first(1)); }},
      {"rewind", [&] { s.rewind(3); }},
      {"fork", [&] { s.fork(); }},
      {"logits", [&] { s.logits(); }},
      {"set_compute", [&] { s.set_compute({}); }}};
  for (const auto& entry : calls) {
    const std::string name = entry.first;
    const auto append = [&] {
      s.append(std::span(ids).subspan(50), [&entry](int64_t, Rows) { entry.second(); });
    };
    EXPECT_EQ(error_of(append, ErrorKind::argument),
              name + ": expected a call after append() has returned, found a call from its sink");
    EXPECT_TRUE(same_state(s, before)) << name;
  }
  int64_t seen = -1;
  s.append(std::span(ids).subspan(50),
           [&](int64_t, Rows) { seen = s.size(); });  // reading is allowed
  EXPECT_EQ(seen, 50);
}

TEST(Session, CanBeMoved) {
  const auto ids = random_tokens(*gemma(), 100);
  std::vector<Session> sessions;
  for (int i = 0; i < 5; ++i) sessions.push_back(fresh(std::span(ids).first(70)));
  sessions[0] = sessions[3].fork();
  Session whole = fresh(ids);
  for (Session& s : sessions) {
    s.append(std::span(ids).subspan(70));
    EXPECT_TRUE(same_state(s, whole));
  }
}

// A context too large for the address space gives an error, not a crash.
TEST(Session, ContextThatFitsNowhereIsNamed) {
  const KvShape shape{1024, 1024, 1024, KvType::f32};
  EXPECT_EQ(error_of([&] { KvCache(shape, int64_t{1} << 24); }, ErrorKind::capacity),
            "ctx: expected positions whose keys and values fit in the address space, found "
            "16777216 positions of "
            "144115188075855872 bytes");
}

// Sessions of one model and forks of one session run concurrently on their own threads.
TEST(Session, SessionsOfOneModelRunAtOnce) {
  const auto ids = random_tokens(*gemma(), 160);
  Session whole = fresh(ids);
  Session trunk = fresh(std::span(ids).first(100));
  std::vector<Session> sessions;
  for (int i = 0; i < 4; ++i) sessions.push_back(trunk.fork());
  std::vector<std::thread> threads;
  for (Session& s : sessions) {
    threads.emplace_back([&s, &ids] {
      for (int i = 0; i < 3; ++i) {
        s.append(std::span(ids).subspan(100));
        s.rewind(i == 1 ? 30 : 100);
        if (i == 1) s.append(std::span(ids).subspan(30, 70));
      }
      s.append(std::span(ids).subspan(100));
    });
  }
  trunk.rewind(90);
  trunk.append(std::span(ids).subspan(90));
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(same_state(trunk, whole));
  for (Session& s : sessions) EXPECT_TRUE(same_state(s, whole));
}

// Scratch memory carries nothing from pass to pass: filled with NaN, it gives the same bits.
TEST(Session, NothingIsCarriedThroughScratchMemory) {
  for (const Subject& subject : subjects()) {
    const auto m = Model::load(subject.directory, 1);
    const auto ids = random_tokens(*m, 80);
    const auto run = [&] {
      Session s(m, options(2, STET_DEFAULT_ISA, 50));
      std::vector<float> logits = all_logits(s, std::span(ids).first(78));
      for (size_t i = 78; i < 80; ++i) {
        s.append(std::span(ids).subspan(i, 1));
        logits.insert(logits.end(), s.logits().begin(), s.logits().end());
      }
      return logits;
    };
    const std::vector<float> clean = run();
    auto w = m->acquire_workspace(50, 2);
    const auto poison = [](const Memory& memory) {
      std::memset(memory.data(), 0xFF, memory.size());
    };
    poison(w->scratch.packed);
    for (const Memory& memory : w->scratch.local) poison(memory);
    for (Rows rows :
         {w->x, w->normed, w->qkv, w->attention, w->gate_up, w->mlp, w->out, w->last, w->logits}) {
      for (size_t r = 0; r < rows.count; ++r) std::fill_n(rows.row(r), rows.width, NAN);
    }
    m->release_workspace(std::move(w));
    EXPECT_TRUE(same_bytes(run(), clean)) << subject.name;
  }
}

// A pass that needs more rows than any before replaces the scratch memory that is too small.
TEST(Session, ScratchMemoryDoesNotPileUp) {
  const auto m = Model::load(data_path("models/gemma3-tiny"), 1);
  const auto ids = random_tokens(*m, 60);
  for (size_t n = 1; n <= ids.size(); ++n) {
    Session s(m, options(1 + static_cast<int>(n % 2)));
    s.append(std::span(ids).first(n));
  }
  const auto kept = m->acquire_workspace(60, 2);  // the only workspace left
  const auto made = m->acquire_workspace(1, 1);   // a second one is made
  EXPECT_EQ(kept->rows, 60u);
  EXPECT_EQ(kept->threads, 2);
  EXPECT_EQ(made->rows, 1u);
}

}  // namespace
}  // namespace stet::test::failure_modes_tests

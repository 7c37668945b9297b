// The server's engine: a failure in it, or in a waiting client, ends only that piece of work.
#include "tools/serve/engine.hpp"

#include <gtest/gtest.h>

#include <latch>
#include <new>
#include <optional>
#include <stdexcept>

#include "stet/generate/draft_model.hpp"
#include "tests/support/failing_drafter.hpp"
#include "tests/support/models.hpp"
#include "tools/serve/service.hpp"

namespace stet::test::engine_tests {
namespace {

using namespace stet::serve;

constexpr auto kStays = [] { return false; };

std::shared_ptr<const Model> small_model() { return model(asset_path("pocket-llama3")); }

std::vector<int32_t> some_ids(size_t n) {
  std::vector<int32_t> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(1 + 7 * i % 900);
  return ids;
}

// Compares with a session that appended these tokens without an engine.
void expect_as_alone(Session& session, std::span<const int32_t> ids) {
  Session alone(small_model(), options(1));
  alone.append(ids);
  EXPECT_EQ(digests_of(session).state, digests_of(alone).state);
}

// Blocks an engine's thread until the engine has checked whether a client is still connected.
class Busy {
 public:
  explicit Busy(Engine& engine)
      : thread_([this, &engine] {
          engine.work(
              [this] {
                begun_.count_down();
                looked_.wait();
                return false;
              },
              kStays);
        }) {
    begun_.wait();
  }
  ~Busy() { thread_.join(); }
  void looked() { looked_.count_down(); }

 private:
  std::latch begun_{1}, looked_{1};
  std::thread thread_;
};

TEST(Engine, ACallbackMayThrowWhileWaiting) {
  Engine engine({});
  const std::vector<int32_t> ids = some_ids(1500);
  {
    Session session(small_model(), options(1));
    Busy busy(engine);
    const auto fails = [&]() -> bool {
      busy.looked();
      throw std::runtime_error("gone");
    };
    EXPECT_THROW(engine.process(session, ids, fails), std::runtime_error);
    expect_as_alone(session, std::span(ids).first(static_cast<size_t>(session.size())));
  }
  {
    Session session(small_model(), options(1));
    Busy busy(engine);
    const auto fails = [&](int64_t) {
      busy.looked();
      throw std::bad_alloc();
    };
    EXPECT_THROW(engine.process(std::vector<BatchEntry>{{&session, ids}}, kStays, fails),
                 std::bad_alloc);
    expect_as_alone(session, std::span(ids).first(static_cast<size_t>(session.size())));
  }
  EXPECT_THROW(engine.work([]() -> bool { throw std::length_error("step"); }, kStays),
               std::length_error);
  Session session(small_model(), options(1));
  engine.process(session, ids, kStays);
  expect_as_alone(session, ids);
}

TEST(Engine, ACallbackMayThrowWhileWaitingForAPlace) {
  Engine engine({.streams = 1});
  {
    const Engine::Lease only = engine.enter("a", kStays);
    EXPECT_THROW(engine.enter("b", []() -> bool { throw std::bad_alloc(); }), std::bad_alloc);
    EXPECT_THROW(engine.enter("b", [] { return true; }), Cancelled);
    EXPECT_EQ(engine.counters().queued, 0);
  }
  EXPECT_EQ(engine.counters().running, 0);
  const Engine::Lease next = engine.enter("b", kStays);
}

TEST(Engine, AJobWithoutAClientOwnsItsMemory) {
  struct Work {
    Session session{small_model(), options(1)};
    std::vector<int32_t> ids = some_ids(1500);
    Job job{BatchEntry{&session, ids}};
  };
  std::weak_ptr<Work> left;
  {
    Engine engine({});
    auto work = std::make_shared<Work>();
    left = work;
    const JobPtr job(work, &work->job);
    engine.start({&job, 1});
    work->job.cancel();
    work.reset();
  }
  EXPECT_TRUE(left.expired());
}

// A session with a prompt, and the reply that it gets alone and by an engine.
struct Drawn {
  Session session{small_model(), options(1)};
  std::unique_ptr<Speculator> speculator;
  std::optional<Generator> reply;
  std::optional<Job> job;

  explicit Drawn(size_t i) {
    append_prompt(session, some_ids(20 + 13 * i));
    session.generation().sampling.greedy = i % 2 == 0;
    session.generation().sampling.temperature = 0.5;
    session.generation().sampling.seed = i;
  }
  Drawn(const Drawn& other) : session(other.session.fork()) {}
  void start(Engine& engine) {
    speculator = engine.speculator();
    GenerateOptions o{60, true};
    o.speculator = speculator.get();
    reply.emplace(session, nullptr, o);
    job.emplace(session, *reply, std::nullopt);
  }
};

TEST(Engine, DraftsChangeNoReply) {
  EngineOptions o;
  const auto failing = std::make_shared<FailingDrafter>();
  o.drafter = [&, n = 0]() mutable -> std::shared_ptr<Drafter> {
    if (++n == 3) return failing;
    if (n % 2 == 1) return std::make_shared<SuffixDrafter>();
    return std::make_shared<ModelDrafter>(small_model(), options(1));
  };
  o.always_draft = true;
  Engine engine(o);
  std::vector<std::shared_ptr<Drawn>> all;
  std::vector<Reply> expected;
  std::vector<JobPtr> jobs;
  for (size_t i = 0; i < 4; ++i) {
    all.push_back(std::make_shared<Drawn>(i));
    Drawn alone(*all[i]);
    expected.push_back(generate(alone.session, nullptr, {60, true}));
    all[i]->start(engine);
    jobs.emplace_back(all[i], &*all[i]->job);
  }
  engine.start(jobs);
  Session beside(small_model(), options(1));
  engine.process(beside, some_ids(700), kStays);
  uint64_t accepted = 0, drafted = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<int32_t> ids;
    std::vector<Job::Piece> pieces;
    while (all[i]->job->wait(pieces, kStays)) {
      for (const Job::Piece& piece : pieces) ids.push_back(piece.id);
    }
    const Reply reply = all[i]->reply->finish();
    EXPECT_EQ(ids, expected[i].ids);
    EXPECT_EQ(reply.ids, expected[i].ids);
    accepted += reply.accepted, drafted += reply.drafted;
    Session again(small_model(), options(1));
    again.append(all[i]->session.tokens());
    EXPECT_TRUE(same_state(all[i]->session, again));
  }
  expect_as_alone(beside, some_ids(700));
  EXPECT_GT(accepted, 0u);
  EXPECT_GT(failing->failures(), 0u);
  EXPECT_EQ(engine.counters().accepted_tokens, accepted);
  EXPECT_EQ(engine.counters().drafted_tokens, drafted);
  EXPECT_EQ(engine.counters().drawn_tokens, 4 * 60u);
}

// An exception of the thread itself, for instance when memory is exhausted, ends the jobs of that
// pass.
TEST(Engine, ItsThreadOutlivesAnException) {
  int passes = 0;
  EngineOptions o;
  o.prompt_took = [&](int64_t, int64_t, double) {
    if (++passes == 2) throw std::bad_alloc();
  };
  Engine engine(o);
  const std::vector<int32_t> ids = some_ids(1500);
  {
    Session session(small_model(), options(1));
    EXPECT_THROW(engine.process(session, ids, kStays), std::bad_alloc);
  }
  Session session(small_model(), options(1));
  engine.process(session, ids, kStays);
  expect_as_alone(session, ids);
}

TEST(Engine, GivesASignForAsLongAsItWorks) {
  Engine engine({});
  EXPECT_EQ(engine.heartbeat_age(), 0);
  {
    Busy busy(engine);
    const double first = engine.heartbeat_age();
    while (engine.heartbeat_age() <= first) {
    }
    busy.looked();
  }
  while (engine.heartbeat_age() != 0) {
  }
}

// ---------------------------------------------------------------- replies

struct Server {
  explicit Server(const std::string& name = "pocket-llama3")
      : service(model(asset_path(name)), Tokenizer::load(asset_path(name)), options(1), {}, {}, 0) {
  }

  PreparedPrompt prompt() { return prompt_ids(service, caller, some_ids(20)); }

  Service service;
  Caller caller{"", kStays, 0, 0};
};

DrawOptions draws(int64_t n) {
  DrawOptions o;
  o.n = n;
  o.max_tokens = 12;
  o.ignore_eos = true;
  o.temperature = 2;
  o.seed = 5;
  return o;
}

TEST(Replies, ASinkMayThrow) {
  Server server;
  PreparedPrompt prompted = server.prompt();
  const auto good = draw_replies(server.service, server.caller, prompted, draws(3), nullptr);
  for (int at = 1; at <= 3; ++at) {  // each reply has at least one piece, however many come at once
    int pieces = 0;
    EXPECT_THROW(draw_replies(server.service, server.caller, prompted, draws(3),
                              [&](const ReplyPiece&) -> bool {
                                if (++pieces == at) throw std::runtime_error("sink");
                                return true;
                              }),
                 std::runtime_error);
    Caller leaves = server.caller;
    leaves.cancelled = []() -> bool { throw std::runtime_error("gone"); };
    DrawOptions long_one = draws(2);
    long_one.max_tokens = 1900;
    EXPECT_THROW(draw_replies(server.service, leaves, prompted, long_one, nullptr),
                 std::runtime_error);
  }
  const auto again = draw_replies(server.service, server.caller, prompted, draws(3), nullptr);
  for (size_t i = 0; i < good.size(); ++i) EXPECT_EQ(good[i].node->id, again[i].node->id);
}

TEST(Replies, PiecesAddUpToTheText) {
  for (const char* name : {"pocket-llama3", "pocket-gemma3"}) {
    Server server(name);
    PreparedPrompt prompted = server.prompt();
    for (int64_t seed = 0; seed < 40; ++seed) {
      DrawOptions o = draws(2);
      o.temperature = 1e9;
      o.seed = seed;
      std::vector<std::string> texts(2);
      const auto results =
          draw_replies(server.service, server.caller, prompted, o, [&](const ReplyPiece& piece) {
            texts[piece.choice] += piece.text;
            return true;
          });
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].reply.text, texts[i]);
        EXPECT_EQ(texts[i], server.service.tokenizer->decode(results[i].reply.ids, true));
      }
    }
  }
}

}  // namespace
}  // namespace stet::test::engine_tests

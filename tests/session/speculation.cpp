// Drafted rows: they are no part of a session until its own tokens reach them, and whatever else
// happens to the session discards them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "stet/generate/batch.hpp"
#include "stet/generate/draft_model.hpp"
#include "stet/generate/speculate.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/threads/interrupt.hpp"
#include "tests/support/checkpoint_parts.hpp"
#include "tests/support/failing_drafter.hpp"
#include "tests/support/models.hpp"
#include "tests/support/recurrent_family.hpp"

namespace stet::test::speculation_tests {
namespace {

using Ids = std::vector<int32_t>;

void append_with_draft(Session& s, int32_t id, const Ids& draft) {
  const BatchEntry entry{&s, {&id, 1}, nullptr, draft};
  append({&entry, 1});
}

bool has_recurrent_layers(const Model& m) {
  return m.config().recurrence.kind != Recurrence::Kind::none;
}

// Compares where two sessions have anchors, and the arrays that these hold.
testing::AssertionResult same_anchors(const Session& a, const Session& b) {
  const Anchors::All &ours = a.anchors().all(), &theirs = b.anchors().all();
  if (ours.size() != theirs.size()) return testing::AssertionFailure() << "other anchors";
  for (size_t i = 0; i < ours.size(); ++i) {
    const size_t numbers = a.recurrent().shape().numbers;
    if (ours[i]->position != theirs[i]->position ||
        !same_bytes({ours[i]->arrays->numbers(), numbers}, {theirs[i]->arrays->numbers(), numbers}))
      return testing::AssertionFailure() << "another anchor at " << ours[i]->position;
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult same(Session& a, Session& b) {
  const testing::AssertionResult bytes = same_state(a, b), anchors = same_anchors(a, b);
  if (!bytes) return bytes;
  if (!anchors) return anchors;
  if (digests_of(a).state != digests_of(b).state)
    return testing::AssertionFailure() << "digests differ";
  return testing::AssertionSuccess();
}

class Drafted : public testing::TestWithParam<Subject> {
 protected:
  Session session(size_t tokens, KvType type = KvType::f32) const {
    SessionOptions o = options(1, STET_DEFAULT_ISA, 512, GetParam().contract);
    o.kv_type = type;
    o.capacity = std::min<int64_t>(140, m->config().max_positions);
    Session s(m, o);
    s.append(random_tokens(*m, tokens));
    return s;
  }
  // Returns a session of some tokens with five drafted rows, and one without.
  std::pair<Session, Session> with_and_without(size_t tokens) const {
    Session drafted = session(tokens), plain = session(tokens);
    append_with_draft(drafted, next[0], Ids(next.begin() + 1, next.end()));
    plain.append({next.data(), 1});
    return {std::move(drafted), std::move(plain)};
  }

  std::shared_ptr<const Model> m = model(GetParam().directory, GetParam().contract);
  const Ids next = random_tokens(*m, 6, 7);
};

TEST_P(Drafted, RowsAreAcceptedOneByOneWithTheirOwnBits) {
  for (const size_t tokens : {5u, 61u, 62u, 63u, 64u}) {
    const KvType type = kKvTypes[tokens % std::size(kKvTypes)];
    Session drafted = session(tokens, type), plain = session(tokens, type);
    append_with_draft(drafted, next[0], Ids(next.begin() + 1, next.end()));
    plain.append({next.data(), 1});
    ASSERT_EQ(drafted.tokens(), plain.tokens());
    ASSERT_TRUE(same_bytes(drafted.logits(), plain.logits()));
    // With recurrent layers, no draft reaches the end of a block, where an anchor is due.
    const size_t most =
        has_recurrent_layers(*m)
            ? static_cast<size_t>(kBlockPositions - plain.size() % kBlockPositions) - 1
            : next.size();
    for (size_t i = 1; i < next.size(); ++i) {
      ASSERT_EQ(drafted.accepts(next[i]), i <= most) << tokens << " " << i;
      drafted.append({&next[i], 1});
      plain.append({&next[i], 1});
      ASSERT_TRUE(same_bytes(drafted.logits(), plain.logits())) << tokens << " " << i;
    }
    EXPECT_FALSE(drafted.accepts(next[0]));
    ASSERT_TRUE(same(drafted, plain)) << tokens;
  }
}

TEST_P(Drafted, AnythingElseDiscardsThemAndZeroesTheirSlots) {
  using Operation = std::function<void(Session&)>;
  const TemporaryDirectory scratch;
  const std::vector<std::pair<const char*, Operation>> operations = {
      {"nothing", [](Session&) {}},
      {"another token",
       [&](Session& s) {
         s.append({&next[3], 1});
       }},
      {"two tokens", [&](Session& s) { s.append(std::span(next).subspan(1, 2)); }},
      {"a sink",
       [&](Session& s) {
         s.append({&next[1], 1}, [](int64_t, Rows) {});
       }},
      {"rewind", [](Session& s) { s.rewind(s.size() - 2); }},
      {"rewind to a border", [](Session& s) { s.rewind(s.size() / 64 * 64); }},
      {"fork", [](Session& s) { s = s.fork(); }},
      {"prune",
       [](Session& s) {
         s.prune({4, 1, false});
       }},
      {"edit",
       [](Session& s) {
         s.scale_kv({{}, {}, 1, 3}, 0.5f);
       }},
      {"save", [&](Session& s) { Snapshot::save(s, scratch / "s.stet", {}); }},
      {"state",
       [&](Session& s) {
         s = Session(m, s.state(), {0, KvType::f32, s.compute()});
       }},
      {"identities", [](Session& s) { s.block_identities(); }},
      {"settings", [](Session& s) { s.set_compute(s.compute()); }},
      {"capacity",
       [](Session& s) {
         const auto room = static_cast<size_t>(s.capacity() - s.size() + 1);
         EXPECT_THROW(s.append(Ids(room)), Error);
       }},
  };
  for (size_t i = 0; i < operations.size(); ++i) {
    const auto& [name, operation] = operations[i];
    if (name == std::string("prune") && has_recurrent_layers(*m)) continue;  // refused
    const size_t accepted = (i + GetParam().name.size()) % 3;
    auto [drafted, plain] = with_and_without(has_recurrent_layers(*m) ? 56 : 62);
    for (size_t k = 1; k <= accepted; ++k) {
      drafted.append({&next[k], 1});
      plain.append({&next[k], 1});
    }
    operation(drafted);
    operation(plain);
    ASSERT_TRUE(same(drafted, plain)) << name << " after " << accepted;
    drafted.append(next);
    plain.append(next);
    ASSERT_TRUE(same(drafted, plain)) << name << " after " << accepted << ", continued";
  }
}

TEST_P(Drafted, OthersOfABatchAreNotConcerned) {
  Session a = session(20), b = session(63), c = session(1);
  Session plain[] = {session(20), session(63), session(1)};
  const Ids draft(next.begin() + 1, next.end()), wrong = random_tokens(*m, 3, 9);
  const BatchEntry batch[] = {{&a, {next.data(), 1}, nullptr, draft},
                              {&b, {next.data(), 2}, nullptr, {}},
                              {&c, {next.data(), 1}, nullptr, wrong}};
  append(batch);
  plain[0].append({next.data(), 1});
  plain[1].append({next.data(), 2});
  plain[2].append({next.data(), 1});
  ASSERT_TRUE(a.accepts(next[1]));
  a.append({&next[1], 1});
  plain[0].append({&next[1], 1});
  EXPECT_TRUE(same(a, plain[0]));
  EXPECT_TRUE(same(b, plain[1]));
  EXPECT_TRUE(same(c, plain[2]));
}

// Returns the small checkpoints under every contract that they support.
std::vector<Subject> small_subjects() {
  std::vector<Subject> all = subjects_and_contracts();
  std::erase_if(all, [](const Subject& s) { return s.name.starts_with("pocket"); });
  for (Subject& s : recurrent_subjects()) all.push_back(std::move(s));
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Drafted, testing::ValuesIn(small_subjects()), subject_name);

Subject llama() { return {"llama31-tiny", data_path("models/llama31-tiny")}; }

TEST(Drafts, AreIgnoredWhereTheyDoNotFit) {
  const auto m = model(llama().directory);
  SessionOptions o = options(1);
  o.capacity = 10;
  Session s(m, o);
  s.append(random_tokens(*m, 7));
  const Ids next = random_tokens(*m, 8, 3);
  append_with_draft(s, next[0], Ids(next.begin() + 1, next.end()));
  for (const size_t i : {1u, 2u}) {
    ASSERT_TRUE(s.accepts(next[i]));
    s.append({&next[i], 1});
  }
  EXPECT_FALSE(s.accepts(next[3]));
  EXPECT_EQ(s.size(), s.capacity());
}

// A position at which an anchor was asked for ends a draft as the end of a block does.
TEST(Drafts, EndBeforeAnchors) {
  const auto m = model(data_path("models/qwen35-tiny"));
  Session s(m, options(1)), plain(m, options(1));
  const Ids next = random_tokens(*m, 6, 7);
  for (Session* each : {&s, &plain}) {
    each->append(random_tokens(*m, 5));
    each->anchor_at({8});
  }
  append_with_draft(s, next[0], Ids(next.begin() + 1, next.end()));
  plain.append({next.data(), 1});
  for (size_t i = 1; i < next.size(); ++i) {
    EXPECT_EQ(s.accepts(next[i]), i == 1);
    s.append({&next[i], 1});
    plain.append({&next[i], 1});
  }
  ASSERT_NE(s.anchors().find(8), nullptr);
  EXPECT_TRUE(same(s, plain));
}

TEST(Drafts, AreIgnoredUnderInterventionsOnStates) {
  const auto m = model(data_path("models/qwen35-tiny"));
  Session s(m, options(1));
  s.append(Ids{1, 2});
  Intervention scale;
  scale.point = Point::state;
  scale.op = Intervention::Op::scale;
  scale.layers = {0};
  scale.amount = 0.5f;
  s.attach(scale);
  append_with_draft(s, 3, {4, 5});
  EXPECT_FALSE(s.accepts(4));
}

TEST(Drafts, AreUsedAfterTheEndOfAnInterventionOnStates) {
  const auto m = model(data_path("models/qwen35-tiny"));
  Session s(m, options(1)), plain(m, options(1));
  const Ids next = {3, 4, 5, 6, 7};
  Intervention scale;
  scale.point = Point::state;
  scale.op = Intervention::Op::scale;
  scale.layers = {0};
  scale.amount = 0.5f;
  scale.begin = 2, scale.end = 4;
  for (Session* each : {&s, &plain}) {
    each->append(Ids{1, 2});
    each->attach(scale);
  }
  append_with_draft(s, next[0], {next[1]});
  EXPECT_FALSE(s.accepts(next[1])) << "the intervention applies to position 3";
  s.append({&next[1], 1});
  append_with_draft(s, next[2], Ids(next.begin() + 3, next.end()));
  for (size_t i = 3; i < next.size(); ++i) {
    EXPECT_TRUE(s.accepts(next[i]));
    s.append({&next[i], 1});
  }
  plain.append(next);
  EXPECT_TRUE(same(s, plain));
}

// A family of a program's own may not record what its recurrent layers read.
TEST(Drafts, AreIgnoredByFamiliesThatRecordNothing) {
  const auto m = model(recurrent_model_directory());
  Session s(m, options(1)), plain(m, options(1));
  append_with_draft(s, 3, {4, 5});
  plain.append(Ids{3});
  EXPECT_FALSE(s.accepts(4));
  EXPECT_TRUE(same(s, plain));
}

TEST(Drafts, AreIgnoredIfNoTokens) {
  const auto m = model(llama().directory);
  Session s(m, options(1));
  append_with_draft(s, 3, {1, static_cast<int32_t>(m->config().vocab_size)});
  EXPECT_EQ(s.tokens(), Ids{3});
  EXPECT_FALSE(s.accepts(1));
}

TEST(Drafts, AreIgnoredUnderCallbacksAndWatches) {
  const auto m = model(llama().directory);
  Session s(m, options(1));
  s.append(Ids{1, 2});
  int rows = 0;
  const Watch watch{{{Point::ln_final, 0}},
                    [&](const PointAt&, int64_t, Rows r) { rows += static_cast<int>(r.count); }};
  const Ids id = {3}, draft = {4, 5};
  const BatchEntry watched{&s, id, &watch, draft};
  append({&watched, 1});
  EXPECT_EQ(rows, 1);
  EXPECT_FALSE(s.accepts(4));
  append_with_draft(s, 4, draft);
  EXPECT_TRUE(s.accepts(4));
  s.attach(std::make_shared<const Callback>(
      Callback{{{Point::resid_pre, 0}}, [](const PointAt&, int64_t, Rows) {}}));
  EXPECT_FALSE(s.can_speculate());
  append_with_draft(s, 4, draft);
  EXPECT_FALSE(s.accepts(4));
}

// Returns a copy of a checkpoint in which one token's embedding is so large that its values
// overflow float16.
std::shared_ptr<const Model> model_with_a_large_token(const TemporaryDirectory& directory,
                                                      size_t token) {
  const std::string from = data_path("models/gemma3-tiny-bf16");
  std::filesystem::copy_file(from + "/config.json", directory / "config.json");
  const Golden original(from + "/model.safetensors");
  std::vector<TensorSpec> specs;
  for (const TensorView& t : original.all()) specs.push_back({t.name, t.dtype, t.shape});
  SafeTensorsWriter writer(directory / "model.safetensors", specs);
  for (const TensorView& t : original.all()) {
    std::vector<std::byte> bytes(t.bytes.begin(), t.bytes.end());
    const size_t width = static_cast<size_t>(t.shape.back());
    if (t.name.ends_with("embed_tokens.weight")) {
      const uint16_t large = round_bf16(3e38f);
      for (size_t i = 0; i < width; ++i)
        std::memcpy(&bytes[2 * (token * width + i)], &large, sizeof large);
    }
    writer.write(bytes);
  }
  writer.commit();
  return Model::load(directory.path(), 1);
}

TEST(Drafts, AreIgnoredIfTheyOverflow) {
  const TemporaryDirectory directory;
  const auto m = model_with_a_large_token(directory, 9);
  SessionOptions o = options(1);
  o.kv_type = KvType::f16;
  Session s(m, o), plain(m, o);
  Session fails(m, o);
  ASSERT_THROW(fails.append(Ids{9}), Error);
  append_with_draft(s, 1, {2, 9, 3});
  plain.append(Ids{1});
  EXPECT_TRUE(same(s, plain));
}

// A session of some tokens, and the reply that it gets.
struct Replying {
  Session session;
  Reply reply = {};

  Replying(const std::shared_ptr<const Model>& m, const Ids& prompt) : session(m, options(1)) {
    append_prompt(session, prompt);
  }
  // Draws a reply with a drafter, or with none.
  void draw(std::shared_ptr<Drafter> drafter) {
    if (drafter == nullptr) {
      reply = generate(session, nullptr, {kTokens, true});
      return;
    }
    Speculator speculator(std::move(drafter), nullptr, true);
    GenerateOptions o{kTokens, true};
    o.speculator = &speculator;
    reply = generate(session, nullptr, o);
  }
  static constexpr int64_t kTokens = 110;
};

testing::AssertionResult same_reply(Replying& a, Replying& b) {
  if (a.reply.ids != b.reply.ids) return testing::AssertionFailure() << "other ids";
  return same(a.session, b.session);
}

TEST(Drafts, AreNoneIfTheDrafterFails) {
  const auto m = model(llama().directory);
  Replying failing(m, {1, 2, 3}), plain(m, {1, 2, 3});
  const auto drafter = std::make_shared<FailingDrafter>();
  failing.draw(drafter);
  plain.draw(nullptr);
  EXPECT_TRUE(same_reply(failing, plain));
  EXPECT_GE(drafter->failures(), 2u);
}

TEST(Drafts, OfOthersInABatchAreUsedIfADrafterFails) {
  const auto m = model(llama().directory);
  Replying failing(m, {1, 2, 3}), drafted(m, {4, 5}), first(m, {1, 2, 3}), second(m, {4, 5});
  first.draw(nullptr), second.draw(nullptr);
  const auto drafter = std::make_shared<FailingDrafter>();
  Speculator fails(drafter, nullptr, true);
  Speculator drafts(std::make_shared<ModelDrafter>(m, options(1)), nullptr, true);
  std::vector<BatchReply> batch = {{&failing.session, {Replying::kTokens, true}},
                                   {&drafted.session, {Replying::kTokens, true}}};
  batch[0].options.speculator = &fails, batch[1].options.speculator = &drafts;
  const std::vector<Reply> replies = generate(batch, nullptr);
  failing.reply = replies[0], drafted.reply = replies[1];
  EXPECT_TRUE(same_reply(failing, first));
  EXPECT_TRUE(same_reply(drafted, second));
  EXPECT_GE(drafter->failures(), 2u);
  EXPECT_GT(drafted.reply.accepted, 0u);
}

TEST(Drafts, OfOneSpeculatorServeOneEntryOfABatch) {
  const auto m = model(llama().directory);
  Replying first(m, {1, 2, 3}), second(m, {4, 5});
  Speculator shared(std::make_shared<SuffixDrafter>());
  std::vector<BatchReply> batch = {{&first.session, {3, true}}, {&second.session, {3, true}}};
  for (BatchReply& reply : batch) reply.options.speculator = &shared;
  EXPECT_EQ(error_of([&] { generate(batch, nullptr); }, ErrorKind::argument),
            "batch[1]: speculator: expected each speculator once, found one twice");
  EXPECT_EQ(first.session.size(), 3);
}

// Returns how many tokens a draft model processed to draft for a reply after `text`.
size_t caught_up(ModelDrafter& drafter, const Session& session) {
  size_t processed = 0;
  for (;;) {
    const Drafter::Offer offer = drafter.offer(session, 7, 5);
    if (offer.lacking == 0) return processed;
    EXPECT_EQ(offer.most, 0u);
    const size_t some = std::min<size_t>(offer.lacking, 30);
    drafter.catch_up(session, 7, some);
    processed += some;
  }
}

TEST(Drafts, OfAModelProcessWhatTextsShareOnce) {
  const auto m = model(llama().directory);
  const auto shared = std::make_shared<DraftSessions>(m, options(1));
  ModelDrafter first(shared), second(shared), alone(m, options(1));
  Session session(m, options(1));
  const Ids text = random_tokens(*m, 100, 3);
  session.append(text);
  EXPECT_EQ(caught_up(first, session), 90u);  // draft() processes the other ones
  EXPECT_EQ(caught_up(second, session), 0u);
  Session longer = session.fork();
  longer.append(random_tokens(*m, 40, 4));
  ModelDrafter third(shared);
  EXPECT_EQ(caught_up(third, longer), 50u);
  EXPECT_EQ(caught_up(alone, session), 90u);
  const auto drafted = [&](ModelDrafter& drafter) {
    const std::span<const int32_t> ids = drafter.draft(session, 7, 5);
    return Ids(ids.begin(), ids.end());
  };
  const Ids expected = drafted(alone);
  EXPECT_EQ(expected.size(), 5u);
  EXPECT_EQ(drafted(first), expected);
  EXPECT_EQ(drafted(second), expected);
}

// The logits of the draft model are not finite where a text has token 9.
TEST(Drafts, OfAModelContinueAfterAFailure) {
  const TemporaryDirectory directory;
  const auto m = model(llama().directory);
  CheckpointParts parts("llama31-tiny");
  std::vector<std::byte>& embeddings = parts.bytes("model.embed_tokens.weight");
  const std::vector<float> row(64, INFINITY);
  std::memcpy(&embeddings[9 * 64 * sizeof(float)], row.data(), row.size() * sizeof(float));
  const auto drafter =
      std::make_shared<ModelDrafter>(Model::load(parts.write(directory.path()), 1), options(1));
  Ids many(100, 5);  // so many that the offer has to process them
  many[10] = 9;
  for (const Ids& text : {Ids{1, 9, 2}, many, Ids{1, 2, 3}}) {
    Replying drafted(m, text), plain(m, text);
    drafted.draw(drafter);
    plain.draw(nullptr);
    EXPECT_TRUE(same_reply(drafted, plain));
    EXPECT_EQ(drafted.reply.drafted == 0, std::ranges::count(text, 9) == 1);
  }
}

TEST(Drafts, AreInterruptedByAnInterrupt) {
  class Interrupting : public FailingDrafter {
    Offer offer(const Session&, int32_t, size_t) override { throw Interrupted(); }
  };
  const auto m = model(llama().directory);
  Replying interrupted(m, {1, 2, 3}), plain(m, {1, 2, 3});
  EXPECT_THROW(interrupted.draw(std::make_shared<Interrupting>()), Interrupted);
  EXPECT_TRUE(same(interrupted.session, plain.session));
}

TEST(SuffixIndex, FindsTheLongestMatchAndForgetsWhatIsRewound) {
  SuffixIndex index;
  const Ids text = {1, 2, 3, 4, 9, 2, 3, 4, 5, 7, 1, 2, 3};
  index.set(text, 4);
  SuffixIndex::Match match = index.find(index.tokens());
  EXPECT_EQ(match.length, 4u);
  EXPECT_EQ(match.position, 4u);
  index.set(std::span(text).first(7), 4);  // 1 2 3 4 9 2 3, 4
  match = index.find(index.tokens());
  EXPECT_EQ(match.length, 3u);
  EXPECT_EQ(match.position, 4u);
  index.set(std::span(text).first(5), 3);
  EXPECT_EQ(index.find(index.tokens()).length, 0u);
  for (int32_t i = 0; i < 5000; ++i) index.set(index.tokens(), i % 2500 + 10);
  match = index.find(index.tokens());
  EXPECT_EQ(match.length, SuffixIndex::kLongest);
  EXPECT_EQ(index.tokens()[match.position - 1], 2509);
}

// A pass of one row takes 1 s, and a drafter processes a token in 10 ms.
TEST(ChooseDrafts, CountsWhatCatchingUpTakes) {
  PassCosts costs;
  costs.add(1, 1.0);
  costs.add(2, 1.0);
  DraftChoice lacking{0.9, 0.1, 0};
  lacking.lacking = 400, lacking.catch_up_seconds = 0.01, lacking.left = 100, lacking.waited = 1;
  const auto chosen = [&](DraftChoice choice, double slowest) {
    DraftChoice choices[] = {choice, choice};
    choose_drafts(choices, 2, costs, slowest);
    EXPECT_EQ(choices[1].catching_up, 0u);  // in its turn
    return choices[0].catching_up;
  };
  EXPECT_EQ(chosen(lacking, 1.25), 25u);
  EXPECT_EQ(chosen(lacking, 1.125), 12u);
  EXPECT_EQ(chosen(lacking, INFINITY), 0u);  // saves up for a larger part
  lacking.waited = 3;
  EXPECT_EQ(chosen(lacking, INFINITY), 64u);
  EXPECT_EQ(chosen(lacking, 1.25), 25u);
  DraftChoice other = lacking;
  other.left = 20;  // 4 s are too much for 20 s
  EXPECT_EQ(chosen(other, 1.25), 0u);
  other = lacking, other.seconds = 0.3;  // a token that is drafted would take too long
  EXPECT_EQ(chosen(other, 1.25), 0u);
  other = lacking, other.catch_up_seconds = 0;  // unknown
  EXPECT_EQ(chosen(other, 1.25), 8u);
  other = lacking, other.all = true;
  DraftChoice all[] = {other, other};
  choose_drafts(all, 2, costs, 1.25);
  EXPECT_EQ(all[1].catching_up, 64u);
}

TEST(ChooseDrafts, TriesOneReplyAtATimeWithinTheLimit) {
  PassCosts costs;
  for (const size_t rows : {2u, 4u}) costs.add(rows, 1.0);
  DraftChoice slow{0.01, 0.1, 15};
  slow.trial = true;
  DraftChoice choices[] = {slow, slow};
  choose_drafts(choices, 2, costs, 1.25);
  EXPECT_EQ(choices[0].chosen, 2u);
  EXPECT_EQ(choices[1].chosen, 0u);
  choose_drafts(choices, 2, costs, 1.15);
  EXPECT_EQ(choices[0].chosen, 0u);
}

TEST(ChooseDrafts, WeighsWhatRowsCost) {
  PassCosts costs;
  const auto chosen = [&](double acceptance) {
    DraftChoice choice{acceptance, 0, 15};
    choose_drafts({&choice, 1}, 1, costs);
    return choice.chosen;
  };
  EXPECT_EQ(chosen(1), 0u);  // nothing was measured
  costs.add(1, 1.0);
  EXPECT_EQ(chosen(1), 15u);
  EXPECT_EQ(chosen(0.01), 0u);
  costs.add(2, 2.5);
  costs.add(16, 20.0);
  EXPECT_EQ(chosen(1), 0u);
  PassCosts stairs;
  stairs.add(1, 1.0);
  stairs.add(2, 1.1);
  stairs.add(3, 1.2);
  stairs.add(4, 9.0);
  DraftChoice choices[] = {{0.9, 0, 15}, {0, 0, 15}};
  choose_drafts(choices, 1, stairs);
  EXPECT_EQ(choices[0].chosen, 2u);
  EXPECT_EQ(choices[1].chosen, 0u);
}

}  // namespace
}  // namespace stet::test::speculation_tests

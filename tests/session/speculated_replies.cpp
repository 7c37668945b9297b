// Replies with and without speculation are equal in tokens, text, logits and state, whatever is
// drafted and whatever happens meanwhile. STET_REPLIES=N compares N of them, STET_SEED=S begins with
// seed S. STET_POCKET=1 takes the pocket models in place of the small ones.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <random>

#include "stet/generate/batch.hpp"
#include "stet/generate/draft_model.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"

namespace stet::test::speculated_replies_tests {
namespace {

using Ids = std::vector<int32_t>;

uint64_t setting(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t below(uint64_t n) { return engine_() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  double unit() { return static_cast<double>(below(1000)) / 1000; }

 private:
  std::mt19937_64 engine_;
};

// Knows the reply, and errs on purpose at random.
class ErringDrafter : public Drafter {
 public:
  ErringDrafter(Ids reply, int64_t begin, double right, int64_t vocab, uint64_t seed)
      : reply_(std::move(reply)), begin_(begin), right_(right), vocab_(vocab), random_(seed) {}

  Offer offer(const Session& session, int32_t, size_t most) override {
    draft_.clear();
    const auto at = static_cast<size_t>(session.transcript_size() + 1 - begin_);
    for (size_t i = 0; i < most; ++i) {
      const bool known = at + i < reply_.size() && random_.unit() < right_;
      draft_.push_back(known ? reply_[at + i]
                             : static_cast<int32_t>(random_.below(static_cast<uint64_t>(vocab_))));
    }
    return {draft_.size(), draft_, 0, 0};
  }
  std::span<const int32_t> draft(const Session&, int32_t, size_t count) override {
    // sometimes less than was chosen
    return std::span(draft_).first(std::min(draft_.size(), count - random_.below(2) % count));
  }

 private:
  Ids reply_, draft_;
  int64_t begin_;
  double right_;
  int64_t vocab_;
  Random random_;
};

SamplingSettings random_settings(Random& random, int64_t vocab) {
  SamplingSettings s;
  s.greedy = random.one_in(3);
  s.temperature = 0.1 + 2 * random.unit();
  s.seed = random.below(1000);
  if (random.one_in(3)) s.top_k = 1 + static_cast<int>(random.below(8));
  if (random.one_in(3)) s.top_p = random.unit();
  if (random.one_in(4)) s.min_p = 0.3 * random.unit();
  if (random.one_in(5)) s.typical_p = 0.1 + 0.9 * random.unit();
  if (random.one_in(3)) s.repetition_penalty = 0.8 + random.unit();
  if (random.one_in(3)) s.frequency_penalty = 2 * random.unit() - 1;
  if (random.one_in(3)) s.presence_penalty = 2 * random.unit() - 1;
  if (random.one_in(4)) {
    const auto id = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab)));
    s.logit_bias = logit_bias_of({{id, 8 * random.unit() - 2}});
  }
  return s;
}

Intervention random_intervention(Random& random, const Model& m) {
  Intervention w;
  w.point = Point::resid_pre;
  w.op = random.one_in(2) ? Intervention::Op::add : Intervention::Op::scale;
  w.layers = {static_cast<int64_t>(random.below(static_cast<uint64_t>(m.config().layers)))};
  w.amount = 0.5f;
  if (w.op == Intervention::Op::scale) return w;
  std::vector<float> values(static_cast<size_t>(m.config().hidden_size));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;
  w.values = std::make_shared<const std::vector<float>>(std::move(values));
  return w;
}

bool is_recurrent(const Session& s) {
  return s.model().config().recurrence.kind != Recurrence::Kind::none;
}

// Changes the first keys and values of the first layer that has its own.
void edit(Session& s) {
  const KvShape& shape = s.kv().shape();
  int64_t layer = 0;
  while (!shape.owns(layer)) ++layer;
  s.scale_kv({{layer}, {}, 0, 2}, 0.5f);
}

// Something that happens during a reply, after a given number of tokens.
struct Event {
  enum What { nothing, fork, save, settings, attach, prune, shift, stop, edit, count };
  What what = nothing;
  int64_t after = 0;
};

// One reply: a session with its prompt, the limits, and what happens meanwhile.
struct Case {
  Session session;
  std::vector<int64_t> limits;  // for consecutive calls of generate()
  bool ignore_eos = false;
  std::vector<Event> events;
  Intervention intervention;

  std::string text;
  Ids ids;
  std::vector<std::string> seen;  // digests at events, and stop reasons
  uint64_t drafted = 0, accepted = 0;

  Case(Session s) : session(std::move(s)) {}
  Case copy() const {
    Case c(session.fork());
    c.limits = limits, c.ignore_eos = ignore_eos, c.events = events;
    c.intervention = intervention;
    return c;
  }
  TextSink sink() {
    return [this, begin = session.transcript_size()](std::string_view piece) {
      text += piece;
      bool goes_on = true;
      for (const Event& e : events) {
        if (session.transcript_size() - begin == e.after) goes_on = happen(e) && goes_on;
      }
      return goes_on;
    };
  }
  // Returns false if the reply is to end.
  bool happen(const Event& e) {
    const auto digest = [](Session& s) { return sha256_text(digests_of(s).id); };
    if (e.what == Event::fork) {
      Session other = session.fork();
      const int32_t id = 1;
      if (other.size() < other.capacity()) other.append({&id, 1});
      seen.push_back(digest(other));
    }
    if (e.what == Event::save) seen.push_back(digest(session));
    if (e.what == Event::settings) session.generation().sampling.temperature += 0.25;
    if (e.what == Event::attach) session.attach(intervention);
    if (e.what == Event::prune && !is_recurrent(session)) session.prune({8, 1, false});
    if (e.what == Event::shift && !session.model().config().ropes.empty() && !is_recurrent(session))
      session.prune({8, 1, true});
    if (e.what == Event::edit) edit(session);
    return e.what != Event::stop;
  }
  void run(const Tokenizer& tokenizer, Speculator* speculator) {
    for (const int64_t limit : limits) {
      GenerateOptions o{limit, ignore_eos};
      o.speculator = speculator;
      take(generate(session, &tokenizer, o, sink()));
    }
  }
  void take(const Reply& reply) {
    ids.insert(ids.end(), reply.ids.begin(), reply.ids.end());
    seen.push_back(stop_reason_name(reply.stop));
    drafted += reply.drafted;
    accepted += reply.accepted;
  }
};

class Cases {
 public:
  Cases() : tokenizer(Tokenizer::load(asset_path("pocket-llama3"))) {
    const bool pocket = setting("STET_POCKET", 0) != 0;
    std::erase_if(all_, [&](const Subject& s) { return s.name.starts_with("pocket") != pocket; });
    if (pocket) return;
    for (Subject& s : recurrent_subjects()) all_.push_back(std::move(s));
  }
  const std::string& name(uint64_t seed) const { return all_[seed % all_.size()].name; }
  // Draws the subject, the prompt and everything else by a seed.
  Case draw(uint64_t seed) const {
    Random random(seed);
    const Subject& subject = all_[seed % all_.size()];
    const auto m = model(subject.directory, subject.contract);
    SessionOptions o = options(1, STET_DEFAULT_ISA, 512, subject.contract);
    o.kv_type = kKvTypes[random.below(std::size(kKvTypes))];
    o.capacity =
        std::min<int64_t>(m->config().max_positions, static_cast<int64_t>(50 + random.below(200)));
    const auto& windows = m->config().window;
    if (random.one_in(3) && is_replayable(contract_name(subject.contract)) &&
        std::ranges::any_of(windows, [](int64_t w) { return w > 0; }))
      o.window = {true, 0, [](int64_t) {}};
    Case c{Session(m, o)};
    prompt(random, c.session);
    settle(random, c, *m);
    return c;
  }

  const std::shared_ptr<const Tokenizer> tokenizer;

 private:
  // Appends a prompt that repeats itself, so that there is something to find.
  static void prompt(Random& random, Session& s) {
    const size_t period = 3 + random.below(20), length = 1 + random.below(48);
    const Ids part = random_tokens(s.model(), period, static_cast<uint32_t>(random.below(100)));
    Ids ids;
    for (size_t i = 0; i < length; ++i) ids.push_back(part[i % period]);
    append_prompt(s, ids);
  }
  void settle(Random& random, Case& c, const Model& m) const {
    const int64_t vocab = m.config().vocab_size;
    GenerationState& g = c.session.generation();
    g.sampling = random_settings(random, vocab);
    const auto any = [&] {
      return static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab)));
    };
    if (random.one_in(3)) g.stop_ids = {any(), any()};
    c.ignore_eos = random.one_in(3);
    if (random.one_in(3)) g.stop_strings = {"e", "qz"};
    if (random.one_in(3))
      g.stop_strings.push_back(std::string(1, static_cast<char>('a' + any() % 26)));
    c.intervention = random_intervention(random, m);
    if (random.one_in(5)) c.session.attach(c.intervention);
    if (random.one_in(8) && c.session.size() > 2) edit(c.session);
    for (size_t n = 1 + random.below(2); n > 0; --n)
      c.limits.push_back(static_cast<int64_t>(random.below(30)));
    for (size_t n = random.below(4); n > 0; --n) {
      c.events.push_back({static_cast<Event::What>(random.below(Event::count)),
                          static_cast<int64_t>(random.below(24))});
    }
  }

  std::vector<Subject> all_ = subjects_and_contracts();
};

std::shared_ptr<Drafter> drafter_of(Random& random, const Case& plain, int64_t begin) {
  const Session& s = plain.session;
  switch (random.below(4)) {
    case 0:
      return std::make_shared<SuffixDrafter>();
    case 1: {
      SessionOptions o = options(1, STET_DEFAULT_ISA, 512, s.compute().contract);
      o.capacity = std::min<int64_t>(s.model().config().max_positions, 200);
      return std::make_shared<ModelDrafter>(s.shared_model(), o);
    }
    default: {
      constexpr double kRates[] = {1, 1, 0.9, 0.5, 0};
      return std::make_shared<ErringDrafter>(plain.ids, begin, kRates[random.below(5)],
                                             s.model().config().vocab_size, random.below(1000));
    }
  }
}

testing::AssertionResult same(Case& found, Case& expected) {
  if (found.ids != expected.ids) return testing::AssertionFailure() << "other ids";
  if (found.text != expected.text) return testing::AssertionFailure() << "other text";
  if (found.seen != expected.seen) return testing::AssertionFailure() << "another course";
  if (found.session.generation() != expected.session.generation())
    return testing::AssertionFailure() << "another state of generation";
  const testing::AssertionResult bytes = same_state(found.session, expected.session);
  if (!bytes) return bytes;
  const StateDigests a = digests_of(found.session), b = digests_of(expected.session);
  if (a.state != b.state || a.id != b.id) return testing::AssertionFailure() << "other digests";
  return testing::AssertionSuccess();
}

uint64_t drafted = 0, accepted = 0;

void expect_equal(const Cases& cases, uint64_t seed) {
  Random random(seed + 1000000);
  Case plain = cases.draw(seed), speculated = plain.copy();
  const int64_t begin = plain.session.transcript_size();
  plain.run(*cases.tokenizer, nullptr);
  Speculator speculator(drafter_of(random, plain, begin), nullptr, !random.one_in(5));
  speculated.run(*cases.tokenizer, &speculator);
  drafted += speculated.drafted;
  accepted += speculated.accepted;
  ASSERT_TRUE(same(speculated, plain))
      << cases.name(seed) << ": repeat with STET_REPLIES=1 STET_SEED=" << seed;
}

TEST(SpeculatedReplies, EqualThoseWithout) {
  const Cases cases;
  const uint64_t first = setting("STET_SEED", 1), replies = setting("STET_REPLIES", 800);
  drafted = accepted = 0;
  for (uint64_t seed = first; seed < first + replies; ++seed)
    ASSERT_NO_FATAL_FAILURE(expect_equal(cases, seed));
  if (replies < 100) return;
  // a test without drafts that are right, and without others, tests nothing
  EXPECT_GT(accepted, replies);
  EXPECT_GT(drafted - accepted, replies);
  std::cout << replies << " replies, " << accepted << " of " << drafted << " drafts accepted\n";
}

// Forks of one session reply together, each with its own drafts.
void expect_equal_in_a_batch(const Cases& cases, uint64_t seed) {
  Random random(seed + 2000000);
  const Case first = cases.draw(seed);
  std::vector<Case> plain, together;
  std::vector<Speculator> speculators;
  std::vector<BatchReply> batch;
  const size_t count_of = 2 + random.below(3);
  together.reserve(count_of), speculators.reserve(count_of);
  for (size_t i = 0; i < count_of; ++i) {
    plain.push_back(first.copy());
    plain.back().limits.resize(1);
    plain.back().session.generation().sampling =
        random_settings(random, first.session.model().config().vocab_size);
    together.push_back(plain.back().copy());
    const int64_t begin = plain.back().session.transcript_size();
    plain.back().run(*cases.tokenizer, nullptr);
    speculators.emplace_back(drafter_of(random, plain.back(), begin), nullptr, true);
    BatchReply reply{
        &together[i].session, {plain[i].limits[0], first.ignore_eos}, together[i].sink()};
    if (!random.one_in(4)) reply.options.speculator = &speculators[i];
    batch.push_back(std::move(reply));
  }
  const std::vector<Reply> replies = generate(batch, cases.tokenizer.get());
  for (size_t i = 0; i < count_of; ++i) {
    together[i].take(replies[i]);
    ASSERT_TRUE(same(together[i], plain[i]))
        << cases.name(seed) << ", entry " << i << ": repeat with STET_REPLIES=4 STET_SEED=" << seed;
  }
}

TEST(SpeculatedReplies, EqualThoseWithoutInBatches) {
  const Cases cases;
  const uint64_t first = setting("STET_SEED", 1), batches = setting("STET_REPLIES", 320) / 4;
  for (uint64_t seed = first; seed < first + batches; ++seed)
    ASSERT_NO_FATAL_FAILURE(expect_equal_in_a_batch(cases, seed));
}

}  // namespace
}  // namespace stet::test::speculated_replies_tests

// Rewinding a state with edited keys and values restores the earlier logits, or reports that it
// cannot.
#include <map>

#include "stet/session/splice.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"

namespace stet::test::rewinding_tests {
namespace {

std::shared_ptr<const Callback> amplifier() {
  return std::make_shared<const Callback>(
      Callback{{{Point::resid_post, 0}}, [](const PointAt&, int64_t, Rows rows) {
                 for (size_t i = 0; i < rows.count; ++i) {
                   for (size_t k = 0; k < rows.width; ++k) rows.row(i)[k] *= 1.25f;
                 }
               }});
}

class Rewinding : public testing::Test {
 protected:
  Session session(size_t tokens, const SessionOptions& how) const {
    Session s(m, how);
    s.append(std::span(ids).first(tokens));
    return s;
  }
  Session session(size_t tokens) const { return session(tokens, options(1)); }
  std::vector<float> vector(float x) const {
    return std::vector<float>(static_cast<size_t>(m->config().head_dim), x);
  }

  std::shared_ptr<const Model> m = model(data_path("models/gemma3-tiny"));
  const std::vector<int32_t> ids = random_tokens(*m, 300);
  TemporaryDirectory scratch;
  const std::string file = scratch / "s.stet";
};

// A session's logits and id at some of its earlier sizes.
class Past {
 public:
  void note(Session& s) {
    const std::span<const float> x = s.logits();
    all_[s.size()] = {{x.begin(), x.end()}, digests_of(s).id};
  }
  // Rewinds to every noted size, the last one first, and compares. Compares ids only if `ids`:
  // nothing else was changed since.
  void expect(Session& s, bool ids, const std::string& what) const {
    for (auto at = all_.rbegin(); at != all_.rend(); ++at) {
      s.rewind(at->first);
      EXPECT_TRUE(same_bytes(s.logits(), at->second.logits)) << what << ": " << at->first;
      if (!ids) continue;
      EXPECT_EQ(digests_of(s).id, at->second.id) << what << ": " << at->first;
    }
  }

 private:
  struct Then {
    std::vector<float> logits;
    Sha256 id;
  };
  std::map<int64_t, Then> all_;
};

struct Change {
  const char* name;
  std::function<void(Session&)> act;
};

TEST_F(Rewinding, AnEditedSessionHasTheEarlierLogits) {
  const KvRange some{{}, {}, 5, 9};
  const Session other = session(120);
  const std::vector<float> half = vector(0.5f);
  const auto callback = amplifier();
  const Change changes[] = {
      {"nothing", [](Session&) {}},
      {"set_key", [&](Session& s) { s.set_key(0, 0, 10, half); }},
      {"set_value of the last", [&](Session& s) { s.set_value(1, 0, s.size() - 1, half); }},
      {"zero_kv", [&](Session& s) { s.zero_kv(some); }},
      {"scale_kv", [&](Session& s) { s.scale_kv(some, 0.5f); }},
      {"set_kv", [&](Session& s) { s.set_kv(some, half); }},
      {"copy_kv", [&](Session& s) { s.copy_kv(some, other, 50); }},
      {"twice", [&](Session& s) { s.zero_kv(some), s.set_key(0, 0, 10, half); }},
      {"with_kv_type",
       [&](Session& s) { s = Session(m, with_kv_type(s.state(), KvType::q8), options(1)); }},
      {"a callback", [&](Session& s) { s.attach(callback); }},
      {"a callback, detached", [&](Session& s) {
         s.attach(callback);
         s.append(std::span(ids).subspan(10, 3));
         s.detach_callbacks();
       }}};
  for (const Change& first : changes) {
    for (const Change& second : changes) {
      const std::string what = std::string(first.name) + ", " + second.name;
      Session s = session(100);
      Past before, after;
      const auto go_on = [&](Past& past, std::initializer_list<size_t> lengths) {
        past.note(s);
        for (const size_t n : lengths) s.append(std::span(ids).subspan(150, n)), past.note(s);
      };
      first.act(s);
      go_on(before, {1, 3, 40, 2});
      second.act(s);
      go_on(after, {1, 2, 30});
      Snapshot::save(s, file);
      Session restored = Snapshot::open(file).restore(m, {.session = options(1)});
      // At earlier sizes the second change remains, which is another state with the same logits.
      const bool rounded = &first == &changes[0] && second.name == std::string("with_kv_type");
      for (Session* each : {&s, &restored}) {
        after.expect(*each, true, what);
        if (!rounded) before.expect(*each, false, what);
      }
    }
  }
}

// At sizes before the edit, the logits are those of a session without the edit.
TEST_F(Rewinding, BeforeTheEditTheLogitsAreThoseOfTheTokens) {
  for (const bool pruned : {false, true}) {
    Session s(m, options(1)), plain(m, options(1));
    for (Session* each : {&s, &plain}) {
      each->append(std::span(ids).first(30));
      if (pruned) each->prune_range(5, 20, true);
      Intervention w;
      w.point = Point::resid_pre, w.op = Intervention::Op::scale, w.layers = {0}, w.amount = 0.5f;
      each->attach(w);
      each->append(std::span(ids).subspan(100, 78));
    }
    std::vector<int64_t> sizes;
    for (const int64_t back : {7, 37, 77}) sizes.push_back(plain.size() - back);
    s.zero_kv({{}, {}, 2, 4});
    s.append(std::span(ids).first(50));
    Snapshot::save(s, file);
    Session restored = Snapshot::open(file).restore(m, {.session = options(1)});
    for (const int64_t size : sizes) {
      for (Session* each : {&s, &restored, &plain}) each->rewind(size);
      EXPECT_TRUE(same_bytes(s.logits(), plain.logits())) << size << pruned;
      EXPECT_TRUE(same_bytes(restored.logits(), plain.logits())) << size << pruned;
    }
  }
}

TEST_F(Rewinding, ReportsUnavailableLogitsAndContinues) {
  Session s(m, with_kv_type(session(100).state(), KvType::bf16), options(1));
  s.append(std::span(ids).first(20));
  s.rewind(60);
  EXPECT_EQ(error_of([&] { s.logits(); }),
            "argument: logits: expected a token whose logits are kept (append one: its logits are "
            "known), found that of position 59, whose logits are from before an edit (keys and "
            "values were rounded to another type)");
  EXPECT_EQ(s.size(), 60);
  s.append(std::span(ids).subspan(60, 2));
  const std::vector<float> known(s.logits().begin(), s.logits().end());
  s.append(std::span(ids).first(3));
  s.rewind(62);
  EXPECT_TRUE(same_bytes(s.logits(), known));
}

TEST_F(Rewinding, ASplicedSessionHasTheLogitsOfItsParts) {
  const Session a = session(90), b = session(140);
  Session copy_a = a.fork(), copy_b = b.fork();
  const Cut cuts[] = {{&copy_a.state(), 0, 70}, {&copy_b.state(), 70, 130}};
  const State joined = splice(m->config(), cuts);
  Session s(m, joined, options(1)), again(m, joined, options(1));
  const std::vector<float> logits(s.logits().begin(), s.logits().end());
  s.append(std::span(ids).first(9));
  s.rewind(130);
  EXPECT_TRUE(same_bytes(s.logits(), logits));
  s.rewind(80), again.rewind(80);
  EXPECT_TRUE(same_bytes(s.logits(), again.logits()));
  s.append(std::span(ids).first(9));
  s.zero_kv({{}, {}, 3, 4});
  s.append(std::span(ids).first(1));
  s.rewind(75);
  EXPECT_TRUE(error_of([&] { s.logits(); }).starts_with("argument: logits: expected "));
}

// ---------------------------------------------------------------- sessions that keep only windows

TEST_F(Rewinding, AWindowOnlySessionRewindsLikeAWholeOne) {
  SessionOptions windows = options(1);
  windows.window = {true, 0, [](int64_t) {}};
  for (const int64_t to : {250, 200, 100, 64, 1}) {
    Session s = session(300, windows), plain = session(300);
    for (Session* each : {&s, &plain}) {
      each->set_key(0, 0, 299, vector(0.5f));
      each->zero_kv({{}, {}, 290, 292});
      each->rewind(to);
    }
    EXPECT_TRUE(same_bytes(s.logits(), plain.logits())) << to;
    EXPECT_EQ(digests_of(s).id, digests_of(plain).id) << to;
  }
  Session s = session(300, windows), plain = session(300);
  for (Session* each : {&s, &plain}) {
    each->set_key(0, 0, 20, vector(0.5f));  // outside of the window
    each->append(std::span(ids).first(3));
    each->rewind(150);
  }
  EXPECT_TRUE(same_bytes(s.logits(), plain.logits()));
  EXPECT_EQ(digests_of(s).id, digests_of(plain).id);
}

TEST_F(Rewinding, AWindowOnlySessionRoundsRecomputedKeysAndValues) {
  SessionOptions windows = options(1);
  int64_t told = 0;
  windows.window = {true, 0, [&](int64_t tokens) { told = tokens; }};
  Session s = session(300, windows), plain = session(300);
  Session rounded(m, with_kv_type(s.state(), KvType::q8), windows),
      whole(m, with_kv_type(plain.state(), KvType::q8), options(1));
  EXPECT_GT(told, 0);
  EXPECT_EQ(digests_of(rounded).id, digests_of(whole).id);
  for (Session* each : {&rounded, &whole}) {
    each->append(std::span(ids).first(9));
    each->rewind(303);
  }
  EXPECT_TRUE(same_bytes(rounded.logits(), whole.logits()));
  Snapshot::save(s, file);
  EXPECT_TRUE(error_of([&] {
                with_kv_type(Snapshot::open(file).state(), KvType::q8);
              }).starts_with("argument: KV block 0: expected keys and values of all layers"));
  windows.window.before_recall = nullptr;
  Session silent = session(300, windows);
  EXPECT_TRUE(error_of([&] {
                with_kv_type(silent.state(), KvType::q8);
              }).starts_with("argument: window-only: expected "));
}

// Rows of a wrong size come from a damaged file or from another model.
TEST_F(Rewinding, KeptLogitsHaveTheSizesOfTheModel) {
  Session edited = session(20);
  edited.set_key(0, 0, 3, vector(0.5f));
  edited.append(std::span(ids).subspan(20, 10));
  const auto width = static_cast<size_t>(m->config().hidden_size);
  for (const size_t numbers : {size_t{0}, width - 1, width + 1000}) {
    State state = edited.state();
    state.kept.clear();
    state.kept.keep({25, true, std::make_shared<std::vector<float>>(numbers)});
    EXPECT_EQ(error_of([&] { Session(m, state, options(1)); }, ErrorKind::argument),
              "state: expected kept logits of " + std::to_string(width) + " numbers, found " +
                  std::to_string(numbers));
  }
  State state = edited.state();
  Session again(m, state, options(1));
  again.rewind(25);
  edited.rewind(25);
  EXPECT_TRUE(same_bytes(again.logits(), edited.logits()));
}

}  // namespace
}  // namespace stet::test::rewinding_tests

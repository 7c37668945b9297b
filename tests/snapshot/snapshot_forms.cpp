// Forms of one state, restores of every kind, pruning and verification, each compared with the same
// state computed directly.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <random>

#include "src/snapshot/kv_blocks.hpp"
#include "stet/generate/generate.hpp"
#include "stet/kv/kv_writer.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/models.hpp"
#include "tests/support/snapshot_image.hpp"

namespace stet::test::snapshot_forms_tests {
namespace {

class SnapshotForms : public testing::Test {
 protected:
  Session session(int64_t tokens, KvType type = KvType::f32) const {
    SessionOptions o = options(1);
    o.capacity = 400;
    o.kv_type = type;
    Session s(m, o);
    s.append(std::span(ids).first(static_cast<size_t>(tokens)));
    return s;
  }
  Session restore(const std::string& path, RestoreOptions how = {},
                  RestoreReport* report = nullptr) const {
    how.session = options(1);
    return Snapshot::open(path).restore(m, how, report);
  }

  std::shared_ptr<const Model> m = model(data_path("models/gemma3-tiny"));
  const std::vector<int32_t> ids = random_tokens(*m, 400);
  TemporaryDirectory scratch;
  const std::string file = scratch / "s.stet";
};

// Cuts a reply with sampling, penalties, stop strings and incomplete characters after every token;
// saves, restores and continues it.
class ResumeAnywhere : public testing::TestWithParam<std::string> {};

TEST_P(ResumeAnywhere, ASampledReplyEqualsTheUnbrokenOne) {
  const std::string directory = asset_path(GetParam());
  const auto m = model(directory);
  const auto tokenizer = Tokenizer::load(directory);
  TemporaryDirectory scratch;
  GenerationState g = default_generation(*m);
  g.sampling = {false, 3.0, 0,   0.999,
                0,     1,   1.2, 99};  // hot enough to draw bytes of broken characters
  g.stop_strings = {"qqqqqq", "\n\n\n"};
  const auto start = [&] {
    Session s(m, options(1));
    s.generation() = g;
    append_prompt(s, tokenizer->encode("Let x be 5."));
    return s;
  };
  constexpr int64_t kTokens = 48;
  Session unbroken = start();
  const Reply whole =
      generate(unbroken, tokenizer.get(), {.max_tokens = kTokens, .ignore_eos = true});
  for (int64_t cut = 0; cut < static_cast<int64_t>(whole.ids.size()); ++cut) {
    Session s = start();
    Reply reply = generate(s, tokenizer.get(), {.max_tokens = cut, .ignore_eos = true});
    const std::string path = scratch / "s.stet";
    Snapshot::save(s, path,
                   {.compress = cut % 3 == 0 && have_zlib() ? 1 : 0, .tokenizer = tokenizer.get()});
    Session back = Snapshot::open(path).restore(
        m, {.session = options(1), .tokenizer = tokenizer.get(), .map = cut % 2 == 0});
    const Reply rest =
        generate(back, tokenizer.get(), {.max_tokens = kTokens - cut, .ignore_eos = true});
    reply.ids.insert(reply.ids.end(), rest.ids.begin(), rest.ids.end());
    ASSERT_EQ(reply.ids, whole.ids) << "cut after " << cut;
    ASSERT_EQ(reply.text + rest.text, whole.text) << "cut after " << cut;
    ASSERT_TRUE(same_state(back, unbroken)) << "cut after " << cut;
    ASSERT_EQ(digests_of(back).state, digests_of(unbroken).state) << "cut after " << cut;
  }
}
INSTANTIATE_TEST_SUITE_P(Pocket, ResumeAnywhere, testing::Values("pocket-gemma3", "pocket-llama3"),
                         [](const auto& info) {
                           return info.param == "pocket-gemma3" ? "Gemma3" : "Llama3";
                         });

TEST_F(SnapshotForms, AreOneState) {
  for (const KvType type : kKvTypes) {
    Session s = session(150, type), longer = session(230, type);
    const StateDigests digests = Snapshot::save(longer, scratch / "full.stet");
    Snapshot::save(s, scratch / "parent.stet");
    const Snapshot parent = Snapshot::open(scratch / "parent.stet");
    Snapshot::save(longer, scratch / "delta.stet",
                   {.form = SnapshotForm::delta, .parent = &parent});
    Snapshot::save(longer, scratch / "recipe.stet", {.form = SnapshotForm::recipe});
    std::vector<std::string> names = {"full", "delta", "recipe"};
    if (have_zlib()) {
      Snapshot::save(longer, scratch / "zlib.stet", {.compress = 9});
      Snapshot::save(longer, scratch / "zlib-delta.stet",
                     {.form = SnapshotForm::delta, .compress = 1, .parent = &parent});
      names.insert(names.end(), {"zlib", "zlib-delta"});
    }
    for (const std::string& name : names) {
      const Snapshot snapshot = Snapshot::open(scratch / (name + ".stet"));
      EXPECT_EQ(snapshot.digests().state, digests.state) << name;
      for (const bool map : {true, false}) {
        RestoreReport report;
        Session back = snapshot.restore(m, {.session = options(1), .map = map}, &report);
        EXPECT_TRUE(same_state(back, longer)) << name;
        EXPECT_EQ(report.recomputed, name == "recipe" ? 230 : 0) << name;
        EXPECT_EQ(report.reused, name == "recipe" ? 0 : 230) << name;
        back.append(std::span(ids).subspan(230, 70));
        Session straight = session(300, type);
        EXPECT_TRUE(same_state(back, straight)) << name;
      }
    }
    const size_t block = s.kv().shape().block_bytes();
    EXPECT_EQ(Snapshot::open(scratch / "delta.stet").stored_kv_bytes(),
              2 * block);  // 150 = 2 x 64 + 22, so two blocks are new
    EXPECT_EQ(Snapshot::open(scratch / "recipe.stet").stored_kv_bytes(), 0u);
  }
}

TEST_F(SnapshotForms, ADeltaFindsItsParentByContentAndRefusesAnother) {
  Session s = session(130), longer = session(200);
  Snapshot::save(s, scratch / "parent.stet");
  {
    const Snapshot parent = Snapshot::open(scratch / "parent.stet");
    Snapshot::save(longer, file, {.form = SnapshotForm::delta, .parent = &parent});
  }
  std::filesystem::rename(scratch / "parent.stet", scratch / "renamed.stet");
  Session back = restore(file);
  EXPECT_TRUE(same_state(back, longer));
  const std::string state = digest_text(Snapshot::open(file).digests().state);
  const std::string wanted = Snapshot::open(file).meta().parent;
  std::filesystem::create_directory(scratch / "elsewhere");
  std::filesystem::rename(scratch / "renamed.stet", scratch / "elsewhere/p.stet");
  EXPECT_EQ(error_of([&] { restore(file); }),
            "io: " + file + ": parent: the delta needs the snapshot of state " + wanted +
                ", which is not beside it; name it with --parent");
  const Snapshot delta = Snapshot::open_with_parents(file, scratch / "elsewhere/p.stet");
  Session found = delta.restore(m, {.session = options(1)});
  EXPECT_TRUE(same_state(found, longer));
  Session other = session(70);
  Snapshot::save(other, scratch / "other.stet");
  EXPECT_EQ(error_of([&] { Snapshot::open_with_parents(file, scratch / "other.stet"); }),
            "io: " + file + ": parent: the delta needs the snapshot of state " + wanted +
                "; the one named holds state " + sha256_text(digests_of(other).id));
}

TEST_F(SnapshotForms, ChainsOfDeltas) {
  Session s = session(10);
  Snapshot::save(s, scratch / "0.stet");
  for (int i = 1; i <= 8; ++i) {
    s.append(std::span(ids).subspan(static_cast<size_t>(s.size()), 37));
    const Snapshot parent = Snapshot::open(scratch / (std::to_string(i - 1) + ".stet"));
    Snapshot::save(s, scratch / (std::to_string(i) + ".stet"),
                   {.form = SnapshotForm::delta, .parent = &parent});
  }
  Session back = restore(scratch / "8.stet");
  EXPECT_TRUE(same_state(back, s));
  const Snapshot last = Snapshot::open(scratch / "8.stet");
  Snapshot::save(last.state(), last, file, {});
  for (int i = 0; i <= 8; ++i) std::filesystem::remove(scratch / (std::to_string(i) + ".stet"));
  Session whole = restore(file);
  EXPECT_TRUE(same_state(whole, s));
}

TEST_F(SnapshotForms, UnknownOptionalSectionsAreKept) {
  Session s = session(70);
  Snapshot::save(s, file);
  SnapshotImage image = SnapshotImage::parse(read_text(file));
  image.sections.insert(image.sections.begin() + 2, {"NOTES", "by a later version", 0, 0});
  write_file(file, image.build());
  const Snapshot snapshot = Snapshot::open(file);
  Snapshot::save(snapshot.state(), snapshot, scratch / "t.stet", {.form = SnapshotForm::recipe});
  SnapshotImage kept = SnapshotImage::parse(read_text(scratch / "t.stet"));
  EXPECT_EQ(kept.section("NOTES").content, "by a later version");
  EXPECT_EQ(Snapshot::open(scratch / "t.stet").digests().state, snapshot.digests().state);
}

// ---------------------------------------------------------------- mapped files

// The session detects a wrong byte of the file before using it, and recomputes the block.
TEST_F(SnapshotForms, AMappedBlockIsCheckedBeforeItsFirstUse) {
  Session s = session(200);
  Snapshot::save(s, file);
  const std::string good = read_text(file);
  const size_t block = s.kv().shape().block_bytes(), part = s.kv().shape().layer_bytes(0);
  std::mt19937 random(5);
  for (int i = 0; i < 40; ++i) {
    std::string bad = good;
    const size_t at = 65536 + random() % (3 * block), in_block = (at - 65536) % block;
    const size_t layer = std::min(in_block / part, static_cast<size_t>(m->config().layers) - 1);
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    write_file(file, bad);
    EXPECT_EQ(error_of([&] { Snapshot::open(file).state().kv.check_all(); }),
              "format: " + file + ": KV block " + std::to_string((at - 65536) / block) +
                  ", layer " + std::to_string(layer) +
                  ": expected the bytes that were saved, found others");
    Session back = restore(file), plain = session(200);
    for (Session* one : {&back, &plain}) {
      one->append({&ids[200], 1});
      // Windows hide early blocks from a token. Blocks that are written to are checked, too.
      one->rewind(10);
      one->append(std::span(ids).subspan(10, 3));
    }
    EXPECT_TRUE(same_state(back, plain));
    Session all = Snapshot::open(file).restore(m, {.session = options(1)});
    EXPECT_EQ(digests_of(all).state, digests_of(s).state);
    EXPECT_EQ(all.take_healed().size(), 1u);
  }
}

// Replaced by rename, as this library does: the mapping keeps the old file.
TEST_F(SnapshotForms, AMappedFileThatIsReplacedLivesOn) {
  Session s = session(200);
  Snapshot::save(s, file);
  Session mapped = restore(file);
  Session other = session(30);
  Snapshot::save(other, file);
  mapped.append(std::span(ids).subspan(200, 3));
  Session straight = session(203);
  EXPECT_TRUE(same_state(mapped, straight));
  EXPECT_TRUE(mapped.take_healed().empty());
}

TEST_F(SnapshotForms, SessionsFromOneMappingAreIndependent) {
  Session s = session(100);
  Snapshot::save(s, file);
  const std::string before = read_text(file);
  const Snapshot snapshot = Snapshot::open(file);
  Session a = snapshot.restore(m, {.session = options(1)}),
          b = snapshot.restore(m, {.session = options(1)}), c = b.fork();
  EXPECT_EQ(a.kv().block(0), b.kv().block(0));  // one copy in memory
  a.rewind(80);
  a.append(std::span(ids).subspan(300, 40));
  c.append(std::span(ids).subspan(200, 40));
  EXPECT_TRUE(same_state(b, s));
  Session straight = session(80);
  straight.append(std::span(ids).subspan(300, 40));
  EXPECT_TRUE(same_state(a, straight));
  EXPECT_EQ(read_text(file), before);
}

TEST_F(SnapshotForms, ThousandsOfForksCostTheirTailsOnly) {
  const Session s = session(390);
  std::vector<Session> forks;
  for (int i = 0; i < 5000; ++i) {
    forks.push_back(s.fork());
    if (i % 100 == 0) forks.back().append({&ids[static_cast<size_t>(i % 390)], 1});
  }
  for (int i = 0; i < 5000; i += 100) {
    for (int64_t b = 0; b < 6; ++b)
      ASSERT_EQ(forks[static_cast<size_t>(i)].kv().block(b), s.kv().block(b));
    ASSERT_NE(forks[static_cast<size_t>(i)].kv().block(6), s.kv().block(6));
  }
  Session straight = session(390);
  straight.append({&ids[100], 1});
  EXPECT_TRUE(same_state(forks[100], straight));
}

// ---------------------------------------------------------------- pruning

// Masked positions are never read: NaN in their keys and values changes nothing.
TEST_F(SnapshotForms, APrunedSessionEqualsOneWithTheSameVisibility) {
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{4, 90}, {0, 64}, {64, 128}, {1, 199}, {70, 71}}) {
    Session pruned = session(200);
    pruned.prune_range(begin, end, false);
    EXPECT_EQ(visible_positions(pruned.kv()), 200 - (end - begin));
    Session full = session(200);
    State state = full.state();
    KvCache kv(state.kv.shape(), 400);
    KvWriter writer(kv);
    writer.prepare(200);
    for (int64_t b = 0; b < kv.blocks(); ++b) {
      std::memcpy(writer.writable(b), full.kv().block(b), kv.shape().block_bytes());
      float* values = reinterpret_cast<float*>(writer.writable(b));
      uint64_t visible = ~uint64_t{0};
      for (int64_t p = std::max(begin, b * 64); p < std::min(end, (b + 1) * 64); ++p) {
        visible &= ~(uint64_t{1} << p % 64);
        for (int64_t i = 0; i < kv.shape().layers * kv.shape().kv_heads; ++i) {
          float* k =
              values + static_cast<size_t>(i) * 2 * kv.shape().part_bytes(kv.shape().head_dim) / 4;
          float* v = k + kv.shape().part_bytes(kv.shape().head_dim) / 4;
          for (int64_t d = 0; d < kv.shape().head_dim; ++d) {
            k[d * 64 + p % 64] = v[p % 64 * kv.shape().head_dim + d] =
                std::numeric_limits<float>::quiet_NaN();
          }
        }
      }
      writer.set_visible(b, visible);
    }
    writer.commit(200);
    Session masked(
        m, State{state.origin, state.tokens, std::move(kv), state.logits, {}, {}, {}, {}, {}},
        options(1));
    for (int i = 0; i < 40; ++i) {
      pruned.append({&ids[static_cast<size_t>(200 + i)], 1});
      masked.append({&ids[static_cast<size_t>(200 + i)], 1});
      ASSERT_TRUE(same_bytes(pruned.logits(), masked.logits()))
          << begin << " " << end << " token " << i;
    }
    EXPECT_FALSE(std::isnan(pruned.logits()[0]));
  }
}

// Keys of the first layer depend on token and position only. Shifted keys must be close to those
// computed at their new positions.
TEST_F(SnapshotForms, ShiftedKeysAreThoseOfTheirNewPositions) {
  for (const std::string name : {"models/gemma3-tiny", "models/llama31-tiny"}) {
    const auto model_of = model(data_path(name));
    const std::vector<int32_t> tokens = random_tokens(*model_of, 300, 3);
    Session s(model_of, options(1));
    s.append(tokens);
    s.prune({.keep_last = 100, .sinks = 5, .shift = true});
    ASSERT_EQ(s.size(), 105);
    std::vector<int32_t> kept(tokens.begin(), tokens.begin() + 5);
    kept.insert(kept.end(), tokens.begin() + 200, tokens.end());
    EXPECT_EQ(s.tokens(), kept);
    Session straight(model_of, options(1));
    straight.append(kept);
    const KvShape& shape = s.kv().shape();
    double worst = 0;
    for (int64_t p = 0; p < 105; ++p) {
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        const auto key = [&](const Session& of) {
          return reinterpret_cast<const float*>(of.kv().block(p / 64) + shape.k_offset(0, head)) +
                 p % 64;
        };
        double length = 0, error = 0;
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          length += std::pow(key(straight)[d * 64], 2);
          error += std::pow(static_cast<double>(key(straight)[d * 64]) - key(s)[d * 64], 2);
          EXPECT_EQ(
              reinterpret_cast<const float*>(s.kv().block(p / 64) +
                                             shape.v_offset(0, head))[p % 64 * shape.head_dim + d],
              reinterpret_cast<const float*>(straight.kv().block(p / 64) +
                                             shape.v_offset(0, head))[p % 64 * shape.head_dim + d]);
        }
        worst = std::max(worst, std::sqrt(error / length));
      }
    }
    // Angles of up to 300 radians, rounded to float32: 2^-24 x 300 twice, and some units in the
    // last place.
    EXPECT_LT(worst, 5e-5) << name;
    EXPECT_GT(worst, 0) << name;
  }
}

TEST_F(SnapshotForms, APrunedStateIsReplayedAndCannotBeRewoundBehindThePrune) {
  Session s = session(200);
  s.prune({.keep_last = 70, .sinks = 3});
  s.append(std::span(ids).subspan(200, 30));
  s.prune({.keep_last = 50, .sinks = 2, .shift = true});
  s.append(std::span(ids).subspan(230, 30));
  EXPECT_EQ(s.size(), 82);
  EXPECT_EQ(s.transcript_size(), 260);
  Session again = replay(m, s.state(), [] {
    SessionOptions o = options(2);
    o.capacity = 400;
    return o;
  }());
  EXPECT_TRUE(same_state(s, again));
  EXPECT_EQ(digests_of(s).state, digests_of(again).state);
  EXPECT_EQ(
      error_of([&] { s.rewind(52); }),
      "argument: rewind: expected a position after 52, where the session was pruned, found 52");
  s.rewind(53);
  s.logits();
  s.append(std::span(ids).subspan(231, 29));
  EXPECT_TRUE(same_state(s, again));
  // The same on a file, without the model's weights.
  Session unpruned = session(200), live = session(200);
  Snapshot::save(unpruned, file);
  const Snapshot snapshot = Snapshot::open(file);
  State state = snapshot.state();
  prune(state, ModelConfig::from_canonical(snapshot.meta().config, file),
        {.keep_last = 64, .sinks = 4, .shift = true});
  live.prune({.keep_last = 64, .sinks = 4, .shift = true});
  const StateDigests digests = Snapshot::save(state, snapshot, scratch / "p.stet", {});
  EXPECT_EQ(digests.state, digests_of(live).state);
  EXPECT_FALSE(verify(Snapshot::open(scratch / "p.stet"), m, options(1), false));
}

// ---------------------------------------------------------------- verification and healing

// In q8 a moved key is decoded, rotated and rounded again. A moved value is copied.
TEST_F(SnapshotForms, ShiftedKeysOfQ8) {
  Session before = session(200, KvType::q8), s = before.fork();
  s.prune_range(10, 80, true);
  ASSERT_EQ(s.size(), 130);
  const KvShape& shape = s.kv().shape();
  const ModelConfig& c = m->config();
  std::vector<std::byte> part(shape.part_bytes(shape.head_dim));
  for (int64_t p = 0; p < s.size(); ++p) {
    const int64_t from = p < 10 ? p : p + 70;
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      const std::vector<float> frequencies = inverse_frequencies(
          c.ropes[static_cast<size_t>(c.rope_of[static_cast<size_t>(layer)])], c.head_dim);
      std::vector<float> cos(frequencies.size()), sin(frequencies.size());
      rope_angles_back(70, frequencies, cos.data(), sin.data());
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        std::vector<float> key = read_key(before.state(), layer, head, from), rounded(key.size());
        if (from != p) {
          kernels_portable.rope(key.data(), cos.data(), sin.data(), cos.size());
          write_row(shape, true, key, part.data(), 0);
          read_row(shape, true, part.data(), 0, key);
        }
        ASSERT_EQ(read_key(s.state(), layer, head, p), key) << p << ", layer " << layer;
        ASSERT_EQ(read_value(s.state(), layer, head, p),
                  read_value(before.state(), layer, head, from));
      }
    }
  }
}

TEST_F(SnapshotForms, AStateOfWhichEveryTokenWasShiftedOutIsSavedAndRestored) {
  for (const SnapshotForm form : {SnapshotForm::full, SnapshotForm::recipe}) {
    Session s = session(70);
    s.prune({.keep_last = 0, .sinks = 0, .shift = true});
    EXPECT_TRUE(s.logits().empty());
    EXPECT_EQ(Snapshot::save(s, file, {.form = form}).state, digests_of(s).state);
    Session again = restore(file);
    for (Session* each : {&s, &again}) each->append(std::span(ids).subspan(70, 3));
    EXPECT_EQ(digests_of(again).state, digests_of(s).state);
  }
}

// The history of a state may be longer than the capacity of the session that it continues in.
TEST_F(SnapshotForms, APrunedStateContinuesInASmallerSession) {
  for (const bool edited : {false, true}) {
    Session whole = session(300);
    if (edited)
      whole.set_key(0, 0, 270,
                    std::vector<float>(static_cast<size_t>(whole.kv().shape().head_dim), 0.5f));
    whole.prune({.keep_last = 50, .sinks = 2, .shift = true});
    Snapshot::save(whole, file);
    RestoreOptions small;
    small.session = options(1);
    small.session.capacity = 64;
    Session s = Snapshot::open(file).restore(m, small);
    for (Session* each : {&whole, &s}) each->append(std::span(ids).subspan(100, 3));
    const Digest expected = digests_of(whole).state;
    for (const SnapshotForm form : {SnapshotForm::full, SnapshotForm::recipe}) {
      if (edited && form == SnapshotForm::recipe) continue;  // tokens do not give it
      EXPECT_EQ(Snapshot::save(s, file, {.form = form}).state, expected);
      Session again = Snapshot::open(file).restore(m, small);
      EXPECT_EQ(again.capacity(), 64);
      EXPECT_EQ(digests_of(again).state, expected);
      EXPECT_FALSE(verify(Snapshot::open(file), m, small.session, false).difference);
    }
    EXPECT_EQ(error_of([&] { s.append(std::span(ids).subspan(0, 10)); }),
              "capacity: tokens: expected at most 64 positions (--ctx), found 55 + 10");
  }
}

TEST_F(SnapshotForms, AnEditedStateOfWhichEveryTokenWasShiftedOutIsSound) {
  Session s = session(70);
  s.set_key(0, 0, 3, std::vector<float>(static_cast<size_t>(s.kv().shape().head_dim), 0.5f));
  s.prune({.keep_last = 0, .sinks = 0, .shift = true});
  Snapshot::save(s, file);
  EXPECT_EQ(Snapshot::open(file).check().blocks, 0);
  Session again = restore(file);
  for (Session* each : {&s, &again}) each->append(std::span(ids).subspan(70, 3));
  EXPECT_EQ(digests_of(again).state, digests_of(s).state);
}

TEST_F(SnapshotForms, VerifyNamesTheFirstDifference) {
  Session s = session(200);
  Snapshot::save(s, file);
  const KvShape& shape = s.kv().shape();
  SnapshotImage image = SnapshotImage::parse(read_text(file));
  EXPECT_FALSE(verify(Snapshot::open(file), m, options(1), false));
  // The value of position 70, layer 1, last head, element 3; and a later one, which is not the
  // first difference.
  const int64_t head = shape.kv_heads - 1;
  for (const auto& [position, layer] : {std::pair<int64_t, int64_t>{70, 1}, {90, 0}}) {
    const size_t at = shape.block_bytes() + shape.v_offset(layer, head) +
                      static_cast<size_t>((position % 64) * shape.head_dim + 3) * 4;
    image.section("KV").content[at + 3] ^= 1;
  }
  write_file(file, image.build());
  const auto difference = verify(Snapshot::open(file), m, options(1), false);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->what, "value");
  EXPECT_EQ(difference->position, 70);
  EXPECT_EQ(difference->layer, 1);
  EXPECT_EQ(difference->head, head);
  EXPECT_EQ(difference->element, 3);
  // The digests are still those of the undamaged bytes.
  const auto by_digest = verify(Snapshot::open(file), m, options(1), true);
  ASSERT_TRUE(by_digest);
  EXPECT_EQ(by_digest->what, "keys and values of block 1 (positions 64 .. 127)");
  EXPECT_EQ(by_digest->layer, 0);
  // One changed bit with correct digests: a state that its tokens do not reproduce.
  State forged = Snapshot::open(file).state({.trust = true});
  Snapshot::save(forged, Snapshot::open(file), scratch / "forged.stet", {});
  const auto bisected = verify(Snapshot::open(scratch / "forged.stet"), m, options(1), true);
  ASSERT_TRUE(bisected);
  EXPECT_EQ(bisected->what, "keys and values of block 1 (positions 64 .. 127)");
  EXPECT_EQ(bisected->layer, 0);
}

TEST_F(SnapshotForms, EveryDamagedBlockHeals) {
  Session s = session(300);
  for (const int compress : {0, 1}) {
    if (compress != 0 && !have_zlib()) continue;
    Snapshot::save(s, file, {.compress = compress});
    const std::string good = read_text(file);
    const Snapshot::Section kv = Snapshot::open(file).sections().back();
    std::mt19937 random(7);
    for (int i = 0; i < 30; ++i) {
      std::string bad = good;
      const size_t spots = 1 + random() % 4;
      for (size_t k = 0; k < spots; ++k) {
        const size_t at = kv.offset + random() % kv.size;
        bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
      }
      write_file(file, bad);
      const std::string refused = error_of([&] { restore(file, {.check = true}); });
      if (bad == good) continue;
      EXPECT_TRUE(refused.starts_with("format: " + file + ": KV block ")) << refused;
      RestoreReport report;
      Session back = restore(file, {.heal = true}, &report);
      EXPECT_TRUE(same_state(back, s));
      EXPECT_GE(report.healed.size(), 1u);
      EXPECT_LE(report.recomputed, 64 * static_cast<int64_t>(report.healed.size()));
    }
  }
  // Damage before a prune: tokens that the block saw are pruned, so everything is recomputed.
  s.prune({.keep_last = 100, .sinks = 70});
  Snapshot::save(s, file);
  std::string bad = read_text(file);
  bad[65536 + 9] = static_cast<char>(bad[65536 + 9] ^ 4);
  write_file(file, bad);
  RestoreReport report;
  Session back = restore(file, {.heal = true}, &report);
  EXPECT_TRUE(same_state(back, s));
  EXPECT_EQ(report.recomputed, 300);
  EXPECT_EQ(report.healed, std::vector<int64_t>{0});
}

TEST_F(SnapshotForms, ReplayMigratesToAnotherKvType) {
  Session s = session(150);
  Snapshot::save(s, file);
  SessionOptions o = options(1);
  o.kv_type = KvType::bf16;
  RestoreReport report;
  Session back = Snapshot::open(file).restore(m, {.session = o, .replay = true}, &report);
  Session straight = session(150, KvType::bf16);
  EXPECT_TRUE(same_state(back, straight));
  EXPECT_EQ(report.recomputed, 150);
}

// Random damage of every form gives an error or exactly the saved state. STET_DAMAGES sets the
// number for each form.
TEST_F(SnapshotForms, DamageOfAnyFormIsDetectedOrHarmless) {
  Session s = session(150), longer = session(230);
  Snapshot::save(s, scratch / "parent.stet");
  const Snapshot parent = Snapshot::open(scratch / "parent.stet");
  std::vector<SaveOptions> forms = {
      {}, {.form = SnapshotForm::delta, .parent = &parent}, {.form = SnapshotForm::recipe}};
  if (have_zlib()) forms.push_back({.compress = 6});
  const char* given = std::getenv("STET_DAMAGES");
  const int damages = given != nullptr ? std::atoi(given) : 300;
  std::mt19937 random(11);
  for (const SaveOptions& form : forms) {
    const Digest state = Snapshot::save(longer, file, form).state;
    const std::string good = read_text(file);
    int refused = 0;
    for (int i = 0; i < damages; ++i) {
      std::string bad = good;
      const size_t at = random() % good.size(), other = random() % good.size(),
                   n = 1 + random() % 300;
      switch (random() % 4) {
        case 0:
          bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
          break;
        case 1:
          bad.resize(at);
          break;
        case 2:
          bad.replace(other, std::min(n, good.size() - other), good, at, n);
          break;  // splices the file with itself
        default:
          std::swap(bad[at], bad[other]);
      }
      if (bad == good) continue;
      try {
        Snapshot damaged = Snapshot::parse(std::as_bytes(std::span(bad)), file);
        damaged.find_parents(form.parent != nullptr ? std::optional(scratch / "parent.stet")
                                                    : std::nullopt);
        Session back = damaged.restore(m, {.session = options(1), .check = true});
        EXPECT_EQ(digests_of(back).state, state);
        EXPECT_TRUE(same_state(back, longer));
      } catch (const Error& e) {
        ++refused;
        EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
      }
    }
    EXPECT_GT(refused, damages / 2);
  }
}

}  // namespace
}  // namespace stet::test::snapshot_forms_tests

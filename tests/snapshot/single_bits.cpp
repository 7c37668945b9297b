// check and verify find any flipped bit of any file. STET_DAMAGES=N flips N bits of each file.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>

#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/models.hpp"

namespace stet::test::single_bits_tests {
namespace {

class SingleBits : public testing::Test {
 protected:
  Session session(bool windows = false, KvType type = KvType::f32) const {
    SessionOptions o = options(1);
    o.capacity = 400;
    o.kv_type = type;
    if (windows) o.window = {true, 0, [](int64_t) {}};
    Session s(m, o);
    s.append(std::span(ids).first(kTokens));
    return s;
  }
  void edit(Session& s) const {
    s.set_key(1, 0, 150, std::vector<float>(static_cast<size_t>(m->config().head_dim), 0.5f));
    s.append(std::span(ids).first(3));
  }
  // Flips random bits and expects both commands to find each.
  void expect_found(const std::string& path, uint32_t seed) const {
    const char* const asked = std::getenv("STET_DAMAGES");
    const uint64_t count = asked == nullptr ? 24 : std::strtoull(asked, nullptr, 10);
    const std::string sound = read_text(path);
    std::mt19937_64 random(seed);
    // Half of the bits are anywhere, half after the first 64 KiB, where keys and values are.
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t from = i % 2 == 0 || sound.size() < 65536 ? 0 : 65536,
                     bit = from * 8 + random() % ((sound.size() - from) * 8);
      std::string damaged = sound;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
      write_file(path, damaged);
      EXPECT_TRUE(finds([&] {
        Snapshot::open(path).check(1);
        return false;
      })) << "check: "
          << path << ", bit " << bit;
      for (const bool bisect : {false, true}) {
        EXPECT_TRUE(finds([&] {
          return verify(Snapshot::open(path), m, options(1), bisect).has_value();
        })) << "verify: "
            << path << ", bit " << bit << ", bisect " << bisect;
      }
    }
    write_file(path, sound);
    Snapshot::open(path).check(1);
    for (const bool bisect : {false, true})
      EXPECT_FALSE(verify(Snapshot::open(path), m, options(1), bisect));
  }
  static bool finds(const std::function<bool()>& act) {
    try {
      return act();
    } catch (const Error& e) {
      return e.kind == ErrorKind::format || e.kind == ErrorKind::mismatch ||
             e.kind == ErrorKind::unsupported || e.kind == ErrorKind::io;
    }
  }

  static constexpr size_t kTokens = 200;
  std::shared_ptr<const Model> m = model(data_path("models/gemma3-tiny"));
  const std::vector<int32_t> ids = random_tokens(*m, kTokens);
  TemporaryDirectory scratch;
};

TEST_F(SingleBits, InAPlainFile) {
  Session s = session();
  Snapshot::save(s, scratch / "plain.stet");
  expect_found(scratch / "plain.stet", 1);
}

TEST_F(SingleBits, InACompressedFile) {
  if (!have_zlib()) GTEST_SKIP() << "built without zlib";
  Session s = session(false, KvType::q8);
  Snapshot::save(s, scratch / "compressed.stet", {.compress = 1});
  expect_found(scratch / "compressed.stet", 2);
}

TEST_F(SingleBits, InAnEditedFile) {
  Session s = session();
  edit(s);
  Snapshot::save(s, scratch / "edited.stet");
  expect_found(scratch / "edited.stet", 3);
}

TEST_F(SingleBits, InAWindowOnlyFile) {
  Session s = session(true, KvType::q8);
  Snapshot::save(s, scratch / "windows.stet");
  ASSERT_GT(Snapshot::open(scratch / "windows.stet").count_window_only_blocks(), 0);
  expect_found(scratch / "windows.stet", 4);
  edit(s);
  Snapshot::save(s, scratch / "edited.stet");
  ASSERT_GT(Snapshot::open(scratch / "edited.stet").count_window_only_blocks(), 0);
  expect_found(scratch / "edited.stet", 5);
}

TEST_F(SingleBits, InAPrunedFile) {
  for (const bool shift : {false, true}) {
    Session s = session();
    s.prune_range(60, 140, shift);
    s.append(std::span(ids).first(3));
    Snapshot::save(s, scratch / "pruned.stet");
    expect_found(scratch / "pruned.stet", 6);
  }
}

TEST_F(SingleBits, InADelta) {
  Session s = session();
  Snapshot::save(s, scratch / "parent.stet");
  s.append(std::span(ids).first(80));
  for (const bool edited : {false, true}) {
    if (edited) edit(s);
    const Snapshot parent = Snapshot::open(scratch / "parent.stet");
    Snapshot::save(s, scratch / "delta.stet", {.form = SnapshotForm::delta, .parent = &parent});
    expect_found(scratch / "delta.stet", 7);
    // Only those bits of the parent that the delta needs matter.
    const std::string sound = read_text(scratch / "parent.stet");
    std::string damaged = sound;
    damaged[65536 + 100] = static_cast<char>(damaged[65536 + 100] ^ 4);
    write_file(scratch / "parent.stet", damaged);
    for (const bool bisect : {false, true}) {
      EXPECT_TRUE(finds([&] {
        return verify(Snapshot::open(scratch / "delta.stet"), m, options(1), bisect).has_value();
      })) << bisect;
    }
    write_file(scratch / "parent.stet", sound);
  }
}

// Without its parent, a delta's blocks are compared with their digests. Damage to a block of its
// own is still found.
TEST_F(SingleBits, InADeltaWithoutItsParent) {
  Session s = session();
  Snapshot::save(s, scratch / "parent.stet");
  s.append(std::span(ids).first(80));
  {
    const Snapshot parent = Snapshot::open(scratch / "parent.stet");
    Snapshot::save(s, scratch / "delta.stet", {.form = SnapshotForm::delta, .parent = &parent});
  }
  std::filesystem::remove(scratch / "parent.stet");
  EXPECT_FALSE(verify(Snapshot::open(scratch / "delta.stet"), m, options(1), true));
  std::string damaged = read_text(scratch / "delta.stet");
  damaged[65536 + 100] = static_cast<char>(damaged[65536 + 100] ^ 4);
  write_file(scratch / "delta.stet", damaged);
  EXPECT_TRUE(error_of([&] {
                verify(Snapshot::open(scratch / "delta.stet"), m, options(1), true);
              }).starts_with("format: " + scratch / "delta.stet" + ": KV block 3"));
}

TEST_F(SingleBits, InARecipe) {
  Session s = session();
  Snapshot::save(s, scratch / "recipe.stet", {.form = SnapshotForm::recipe});
  expect_found(scratch / "recipe.stet", 8);
}

TEST_F(SingleBits, InAFileWithAnIntervention) {
  Session s = session();
  Intervention w;
  w.point = Point::resid_pre, w.op = Intervention::Op::scale, w.layers = {0}, w.amount = 0.5f;
  s.attach(w);
  s.append(std::span(ids).first(40));
  Snapshot::save(s, scratch / "intervened.stet");
  expect_found(scratch / "intervened.stet", 9);
}

}  // namespace
}  // namespace stet::test::single_bits_tests

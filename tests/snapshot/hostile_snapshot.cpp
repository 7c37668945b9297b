// Snapshots with correct digests and wrong content. No operation breaks, and memory and time stay
// within the limits of docs/security.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "stet/base/limits.hpp"
#include "stet/base/memory.hpp"
#include "stet/files/file.hpp"
#include "tests/snapshot/use_snapshot.hpp"
#include "tests/support/models.hpp"
#include "tests/support/process_cost.hpp"
#include "tests/support/snapshot_image.hpp"

namespace stet::test::hostile_snapshot_tests {
namespace {

using Json = nlohmann::json;

std::vector<int32_t> some_ids(int64_t count) { return stepped_ids(count, 37, 250, 11); }

class HostileSnapshot : public testing::Test {
 protected:
  // Writes a valid file with everything that META can hold: turns, messages, prunes.
  void save(const SaveOptions& form = {}, int64_t tokens = 100) const {
    SessionOptions o = options(1);
    o.capacity = 300;
    Session s(m, o);
    s.append(some_ids(tokens));
    s.generation().stop_strings = {"end"};
    s.generation().turns = {{0, 10, 20, false}, {20, 30, 40, false}};
    s.chat().messages = {{"user", "hello", "", 0, 10, false},
                         {"assistant", "yes", "", 10, 20, true}};
    s.prune_range(4, 8, false);
    s.prune_range(40, 45, true);
    Snapshot::save(s, file, form);
  }
  SnapshotImage image() const { return SnapshotImage::parse(read_text(file)); }
  void write(const SnapshotImage& image) const { write_file(file, forged(image)); }
  template <class Change>
  void change_meta(const Change& change) const {
    SnapshotImage changed = image();
    Json meta = Json::parse(changed.section("META").content);
    change(meta);
    changed.section("META").content = meta.dump();
    write(changed);
  }
  template <class Change>
  std::string changed_meta(const Change& change) const {
    save();
    change_meta(change);
    return open_error();
  }
  std::string open_error() const {
    std::string error = error_of([&] { Snapshot::open(file); });
    const size_t at = error.find(file);
    return at == std::string::npos ? error : error.replace(at, file.size(), "FILE");
  }
  // Uses the file in every way in a child process, within the promised memory and time.
  void expect_harmless(const std::string& what) const {
    const ProcessCost spent = cost_of([&] {
      for (const auto& [way, error] : use_in_every_way(file, scratch / "out.stet", m)) {
        if (error.find('\n') != std::string::npos)
          throw std::runtime_error(what + ": " + way + ": " + error);
      }
    });
    EXPECT_EQ(spent.status, 0) << what;
#ifndef STET_SANITIZED
    EXPECT_LE(spent.memory, (size_t{64} << 20) + 4 * std::filesystem::file_size(file)) << what;
    EXPECT_LE(spent.seconds, 10) << what;
#endif
  }

  // Returns a file of `positions` positions in blocks of this shape, none of which is stored.
  SnapshotImage with_shape(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t positions,
                           uint64_t visible) const {
    save();
    SnapshotImage made = image();
    Json meta = Json::parse(made.section("META").content);
    Json& config = meta["config"];
    config["layers"] = layers;
    config["heads"] = config["kv_heads"] = kv_heads;
    config["head_dim"] = head_dim;
    config["window"] = config["rope_of"] = std::vector<int>(static_cast<size_t>(layers));
    config["max_positions"] = meta["capacity"] = kMaxPositions;
    meta["kv"] = {{"type", "f32"},
                  {"version", 1},
                  {"layers", layers},
                  {"heads", kv_heads},
                  {"head_dim", head_dim}};
    meta["positions"] = positions;
    std::erase_if(made.sections, [](const SnapshotImage::Section& s) {
      return s.name == "PRUNES" || s.name == "REMOVED";
    });
    meta["generation"]["turns"] = Json::array();
    meta.erase("dialogue");
    const size_t blocks = static_cast<size_t>(positions / kBlockPositions);
    made.section("META").content = meta.dump();
    made.section("TOKENS").content = std::string(static_cast<size_t>(positions) * 4, '\0');
    std::string masks;
    for (size_t b = 0; b < blocks; ++b) masks += le(visible, 8);
    made.section("VISIBLE").content = masks;
    made.section("BLOCKS").content.clear();
    const KvShape shape{layers, kv_heads, head_dim, KvType::f32};
    if (shape.block_bytes() <= kMaxBlockBytes) {
      const Memory zeros(shape.block_bytes(), false);
      std::string digests;
      for (const Digest& d : layer_digests(shape, zeros.data())) digests += le(d);
      for (size_t b = 0; b < blocks; ++b) made.section("BLOCKS").content += digests;
    }
    made.section("KV").content.clear();
    made.sections.insert(made.sections.end() - 1, {"KVINDEX", ""});
    made.required = 2;
    return made;
  }
  static std::string index_entry(uint64_t block, uint64_t encoding, uint64_t offset,
                                 uint64_t size) {
    return le(block, 4) + le(encoding, 4) + le(offset, 8) + le(size, 8);
  }

  std::shared_ptr<const Model> m = model(data_path("models/llama31-tiny"));
  TemporaryDirectory scratch;
  std::string file = scratch / "s.stet";
};

TEST_F(HostileSnapshot, AnHonestOneIsUsedInEveryWay) {
  for (const SaveOptions& form : {SaveOptions{}, SaveOptions{.form = SnapshotForm::recipe}}) {
    save(form);
    const bool recipe = form.form == SnapshotForm::recipe;
    for (const auto& [way, error] : use_in_every_way(file, scratch / "out.stet", m)) {
      const bool needs_kv = way == "convert" || way == "compress" || way == "convert --kv" ||
                            way == "recipe" || way.starts_with("prune");
      if (recipe && needs_kv)
        EXPECT_NE(error.find("this needs keys and values"), std::string::npos) << way << error;
      else
        EXPECT_EQ(error, "") << way;
    }
    expect_harmless("honest");
  }
}

TEST_F(HostileSnapshot, AStateWithoutTheShapeOfItsModelIsNotSaved) {
  save();
  const Snapshot snapshot = Snapshot::open(file);
  EXPECT_EQ(error_of([&] {
              Snapshot::save(snapshot.recipe(), snapshot, file, {.form = SnapshotForm::recipe});
            }),
            "argument: kv.layers: expected an integer in 1..1048576, found 0");
  EXPECT_EQ(open_error(), kNoError);
}

TEST_F(HostileSnapshot, KeysAndValuesHaveTheShapeOfTheConfig) {
  const auto error = [&](const char* name, int64_t value) {
    return changed_meta([&](Json& j) { j["kv"][name] = value; });
  };
  const ModelConfig& c = m->config();
  EXPECT_EQ(error("layers", c.layers + 1), "format: FILE: META: kv.layers: expected " +
                                               std::to_string(c.layers) + ", as in config, found " +
                                               std::to_string(c.layers + 1));
  EXPECT_EQ(error("heads", c.kv_heads * 2),
            "format: FILE: META: kv.heads: expected " + std::to_string(c.kv_heads) +
                ", as in config, found " + std::to_string(c.kv_heads * 2));
  EXPECT_EQ(error("head_dim", c.head_dim * 2),
            "format: FILE: META: kv.head_dim: expected " + std::to_string(c.head_dim) +
                ", as in config, found " + std::to_string(c.head_dim * 2));
  const auto config = [&](const char* name, const Json& value) {
    return changed_meta([&](Json& j) { j["config"][name] = value; });
  };
  EXPECT_EQ(config("layers", c.layers + 1),
            "format: FILE: META: config: window: expected one entry per layer, found an array");
  EXPECT_EQ(config("rope_of", Json::array()),
            "format: FILE: META: config: rope_of: expected one entry per layer, found an array");
  EXPECT_EQ(config("rope_of", Json(std::vector<int>(static_cast<size_t>(c.layers), 1))),
            "format: FILE: META: config: rope_of[0]: expected an integer in -1..0, found 1");
  EXPECT_EQ(changed_meta([](Json& j) { j["config"]["vocab_size"] = 100; }),
            "format: FILE: META: prunes[1].removed: expected 0..99, found 241");
  EXPECT_EQ(config("vocab_size", c.vocab_size + 1),
            "format: FILE: LOGITS: expected " + std::to_string(c.vocab_size + 1) +
                " values, found " + std::to_string(c.vocab_size));
}

// Each number of META in turn, at any depth, gets a value that no valid file has.
TEST_F(HostileSnapshot, AnyNumberOfMetaMayLie) {
  save();
  const Json honest = Json::parse(image().section("META").content).flatten();
  std::mt19937 random(1);
  const int64_t lies[] = {-1,
                          0,
                          1,
                          63,
                          64,
                          65,
                          301,
                          1 << 20,
                          (1 << 24) - 1,
                          int64_t{1} << 31,
                          int64_t{1} << 32,
                          int64_t{1} << 62,
                          INT64_MIN,
                          INT64_MAX};
  for (const auto& [path, value] : honest.items()) {
    if (!value.is_number()) continue;
    for (int i = 0; i < (all_ways() ? 3 : 1); ++i) {
      save(random() % 3 == 0 ? SaveOptions{} : SaveOptions{.form = SnapshotForm::recipe});
      const int64_t lie = lies[random() % std::size(lies)];
      change_meta([&, &at = path](Json& j) { j[Json::json_pointer(at)] = lie; });
      if (open_error() == kNoError) expect_harmless(path + " = " + std::to_string(lie));
    }
  }
}

TEST_F(HostileSnapshot, AnyNumberOfTheLogOfPrunesMayLie) {
  const uint64_t lies[] = {0,
                           1,
                           3,
                           5,
                           9,
                           40,
                           45,
                           46,
                           300,
                           1 << 24,
                           uint64_t{1} << 31,
                           uint64_t{1} << 40,
                           uint64_t{1} << 63,
                           ~uint64_t{0}};
  size_t number = 0;
  const auto put = [&](const char* section, size_t at, uint64_t lie, size_t width) {
    if (number++ % 4 != 0 && !all_ways()) return;  // nine positions, so each has its turns
    save();
    SnapshotImage changed = image();
    changed.section(section).content.replace(at, width, le(lie, width));
    write(changed);
    if (open_error() == kNoError)
      expect_harmless(section + std::string(" at ") + std::to_string(at) + ": " +
                      std::to_string(lie));
  };
  for (const uint64_t lie : lies) {
    for (size_t prune = 0; prune < 2; ++prune) {
      for (size_t number = 0; number < 3; ++number) put("PRUNES", prune * 32 + number * 8, lie, 8);
      put("PRUNES", prune * 32 + 24, lie, 4);
    }
    put("REMOVED", 8, lie, 4);
  }
  for (const char* section : {"PRUNES", "REMOVED"}) {
    save();
    SnapshotImage changed = image();
    changed.section(section).content.pop_back();
    write(changed);
    EXPECT_TRUE(open_error().starts_with("format: FILE: META: " + std::string(section)))
        << open_error();
  }
}

// The longest allowed log of prunes is used within the promised memory. A longer one is refused
// before it is made.
TEST_F(HostileSnapshot, ALogOfPrunesHasALimit) {
  Session s(m, options(1));
  s.append(some_ids(3));
  Snapshot::save(s, file);
  const Snapshot like = Snapshot::open(file);
  const std::string out = scratch / "log.stet";
  State shifted = like.state(), kept = like.state();
  const auto removed = static_cast<int64_t>(kMaxRemoved);
  shifted.kv = KvCache(shifted.kv.shape(), removed + 3);
  shifted.tokens = {};
  shifted.logits.reset();
  shifted.prunes = {{removed, 0, removed, true, std::vector<int32_t>(kMaxRemoved, 7)}};
  kept.prunes.assign(kMaxPrunes, {3, 0, 1, false, {}});
  for (State* state : {&shifted, &kept}) {
    Snapshot::save(*state, like, out, {});
    EXPECT_EQ(Snapshot::open(out).meta().prunes, state->prunes);
    Snapshot::open(out).check(1);
    std::filesystem::rename(out, file);
    expect_harmless("a long log");
  }
  EXPECT_EQ(error_of([&] { prune_range(kept, m->config(), 1, 2, false); }),
            "capacity: prunes: expected at most 131072 in a state's log, found 131073");
  EXPECT_EQ(kept.prunes.size(), kMaxPrunes);
  shifted.prunes[0].removed.push_back(7);
  EXPECT_EQ(
      error_of([&] { Snapshot::save(shifted, like, out, {}); }),
      "capacity: tokens shifted out: expected at most 2097152 in a state's log, found 2097153");
}

TEST_F(HostileSnapshot, AnIdThatIsClaimedIsProvedByCheck) {
  save();
  SnapshotImage changed = image();
  changed.id[5] ^= 1;
  write(changed);
  EXPECT_EQ(open_error(), kNoError);
  const std::string error = error_of([&] { Snapshot::open(file).check(1); });
  EXPECT_TRUE(error.starts_with("format: " + file + ": id: expected sha256:")) << error;
}

TEST_F(HostileSnapshot, BlocksThatCouldNotComeOfTheirBytes) {
  SnapshotImage big = with_shape(1024, 32, 128, 64, ~uint64_t{0});
  write(big);
  EXPECT_EQ(open_error(),
            "unsupported: FILE: META: kv.layers: expected blocks of at most 1073741824 bytes, "
            "found 2147483648");

  big = with_shape(1024, 16, 128, 64, ~uint64_t{0});
  big.section("KV").content = std::string(65536, 'x');
  big.section("KVINDEX").content = index_entry(0, 1, 0, 65536);
  write(big);
  EXPECT_EQ(
      open_error(),
      "format: FILE: KVINDEX: expected at least 976128 bytes of a compressed block, found 65536");
  big.section("KVINDEX").content = index_entry(0, 0, 0, 65536);
  write(big);
  EXPECT_EQ(
      open_error(),
      "format: FILE: KVINDEX: expected blocks in order, one behind the other, found block 0 at 0");
  big.section("KVINDEX").content.clear();
  big.section("KV").content.clear();
  write(big);
  EXPECT_EQ(open_error(), "format: FILE: KVINDEX: expected block 0, which is visible, found none");

  // Each block alone would be plausible, but not all of them together.
  SnapshotImage many = with_shape(2, 8, 128, 64 * 100, ~uint64_t{0});
  const uint64_t least = 2 * 8 * 128 * 64 * 8 / kMaxDeflateRatio;
  many.section("KVINDEX").content.clear();
  for (uint64_t b = 0; b < 100; ++b)
    many.section("KVINDEX").content += index_entry(b, 1, b * least, least);
  many.section("KV").content = std::string(100 * least, 'x');
  write(many);
  EXPECT_EQ(open_error().substr(0, 72),
            "format: FILE: KVINDEX: expected compressed blocks that become at most 33");
}

// A gigabyte for each of a thousand blocks without visible positions. They share one block of zeros
// that is never touched.
TEST_F(HostileSnapshot, BlocksOfWhichNothingIsVisibleCostNothing) {
  write(with_shape(1024, 16, 128, 64 * 100, 0));
  EXPECT_EQ(open_error(), kNoError);
  expect_harmless("invisible");
}

TEST_F(HostileSnapshot, MetaHasALimit) {
  save();
  change_meta([](Json& j) { j["checkpoint"] = std::string(kMaxMetaBytes, 'x'); });
  EXPECT_EQ(open_error().substr(0, 59),
            "format: FILE: META: expected at most 16777216 bytes, found ");
  Session s(m, options(1));
  s.append(some_ids(3));
  s.chat().messages = {{"user", std::string(kMaxMetaBytes, 'x'), "", 0, 3, false}};
  EXPECT_EQ(error_of([&] { Snapshot::save(s, scratch / "large.stet"); }),
            "capacity: messages: expected at most 16777216 bytes, with the template and its "
            "variables, found 16777220");
  s.chat() = {};
  const int64_t width = m->config().hidden_size;
  Intervention w;
  w.point = Point::resid_post;
  w.op = Intervention::Op::set;
  w.begin = 3;
  w.end = 4 + static_cast<int64_t>(kMaxMetaBytes) / 8 / width;
  w.values = std::make_shared<const std::vector<float>>((w.end - w.begin) * width);
  s.attach(w);
  const std::string error = error_of([&] { Snapshot::save(s, scratch / "large.stet"); });
  EXPECT_TRUE(
      error.starts_with("capacity: META: expected messages, turns, edits and interventions "
                        "of at most 16777216 bytes, found "))
      << error;
  EXPECT_NE(error.find("; the interventions take "), std::string::npos) << error;
  EXPECT_FALSE(std::filesystem::exists(scratch / "large.stet"));
}

// Files of the sizes around each limit: either the writer refuses them, or they can be opened.
TEST_F(HostileSnapshot, AWriterMakesNothingThatAReaderRefuses) {
  const auto error_of_saving = [&](const std::function<void(Session&)>& change) {
    Session s(m, options(1));
    s.append(some_ids(3));
    change(s);
    write_file(file, "before");
    const std::string error = error_of([&] { Snapshot::save(s, file); });
    if (error == kNoError)
      EXPECT_EQ(open_error(), kNoError);
    else
      EXPECT_EQ(read_text(file), "before");
    return error;
  };
  const auto edits = [](size_t count, size_t source) {
    return [=](Session& s) {
      const float zero[64] = {};
      s.set_key(0, 0, 1, std::span(zero).first(static_cast<size_t>(s.kv().shape().head_dim)));
      State state = s.state();
      state.edits.resize(count, state.edits[0]);
      state.edits[0].source.assign(source, 'x');
      s = Session(s.shared_model(), std::move(state), options(1));
    };
  };
  EXPECT_EQ(error_of_saving(edits(1, kMaxEditSource)), kNoError);
  EXPECT_EQ(error_of_saving(edits(1, kMaxEditSource + 1)),
            "capacity: edits[0].source: expected at most 65536 bytes, found 65537; splice the "
            "parts in several steps");
  EXPECT_EQ(error_of_saving(edits(30'000, 1)), kNoError);
  // The limit depends on the length of META, so its number is left out.
  const auto advice_of = [&](const std::function<void(Session&)>& change) {
    const std::string error = error_of_saving(change);
    EXPECT_EQ(error.substr(0, 56), "capacity: META: expected JSON whose values take at most ")
        << error;
    return error.substr(std::min(error.size(), error.find("bytes")));
  };
  EXPECT_EQ(
      advice_of(edits(50'000, 1)),
      "bytes, found more; use fewer than 50000 edits; one of a range of positions counts once");
  EXPECT_EQ(advice_of([](Session& s) { s.generation().stop_ids.assign(3'000'000, 1); }),
            "bytes, found more; use fewer than 3000000 stop ids");
  EXPECT_EQ(advice_of([](Session& s) { s.generation().stop_strings.assign(1'000'000, "x"); }),
            "bytes, found more; use fewer than 1000000 stop strings");
  const auto nested = [](int levels) {
    std::string text;
    for (int i = 0; i < levels; ++i) text += R"({"a":)";
    return [text = text + "1" + std::string(static_cast<size_t>(levels), '}')](Session& s) {
      s.chat().variables = text;
    };
  };
  EXPECT_EQ(error_of_saving(nested(62)), kNoError);
  EXPECT_EQ(error_of_saving(nested(63)),
            "capacity: META: expected JSON at most 64 levels deep, found more levels");
  EXPECT_EQ(error_of_saving([](Session& s) { s.chat().now = int64_t{1} << 41; }),
            "argument: now: expected seconds in 0..1099511627776, found 2199023255552");
}

TEST_F(HostileSnapshot, AsManyValuesAsMetaHoldsAreHarmless) {
  save();
  change_meta([](Json& j) {
    j["generation"]["stop_ids"] = std::vector<int>(kMaxMetaBytes / 2 - 10000, 1);
  });
  EXPECT_NE(open_error().find("expected JSON whose values take at most "), std::string::npos)
      << open_error();
  expect_harmless("stop ids");
}

TEST_F(HostileSnapshot, ObjectsAndTheirTextsAgree) {
  save();
  EXPECT_EQ(open_error(), kNoError);
  for (const char* text : {R"({"b":1,"a":3})", R"({"b":1})", "[", "{\"b\":1,\"a\":2"}) {
    change_meta([&](Json& j) {
      j["dialogue"]["variables"] = {{"a", 2}, {"b", 1}};
      j["dialogue"]["variables_text"] = text;
    });
    EXPECT_NE(open_error().find("META: dialogue.variables_text: "), std::string::npos)
        << open_error();
  }
  change_meta([](Json& j) { j["dialogue"].erase("variables"); });
  EXPECT_NE(open_error().find("variables_text: expected the text of variables"), std::string::npos)
      << open_error();
}

TEST_F(HostileSnapshot, AWriterMakesNothingThatAReaderTakesForABomb) {
  if (!have_zlib()) GTEST_SKIP() << "built without zlib";
  // Two blocks of 32 MB with one position in each, all zero.
  SnapshotImage sparse = with_shape(64, 8, 128, 128, 1);
  sparse.section("KV").content = std::string(size_t{64} << 20, '\0');
  sparse.sections.erase(sparse.sections.end() - 2);
  sparse.required = 0;
  write(sparse);
  const Snapshot snapshot = Snapshot::open(file);
  const std::string packed = scratch / "packed.stet";
  Snapshot::save(snapshot.state(), snapshot, packed, {.compress = 1, .threads = 1});
  EXPECT_GT(std::filesystem::file_size(packed), size_t{32} << 20);  // the second is uncompressed
  EXPECT_LT(std::filesystem::file_size(packed), size_t{33} << 20);
  EXPECT_EQ(Snapshot::open(packed).check(1).blocks, size_t{2});
  EXPECT_EQ(Snapshot::open(packed).digests().state, snapshot.digests().state);
}

TEST_F(HostileSnapshot, AChainHasALimitOfWhatMustBeParsed) {
  Session s(m, options(1));
  s.append(some_ids(3));
  const std::string text(kMaxMetaBytes / 2, 'x');
  s.chat().messages = {{"user", text, "", 0, 3, false}};
  const auto name = [&](int i) { return scratch / (std::to_string(i) + ".stet"); };
  Snapshot::save(s, name(0));
  const auto save = [&](int i) {
    const Snapshot parent = Snapshot::open(name(i - 1));
    s.append(some_ids(1));
    Snapshot::save(s, name(i), {.form = SnapshotForm::delta, .parent = &parent});
  };
  for (int i = 1; i <= 7; ++i) save(i);
  EXPECT_EQ(error_of([&] { Snapshot::open_with_parents(name(7)); }), kNoError);
  const std::string limit =
      ": parent: expected a chain with META sections of at most 67108864 bytes, found more; make a "
      "delta in its middle full: stet convert FILE -o FILE";
  EXPECT_EQ(error_of([&] { save(8); }), "capacity: " + name(8) + limit);
  EXPECT_FALSE(std::filesystem::exists(name(8)));
  // The first file, which was full, becomes a delta of another.
  Snapshot::save(s, scratch / "base.stet");
  const Snapshot base = Snapshot::open(scratch / "base.stet"), first = Snapshot::open(name(0));
  Snapshot::save(first.state(), first, name(0), {.form = SnapshotForm::delta, .parent = &base});
  EXPECT_EQ(error_of([&] { Snapshot::open_with_parents(name(7)); }), "format: " + name(7) + limit);
}

// Restoring shifted positions takes time proportional to their number, not to prunes times tokens.
TEST_F(HostileSnapshot, ManyPrunesOfManyTokens) {
  std::mt19937 random(3);
  const auto naive = [](const State& s) {
    std::vector<int32_t> all = s.tokens;
    for (size_t i = s.prunes.size(); i-- > 0;)
      all.insert(all.begin() + s.prunes[i].begin, s.prunes[i].removed.begin(),
                 s.prunes[i].removed.end());
    return all;
  };
  for (int round = 0; round < 200; ++round) {
    State s;
    int32_t id = 0;
    for (int step = 0; step < 20; ++step) {
      for (auto n = random() % 9; n > 0; --n) s.tokens.push_back(id++);
      const int64_t size = s.size(),
                    begin = static_cast<int64_t>(random() % static_cast<uint32_t>(size + 1));
      const int64_t end =
          begin + static_cast<int64_t>(random() % static_cast<uint32_t>(size - begin + 1));
      s.prunes.push_back(
          {size, begin, end, true, {s.tokens.begin() + begin, s.tokens.begin() + end}});
      s.tokens.erase(s.tokens.begin() + begin, s.tokens.begin() + end);
    }
    std::vector<int32_t> drawn(static_cast<size_t>(id));
    for (int32_t i = 0; i < id; ++i) drawn[static_cast<size_t>(i)] = i;
    ASSERT_EQ(s.transcript(), drawn);
    ASSERT_EQ(naive(s), drawn);
  }
  State s;
  s.tokens.resize(size_t{1} << 22);
  for (int i = 0; i < 200'000; ++i) s.prunes.push_back({s.size() + 1, 4, 5, true, {7}});
  const ProcessCost spent = cost_of([&] {
    if (s.transcript().size() != (size_t{1} << 22) + 200'000)
      throw std::runtime_error("another size");
  });
  EXPECT_EQ(spent.status, 0);
  EXPECT_LE(spent.seconds, 10);  // otherwise 1.7 TB would be moved
  s.prunes[0].begin = int64_t{1} << 40;
  EXPECT_EQ(error_of([&] { s.transcript(); }),
            "argument: prunes: expected positions of the tokens before each, found 1099511627776");
}

}  // namespace
}  // namespace stet::test::hostile_snapshot_tests

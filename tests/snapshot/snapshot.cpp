// Snapshots: everything is restored, the bytes follow the specification, and no damage goes
// unnoticed.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "src/blas/openblas.hpp"
#include "stet/generate/generate.hpp"
#include "stet/model/product.hpp"
#include "stet/snapshot/compare.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/support/checkpoint_parts.hpp"
#include "tests/support/models.hpp"
#include "tests/support/snapshot_image.hpp"

namespace stet::test::snapshot_tests {
namespace {

// Returns a tokenizer of these words by id.
std::shared_ptr<const Tokenizer> tokenizer_of(const std::string& vocab) {
  return Tokenizer::load_from_files(
      {{"tokenizer.json", R"({"model":{"type":"BPE","vocab":)" + vocab + R"(,"merges":[]}})"}});
}

std::vector<int32_t> some_ids(int64_t n) { return stepped_ids(n, 97, 300, 5); }

// Returns a state in which no field has its default value.
GenerationState unusual() {
  GenerationState g;
  g.sampling = {false,
                0.1 + 0.2,
                41,
                0.9,
                0.01,
                0.99,
                1.1,
                0xFEDCBA9876543210,
                -0.1,
                1.5,
                {{9, 0.1 + 0.2}, {10, -100}, {299, 1}}};
  g.stop_ids = {7, 0, 299};
  g.stop_strings = {"\n\n", "\xE2\x82\xAC\"\\", std::string("a\0b", 3)};
  g.turns = {{0, 3, 4, false}, {4, 5, 5, true}};
  g.stream = std::string("\x00\xFF\x80 state", 9);
  g.held = "\n";
  return g;
}

class SnapshotTest : public testing::Test {
 protected:
  Session session(int64_t tokens = 5) const {
    SessionOptions o = options(1);
    o.capacity = 200;
    Session s(m, o);
    s.append(some_ids(tokens));
    if (tokens >= 5) s.generation() = unusual();
    return s;
  }
  std::string open_error(const std::string& bytes) const {
    write_file(file + ".bad", bytes);
    return error_of([&] { Snapshot::open(file + ".bad"); });
  }
  std::string restore_error(const std::string& bytes) const {
    write_file(file + ".bad", bytes);
    return error_of(
        [&] { Snapshot::open(file + ".bad").restore(m, {.session = options(1), .check = true}); });
  }
  // Applies f to the image of session(5). Returns the error of opening the result.
  template <class F>
  std::string changed(F f) const {
    Session s = session();
    Snapshot::save(s, file);
    SnapshotImage image = SnapshotImage::parse(read_text(file));
    f(image);
    std::string error = open_error(image.build());
    const size_t at = error.find(file);
    return at == std::string::npos ? error : error.replace(at, file.size() + 4, "FILE");
  }
  template <class F>
  std::string changed_meta(F f) const {
    return changed([&](SnapshotImage& image) {
      nlohmann::json meta = nlohmann::json::parse(image.section("META").content);
      f(meta);
      image.section("META").content = meta.dump();
    });
  }

  std::shared_ptr<const Model> m = model(data_path("models/llama31-tiny"));
  std::shared_ptr<const Tokenizer> tokenizer = tokenizer_of(R"({"a":0,"b":1})");
  TemporaryDirectory scratch;
  std::string file = scratch / "s.stet";
};

TEST_F(SnapshotTest, EverythingComesBack) {
  for (const int64_t tokens : {1, 5, 63, 64, 65, 130}) {
    Session s = session(tokens);
    const StateDigests saved = Snapshot::save(s, file, {.tokenizer = tokenizer.get()});
    const Snapshot snapshot = Snapshot::open(file);
    EXPECT_EQ(snapshot.path(), file);
    EXPECT_EQ(snapshot.file_size(), std::filesystem::file_size(file));
    EXPECT_EQ(snapshot.meta().contract, "f32");
    EXPECT_EQ(snapshot.meta().contract_version, kContractVersion);
    EXPECT_EQ(snapshot.meta().checkpoint, "llama31-tiny");
    EXPECT_EQ(snapshot.meta().architecture, "LlamaForCausalLM");
    EXPECT_EQ(snapshot.meta().config, m->config().canonical());
    EXPECT_EQ(snapshot.meta().tokenizer, tokenizer->fingerprint());
    EXPECT_EQ(snapshot.meta().kv, s.kv().shape());
    EXPECT_EQ(snapshot.meta().capacity, 200);
    EXPECT_EQ(snapshot.meta().positions, tokens);
    ASSERT_EQ(snapshot.meta().fingerprints.size(), m->fingerprints().size());
    for (size_t i = 0; i < m->fingerprints().size(); ++i) {
      EXPECT_EQ(snapshot.meta().fingerprints[i].first, m->fingerprints()[i].first);
      EXPECT_EQ(snapshot.meta().fingerprints[i].second, m->fingerprints()[i].second);
    }
    EXPECT_EQ(snapshot.tokens(), s.tokens());
    EXPECT_EQ(snapshot.generation(), s.generation());
    EXPECT_TRUE(same_bytes(snapshot.logits(), s.logits()));
    EXPECT_EQ(snapshot.digests().state, saved.state);

    Session back = snapshot.restore(m, {.session = options(2), .tokenizer = tokenizer.get()});
    EXPECT_EQ(back.tokens(), s.tokens());
    EXPECT_EQ(back.capacity(), 200);
    EXPECT_EQ(back.generation(), s.generation());
    EXPECT_TRUE(same_bytes(back.logits(), s.logits()));
    EXPECT_EQ(kv_bytes(back.kv()), kv_bytes(s.kv()));
    const StateDigests again = digests_of(back);
    EXPECT_EQ(again.tokens, saved.tokens);
    EXPECT_EQ(again.logits, saved.logits);
    EXPECT_EQ(again.kv, saved.kv);
    EXPECT_EQ(again.state, saved.state);

    const std::vector<int32_t> more = some_ids(40);
    s.append(more);
    back.append(more);
    EXPECT_TRUE(same_bytes(back.logits(), s.logits()));
    EXPECT_EQ(kv_bytes(back.kv()), kv_bytes(s.kv()));
  }
}

// A state without biases and penalties on drawn tokens is written in the format from before these
// existed. A state with them sets a feature that older readers refuse.
TEST_F(SnapshotTest, PenaltiesAndBiasesAreARequiredFeature) {
  const auto image_of = [&](const SamplingSettings& sampling, SnapshotForm form) {
    Session s = session(1);
    s.generation().sampling = sampling;
    SaveOptions o;
    o.form = form;
    Snapshot::save(s, file, o);
    return SnapshotImage::parse(read_text(file));
  };
  Session unweighed = session(1);
  for (const SnapshotForm form : {SnapshotForm::full, SnapshotForm::recipe}) {
    const uint64_t plain = image_of({}, form).required;
    SamplingSettings zero;
    zero.frequency_penalty = -0.0;
    zero.logit_bias = logit_bias_of({{3, 0}});
    const std::string meta = image_of(zero, form).section("META").content;
    EXPECT_EQ(meta, image_of({}, form).section("META").content);
    EXPECT_EQ(meta.find("_penalty\":0"), std::string::npos);
    EXPECT_EQ(meta.find("logit_bias"), std::string::npos);
    for (const auto& change : {+[](SamplingSettings& s) { s.frequency_penalty = 0.5; },
                               +[](SamplingSettings& s) { s.presence_penalty = -0.5; },
                               +[](SamplingSettings& s) {
                                 s.logit_bias = {{10, 1}, {9, 0.5}};
                               }}) {
      SamplingSettings s;
      change(s);
      s.logit_bias = logit_bias_of(s.logit_bias);
      EXPECT_EQ(image_of(s, form).required, plain | 32);
      const Snapshot snapshot = Snapshot::open(file);
      EXPECT_EQ(snapshot.generation().sampling, s);
      EXPECT_NE(snapshot.digests().id, digests_of(unweighed).id);
    }
    EXPECT_NE(SnapshotImage::parse(read_text(file))
                  .section("META")
                  .content.find(R"("logit_bias":{"10":1.0,"9":0.5})"),
              std::string::npos);
  }
  Session unsorted = session(1);
  unsorted.generation().sampling.logit_bias = {{10, 1}, {9, 1}};
  EXPECT_EQ(error_of([&] { Snapshot::save(unsorted, file); }),
            "argument: logit_bias[9]: expected ids from 0 on, ascending, found 9");
}

TEST_F(SnapshotTest, AnEmptySessionAndEveryKvType) {
  for (const KvType type : kKvTypes) {
    for (const int64_t tokens : {0, 70}) {
      SessionOptions o = options(1);
      o.kv_type = type;
      Session s(m, o);
      s.append(some_ids(tokens));
      Snapshot::save(s, file);
      Session back = Snapshot::open(file).restore(m, {.session = options(1)});
      EXPECT_EQ(back.kv().shape().type, type);
      EXPECT_EQ(digests_of(back).state, digests_of(s).state);
      EXPECT_EQ(kv_bytes(back.kv()), kv_bytes(s.kv()));
    }
  }
}

TEST_F(SnapshotTest, EqualStatesHaveEqualBytesForAnyHistory) {
  Session s = session(70), t = session(90);
  t.rewind(70);
  t.generation() = s.generation();
  Snapshot::save(s, file);
  Snapshot::save(t, scratch / "t.stet");
  EXPECT_EQ(read_text(file), read_text(scratch / "t.stet"));
  Session back = Snapshot::open(file).restore(m, {.session = options(1)});
  Snapshot::save(back, scratch / "t.stet");
  EXPECT_EQ(read_text(file), read_text(scratch / "t.stet"));
}

TEST_F(SnapshotTest, BytesAreThoseOfTheSpecification) {
  Session s = session();
  const StateDigests d = Snapshot::save(s, file);
  const std::string bytes = read_text(file);
  // 4 layers x 2 heads x (K, V) x 8 dimensions x 64 positions x 4 bytes.
  const size_t block = 32768;
  ASSERT_EQ(s.kv().shape().block_bytes(), block);
  EXPECT_EQ(bytes.size(), 65536 + block);

  const SnapshotImage image = SnapshotImage::parse(bytes);
  EXPECT_EQ(image.state, le(d.state));
  EXPECT_EQ(image.id,
            std::string(reinterpret_cast<const char*>(d.id.bytes.data()), d.id.bytes.size()));
  EXPECT_EQ(image.build(), bytes);  // header, table, offsets, digests, gaps

  ASSERT_EQ(image.sections.size(), 6u);
  EXPECT_EQ(image.version, 3u);
  const auto text = [](auto span) {
    const auto raw = std::as_bytes(span);
    return std::string(reinterpret_cast<const char*>(raw.data()), raw.size());
  };
  EXPECT_EQ(image.sections[0].name, "META");
  EXPECT_EQ(image.sections[1].name, "TOKENS");
  EXPECT_EQ(image.sections[1].content, le(5, 4) + le(102, 4) + le(199, 4) + le(296, 4) + le(93, 4));
  EXPECT_EQ(image.sections[2].name, "VISIBLE");
  EXPECT_EQ(image.sections[2].content, std::string(8, '\xFF'));
  EXPECT_EQ(image.sections[3].name, "LOGITS");
  EXPECT_EQ(image.sections[3].content, text(s.logits()));
  EXPECT_EQ(image.sections[4].name, "BLOCKS");
  std::string digests;  // digests of each layer
  for (size_t layer = 0; layer < 4; ++layer)
    digests += digest_bytes(image.sections[5].content.substr(layer * block / 4, block / 4));
  EXPECT_EQ(image.sections[4].content, digests);
  EXPECT_EQ(image.sections[5].name, "KV");
  const std::vector<std::byte> kv = kv_bytes(s.kv());
  EXPECT_EQ(image.sections[5].content, text(std::span(kv)));

  const nlohmann::json meta = nlohmann::json::parse(image.sections[0].content);
  EXPECT_EQ(meta["generation"]["seed"], "fedcba9876543210");
  EXPECT_EQ(meta["generation"]["temperature"], 0.1 + 0.2);
  EXPECT_EQ(meta["generation"]["stream"], "00ff80207374617465");
  EXPECT_EQ(meta["generation"]["held"], "0a");
  EXPECT_EQ(meta["generation"]["turns"],
            nlohmann::json::parse(R"([{"prompt":0,"reply":3,"end":4,"open":false},
                                                                   {"prompt":4,"reply":5,"end":5,"open":true}])"));
  EXPECT_EQ(meta["kv"], nlohmann::json::parse(
                            R"({"type":"f32","version":1,"layers":4,"heads":2,"head_dim":8})"));
  EXPECT_EQ(meta["checkpoint"], "llama31-tiny");
}

// Keeps a file open and damages it in place, thousands of times.
class Spoiled {
 public:
  explicit Spoiled(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {}
  ~Spoiled() { ::close(fd_); }
  void put(size_t at, char byte) const {
    ASSERT_EQ(::pwrite(fd_, &byte, 1, static_cast<off_t>(at)), 1);
  }
  void truncate(size_t size) const { ASSERT_EQ(::ftruncate(fd_, static_cast<off_t>(size)), 0); }

 private:
  std::string path_;
  int fd_;
};

void expect_one_line(const std::string& error, const std::string& file, const std::string& what) {
  ASSERT_TRUE(error.find(": " + file + ": ") != std::string::npos) << what << ": " << error;
  ASSERT_EQ(error.find('\n'), std::string::npos) << what << ": " << error;
  ASSERT_LT(error.size(), 1200u) << what;
}

// All lengths of the header and the sections that are read first, and one in 37 of the others, or
// all of them with STET_ALL_WAYS.
TEST_F(SnapshotTest, EveryTruncationIsAnError) {
  Session s = session();
  Snapshot::save(s, file);
  const size_t size = read_text(file).size();
  const Spoiled spoiled(file);
  for (size_t length = size; length-- > 0;) {
    if (!all_ways() && length > 1024 && length + 64 < size && length % 37 != 0) continue;
    spoiled.truncate(length);
    const std::string error = error_of([&] { Snapshot::open(file); });
    expect_one_line(error, file, std::to_string(length));
    if (length >= 192) {
      ASSERT_EQ(error, "format: " + file + ": file size: expected " + std::to_string(size) +
                           ", found " + std::to_string(length));
    }
    if (HasFatalFailure()) return;
  }
}

// Two bits of each byte, or all of them with STET_ALL_WAYS.
TEST_F(SnapshotTest, EveryFlippedBitBeforeTheKeysIsAnError) {
  Session s = session();
  Snapshot::save(s, file);
  const std::string bytes = read_text(file);
  const size_t blocks = 128 + 4 * 64,
               end = get_le(bytes, blocks + 8, 8) + get_le(bytes, blocks + 16, 8);
  ASSERT_LT(end, 8192u);
  const Spoiled spoiled(file);
  for (size_t at = 0; at < end; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      if (!all_ways() && static_cast<size_t>(bit) % 4 != at % 4) continue;
      spoiled.put(at, static_cast<char>(bytes[at] ^ (1 << bit)));
      expect_one_line(error_of([&] { Snapshot::open(file); }), file,
                      "byte " + std::to_string(at) + " bit " + std::to_string(bit));
      if (HasFatalFailure()) return;
    }
    spoiled.put(at, bytes[at]);
  }
  EXPECT_EQ(error_of([&] { Snapshot::open(file); }), "no error");
}

TEST_F(SnapshotTest, DamagedKeysAndValuesAreNamedByBlock) {
  Session s = session(130);
  Snapshot::save(s, file);
  const std::string bytes = read_text(file);
  const size_t block = s.kv().shape().block_bytes();
  const Spoiled spoiled(file);
  const Snapshot snapshot = Snapshot::open(file);  // mapped, so it sees the damage
  Session live = session(7);
  const StateDigests before = digests_of(live);
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const size_t at = 65536 + random() % (3 * block);
    spoiled.put(at, static_cast<char>(bytes[at] ^ (1 << random() % 8)));
    const std::string error = error_of([&] {
      live = snapshot.restore(m, {.session = options(1), .map = i % 2 == 0, .check = true});
    });
    ASSERT_EQ(
        error,
        "format: " + file + ": KV block " + std::to_string((at - 65536) / block) +
            ": its bytes are not those that were saved; stet resume --heal computes them again");
    spoiled.put(at, bytes[at]);
  }
  EXPECT_EQ(live.tokens(), some_ids(7));  // a failed load changes nothing
  EXPECT_EQ(digests_of(live).state, before.state);
  EXPECT_EQ(error_of([&] { live = snapshot.restore(m, {.session = options(1)}); }), "no error");
  EXPECT_EQ(live.tokens(), some_ids(130));
}

TEST_F(SnapshotTest, OptionsThatContradictAreRefused) {
  Session s = session(5);
  Snapshot::save(s, file);
  const Snapshot snapshot = Snapshot::open(file);
  EXPECT_EQ(error_of([&] { snapshot.restore(m, {.check = true, .trust = true}); }),
            "argument: trust: trust, which uses blocks unchecked, excludes check");
  EXPECT_EQ(error_of([&] { snapshot.state({.heal = true, .trust = true}); }),
            "argument: trust: trust, which uses blocks unchecked, excludes heal");
  EXPECT_EQ(error_of([&] { snapshot.restore(nullptr); }),
            "argument: model: expected a model, found null");
}

TEST_F(SnapshotTest, SplicedFilesAreRefused) {
  Session a = session(130), b = session(65);
  Snapshot::save(a, file);
  Snapshot::save(b, scratch / "b.stet");
  const std::string one = read_text(file), other = read_text(scratch / "b.stet");
  std::mt19937 random(2);
  for (int i = 0; i < 500; ++i) {
    // Half of the cuts are before the keys.
    const size_t range = i % 2 == 0 ? 4096 : std::min(one.size(), other.size());
    const size_t at = 1 + random() % (range - 1),
                 from = i % 3 == 0 ? at : 1 + random() % (range - 1);
    const std::string spliced = one.substr(0, at) + other.substr(from);
    if (spliced == one || spliced == other) continue;
    const std::string error = restore_error(spliced);
    expect_one_line(error, file + ".bad", std::to_string(at) + " " + std::to_string(from));
    if (HasFatalFailure()) return;
  }
  for (int i = 0; i < 300; ++i) {  // moves pieces around in one file
    std::string moved = one;
    const size_t n = 1 + random() % 3000, from = random() % (one.size() - n),
                 to = random() % (i % 2 ? 4096 : one.size() - n);
    moved.replace(to, n, one, from, n);
    if (moved == one) continue;
    expect_one_line(restore_error(moved), file + ".bad", "moved " + std::to_string(i));
    if (HasFatalFailure()) return;
  }
}

TEST_F(SnapshotTest, FilesOfOtherVersions) {
  EXPECT_EQ(changed([](SnapshotImage&) {}), "no error");
  for (const uint64_t version : {0, 1, 2, 5}) {
    EXPECT_EQ(
        changed([&](SnapshotImage& i) { i.version = version; }),
        "unsupported: FILE: format version: expected 3 or 4, found " + std::to_string(version));
  }
  EXPECT_EQ(changed([](SnapshotImage& i) { i.version = 4; }),
            "format: FILE: format version: expected 3, found 4");
  EXPECT_EQ(changed([](SnapshotImage& i) { i.required = 65; }),
            "unsupported: FILE: required features: expected bits 1, 2, 4, 8, 16 and 32 at most, "
            "found 65");
  EXPECT_EQ(changed([](SnapshotImage& i) { i.optional = ~uint64_t{0}; }), "no error");
  EXPECT_EQ(changed([](SnapshotImage& i) { i.header_size = 128; }),
            "format: FILE: header size: expected 192, found 128");
  for (const size_t at : {0, 3, 6}) {  // first, middle, last
    EXPECT_EQ(changed([&](SnapshotImage& i) {
                i.sections.insert(i.sections.begin() + at, {"NEWS", "anything", 0, 9});
              }),
              "no error");
    EXPECT_EQ(changed([&](SnapshotImage& i) {
                i.sections.insert(i.sections.begin() + at, {"NEWS", "anything", 1, 0});
              }),
              "unsupported: FILE: section NEWS: this version of stet cannot read it (flags 1, "
              "encoding 0)");
  }
  EXPECT_EQ(changed([](SnapshotImage& i) { i.section("LOGITS").encoding = 1; }),
            "unsupported: FILE: section LOGITS: this version of stet cannot read it (flags 1, "
            "encoding 1)");
}

TEST_F(SnapshotTest, AnOptionalSectionIsSkippedAndTheStateIsTheSame) {
  Session s = session(70);
  Snapshot::save(s, file);
  SnapshotImage image = SnapshotImage::parse(read_text(file));
  image.sections.push_back({"NOTES", "by a later version", 0, 0});
  image.sections.insert(image.sections.begin(), {"A", "", 0, 0});
  write_file(file, image.build());
  Session back = Snapshot::open(file).restore(m, {.session = options(1)});
  EXPECT_EQ(digests_of(back).state, digests_of(s).state);
}

TEST_F(SnapshotTest, SectionsThatDoNotFit) {
  EXPECT_EQ(changed([](SnapshotImage& i) { i.sections.erase(i.sections.begin()); }),
            "format: FILE: section META: it is missing");
  EXPECT_EQ(changed([](SnapshotImage& i) { i.sections.push_back(i.sections[1]); }),
            "format: FILE: section TOKENS: it occurs twice");
  EXPECT_EQ(changed([](SnapshotImage& i) { i.section("TOKENS").content.resize(16); }),
            "format: FILE: TOKENS: expected 20 bytes, found 16");
  EXPECT_EQ(changed([](SnapshotImage& i) { i.section("VISIBLE").content.clear(); }),
            "format: FILE: VISIBLE: expected 8 bytes, found 0");
  EXPECT_EQ(changed([](SnapshotImage& i) { i.section("VISIBLE").content[7] = 0x7F; }),
            "format: FILE: VISIBLE: expected set bits where there are no positions, found others");
  EXPECT_EQ(changed([](SnapshotImage& i) { i.section("BLOCKS").content.clear(); }),
            "format: FILE: BLOCKS: expected 64 bytes, found 0");
  EXPECT_EQ(changed([](SnapshotImage& i) { i.section("KV").content.resize(4096); }),
            "format: FILE: KV: expected 32768 bytes, found 4096");
  EXPECT_EQ(changed([](SnapshotImage& i) { i.section("LOGITS").content.resize(6); }),
            "format: FILE: LOGITS: expected 4 bytes, found 6");
  const std::string state = changed([](SnapshotImage& i) { i.section("TOKENS").content[0] ^= 1; });
  EXPECT_TRUE(state.starts_with("format: FILE: state: expected digest xxh3:")) << state;
}

// META with correct digests and wrong content.
TEST_F(SnapshotTest, MetaThatDoesNotHold) {
  using Json = nlohmann::json;
  const auto error = [&](auto f) { return changed_meta(f); };
  EXPECT_EQ(error([](Json& j) { j.erase("contract"); }),
            "format: FILE: META: contract: expected a string, found nothing");
  EXPECT_EQ(error([](Json& j) { j["config"] = 1; }),
            "format: FILE: META: config: expected an object, found 1");
  EXPECT_EQ(error([](Json& j) { j["fingerprints"] = Json::array(); }),
            "format: FILE: META: fingerprints: expected an array that ends with \"model\", found "
            "an array");
  EXPECT_EQ(error([](Json& j) { j["fingerprints"] = {1}; }),
            "format: FILE: META: fingerprints: expected an array of objects, found an array");
  EXPECT_EQ(error([](Json& j) { j["kv"]["type"] = "f64"; }),
            "format: FILE: META: kv.type: expected f32, bf16, f16 or q8, found \"f64\"");
  EXPECT_EQ(
      error([](Json& j) { j["kv"]["layers"] = int64_t{1} << 40; }),
      "format: FILE: META: kv.layers: expected an integer in 1..1048576, found 1099511627776");
  EXPECT_EQ(error([](Json& j) { j["kv"]["version"] = 2; }),
            "unsupported: FILE: META: kv.version: expected 1, found 2");
  EXPECT_EQ(error([](Json& j) { j["contract"] = "F32"; }),
            "format: FILE: META: contract: expected the name of a contract, found \"F32\"");
  EXPECT_EQ(error([](Json& j) { j["positions"] = 201; }),
            "format: FILE: META: positions: expected an integer in 0..200, found 201");
  EXPECT_EQ(error([](Json& j) { j["positions"] = 4, j["generation"]["turns"].clear(); }),
            "format: FILE: TOKENS: expected 16 bytes, found 20");
  EXPECT_EQ(
      error([](Json& j) { j["capacity"] = int64_t{1} << 50; }),
      "format: FILE: META: capacity: expected an integer in 1..16777216, found 1125899906842624");
  EXPECT_EQ(error([](Json& j) { j["capacity"] = 1 << 24, j["positions"] = 1 << 24; }),
            "format: FILE: TOKENS: expected 67108864 bytes, found 20");
  EXPECT_EQ(error([](Json& j) { j["generation"].erase("turns"); }),
            "format: FILE: META: generation.turns: expected an array of objects, found nothing");
  EXPECT_EQ(error([](Json& j) { j["generation"]["turns"][1]["end"] = 6; }),
            "format: FILE: META: generation.turns[1].end: expected an integer in 5..5, found 6");
  EXPECT_EQ(error([](Json& j) { j["generation"]["seed"] = "12"; }),
            "format: FILE: META: generation.seed: expected 16 hex digits, found \"12\"");
  EXPECT_EQ(error([](Json& j) { j["generation"]["held"] = "0g"; }),
            "format: FILE: META: generation.held: expected hex digits, found \"0g\"");
  EXPECT_EQ(error([](Json& j) { j["generation"]["temperature"] = -1; }),
            "argument: FILE: META: temperature: expected a number in [1e-30, 1e30], found -1");
  const auto biased = [&](const char* name, const Json& bias) {
    return error([&](Json& j) { j["generation"]["logit_bias"] = {{name, bias}}; });
  };
  for (const char* name : {"", "-1", "07", "+7", "7 ", "320", "99999999999"}) {
    EXPECT_EQ(biased(name, 1), std::string("format: FILE: META: generation.logit_bias.") + name +
                                   ": expected as name a token id in 0..319, found 1");
  }
  EXPECT_EQ(biased("7", "x"),
            "format: FILE: META: generation.logit_bias.7: expected a number, found \"x\"");
  EXPECT_EQ(biased("7", 0),
            "argument: FILE: META: logit_bias[7]: expected a number in [-100, 100] "
            "other than 0, found 0");
  EXPECT_EQ(
      error([](Json& j) {
        j["generation"]["stop_ids"][0] = 1 << 30;
      }).starts_with("format: FILE: META: generation.stop_ids[0]: expected an integer in 0.."),
      true);
  EXPECT_EQ(changed([](SnapshotImage& i) { i.section("META").content = std::string(100000, '['); }),
            "format: FILE: META: expected JSON at most 64 levels deep, found more levels");
}

TEST_F(SnapshotTest, OneModelMayHaveSeveralClassNames) {
  CheckpointParts parts("qwen35-vl-tiny");
  const auto saved = [&](const std::string& architecture) {
    parts.config["architectures"] = {architecture};
    const auto loaded = Model::load(parts.write(scratch / architecture));
    EXPECT_EQ(loaded->config().architecture, architecture);
    Session s(loaded, options(1));
    s.append(some_ids(5));
    Snapshot::save(s, scratch / (architecture + ".stet"));
    return std::pair(loaded, Snapshot::open(scratch / (architecture + ".stet")));
  };
  const auto [images, a] = saved("Qwen3_5ForConditionalGeneration");
  const auto [text, b] = saved("Qwen3_5ForCausalLM");
  Session x = a.restore(text, {.session = options(1)}),
          y = b.restore(images, {.session = options(1)});
  EXPECT_TRUE(same_state(x, y));
  EXPECT_EQ(a.digests().id, b.digests().id);
  EXPECT_TRUE(compare(a, b).equal());
}

// Gemma 4 has sizes of its own for layers with full attention.
TEST_F(SnapshotTest, LayersMayBeAlikeWithoutHavingTheUsualSizes) {
  CheckpointParts parts("gemma4-dense-tiny");
  std::erase_if(parts.tensors(), [](const CheckpointParts::Tensor& t) {
    return t.spec.name.starts_with("model.layers.") && !t.spec.name.starts_with("model.layers.2.");
  });
  parts.rename(".layers.2.", ".layers.0.");
  parts.config["num_hidden_layers"] = 1;
  parts.config["layer_types"] = {"full_attention"};
  const auto full = Model::load(parts.write(scratch / "full"));
  Session s(full, options(1));
  s.append(some_ids(70));
  Snapshot::save(s, file);
  const Snapshot snapshot = Snapshot::open(file);
  EXPECT_EQ(snapshot.meta().kv.kv_heads, 1);
  EXPECT_EQ(snapshot.meta().kv.head_dim, 32);
  EXPECT_EQ(full->config().kv_heads, 2);
  Session restored = snapshot.restore(full, {.session = options(1), .check = true});
  EXPECT_TRUE(same_state(s, restored));
}

TEST_F(SnapshotTest, RefusesAnotherModelTokenizerContractAndRoom) {
  Session s = session();
  Snapshot::save(s, file, {.tokenizer = tokenizer.get()});
  const Snapshot snapshot = Snapshot::open(file);
  const auto model_digest = [](const Model& of) { return of.fingerprint().substr(0, 19) + "..."; };
  const auto error = [&](const std::shared_ptr<const Model>& with,
                         const std::shared_ptr<const Tokenizer>& used, const SessionOptions& o) {
    return error_of([&] { snapshot.restore(with, {.session = o, .tokenizer = used.get()}); });
  };
  const auto gemma = model(data_path("models/gemma3-tiny"));
  EXPECT_EQ(
      error(gemma, tokenizer, options(1)),
      "mismatch: " + file +
          ": model: the model does not fit the snapshot: architecture Gemma3ForCausalLM instead of "
          "LlamaForCausalLM, embeddings+norms+attention+mlp weights " +
          model_digest(*gemma) + " instead of " + model_digest(*m));
  const auto other = model(data_path("models/llama32-tiny-bf16"));
  const std::string config = error(other, tokenizer, options(1));
  EXPECT_TRUE(config.starts_with("mismatch: " + file +
                                 ": model: the model does not fit the snapshot: attention_scale "))
      << config;
  EXPECT_NE(config.find(", head_dim 32 instead of 8, "), std::string::npos) << config;
  const auto another = tokenizer_of(R"({"a":0,"c":1})");
  EXPECT_EQ(error(m, another, options(1)), "mismatch: " + file + ": tokenizer: expected " +
                                               tokenizer->fingerprint() + ", found " +
                                               another->fingerprint());
  EXPECT_EQ(error(m, nullptr, options(1)), "no error");  // used by token ids
  SessionOptions bf16 = options(1);
  bf16.compute.contract = Contract::bf16;
  EXPECT_EQ(error(m, tokenizer, bf16),
            "mismatch: " + file + ": contract: expected f32 version 1, found bf16 version 1");
  if (have_blas()) {
    SessionOptions blas = options(1);
    blas.compute.contract = Contract::f32_blas;
    EXPECT_EQ(error(m, tokenizer, blas),
              "mismatch: " + file + ": contract: expected f32 version 1, found f32-blas version 1");
  }
  SessionOptions small = options(1);
  small.capacity = 4;
  EXPECT_EQ(error(m, tokenizer, small),
            "capacity: " + file + ": tokens: expected at most 4 positions (--ctx), found 5");
  small.capacity = 5;
  EXPECT_EQ(snapshot.restore(m, {.session = small, .tokenizer = tokenizer.get()}).capacity(), 5);
}

TEST_F(SnapshotTest, WeightsThatDifferInOneGroupAreNamed) {
  Session s = session();
  Snapshot::save(s, file);
  SnapshotImage image = SnapshotImage::parse(read_text(file));
  nlohmann::json meta = nlohmann::json::parse(image.section("META").content);
  ASSERT_EQ(meta["fingerprints"][1]["name"], "norms");
  meta["fingerprints"][1]["digest"] = "xxh3:0";
  image.section("META").content = meta.dump();
  write_file(file, image.build());
  EXPECT_EQ(error_of([&] { Snapshot::open(file).restore(m, {.session = options(1)}); }),
            "mismatch: " + file + ": norms weights: expected xxh3:0, found " +
                m->fingerprints()[1].second);
}

TEST_F(SnapshotTest, FilesThatAreNone) {
  EXPECT_EQ(error_of([&] { Snapshot::open(scratch / "none"); }),
            "io: " + (scratch / "none") + ": cannot be read: No such file or directory");
  EXPECT_EQ(error_of([&] { Snapshot::open(scratch.path()); }),
            "io: " + scratch.path() + ": cannot be read: Is a directory");
  EXPECT_EQ(open_error(""),
            "format: " + file + ".bad: expected a file with content, found 0 bytes");
  EXPECT_EQ(open_error("{\"a\": 1}, and some more"),
            "format: " + file + ".bad: magic: expected a stet snapshot, found another file");
  EXPECT_EQ(open_error("\x93STET\r\n"),
            "format: " + file + ".bad: magic: expected a stet snapshot, found another file");
  EXPECT_EQ(open_error("\x93STET\n\n\x1a and what follows"),
            "format: " + file + ".bad: magic: expected a stet snapshot, found another file");
}

// Another process overwrites each section of an open snapshot in place, or cuts the file.
TEST_F(SnapshotTest, ACheckReadsTheFileAgain) {
  const auto change = [&](uint64_t at, uint64_t size) {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(static_cast<std::streamoff>(at));
    f << std::string(size, '\0');
  };
  for (const SnapshotForm form : {SnapshotForm::full, SnapshotForm::recipe}) {
    const SaveOptions how = {.form = form, .compress = have_zlib() ? 1 : 0};
    Session s = session(70);
    Snapshot::save(s, file, how);
    const std::string whole = read_text(file);
    const std::vector<Snapshot::Section> sections = Snapshot::open(file).sections();
    for (const Snapshot::Section& section : sections) {
      write_file(file, whole);
      const Snapshot snapshot = Snapshot::open(file);
      EXPECT_EQ(error_of([&] { snapshot.check(); }), kNoError);
      if (section.size == 0) continue;
      change(section.offset, section.size);
      const std::string error = error_of([&] { snapshot.check(); });
      EXPECT_EQ(error.find("format: " + file + ": " + section.name), size_t{0}) << error;
    }
    write_file(file, whole);
    const Snapshot cut = Snapshot::open(file);
    std::filesystem::resize_file(file, 64);
    EXPECT_EQ(error_of([&] { cut.check(); }).find("format: " + file + ": header: "), size_t{0});
    write_file(file, whole);
    const Snapshot replaced = Snapshot::open(file);
    Session other = session(70);
    other.generation().sampling.seed = 1;
    Snapshot::save(other, scratch / "other.stet", how);
    std::ofstream(file, std::ios::binary) << read_text(scratch / "other.stet");  // the same inode
    EXPECT_EQ(error_of([&] { replaced.check(); }),
              "format: " + file + ": state: expected " + digest_text(replaced.digests().state) +
                  ", found " + digest_text(digests_of(other).state));
  }
}

}  // namespace
}  // namespace stet::test::snapshot_tests

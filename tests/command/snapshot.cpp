// Subcommands for snapshots, and behaviour that all subcommands share.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"
#include "tests/support/recurrent_family.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::snapshot_tests {
namespace {

using Json = nlohmann::json;

const std::string kGemma = asset_path("pocket-gemma3");

struct SnapshotCommand : testing::Test {
  // Saves a snapshot of `ids`. Returns its path.
  std::string saved(const std::string& name, const std::string& ids = "1,2,3",
                    const Args& more = {}) const {
    const std::string path = scratch / name;
    const Outcome o = run_stet(Args{"save", "-m", kGemma, "--ids", ids, "-o", path} + more);
    EXPECT_EQ(o.status, 0) << o.err;
    return path;
  }

  // Returns `count` token ids as text.
  static std::string ids_of(int count) {
    std::string ids;
    for (int i = 0; i < count; ++i) ids += (i == 0 ? "" : ",") + std::to_string(i % 50 + 1);
    return ids;
  }

  TemporaryDirectory scratch;
};

TEST_F(SnapshotCommand, APruneThatRemovesNothingSaysSo) {
  const std::string s = saved("s.stet"), p = scratch / "p.stet";
  const Args prune = {"prune", s, "-m", kGemma, "--recompute", "-o", p, "--keep-last"};
  const std::string id = sha256_text(Snapshot::open(s).digests().id);
  EXPECT_EQ(run_stet(prune + Args{"3"}).err,
            "removed none of 3 positions: the same state, " + id + "\n");
  EXPECT_FALSE(Json::parse(run_stet(prune + Args{"3", "--json"}).out)["recomputed"]);
  const std::string less = run_stet(prune + Args{"2"}).err;
  EXPECT_TRUE(less.starts_with("removed 1 of 3 positions and processed the later ones again"))
      << less;
  EXPECT_TRUE(Json::parse(run_stet(prune + Args{"2", "--json"}).out)["recomputed"]);
}

// A closed or full stderr does not change the result.
TEST_F(SnapshotCommand, StderrIsNoReasonToFail) {
  const std::string s = saved("s.stet");
  write_file(scratch / "damaged", read_text(s).substr(0, 1000));
  const std::vector<Args> runs = {
      {"generate", "-m", kGemma, "--ids", "1,2,3", "-n", "4", "--save", scratch / "g.stet"},
      {"resume", s, "-n", "2", "--save", scratch / "r.stet"},
      {"save", "-m", kGemma, "--ids", "1,2,3", "-o", scratch / "t.stet"},
      {"prune", s, "--keep-last", "1", "-o", scratch / "p.stet"},
      {"convert", s, "--form", "recipe", "-o", scratch / "c.stet"},
      {"tokenize", "-m", kGemma, "a", "--stats"},
      {"inspect", scratch / "damaged"},
      {"inspect", scratch / "missing"},
      {"inspect", "--no-such-option"},
      {"verify", s, "--isa", "none"},
  };
  for (const Args& args : runs) {
    const Outcome seen = run_stet(args);
    for (const std::string& err : {std::string(), std::string("/dev/full")}) {
      const int status = CommandRun(args, "/dev/null", scratch / "out", err).wait();
      EXPECT_EQ(status, seen.status) << args[0] << " with stderr to \"" << err << '"';
      EXPECT_EQ(read_text(scratch / "out"), seen.out)
          << args[0] << " with stderr to \"" << err << '"';
    }
  }
}

// Every flipped bit is reported as one fault; an undamaged file has none.
TEST_F(SnapshotCommand, CheckProvesEveryByte) {
  std::vector<std::string> files = {saved("full.stet", ids_of(100)),
                                    saved("recipe.stet", ids_of(100), {"--form", "recipe"}),
                                    saved("whole.stet", "1,2,3", {"--with-weights"})};
  if (have_zlib()) files.push_back(saved("zlib.stet", ids_of(100), {"--compress", "zlib"}));
  Args all = Args{"check"} + files;
  const Outcome sound = run_stet(all);
  EXPECT_EQ(sound.status, 0) << sound.out;
  EXPECT_EQ(std::count(sound.out.begin(), sound.out.end(), '\n'),
            static_cast<int64_t>(files.size()));
  for (const std::string& file : files) {
    const std::string bytes = read_text(file), broken = scratch / "broken.stet";
    for (size_t at = 7; at < bytes.size(); at += bytes.size() / 8) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
      write_file(broken, damaged);
      const Outcome o = run_stet({"check", broken, file});
      EXPECT_EQ(o.status, 1) << file << " at " << at << ": " << o.out;
      EXPECT_TRUE(o.out.starts_with(broken + ": ")) << o.out;
      // The second file is checked although the first is damaged.
      EXPECT_EQ(std::count(o.out.begin(), o.out.end(), '\n'), 2) << o.out;
    }
  }
}

TEST_F(SnapshotCommand, CheckNamesTheFault) {
  const std::string s = saved("s.stet", ids_of(100));
  std::string bytes = read_text(s);
  // The byte belongs to the last layer of the last block.
  bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 1);
  write_file(s, bytes);
  const Outcome o = run_stet({"check", s, "--json"});
  EXPECT_EQ(o.status, 1);
  const Json j = Json::parse(o.out);
  EXPECT_EQ(j["sound"], false);
  EXPECT_EQ(j["file"], s);
  EXPECT_TRUE(j["field"].get<std::string>().starts_with("KV block 1, layer ")) << j;
  EXPECT_TRUE(j["expected"].get<std::string>().starts_with("digest xxh3:")) << j;
}

TEST_F(SnapshotCommand, CheckFollowsTheChainOfADelta) {
  const std::string parent = saved("parent.stet", ids_of(70)), full = scratch / "full.stet",
                    delta = scratch / "delta.stet";
  ASSERT_EQ(
      run_stet({"resume", parent, "-m", kGemma, "--ids", ids_of(70), "-n", "0", "--save", full})
          .status,
      0);
  ASSERT_EQ(run_stet({"convert", full, "--form", "delta", "--against", parent, "-o", delta}).status,
            0);
  EXPECT_EQ(run_stet({"check", delta, full}).status, 0);
  std::string bytes = read_text(parent);
  bytes[65536] = static_cast<char>(bytes[65536] ^ 1);
  write_file(parent, bytes);
  const Outcome o = run_stet({"check", delta});
  EXPECT_EQ(o.status, 1);
  EXPECT_TRUE(o.out.starts_with(parent + ": KV block 0, layer 0: expected digest xxh3:")) << o.out;
}

TEST_F(SnapshotCommand, TheParentsOfADeltaThatIsReadAreNotReplaced) {
  const std::string s0 = saved("0.stet"), s1 = scratch / "1.stet", s2 = scratch / "2.stet";
  const auto delta_of = [](const std::string& from, const std::string& to) {
    const Outcome o = run_stet({"resume", from, "-m", kGemma, "--ids", ids_of(70), "-n", "0",
                                "--save", to, "--form", "delta", "--against", from});
    EXPECT_EQ(o.status, 0) << o.err;
  };
  delta_of(s0, s1);
  delta_of(s1, s2);
  const std::vector<Args> runs = {{"convert", s2, "-o", s0},
                                  {"prune", s2, "--keep-last", "1", "-o", s0},
                                  {"resume", s2, "-m", kGemma, "-n", "0", "--save", s0}};
  for (const Args& args : runs) {
    const Outcome o = run_stet(args);
    EXPECT_EQ(o.status, 1) << args[0];
    EXPECT_EQ(o.err,
              "stet: " + s0 + ": the delta needs its parent " + s0 + "; save to another file\n");
  }
  EXPECT_EQ(run_stet({"check", s1, s2}).status, 0);
  EXPECT_EQ(run_stet({"convert", s2, "-o", s2}).status, 0);
  EXPECT_EQ(run_stet({"convert", s2, "-o", s0}).status, 0);
}

TEST_F(SnapshotCommand, VerifyProvesTheReplayablePartOfAnEditedState) {
  const std::string file = scratch / "edited.stet";
  const auto m = model(kGemma);
  Session s(m, options(1));
  s.append(random_tokens(*m, 200));
  s.set_key(1, 0, 70, std::vector<float>(static_cast<size_t>(s.kv().shape().head_dim), 0.5f));
  Snapshot::save(s, file);
  const Outcome verified = run_stet({"verify", file, "-m", kGemma});
  EXPECT_EQ(verified.status, 0) << verified.err;
  EXPECT_NE(verified.out.find(
                "3 of 4 blocks and the logits were recomputed from the tokens and are equal, "
                "byte for byte; not proved, from position 70 on: the key of position "
                "70, layer 1, head 0 was set; state sha256:"),
            std::string::npos)
      << verified.out;
  const Json j = Json::parse(run_stet({"verify", file, "-m", kGemma, "--json"}).out);
  EXPECT_EQ(j["equal"], true);
  EXPECT_EQ(
      j["proved"],
      Json::parse(
          R"({"blocks":3,"of":4,"by_digests":0,"logits":true,"whole":false,"from":70,"reason":"the key of position 70, layer 1, head 0 was set"})"));
  const auto not_proved = [&] {
    return Json::parse(run_stet({"check", file, "--json"}).out)["not_proved"].get<std::string>();
  };
  EXPECT_EQ(not_proved(),
            "that 3 of 4 blocks of 64 positions equal those recomputed from its tokens (stet "
            "verify); an edit concerns the rest, which cannot be proved");
  const Json blocks = Json::parse(run_stet({"inspect", file, "--json"}).out)["blocks"];
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0]["replayable"], true);
  EXPECT_EQ(blocks[1]["replayable"], false);
  EXPECT_EQ(blocks[1]["id"], sha256_text(s.block_identities()[1].id));

  s.rewind(0);  // positions 0 .. 4 are in the block of the edit
  s.append(random_tokens(*m, 10));
  s.set_key(1, 0, 5, std::vector<float>(static_cast<size_t>(s.kv().shape().head_dim), 0.5f));
  Snapshot::save(s, file);
  EXPECT_EQ(run_stet({"verify", file, "-m", kGemma}).err,
            "stet: " + file +
                ": edits: expected a whole block of 64 positions that the tokens give (stet check "
                "proves the bytes), found none: the key of position 5, layer 1, head 0 was set\n");
  EXPECT_EQ(
      not_proved(),
      "keys, values and logits, which cannot be: an edit concerns each block of 64 positions");
}

TEST_F(SnapshotCommand, ModelsWithoutAttentionHaveNoKeysAndValues) {
  const std::string model = subjects_without_attention()[0].directory;
  const std::string a = scratch / "a.stet", b = scratch / "b.stet", q = scratch / "q.stet";
  run_stet({"save", "-m", model, "--ids", ids_of(70), "-o", a});
  run_stet({"resume", a, "-m", model, "--ids", "4", "-n", "0", "--save", b});
  EXPECT_TRUE(run_stet({"check", a})
                  .out.ends_with("; not proved: that recurrent arrays and logits equal those "
                                 "recomputed from its tokens (stet "
                                 "verify)\n"));
  EXPECT_NE(run_stet({"verify", a, "-m", model})
                .out.find("; recurrent arrays and logits are equal, byte for byte; state "),
            std::string::npos);
  EXPECT_NE(run_stet({"inspect", a})
                .out.find("\nkeys and values              none: no layer has attention "),
            std::string::npos);
  const std::string diff = run_stet({"diff", a, b}).out;
  EXPECT_NE(diff.find("\nkeys              equal         none: no layer has any\n"),
            std::string::npos)
      << diff;
  EXPECT_NE(diff.find("\na is a prefix of b: 70 common tokens\ndifferent: "), std::string::npos)
      << diff;
  EXPECT_TRUE(
      run_stet({"convert", a, "--kv", "q8", "-o", q})
          .err.starts_with("keys and values: f32 -> q8, which changes no bytes: no layer has "
                           "attention\n"));
  EXPECT_EQ(run_stet({"verify", q, "-m", model}).status, 0);
  EXPECT_NE(run_stet({"diff", a, q}).out.find(" f32 3 x 0 x 0 in a, q8 3 x 0 x 0 in b\n"),
            std::string::npos);
  EXPECT_EQ(run_stet({"measure", "-m", model, "--ids", "1,2", "--norms"}).err,
            "stet: --norms: expected a layer with attention, found none\n");
  EXPECT_EQ(
      run_stet({"export", a, "-o", scratch / "a.safetensors"}).err,
      "70 positions of 0 layers and 6 recurrent arrays in " + scratch / "a.safetensors" + "\n");
}

TEST_F(SnapshotCommand, ADeltaWhoseParentIsLostIsComputedAgain) {
  const std::string parent = saved("parent.stet"), delta = scratch / "delta.stet",
                    again = scratch / "again.stet";
  ASSERT_EQ(run_stet({"resume", parent, "-m", kGemma, "--ids", "4,5", "-n", "3", "--greedy",
                      "--ignore-eos", "--save", delta, "--form", "delta", "--against", parent})
                .status,
            0);
  const Json id = Json::parse(run_stet({"inspect", delta, "--json"}).out)["id"];
  std::filesystem::remove(parent);
  EXPECT_EQ(run_stet({"resume", delta, "-m", kGemma, "-n", "0", "--save", again}).status, 1);
  const Outcome o =
      run_stet({"resume", delta, "-m", kGemma, "--replay", "-n", "0", "--save", again});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(Json::parse(run_stet({"inspect", again, "--json"}).out)["id"], id);
}

TEST_F(SnapshotCommand, AnotherKvTypeIsAnEdit) {
  const std::string s = saved("s.stet"), rounded = scratch / "rounded.stet";
  const Outcome converted = run_stet({"convert", s, "--kv", "bf16", "-o", rounded});
  EXPECT_EQ(converted.status, 0) << converted.err;
  EXPECT_NE(converted.err.find("keys and values: f32 -> bf16, an edit"), std::string::npos)
      << converted.err;
  const Json j = Json::parse(run_stet({"inspect", rounded, "--json"}).out);
  EXPECT_EQ(j["kv"]["type"], "bf16");
  EXPECT_EQ(j["replayable"], false);
  EXPECT_EQ(
      j["replay_limit"],
      Json::parse(R"({"position":0,"reason":"keys and values were rounded to another type"})"));
  EXPECT_EQ(j["edits"],
            Json::parse(R"([{"what":"kv type","at":3,"position":null,"layer":null,"head":null}])"));
  EXPECT_NE(run_stet({"inspect", rounded}).out.find("what kv type"), std::string::npos);
  const Outcome verified = run_stet({"verify", rounded, "-m", kGemma});
  EXPECT_EQ(verified.status, 1);
  EXPECT_EQ(verified.err, "stet: " + rounded +
                              ": edits: expected a whole block of 64 positions that the tokens "
                              "give (stet check proves the bytes), found none: keys and values "
                              "were rounded to another type\n");
  EXPECT_EQ(run_stet({"check", rounded}).status, 0);
  EXPECT_EQ(run_stet({"convert", rounded, "--form", "recipe", "-o", scratch / "r.stet"}).status, 1);
}

TEST_F(SnapshotCommand, AnotherCapacityIsTheSameState) {
  const std::string s = saved("s.stet"), small = scratch / "small.stet",
                    recipe = saved("recipe.stet", "1,2,3", {"--form", "recipe"});
  for (const std::string& from : {s, recipe}) {
    const Outcome o = run_stet({"convert", from, "--ctx", "50", "-o", small, "--json"});
    EXPECT_EQ(o.status, 0) << o.err;
    const Json j = Json::parse(o.out);
    EXPECT_EQ(j["capacity"], 50);
    EXPECT_EQ(Json::parse(run_stet({"inspect", small, "--json"}).out)["capacity"], 50);
    EXPECT_EQ(run_stet({"diff", s, small}).status, 0);
  }
  EXPECT_EQ(run_stet({"convert", s, "--ctx", "2", "-o", small}).status, 1);
}

// Each option has an effect, or is refused with a reason before anything is written.
TEST_F(SnapshotCommand, OptionsWithoutAnEffectAreRefused) {
  const std::string s = saved("s.stet"), to = scratch / "to.stet";
  const Args convert = {"convert", s, "-o", to}, prune = {"prune", s, "--keep-last", "1", "-o", to};
  const std::vector<Args> refused = {
      convert + Args{"--compute", "f32"}, convert + Args{"--gemm", "own"},
      convert + Args{"--threads", "1"},   convert + Args{"--isa", "portable"},
      convert + Args{"--chunk", "4"},     convert + Args{"-m", kGemma},
      convert + Args{"--parent", s},      convert + Args{"--against", s},
      convert + Args{"--form", "delta"},  convert + Args{"--form", "recipe", "--compress", "zlib"},
      prune + Args{"-m", kGemma},         prune + Args{"--parent", s},
      prune + Args{"--against", s},       {"verify", s, "--kv", "f32"},
      {"verify", s, "--ctx", "9"},        {"verify", s, "--parent", s},
      {"diff", s, s, "--parent", s},      {"diff", s, s, "--other-parent", s},
      {"check", s, "--parent", s},        {"inspect", kGemma, "-m", kGemma}};
  for (const Args& args : refused) {
    const Outcome o = run_stet(args);
    EXPECT_EQ(o.status, 2) << args[0] << ' ' << args[args.size() - 2] << ": " << o.err;
    EXPECT_EQ(o.out, "");
    EXPECT_FALSE(std::filesystem::exists(to)) << args[0] << ' ' << args[args.size() - 2];
  }
  EXPECT_EQ(run_stet(convert + Args{"-m", kGemma, "--with-tokenizer"}).status, 0);
  const std::string recipe = saved("recipe.stet", "1,2,3", {"--form", "recipe"});
  EXPECT_EQ(run_stet({"convert", recipe, "-o", to, "-m", kGemma, "--threads", "1", "--isa",
                      "portable", "--chunk", "2", "--compute", "f32", "--gemm", "own"})
                .status,
            0);
  EXPECT_EQ(run_stet({"diff", s, to}).status, 0);
}

// An empty or unwritable output name is refused before any work is done.
TEST_F(SnapshotCommand, OutputsAreTriedFirst) {
  const std::string s = saved("s.stet"), nowhere = scratch / "no/such/file";
  const std::vector<Args> writes = {
      {"generate", "-m", kGemma, "--ids", "1,2"}, {"resume", s, "-n", "1"},
      {"save", "-m", kGemma, "--ids", "1,2"},     {"convert", s},
      {"prune", s, "--keep-last", "1"},           {"chat", "-m", kGemma}};
  for (const Args& args : writes) {
    for (const char* option : {"-o", "--output", "--save"}) {
      const Outcome empty = run_stet(args + Args{option, ""});
      EXPECT_EQ(empty.status, 2) << args[0] << ' ' << option << ": " << empty.err;
      EXPECT_EQ(empty.out, "");
    }
    const Outcome o = run_stet(args + Args{"--save", nowhere});
    EXPECT_EQ(o.status, 1) << args[0];
    EXPECT_EQ(o.out, "") << args[0];
    EXPECT_NE(o.err.find(nowhere), std::string::npos) << args[0] << ": " << o.err;
  }
  for (const Args& args : {Args{"logits", "-m", kGemma, "--ids", "1,2", "-o", ""},
                           Args{"quantize", "-m", kGemma, "--to", "q8", "-o", ""},
                           Args{"prepare", "-m", kGemma, "-o", ""}}) {
    EXPECT_EQ(run_stet(args).status, 2) << args[0];
  }
}

}  // namespace
}  // namespace stet::test::snapshot_tests

// The contract of a session: its name, which weights and options it takes, and that a state keeps to one.
#include "scratch.hpp"
#include "stet/snapshot.hpp"
#include "stet/verify.hpp"
#include "support.hpp"

namespace stet::test {
namespace {

SessionOptions under(Contract contract) { return options(1, STET_DEFAULT_ISA, 512, contract); }

using stet_test::error_of;

TEST(Contract, NamesGoBothWays) {
  for (const std::string name : {"f32", "f32-blas", "bf16", "q8", "q4"}) {
    ComputeOptions c;
    c.threads = 3;
    ASSERT_TRUE(choose_contract(name, c));
    EXPECT_EQ(contract_name(c), name);
    EXPECT_EQ(c.threads, 3);
    for (const char* none : {"", "F32", "bf16-blas", "bf1", "q5", "q8-blas"}) {
      EXPECT_FALSE(choose_contract(none, c)) << none;
      EXPECT_EQ(contract_name(c), name);
    }
  }
}

TEST(Contract, Bf16TakesBfloat16WeightsAlone) {
  const std::map<std::string, std::string> refused = {{"gemma3-tiny", "model.embed_tokens.weight: expected dtype BF16 for the contract bf16, found F32"},
                                                      {"llama2-tiny-f16", "model.embed_tokens.weight: expected dtype BF16 for the contract bf16, found F16"},
                                                      {"gpt2-tiny", "expected dtype BF16 for the contract bf16, found F32"}};
  for (const auto& [name, text] : refused) {
    const std::string directory = data_path("models/" + name);
    const std::string error = error_of([&] { Session(model(directory), under(Contract::bf16)); });
    EXPECT_TRUE(error.starts_with("unsupported: " + directory + "/model.safetensors: ") && error.ends_with(text)) << error;
    Session s(model(directory), under(Contract::f32));
    ComputeOptions c = s.compute();
    c.contract = Contract::bf16;
    EXPECT_EQ(error_of([&] { s.set_compute(c); }), error);
    EXPECT_EQ(contract_name(s.compute()), "f32");
  }
  for (const char* name : {"gemma3-tiny-bf16", "gemma3-vision-tiny", "llama32-tiny-bf16", "gemma-tiny", "qwen2-tiny"}) {
    Session s(model(data_path(std::string("models/") + name)), under(Contract::bf16));
    s.append(std::vector<int32_t>{1, 2, 3});
    EXPECT_EQ(contract_name(s.compute()), "bf16");
  }
}

TEST(Contract, BlasIsForF32) {
  SessionOptions o = under(Contract::bf16);
  o.compute.blas = true;
  EXPECT_EQ(error_of([&] { Session(model(asset_path("pocket-llama3")), o); }),
            "argument: gemm: expected own (blas computes the contract f32 alone), found blas");
}

TEST(Contract, TokensKeepToTheOneTheyWereProcessedUnder) {
  Session s(model(asset_path("pocket-llama3")), under(Contract::f32));
  s.append(std::vector<int32_t>{1, 2, 3});
  ComputeOptions c = s.compute();
  c.contract = Contract::bf16;
  EXPECT_EQ(error_of([&] { s.set_compute(c); }),
            "argument: contract: expected f32, under which the tokens were processed, found bf16");
  EXPECT_EQ(contract_name(s.compute()), "f32");
  s.rewind(0);
  s.set_compute(c);
  s.append(std::vector<int32_t>{1, 2, 3});
  Session straight(model(asset_path("pocket-llama3")), under(Contract::bf16));
  straight.append(std::vector<int32_t>{1, 2, 3});
  EXPECT_TRUE(same_state(s, straight));
}

class ContractSnapshot : public testing::Test {
 protected:
  Session session(Contract contract) const {
    Session s(m, under(contract));
    s.append(random_tokens(*m, 150));
    return s;
  }
  std::shared_ptr<const Model> m = model(asset_path("pocket-gemma3"));
  stet_test::ScratchDir scratch;
  std::string file = scratch / "s.stet";
};

TEST_F(ContractSnapshot, StatesDifferAndSaySo) {
  Session a = session(Contract::f32), b = session(Contract::bf16);
  EXPECT_NE(kv_bytes(a.kv()), kv_bytes(b.kv()));
  EXPECT_NE(digests_of(a).state, digests_of(b).state);
  Snapshot::save(a, "", file);
  Snapshot::save(b, "", scratch / "b.stet");
  EXPECT_EQ(Snapshot::open(scratch / "b.stet").meta().contract, "bf16");
  EXPECT_EQ(error_of([&] { Snapshot::open(file).restore(m, "", under(Contract::bf16)); }),
            "mismatch: " + file + ": contract: expected f32 version 1, found bf16 version 1");
  EXPECT_EQ(error_of([&] { Snapshot::open(scratch / "b.stet").restore(m, "", under(Contract::f32)); }),
            "mismatch: " + scratch / "b.stet" + ": contract: expected bf16 version 1, found f32 version 1");
}

TEST_F(ContractSnapshot, ReplayMigratesBothWays) {
  for (const auto& [from, to] : {std::pair(Contract::f32, Contract::bf16), std::pair(Contract::bf16, Contract::f32)}) {
    Session s = session(from), straight = session(to);
    Snapshot::save(s, "", file);
    RestoreReport report;
    Session back = Snapshot::open(file).restore(m, "", under(to), {.replay = true}, &report);
    EXPECT_TRUE(same_state(back, straight));
    EXPECT_EQ(digests_of(back).state, digests_of(straight).state);
    EXPECT_EQ(report.recomputed, 150);
  }
}

TEST_F(ContractSnapshot, EveryFormComesBackVerifiesAndHeals) {
  Session s = session(Contract::bf16);
  for (const SnapshotForm form : {SnapshotForm::full, SnapshotForm::recipe}) {
    SaveOptions save;
    save.form = form;
    Snapshot::save(s, "", file, save);
    Session back = Snapshot::open(file).restore(m, "", under(Contract::bf16));
    EXPECT_TRUE(same_state(back, s));
    EXPECT_FALSE(verify(Snapshot::open(file), m, under(Contract::bf16), false).has_value());
  }
  Snapshot::save(s, "", file);
  const Snapshot::Section kv = Snapshot::open(file).sections().back();
  std::string bytes = read_text_file(file, size_t{1} << 30);
  bytes[kv.offset + 100] = static_cast<char>(bytes[kv.offset + 100] ^ 1);
  stet_test::write_file(file, bytes);
  RestoreReport report;
  Session healed = Snapshot::open(file).restore(m, "", under(Contract::bf16), {.heal = true}, &report);
  EXPECT_EQ(report.healed, std::vector<int64_t>{0});
  EXPECT_TRUE(same_state(healed, s));
}

}  // namespace
}  // namespace stet::test

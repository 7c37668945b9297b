// The contract of a session: its name, the weights and options that it accepts, and its fixed place
// in a state.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "src/blas/openblas.hpp"
#include "stet/model/product.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/models.hpp"

namespace stet::test::contract_tests {
namespace {

SessionOptions under(Contract contract) { return options(1, STET_DEFAULT_ISA, 512, contract); }

TEST(Contract, NamesGoBothWays) {
  const std::vector<std::string> names = {"f32", "f32-blas", "bf16", "q8", "q4", "ggml"};
  ASSERT_EQ(std::size(kContracts), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(contract_name(kContracts[i]), names[i]);
    EXPECT_EQ(parse_contract(names[i]), kContracts[i]);
  }
  for (const char* none : {"", "F32", "bf16-blas", "bf1", "q5", "q8-blas", "f32_blas"})
    EXPECT_EQ(parse_contract(none), std::nullopt) << none;
}

TEST(ContractName, ListsTypesOfTensors) {
  for (const char* text :
       {"f32", "f32-blas", "ggml(*=q4_k)", "ggml(*=q4_k,blk.0.attn_v=q6_k,token_embd=q8_0)"}) {
    const auto name = parse_contract_name(text);
    ASSERT_TRUE(name) << text;
    EXPECT_EQ(name->text(), text);
    EXPECT_EQ(name->rule, std::string(text).substr(0, std::string(text).find('(')));
  }
  EXPECT_EQ(parse_contract_name("ggml(a=q8,b=f32)")->types,
            (std::vector<std::pair<std::string, std::string>>{{"a", "q8"}, {"b", "f32"}}));
  for (const std::string& none :
       {std::string(), std::string("F32"), std::string("f32 "), std::string("ggml("),
        std::string("ggml()"), std::string("ggml(a)"), std::string("ggml(a=)"),
        std::string("ggml(a=b,)"), std::string("ggml(b=x,a=y)"), std::string("ggml(a=x,a=y)"),
        std::string("ggml(a=x)z"), std::string("(a=x)"), std::string("f32\n"),
        std::string(kMaxContractName + 1, 'f')}) {
    EXPECT_FALSE(parse_contract_name(none)) << none;
  }
}

TEST(Contract, Bf16TakesBfloat16WeightsAlone) {
  const std::map<std::string, std::string> refused = {
      {"gemma3-tiny",
       "model.embed_tokens.weight: expected dtype BF16 for the contract bf16, found F32"},
      {"llama2-tiny-f16",
       "model.embed_tokens.weight: expected dtype BF16 for the contract bf16, found F16"},
      {"gpt2-tiny", "expected dtype BF16 for the contract bf16, found F32"}};
  for (const auto& [name, text] : refused) {
    const std::string directory = data_path("models/" + name);
    const std::string error = error_of([&] { Session(model(directory), under(Contract::bf16)); });
    EXPECT_TRUE(error.starts_with("unsupported: " + directory + "/model.safetensors: ") &&
                error.ends_with(text))
        << error;
    Session s(model(directory), under(Contract::f32));
    ComputeOptions c = s.compute();
    c.contract = Contract::bf16;
    EXPECT_EQ(error_of([&] { s.set_compute(c); }), error);
    EXPECT_EQ(s.compute().contract, Contract::f32);
  }
  for (const char* name : {"gemma3-tiny-bf16", "gemma3-vision-tiny", "llama32-tiny-bf16",
                           "gemma-tiny", "qwen2-tiny"}) {
    Session s(model(data_path(std::string("models/") + name)), under(Contract::bf16));
    s.append(std::vector<int32_t>{1, 2, 3});
    EXPECT_EQ(s.compute().contract, Contract::bf16);
  }
}

// Returns true if a library of this name is mapped into the process.
bool is_mapped(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(name) != std::string::npos) return true;
  }
  return false;
}

// Loads BLAS in a process that has not used it yet. The system can refuse to load it.
int load_blas_late() {
  const auto m = model(asset_path("pocket-llama3"));
  Session(m, under(Contract::f32)).append(std::vector<int32_t>{1, 2, 3});
  if (is_mapped("openblas")) return 2;
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  const rlim_t all = std::exchange(limit.rlim_cur, 1 << 20);
  setrlimit(RLIMIT_AS, &limit);
  const std::string error = error_of([&] { Session(m, under(Contract::f32_blas)); });
  limit.rlim_cur = all;
  setrlimit(RLIMIT_AS, &limit);
  if (!error.starts_with("unsupported: gemm: OpenBLAS (libopenblas.so.0 or libopenblas.so) "
                         "cannot be loaded: libopenblas.so.0: ")) {
    std::fputs((error + "\n").c_str(), stderr);
    return 3;
  }
  Session blas(m, under(Contract::f32_blas));
  blas.append(std::vector<int32_t>{1, 2, 3});
  return is_mapped("openblas") ? 0 : 4;
}

TEST(Contract, BlasIsLoadedWhenItIsFirstAskedFor) {
  if (!have_blas()) GTEST_SKIP() << "built without OpenBLAS";
#if defined(STET_SANITIZED)
  GTEST_SKIP() << "sanitizers need the address space";
#endif
  const pid_t child = fork();
  if (child == 0) _exit(load_blas_late());
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Tokens processed through BLAS belong to another contract, whose name stays with them.
TEST(Contract, BlasIsAContractOfItsOwn) {
  if (!have_blas()) GTEST_SKIP() << "built without OpenBLAS";
  const auto m = model(asset_path("pocket-llama3"));
  Session own(m, under(Contract::f32)), blas(m, under(Contract::f32_blas));
  for (Session* s : {&own, &blas}) s->append(std::vector<int32_t>{1, 2, 3});
  EXPECT_EQ(error_of([&] { own.set_compute(blas.compute()); }),
            "mismatch: contract: expected f32 version 1, under which the tokens were processed, "
            "found f32-blas version 1");
  EXPECT_EQ(error_of([&] { blas.set_compute(own.compute()); }),
            "mismatch: contract: expected f32-blas version 1, under which the tokens were "
            "processed, found f32 version 1");
  EXPECT_EQ(error_of([&] { Session(m, blas.state(), under(Contract::f32)); }),
            "mismatch: contract: expected f32-blas version 1, under which the tokens were "
            "processed, found f32 version 1");
  Session goes_on(m, blas.state(), under(Contract::f32_blas));
  EXPECT_EQ(goes_on.state().origin.contract, "f32-blas");
  const TemporaryDirectory scratch;
  Snapshot::save(goes_on, scratch / "s.stet");
  EXPECT_EQ(Snapshot::open(scratch / "s.stet").meta().contract, "f32-blas");
  const BatchEntry batch[] = {{&own, std::span(own.tokens())}, {&blas, std::span(blas.tokens())}};
  EXPECT_EQ(error_of([&] { append(batch); }),
            "argument: batch[1]: contract: expected f32, as of the first session, found f32-blas");
}

// A model of the same shape in which one weight differs.
TEST(Contract, AStateKnowsItsModel) {
  const TemporaryDirectory scratch;
  std::filesystem::copy(data_path("models/llama31-tiny"), scratch / "other");
  std::string weights = read_text(scratch / "other/model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  write_file(scratch / "other/model.safetensors", weights);
  const auto m = model(data_path("models/llama31-tiny")),
             same = Model::load(data_path("models/llama31-tiny")),
             other = Model::load(scratch / "other");
  Session s(m, under(Contract::f32));
  s.append(std::vector<int32_t>{1, 2, 3});
  const auto fingerprint = [](const Model& of) { return of.fingerprint(); };
  EXPECT_EQ(error_of([&] { Session(other, s.state(), under(Contract::f32)); }),
            "mismatch: model: expected " + fingerprint(*m) +
                ", by which the tokens were processed, found " + fingerprint(*other));
  Session goes_on(same, s.state(), under(Contract::f32));
  EXPECT_TRUE(same_state(goes_on, s));
  Snapshot::save(s, scratch / "s.stet");
  EXPECT_EQ(Snapshot::open(scratch / "s.stet").state().origin, s.state().origin);
}

TEST(Contract, AStateKeepsTheContractOfItsTokens) {
  Session s(model(asset_path("pocket-llama3")), under(Contract::f32));
  s.append(std::vector<int32_t>{1, 2, 3});
  ComputeOptions c = s.compute();
  c.contract = Contract::bf16;
  EXPECT_EQ(error_of([&] { s.set_compute(c); }),
            "mismatch: contract: expected f32 version 1, under which the tokens were processed, "
            "found bf16 version 1");
  EXPECT_EQ(s.compute().contract, Contract::f32);
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
  TemporaryDirectory scratch;
  std::string file = scratch / "s.stet";
};

TEST_F(ContractSnapshot, StatesDifferAndSaySo) {
  Session a = session(Contract::f32), b = session(Contract::bf16);
  EXPECT_NE(kv_bytes(a.kv()), kv_bytes(b.kv()));
  EXPECT_NE(digests_of(a).state, digests_of(b).state);
  Snapshot::save(a, file);
  Snapshot::save(b, scratch / "b.stet");
  EXPECT_EQ(Snapshot::open(scratch / "b.stet").meta().contract, "bf16");
  EXPECT_EQ(error_of([&] { Snapshot::open(file).restore(m, {.session = under(Contract::bf16)}); }),
            "mismatch: " + file + ": contract: expected f32 version 1, found bf16 version 1");
  EXPECT_EQ(error_of([&] {
              Snapshot::open(scratch / "b.stet").restore(m, {.session = under(Contract::f32)});
            }),
            "mismatch: " + scratch / "b.stet" +
                ": contract: expected bf16 version 1, found f32 version 1");
}

TEST_F(ContractSnapshot, ReplayMigratesBothWays) {
  for (const auto& [from, to] :
       {std::pair(Contract::f32, Contract::bf16), std::pair(Contract::bf16, Contract::f32)}) {
    Session s = session(from), straight = session(to);
    Snapshot::save(s, file);
    RestoreReport report;
    Session back = Snapshot::open(file).restore(m, {.session = under(to), .replay = true}, &report);
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
    Snapshot::save(s, file, save);
    Session back = Snapshot::open(file).restore(m, {.session = under(Contract::bf16)});
    EXPECT_TRUE(same_state(back, s));
    EXPECT_FALSE(verify(Snapshot::open(file), m, under(Contract::bf16), false).has_value());
  }
  Snapshot::save(s, file);
  const Snapshot::Section kv = Snapshot::open(file).sections().back();
  std::string bytes = read_text(file);
  bytes[kv.offset + 100] = static_cast<char>(bytes[kv.offset + 100] ^ 1);
  write_file(file, bytes);
  RestoreReport report;
  Session healed =
      Snapshot::open(file).restore(m, {.session = under(Contract::bf16), .heal = true}, &report);
  EXPECT_EQ(report.healed, std::vector<int64_t>{0});
  EXPECT_TRUE(same_state(healed, s));
}

}  // namespace
}  // namespace stet::test::contract_tests

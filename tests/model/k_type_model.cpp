// A model rounded to ggml's K types gives the same bits on every instruction set, with every number
// of threads and chunking. They are the bits committed in tests/data/golden_bits/blocks.txt.
#include <fmt/format.h>

#include <fstream>

#include "stet/base/digest.hpp"
#include "stet/checkpoint/packed.hpp"
#include "tests/support/models.hpp"

namespace stet::test::k_type_model_tests {
namespace {

struct Rounded {
  const char* name;
  DType type;
  const char* contract;
};
constexpr Rounded kRounded[] = {{"q4k", DType::q4_k, "ggml(*=q4_k,token_embd=q6_k)"},
                                {"q5k", DType::q5_k, "ggml(*=q5_k,token_embd=q6_k)"},
                                {"q6k", DType::q6_k, "ggml(*=q6_k)"}};

std::map<std::string, std::string> committed() {
  std::ifstream file(data_path("golden_bits/blocks.txt"));
  std::map<std::string, std::string> digests;
  std::string name, what, digest;
  while (file >> name >> what >> digest) digests[name + " " + what] = digest;
  return digests;
}

TEST(KTypeModel, HasTheCommittedBits) {
  const std::string pocket = asset_path("pocket-gemma3");
  const auto expected = committed();
  const std::vector<int32_t> ids = stepped_ids(70, 7, 1620);
  for (const Rounded& rounded : kRounded) {
    const TemporaryDirectory scratch;
    const std::string packed = scratch / "packed";
    pack_checkpoint(*directory_source(pocket), Contract::ggml, packed, 0, nullptr,
                    BlockRounding{rounded.type});
    EXPECT_EQ(contract_of_weights(*directory_source(packed)), Contract::ggml);
    const auto loaded = Model::load(directory_source(packed), 0, Contract::ggml);
    EXPECT_EQ(loaded->types(), rounded.contract);
    EXPECT_GT(check_packed(*directory_source(packed)), 0u);
    for (const char* const* isa = kernel_names(); *isa != nullptr; ++isa) {
      for (const int64_t chunk : {1, 7, 64, 512}) {
        Session session(loaded, options(chunk == 7 ? 3 : 1, *isa, chunk, Contract::ggml));
        EXPECT_EQ(session.state().origin.contract, rounded.contract);
        const std::vector<float> logits = all_logits(session, ids);
        const std::string how = fmt::format("{}, {}, chunk {}", rounded.name, *isa, chunk);
        const std::string name = std::string("pocket-gemma3@") + rounded.name;
        EXPECT_EQ(digest_text(digest_of(std::as_bytes(std::span(logits)))),
                  expected.at(name + " logits"))
            << how;
        EXPECT_EQ(digest_text(digest_of(kv_bytes(session.kv()))), expected.at(name + " kv")) << how;
      }
    }
    EXPECT_EQ(error_of([&] { Session(loaded, options(1)); }),
              "unsupported: " + packed +
                  ": weights: expected weights for the contract f32, found weights for ggml");
  }
}

TEST(KTypeModel, RequiresWeightsInGgmlTypes) {
  const std::string pocket = asset_path("pocket-gemma3");
  EXPECT_EQ(
      error_of([&] { Model::load(directory_source(pocket), 0, Contract::ggml); }),
      "unsupported: " + pocket +
          "/model.safetensors: weights: the contract ggml needs weights in types of ggml, and "
          "this checkpoint has none");
}

}  // namespace
}  // namespace stet::test::k_type_model_tests

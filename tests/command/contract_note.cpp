// A large bfloat16 checkpoint that runs as f32 by default: the command suggests the faster
// contract.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "stet/checkpoint/safetensors.hpp"
#include "stet/kernels/kernels.hpp"
#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::contract_note_tests {
namespace {

// Writes 134 MB of zero weights as a sparse file.
void write_large(const TemporaryDirectory& directory) {
  constexpr int64_t kHidden = 1024, kMlp = 8192, kVocab = 40960;
  write_file(directory / "config.json", nlohmann::json{{"architectures", {"LlamaForCausalLM"}},
                                                       {"vocab_size", kVocab},
                                                       {"hidden_size", kHidden},
                                                       {"intermediate_size", kMlp},
                                                       {"num_hidden_layers", 1},
                                                       {"num_attention_heads", 4},
                                                       {"num_key_value_heads", 1},
                                                       {"tie_word_embeddings", true}}
                                            .dump());
  nlohmann::ordered_json header;
  int64_t end = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    const int64_t begin = end;
    end += 2 * shape[0] * (shape.size() > 1 ? shape[1] : 1);
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {begin, end}}};
  };
  const std::string layer = "model.layers.0.";
  add("model.embed_tokens.weight", {kVocab, kHidden});
  for (const char* name : {"input_layernorm.weight", "post_attention_layernorm.weight"})
    add(layer + name, {kHidden});
  for (const char* name : {"q_proj", "o_proj"})
    add(layer + "self_attn." + name + ".weight", {kHidden, kHidden});
  for (const char* name : {"k_proj", "v_proj"})
    add(layer + "self_attn." + name + ".weight", {kHidden / 4, kHidden});
  for (const char* name : {"gate_proj", "up_proj"})
    add(layer + "mlp." + name + ".weight", {kMlp, kHidden});
  add(layer + "mlp.down_proj.weight", {kHidden, kMlp});
  add("model.norm.weight", {kHidden});
  std::string text = header.dump();
  const uint64_t size = text.size();
  write_file(directory / "model.safetensors",
             std::string(reinterpret_cast<const char*>(&size), sizeof size) + text);
  std::filesystem::resize_file(directory / "model.safetensors",
                               sizeof size + size + static_cast<uint64_t>(end));
}

TEST(ContractNote, IsPrintedForALargeModelWithoutAChosenContract) {
  const TemporaryDirectory directory;
  write_large(directory);
  const std::string note =
      directory.path().substr(directory.path().rfind('/') + 1) +
      ": bfloat16 weights run as f32, the default contract; --compute bf16 reads prompts about "
      "twice as fast\n";
  const auto errors = [&](const Args& more) {
    Args args = {"logits", "--digest", "--ids", "1", "--ctx", "64", "-m", directory.path()};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome o = run_stet(args);
    EXPECT_EQ(o.status, 0) << o.err;
    return o.err;
  };
  const bool here =
      std::string(best_kernels().name) == "avx512bf16" && best_kernels().tile_flushed == nullptr;
  EXPECT_EQ(errors({}), here ? note : "");
  EXPECT_EQ(errors({"--compute", "f32"}), "");
  EXPECT_EQ(errors({"--isa", "portable"}), "");
}

}  // namespace
}  // namespace stet::test::contract_note_tests

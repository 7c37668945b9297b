#include "tests/support/small_gguf.hpp"

#include <fmt/format.h>

#include <random>

#include "src/gguf/writer.hpp"
#include "stet/kernels/ggml.hpp"
#include "tests/support/files.hpp"

namespace stet::test {
namespace {

constexpr uint32_t kF32 = 0, kQ4_0 = 2, kQ8_0 = 8, kBf16 = 30;

GgufKeys keys(size_t vocab) {
  GgufKeys m;
  m.text("general.architecture", "llama");
  for (const auto& [name, value] :
       {std::pair("embedding_length", 32), std::pair("block_count", 2),
        std::pair("feed_forward_length", 64), std::pair("context_length", 96),
        std::pair("attention.head_count", 2), std::pair("attention.head_count_kv", 1)})
    m.u32(std::string("llama.") + name, static_cast<uint64_t>(value));
  m.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
  m.f32("llama.rope.freq_base", 10000);
  m.text("llama.rope.scaling.type", "yarn");
  m.f32("llama.rope.scaling.factor", 2);
  m.u32("llama.rope.scaling.original_context_length", 48);
  std::vector<std::string> tokens;
  for (size_t i = 0; i < vocab; ++i)
    tokens.push_back(i < 26 ? std::string(1, static_cast<char>('a' + i)) : fmt::format("a{}", i));
  tokens[30] = "ab", tokens[31] = "abc";
  m.text("tokenizer.ggml.model", "gpt2");
  m.text("tokenizer.ggml.pre", "llama-bpe");
  m.texts("tokenizer.ggml.tokens", tokens);
  m.texts("tokenizer.ggml.merges", {"a b", "ab c"});
  m.u32("tokenizer.ggml.bos_token_id", 1);
  m.u32("tokenizer.ggml.eos_token_id", 2);
  m.text("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}");
  return m;
}

std::vector<GgufDeclared> tensors(int64_t vocab) {
  std::vector<GgufDeclared> all = {{"token_embd.weight", kBf16, {vocab, 32}},
                                   {"output_norm.weight", kF32, {32}}};
  for (int i = 0; i < 2; ++i) {
    const std::string at = fmt::format("blk.{}.", i);
    all.insert(all.end(), {{at + "attn_norm.weight", kF32, {32}},
                           {at + "attn_q.weight", kQ8_0, {32, 32}},
                           {at + "attn_k.weight", kQ4_0, {16, 32}},
                           {at + "attn_v.weight", kQ8_0, {16, 32}},
                           {at + "attn_output.weight", kF32, {32, 32}},
                           {at + "ffn_norm.weight", kF32, {32}},
                           {at + "ffn_gate.weight", kQ8_0, {64, 32}},
                           {at + "ffn_up.weight", kQ8_0, {64, 32}},
                           {at + "ffn_down.weight", kQ4_0, {32, 64}}});
  }
  return all;
}

}  // namespace

std::vector<std::byte> write_small_gguf(const std::string& path) {
  constexpr size_t kVocab = 64;
  const std::vector<GgufDeclared> all = tensors(kVocab);
  GgufWriter writer(path, keys(kVocab), all);
  std::mt19937 random(1);
  for (const GgufDeclared& t : all) {
    std::vector<float> values(t.elements());
    for (float& v : values) v = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 4e3f;
    std::vector<std::byte> bytes(t.bytes());
    quantize_ggml(t.type, values.data(), t.elements() / ggml_type(t.type)->elements, bytes.data());
    writer.write(bytes);
  }
  writer.commit();
  return read_file(path, 1 << 20);
}

}  // namespace stet::test

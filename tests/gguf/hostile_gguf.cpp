// GGUF files whose headers were damaged: an Error of one line, or a model that is used like any
// other; where it is the same model, with the same bits. STET_GGUF_DAMAGED says how many.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>

#include "src/gguf/writer.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/text/tokenizer.hpp"
#include "tests/support/models.hpp"

namespace stet::test::hostile_gguf_tests {
namespace {

constexpr uint32_t kF32 = 0, kQ4_0 = 2, kQ8_0 = 8, kBf16 = 30;

size_t damaged_files() {
  const char* const given = std::getenv("STET_GGUF_DAMAGED");
  return given != nullptr ? std::stoul(given) : 2000;
}

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

std::vector<std::byte> whole_file(const std::string& path) {
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

// What a file gives.
struct Outcome {
  std::string fingerprint;
  std::vector<Digest> bits;  // of logits, keys and values
};

Outcome use(const std::string& path) {
  const auto source = gguf_source(path, false);
  const auto m = Model::load(source, 1);
  const auto tokenizer = Tokenizer::load(*source);
  for (const int32_t id : tokenizer->encode("abc cab zab")) EXPECT_LT(id, m->config().vocab_size);
  SessionOptions o = options(1);
  o.capacity = std::min<int64_t>(m->config().max_positions, 64);
  Session s(m, o);
  s.append(std::vector<int32_t>{0, static_cast<int32_t>(m->config().vocab_size) - 1, 0});
  const StateDigests digests = digests_of(s);
  return {m->fingerprint(), {digests.logits, digests.kv}};
}

std::vector<std::byte> damaged(const std::vector<std::byte>& whole, size_t header,
                               std::mt19937& random) {
  std::vector<std::byte> bytes = whole;
  if (random() % 5 == 0) bytes.resize(random() % bytes.size());
  for (size_t i = 0, n = 1 + random() % 3; i < n && !bytes.empty(); ++i) {
    std::byte& b = bytes[random() % std::min(header, bytes.size())];
    const std::byte choices[] = {std::byte{0}, std::byte{0xFF}, std::byte{0x7F},
                                 b ^ static_cast<std::byte>(1 << random() % 8)};
    b = choices[random() % 4];
  }
  return bytes;
}

TEST(HostileGguf, DamagedHeadersGiveAnErrorOrTheSameBits) {
  const TemporaryDirectory dir;
  const std::string path = dir / "m.gguf";
  const std::vector<std::byte> whole = whole_file(path);
  const Outcome expected = use(path);
  const std::string name = "blk.1.ffn_down.weight",
                    text(reinterpret_cast<const char*>(whole.data()), whole.size());
  const size_t header = text.rfind(name) + name.size() + 32;  // its shape, type and offset
  std::mt19937 random(11);
  size_t refused = 0, same = 0;
  const size_t files = damaged_files();
  for (size_t i = 0; i < files; ++i) {
    const std::vector<std::byte> bytes = damaged(whole, header, random);
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    try {
      const Outcome found = use(path);
      if (found.fingerprint != expected.fingerprint) continue;
      EXPECT_TRUE(found.bits == expected.bits) << "file " << i;
      ++same;
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, files / 4);
  EXPECT_GT(same, files / 100);
  RecordProperty("refused", fmt::format("{} of {}, {} the same model", refused, files, same));
}

TEST(HostileGguf, AFileThatIsWrittenToMeanwhileIsRefused) {
  const TemporaryDirectory dir;
  const std::string path = dir / "m.gguf";
  whole_file(path);
  const auto source = gguf_source(path);
  std::ofstream(path, std::ios::binary | std::ios::app).put(0);
  const std::string error = error_of([&] { Model::load(source, 1); });
  EXPECT_TRUE(error.starts_with("io: " + path + ": size: ")) << error;
}

}  // namespace
}  // namespace stet::test::hostile_gguf_tests

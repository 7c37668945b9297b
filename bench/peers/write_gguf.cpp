// write_gguf: the weights of a checkpoint (Llama, Gemma 3) as a file that llama.cpp reads, so that
// both runtimes can be measured, and compared, on the same numbers. Names, keys and layouts are
// those of llama.cpp's convert_hf_to_gguf.py. Tokens go in and out by id: the vocabulary in it is
// made up, for the peer wants one.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "bench/peers/gguf.hpp"
#include "stet/base/error.hpp"
#include "stet/checkpoint/safetensors.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/config.hpp"
#include "stet/model/matrix.hpp"

namespace stet_peers {
namespace {

using stet::Checkpoint;
using stet::Error;
using stet::ErrorKind;
using stet::ModelConfig;
using stet::Rope;
using stet::TensorView;

constexpr size_t kConfigLimit = 16 << 20;
constexpr uint64_t kChunk = 1 << 20;  // elements converted at a time, or a row if that is longer

struct Options {
  std::string directory, output, type = "f32", head_type;
};

const std::map<std::string, Type> kTypes = {
    {"f32", Type::f32}, {"bf16", Type::bf16}, {"q8_0", Type::q8_0}, {"q4_0", Type::q4_0}};

// A tensor to write and where its values come from.
struct Tensor {
  Declared declared;
  const TensorView* source = nullptr;  // nullptr: `values`
  std::vector<float> values;
  // Not 0: the rows of each head change from (x1..., x2...) to (x1, x2) in turn.
  int64_t head_dim = 0;
  float offset = 0;  // added to each element
};

[[noreturn]] void refuse(const std::string& field, const std::string& expected,
                         const std::string& found) {
  throw Error(ErrorKind::unsupported, "config.json", field, expected, found);
}

// What the peer takes as given and config.json could say otherwise.
void require_supported(const ModelConfig& c) {
  if (c.family != "llama" && c.family != "gemma3")
    refuse("model_type", "llama or gemma3", c.family);
  if (c.attention_bias || c.mlp_bias) refuse("attention_bias, mlp_bias", "false", "true");
  const bool gemma = c.family == "gemma3";
  for (size_t i = 0; i < c.ropes.size(); ++i) {
    const Rope::Scaling scaling = c.ropes[i].scaling;
    if (gemma && scaling != Rope::Scaling::none && (i > 0 || scaling == Rope::Scaling::llama3)) {
      refuse("rope_scaling", "none, or linear for the layers that see all positions", "another");
    }
  }
  if (c.attention_softcap != 0)
    refuse("attn_logit_softcapping", "none", std::to_string(c.attention_softcap));
  const bool per_head = gemma && c.layers == 62;  // the 27B scales by hidden / heads
  const double divisor = static_cast<double>(per_head ? c.hidden_size / c.heads : c.head_dim);
  if (std::fabs(c.attention_scale * std::sqrt(divisor) - 1) > 1e-6) {
    refuse("query_pre_attn_scalar", std::to_string(divisor),
           std::to_string(1 / (c.attention_scale * c.attention_scale)));
  }
}

// Bytes as sentencepiece spells them, without which the peer cannot tokenize, then anything.
std::vector<std::string> vocabulary(int64_t size) {
  std::vector<std::string> tokens;
  for (int64_t i = 0; i < size; ++i)
    tokens.push_back(i < 256 ? fmt::format("<0x{:02X}>", i) : fmt::format("<{}>", i));
  return tokens;
}

Metadata metadata_of(const ModelConfig& c) {
  Metadata m;
  const auto key = [&](const char* name) { return c.family + "." + name; };
  const auto count = [](int64_t n) { return static_cast<uint64_t>(n); };
  m.text("general.architecture", c.family);
  m.text("general.name", c.architecture);
  m.text("tokenizer.ggml.model", "llama");
  m.texts("tokenizer.ggml.tokens", vocabulary(c.vocab_size));
  m.u32(key("vocab_size"), count(c.vocab_size));
  m.u32(key("context_length"), count(c.max_positions));
  m.u32(key("embedding_length"), count(c.hidden_size));
  m.u32(key("block_count"), count(c.layers));
  m.u32(key("feed_forward_length"), count(c.intermediate_size));
  m.u32(key("attention.head_count"), count(c.heads));
  m.u32(key("attention.head_count_kv"), count(c.kv_heads));
  m.u32(key("attention.key_length"), count(c.head_dim));
  m.u32(key("attention.value_length"), count(c.head_dim));
  m.f32(key("attention.layer_norm_rms_epsilon"), c.norm_eps);
  m.u32(key("rope.dimension_count"), count(c.head_dim));
  m.f32(key("rope.freq_base"), c.ropes[0].theta);
  if (c.ropes[0].scaling == Rope::Scaling::linear) {
    m.text(key("rope.scaling.type"), "linear");
    m.f32(key("rope.scaling.factor"), c.ropes[0].factor);
  }
  if (c.logit_softcap != 0) m.f32(key("final_logit_softcapping"), c.logit_softcap);
  std::vector<bool> slides;
  int64_t window = 0;
  for (const int64_t w : c.window) {
    slides.push_back(w != 0);
    window = std::max(window, w);
  }
  if (window != 0) {
    m.u32(key("attention.sliding_window"), count(window));
    m.booleans(key("attention.sliding_window_pattern"), slides);
    m.f32(key("rope.freq_base_swa"), c.ropes[1].theta);
  }
  return m;
}

// The tensors of a checkpoint in the order in which they are written.
class Plan {
 public:
  Plan(const Checkpoint& checkpoint, const ModelConfig& config, Type type, Type head_type)
      : checkpoint_(checkpoint), c_(config), type_(type), head_type_(head_type) {
    for (const char* prefix : {"language_model.model.", "model.language_model.", "model."}) {
      prefix_ = prefix;
      if (checkpoint.find(prefix_ + "embed_tokens.weight") != nullptr) break;
    }
    add_outer();
    for (int64_t i = 0; i < c_.layers; ++i) add_layer(i);
  }

  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  void matrix(const std::string& name, const std::string& source, Type type, int64_t rows,
              int64_t columns, int64_t head_dim = 0) {
    const Declared declared{
        name, type, {static_cast<uint64_t>(rows), static_cast<uint64_t>(columns)}};
    tensors_.push_back({declared, &checkpoint_.require(source, {rows, columns}), {}, head_dim, 0});
  }

  // Gemma's norms multiply by 1 + weight, the peer's by the weight.
  void norm(const std::string& name, const std::string& source, int64_t n) {
    const Declared declared{name, Type::f32, {static_cast<uint64_t>(n)}};
    tensors_.push_back(
        {declared, &checkpoint_.require(source, {n}), {}, 0, c_.family == "gemma3" ? 1.0f : 0.0f});
  }

  void add_outer() {
    matrix("token_embd.weight", prefix_ + "embed_tokens.weight", head_type_, c_.vocab_size,
           c_.hidden_size);
    norm("output_norm.weight", prefix_ + "norm.weight", c_.hidden_size);
    if (!c_.tied_head)
      matrix("output.weight", "lm_head.weight", head_type_, c_.vocab_size, c_.hidden_size);
    if (c_.ropes[0].scaling == Rope::Scaling::llama3) add_rope_divisors();
  }

  // What the peer divides the frequency of each pair by.
  void add_rope_divisors() {
    Rope plain = c_.ropes[0];
    plain.scaling = Rope::Scaling::none;
    const std::vector<float> from = inverse_frequencies(plain, c_.head_dim),
                             to = inverse_frequencies(c_.ropes[0], c_.head_dim);
    std::vector<float> divisors;
    for (size_t i = 0; i < from.size(); ++i) divisors.push_back(from[i] / to[i]);
    tensors_.push_back(
        {{"rope_freqs.weight", Type::f32, {divisors.size()}}, nullptr, divisors, 0, 0});
  }

  void add_layer(int64_t i) {
    const std::string to = "blk." + std::to_string(i) + ".",
                      from = prefix_ + "layers." + std::to_string(i) + ".";
    const int64_t hidden = c_.hidden_size, inner = c_.intermediate_size, q = c_.heads * c_.head_dim,
                  kv = c_.kv_heads * c_.head_dim;
    const bool gemma = c_.family == "gemma3";
    const auto linear = [&](const char* name, const char* source, int64_t rows, int64_t columns,
                            int64_t head_dim = 0) {
      matrix(to + name + ".weight", from + source + ".weight", type_, rows, columns, head_dim);
    };
    const auto scale = [&](const char* name, const char* source, int64_t n) {
      norm(to + name + ".weight", from + source + ".weight", n);
    };
    // The peer rotates neighbours in Llama's heads, and the halves of a head in Gemma's, as the
    // checkpoints have it.
    const int64_t interleaved = gemma ? 0 : c_.head_dim;
    scale("attn_norm", "input_layernorm", hidden);
    linear("attn_q", "self_attn.q_proj", q, hidden, interleaved);
    linear("attn_k", "self_attn.k_proj", kv, hidden, interleaved);
    linear("attn_v", "self_attn.v_proj", kv, hidden);
    linear("attn_output", "self_attn.o_proj", hidden, q);
    if (gemma) {
      scale("attn_q_norm", "self_attn.q_norm", c_.head_dim);
      scale("attn_k_norm", "self_attn.k_norm", c_.head_dim);
      scale("post_attention_norm", "post_attention_layernorm", hidden);
      scale("post_ffw_norm", "post_feedforward_layernorm", hidden);
    }
    scale("ffn_norm", gemma ? "pre_feedforward_layernorm" : "post_attention_layernorm", hidden);
    linear("ffn_gate", "mlp.gate_proj", inner, hidden);
    linear("ffn_up", "mlp.up_proj", inner, hidden);
    linear("ffn_down", "mlp.down_proj", hidden, inner);
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& c_;
  const Type type_, head_type_;
  std::string prefix_;
  std::vector<Tensor> tensors_;
};

// Elements [first, first + out.size()) of a tensor, widened.
void widen(const TensorView& view, uint64_t first, std::span<float> out) {
  const size_t size = stet::dtype_size(view.dtype);
  const std::byte* from = view.bytes.data() + first * size;
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    if (view.dtype == stet::DType::f32) {
      std::memcpy(&out[i], from + i * 4, 4);
    } else {
      std::memcpy(&bits, from + i * 2, 2);
      out[i] = view.dtype == stet::DType::bf16 ? stet::widen_bf16(bits) : stet::widen_f16(bits);
    }
  }
}

// Which row of the source is row `row` of the file.
uint64_t source_row(uint64_t row, int64_t head_dim) {
  if (head_dim == 0) return row;
  const uint64_t d = static_cast<uint64_t>(head_dim), within = row % d;
  return row - within + within % 2 * (d / 2) + within / 2;
}

void write_tensor(const Checkpoint& checkpoint, const Tensor& t, Writer& writer) {
  if (t.source == nullptr) return writer.write(t.values);
  const std::vector<uint64_t>& shape = t.declared.shape;
  const uint64_t columns = shape.back(), rows = t.declared.elements() / columns,
                 at_once = std::max<uint64_t>(1, kChunk / columns);
  std::vector<float> values;
  for (uint64_t row = 0; row < rows; row += at_once) {
    const uint64_t n = std::min(at_once, rows - row);
    values.resize(n * columns);
    for (uint64_t i = 0; i < n; ++i) {
      widen(*t.source, source_row(row + i, t.head_dim) * columns,
            std::span(values).subspan(i * columns, columns));
    }
    for (float& v : values) {
      v += t.offset;
      if (!std::isfinite(v))
        throw Error(ErrorKind::format, checkpoint.file_of(t.source->name), t.source->name,
                    "finite weights", "others");
    }
    writer.write(values);
  }
  checkpoint.drop(*t.source);
}

void run(const Options& o) {
  const std::string config_path = o.directory + "/config.json";
  const ModelConfig config =
      stet::parse_model_config(stet::read_text_file(config_path, kConfigLimit), config_path);
  require_supported(config);
  const Checkpoint checkpoint = Checkpoint::open(o.directory);
  const std::string head_type = !o.head_type.empty() ? o.head_type
                                : o.type == "q4_0"   ? "q8_0"
                                                     : o.type;
  const Plan plan(checkpoint, config, kTypes.at(o.type), kTypes.at(head_type));
  std::vector<Declared> declared;
  for (const Tensor& t : plan.tensors()) declared.push_back(t.declared);
  Writer writer(o.output, metadata_of(config), declared);
  for (const Tensor& t : plan.tensors()) write_tensor(checkpoint, t, writer);
  writer.commit();
}

}  // namespace
}  // namespace stet_peers

int main(int argc, char** argv) {
  stet_peers::Options o;
  CLI::App app("Writes the weights of a checkpoint (Llama, Gemma 3) as GGUF.", "write_gguf");
  app.add_option("DIR", o.directory, "checkpoint directory")->required();
  app.add_option("-o,--output", o.output, "file to write")->required();
  const auto types = CLI::IsMember({"f32", "bf16", "q8_0", "q4_0"});
  app.add_option("--type", o.type, "of the matrices: f32, bf16, q8_0 or q4_0")
      ->capture_default_str()
      ->check(types);
  app.add_option("--head-type", o.head_type,
                 "of the embedding and the head (default: q8_0 for q4_0, else --type)")
      ->check(types);
  try {
    app.parse(argc, argv);
    stet_peers::run(o);
  } catch (const CLI::ParseError& e) {
    const int status = app.exit(e);
    return status == 0 ? 0 : 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "write_gguf: %s\n", e.what());
    return 1;
  }
}

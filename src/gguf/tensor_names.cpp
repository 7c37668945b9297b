// The names of tensors: llama.cpp's, and those under which checkpoints were published.
#include <fmt/format.h>

#include <charconv>

#include "src/gguf/names.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

enum class Change { none, queries, keys, norm, transposed };

struct Rename {
  const char *from, *to;
  Change change = Change::none;
};

constexpr Rename kLlamaLayer[] = {{"attn_q", "self_attn.q_proj", Change::queries},
                                  {"attn_k", "self_attn.k_proj", Change::keys},
                                  {"attn_v", "self_attn.v_proj"},
                                  {"attn_output", "self_attn.o_proj"},
                                  {"ffn_gate", "mlp.gate_proj"},
                                  {"ffn_up", "mlp.up_proj"},
                                  {"ffn_down", "mlp.down_proj"},
                                  {"attn_norm", "input_layernorm", Change::norm},
                                  {"attn_q_norm", "self_attn.q_norm", Change::norm},
                                  {"attn_k_norm", "self_attn.k_norm", Change::norm},
                                  {"post_attention_norm", "post_attention_layernorm", Change::norm},
                                  {"post_ffw_norm", "post_feedforward_layernorm", Change::norm}};

constexpr Rename kGpt2Layer[] = {{"attn_norm", "ln_1"},
                                 {"attn_qkv", "attn.c_attn", Change::transposed},
                                 {"attn_output", "attn.c_proj", Change::transposed},
                                 {"ffn_norm", "ln_2"},
                                 {"ffn_up", "mlp.c_fc", Change::transposed},
                                 {"ffn_down", "mlp.c_proj", Change::transposed}};

constexpr Rename kLlamaEnds[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                 {"output_norm.weight", "model.norm.weight", Change::norm},
                                 {"output.weight", "lm_head.weight"}};

constexpr Rename kGpt2Ends[] = {{"token_embd.weight", "wte.weight"},
                                {"position_embd.weight", "wpe.weight"},
                                {"output_norm.weight", "ln_f.weight"},
                                {"output_norm.bias", "ln_f.bias"},
                                {"output.weight", "lm_head.weight"}};

const Rename* find_in(std::span<const Rename> names, std::string_view from) {
  for (const Rename& n : names) {
    if (from == n.from) return &n;
  }
  return nullptr;
}

}  // namespace

// Of a tensor "blk.N.STEM.KIND".
std::optional<GgufNames::Published> GgufNames::of_layer(const std::string& at,
                                                        const std::string& stem,
                                                        const std::string& kind,
                                                        const GgufTensor& t) const {
  const bool gpt2 = architecture_.layout == GgufLayout::gpt2;
  constexpr Rename kAfterAttention = {"ffn_norm", "post_attention_layernorm", Change::norm},
                   kBeforeMlp = {"ffn_norm", "pre_feedforward_layernorm", Change::norm};
  const Rename* n = gpt2 ? find_in(kGpt2Layer, stem) : find_in(kLlamaLayer, stem);
  if (!gpt2 && stem == "ffn_norm")
    n = architecture_.layout == GgufLayout::four_norms ? &kBeforeMlp : &kAfterAttention;
  if (n == nullptr || (kind != "weight" && (kind != "bias" || n->change == Change::norm)))
    return std::nullopt;
  Published p{at + n->to + "." + kind};
  p.less_one = n->change == Change::norm && architecture_.gemma;
  p.transposed = n->change == Change::transposed && kind == "weight";
  if (architecture_.rotated && (n->change == Change::queries || n->change == Change::keys)) {
    p.rotated_heads = n->change == Change::queries ? heads_ : kv_heads_;
    if (t.shape.front() % (2 * p.rotated_heads) != 0)
      keys_.fail(t.name, "rows of whole heads", std::to_string(t.shape.front()));
  }
  if (p.transposed && t.shape.size() != 2) keys_.fail(t.name, "a matrix", "another shape");
  return p;
}

std::optional<GgufNames::Published> GgufNames::published(const GgufTensor& t) const {
  if (t.name == "rope_freqs.weight" || (t.name == "output.weight" && tied())) return std::nullopt;
  const bool gpt2 = architecture_.layout == GgufLayout::gpt2;
  const Rename* const end = gpt2 ? find_in(kGpt2Ends, t.name) : find_in(kLlamaEnds, t.name);
  if (end != nullptr)
    return Published{end->to, 0, end->change == Change::norm && architecture_.gemma};
  if (t.name.starts_with("blk.")) {
    int64_t layer = 0;
    const char *const begin = t.name.data() + 4, *const last = t.name.data() + t.name.size();
    const auto [stop, error] = std::from_chars(begin, last, layer);
    const std::string rest(stop, last);
    const size_t dot = rest.rfind('.');
    if (error == std::errc() && dot != 0 && dot != std::string::npos && rest[0] == '.') {
      const std::string at = fmt::format("{}.{}.", gpt2 ? "h" : "model.layers", layer);
      if (const auto p = of_layer(at, rest.substr(1, dot - 1), rest.substr(dot + 1), t)) return p;
    }
  }
  throw Error(ErrorKind::unsupported, keys_.path(), printable(t.name, 80),
              std::string("a tensor of architecture ") + architecture_.name, "another");
}

}  // namespace stet

// Translates tensor names between llama.cpp's and the published ones.
#include <fmt/format.h>

#include "src/gguf/names.hpp"
#include "src/gguf/part_names.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"

namespace stet {
namespace {

// bare: published without an ending. bare_bias: published without an ending, and a bias in GGUF.
// tiled: rows or columns may belong to tiled heads of values.
enum class Change { none, queries, keys, norm, transposed, fused, bare, bare_bias, tiled };

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

constexpr Rename kAfterAttention = {"ffn_norm", "post_attention_layernorm", Change::norm},
                 kBeforeMlp = {"ffn_norm", "pre_feedforward_layernorm", Change::norm};

// The names in layers of Gemma 4 and Gemma 3n that Llama does not have.
constexpr Rename kGemma4Layer[] = {
    {"ffn_norm", "pre_feedforward_layernorm", Change::norm},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2", Change::norm},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1", Change::norm},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2", Change::norm},
    {"inp_gate", "per_layer_input_gate"},
    {"proj", "per_layer_projection"},
    {"post_norm", "post_per_layer_input_norm", Change::norm}};
constexpr Rename kGemma3nLayer[] = {{"ffn_norm", "pre_feedforward_layernorm", Change::norm},
                                    {"inp_gate", "per_layer_input_gate"},
                                    {"proj", "per_layer_projection"},
                                    {"post_norm", "post_per_layer_input_norm", Change::norm},
                                    {"altup_correct_coef", "altup.correction_coefs"},
                                    {"altup_predict_coef", "altup.prediction_coefs"},
                                    {"altup_router", "altup.modality_router"},
                                    {"altup_router_norm", "altup.router_norm", Change::norm},
                                    {"laurel_l", "laurel.linear_left"},
                                    {"laurel_r", "laurel.linear_right"},
                                    {"laurel_post_norm", "laurel.post_laurel_norm", Change::norm}};

constexpr Rename kPhi3Layer[] = {{"attn_qkv", "self_attn.qkv_proj"},
                                 {"attn_output", "self_attn.o_proj"},
                                 {"ffn_up", "mlp.gate_up_proj"},
                                 {"ffn_down", "mlp.down_proj"},
                                 {"attn_norm", "input_layernorm", Change::norm},
                                 kAfterAttention};

constexpr Rename kGpt2Layer[] = {{"attn_norm", "ln_1"},
                                 {"attn_qkv", "attn.c_attn", Change::transposed},
                                 {"attn_output", "attn.c_proj", Change::transposed},
                                 {"ffn_norm", "ln_2"},
                                 {"ffn_up", "mlp.c_fc", Change::transposed},
                                 {"ffn_down", "mlp.c_proj", Change::transposed}};

constexpr Rename kGptNeoXLayer[] = {
    {"attn_norm", "input_layernorm"},   {"attn_qkv", "attention.query_key_value", Change::fused},
    {"attn_output", "attention.dense"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_up", "mlp.dense_h_to_4h"},    {"ffn_down", "mlp.dense_4h_to_h"}};

constexpr Rename kGptOssLayer[] = {
    {"attn_q", "self_attn.q_proj", Change::queries},
    {"attn_k", "self_attn.k_proj", Change::keys},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_norm", "input_layernorm", Change::norm},
    {"post_attention_norm", "post_attention_layernorm", Change::norm}};
// Tensors of a layer whose published names have no ending.
struct WholeName {
  GgufLayout layout;
  std::string_view from, to;
};
constexpr WholeName kWholeNames[] = {
    {GgufLayout::gpt_oss, "attn_sinks.weight", "self_attn.sinks"},
    {GgufLayout::gemma4, "layer_output_scale.weight", "layer_scalar"},
    {GgufLayout::gemma4, "ffn_gate_inp.scale", "router.scale"},
    {GgufLayout::gemma4, "ffn_down_exps.scale", "router.per_expert_scale"},
    {GgufLayout::gemma3n, "altup_correct_scale.weight", "altup.correct_output_scale"}};

constexpr Rename kQwenHybridLayer[] = {
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm", Change::norm},
    {"attn_k_norm", "self_attn.k_norm", Change::norm},
    {"attn_qkv", "linear_attn.in_proj_qkv", Change::tiled},
    {"attn_gate", "linear_attn.in_proj_z", Change::tiled},
    {"ssm_in", "linear_attn.in_proj_qkvz"},
    {"ssm_ba", "linear_attn.in_proj_ba"},
    {"ssm_beta", "linear_attn.in_proj_b", Change::tiled},
    {"ssm_alpha", "linear_attn.in_proj_a", Change::tiled},
    {"ssm_conv1d", "linear_attn.conv1d", Change::tiled},
    {"ssm_dt", "linear_attn.dt_bias", Change::bare_bias},
    {"ssm_a", "linear_attn.A", Change::bare},
    {"ssm_norm", "linear_attn.norm"},
    {"ssm_out", "linear_attn.out_proj", Change::tiled},
    {"attn_norm", "input_layernorm", Change::norm},
    {"post_attention_norm", "post_attention_layernorm", Change::norm},
    {"ffn_norm", "post_attention_layernorm", Change::norm},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"}};

constexpr Rename kLfm2Layer[] = {{"attn_q", "self_attn.q_proj"},
                                 {"attn_k", "self_attn.k_proj"},
                                 {"attn_v", "self_attn.v_proj"},
                                 {"attn_output", "self_attn.out_proj"},
                                 {"attn_q_norm", "self_attn.q_layernorm", Change::norm},
                                 {"attn_k_norm", "self_attn.k_layernorm", Change::norm},
                                 {"shortconv.conv", "conv.conv"},
                                 {"shortconv.in_proj", "conv.in_proj"},
                                 {"shortconv.out_proj", "conv.out_proj"},
                                 {"attn_norm", "operator_norm", Change::norm},
                                 {"ffn_norm", "ffn_norm", Change::norm},
                                 {"ffn_gate", "feed_forward.w1"},
                                 {"ffn_down", "feed_forward.w2"},
                                 {"ffn_up", "feed_forward.w3"},
                                 {"exp_probs_b", "feed_forward.expert_bias", Change::bare_bias}};

constexpr Rename kGraniteHybridLayer[] = {{"attn_q", "self_attn.q_proj", Change::queries},
                                          {"attn_k", "self_attn.k_proj", Change::keys},
                                          {"attn_v", "self_attn.v_proj"},
                                          {"attn_output", "self_attn.o_proj"},
                                          {"ssm_in", "mamba.in_proj"},
                                          {"ssm_conv1d", "mamba.conv1d"},
                                          {"ssm_dt", "mamba.dt_bias", Change::bare_bias},
                                          {"ssm_a", "mamba.A", Change::bare},
                                          {"ssm_d", "mamba.D", Change::bare},
                                          {"ssm_norm", "mamba.norm"},
                                          {"ssm_out", "mamba.out_proj"},
                                          {"attn_norm", "input_layernorm", Change::norm},
                                          {"ffn_norm", "post_attention_layernorm", Change::norm},
                                          {"ffn_gate", "mlp.gate_proj"},
                                          {"ffn_up", "mlp.up_proj"},
                                          {"ffn_down", "mlp.down_proj"},
                                          {"ffn_gate_shexp", "mlp.gate_proj"},
                                          {"ffn_up_shexp", "mlp.up_proj"},
                                          {"ffn_down_shexp", "mlp.down_proj"}};

constexpr Rename kLlamaEnds[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                 {"output_norm.weight", "model.norm.weight", Change::norm},
                                 {"output.weight", "lm_head.weight"}};

constexpr Rename kLfm2Ends[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"token_embd_norm.weight", "model.embedding_norm.weight", Change::norm},
    {"output.weight", "lm_head.weight"}};

constexpr Rename kGemma4Ends[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight", Change::norm},
    {"output.weight", "lm_head.weight"},
    {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
    {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
    {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight", Change::norm}};

constexpr Rename kGpt2Ends[] = {{"token_embd.weight", "wte.weight"},
                                {"position_embd.weight", "wpe.weight"},
                                {"output_norm.weight", "ln_f.weight"},
                                {"output_norm.bias", "ln_f.bias"},
                                {"output.weight", "lm_head.weight"}};

constexpr Rename kGptNeoXEnds[] = {{"token_embd.weight", "gpt_neox.embed_in.weight"},
                                   {"output_norm.weight", "gpt_neox.final_layer_norm.weight"},
                                   {"output_norm.bias", "gpt_neox.final_layer_norm.bias"},
                                   {"output.weight", "embed_out.weight"}};

struct Names {
  std::span<const Rename> ends, layer;
  const char *prefix, *layers;  // prefix of published names; what layers add to it
};

const Names& names_of(GgufLayout layout) {
  static constexpr Names kLlama = {kLlamaEnds, kLlamaLayer, "model.", "layers"},
                         kGemma = {kGemma4Ends, kLlamaLayer, "model.", "layers"},
                         kPhi3 = {kLlamaEnds, kPhi3Layer, "model.", "layers"},
                         kGptOss = {kLlamaEnds, kGptOssLayer, "model.", "layers"},
                         kQwenHybrid = {kLlamaEnds, kQwenHybridLayer, "model.", "layers"},
                         kLfm2 = {kLfm2Ends, kLfm2Layer, "model.", "layers"},
                         kGraniteHybrid = {kLlamaEnds, kGraniteHybridLayer, "model.", "layers"},
                         kGpt2 = {kGpt2Ends, kGpt2Layer, "", "h"},
                         kGptNeoX = {kGptNeoXEnds, kGptNeoXLayer, "gpt_neox.", "layers"};
  if (layout == GgufLayout::qwen_hybrid) return kQwenHybrid;
  if (layout == GgufLayout::lfm2) return kLfm2;
  if (layout == GgufLayout::granite_hybrid) return kGraniteHybrid;
  return layout == GgufLayout::gpt2       ? kGpt2
         : layout == GgufLayout::gpt_neox ? kGptNeoX
         : layout == GgufLayout::phi3     ? kPhi3
         : layout == GgufLayout::gpt_oss  ? kGptOss
         : layout == GgufLayout::gemma4   ? kGemma
         : layout == GgufLayout::gemma3n  ? kGemma
                                          : kLlama;
}

const Rename* find_in(std::span<const Rename> names, std::string_view name,
                      const char* Rename::*side) {
  for (const Rename& n : names) {
    if (name == n.*side) return &n;
  }
  return nullptr;
}

// Finds a tensor of a layer by its name in llama.cpp or by its published name.
const Rename* layer_name(GgufLayout layout, std::string_view name, const char* Rename::*side) {
  for (const auto& [of, rename] : {std::pair(GgufLayout::llama, &kAfterAttention),
                                   std::pair(GgufLayout::four_norms, &kBeforeMlp)}) {
    if (layout == of && name == rename->*side) return rename;
  }
  const std::span<const Rename> more = layout == GgufLayout::gemma4    ? kGemma4Layer
                                       : layout == GgufLayout::gemma3n ? kGemma3nLayer
                                                                       : std::span<const Rename>();
  if (const Rename* const own = find_in(more, name, side)) return own;
  return find_in(names_of(layout).layer, name, side);
}

const WholeName* find_whole(GgufLayout layout, std::string_view name,
                            std::string_view WholeName::*side) {
  for (const WholeName& n : kWholeNames) {
    if (layout == n.layout && name == n.*side) return &n;
  }
  return nullptr;
}

bool fits(const Rename& n, GgufLayout layout, const std::string& kind) {
  if (n.change == Change::bare_bias) return kind == "bias";
  const bool norms = n.change == Change::norm || layout == GgufLayout::phi3;
  return kind == "weight" || (kind == "bias" && !norms);
}

}  // namespace

// Returns the published form of a tensor named "blk.N.STEM.KIND".
std::optional<GgufNames::Published> GgufNames::of_layer(const std::string& at,
                                                        const std::string& stem,
                                                        const std::string& kind,
                                                        const GgufTensor& t) const {
  const GgufExpertNames* const experts = experts_of(architecture_);
  const bool gpt_oss = architecture_.layout == GgufLayout::gpt_oss;
  if (experts != nullptr && stem == kGgufRouter &&
      (kind == "weight" || (gpt_oss && kind == "bias")))
    return Published{at + std::string(experts->router) + "." + kind};
  if (const WholeName* const whole =
          find_whole(architecture_.layout, stem + "." + kind, &WholeName::from))
    return Published{at + std::string(whole->to)};
  const Rename* const n = layer_name(architecture_.layout, stem, &Rename::from);
  if (n == nullptr || !fits(*n, architecture_.layout, kind)) return std::nullopt;
  const bool bare = n->change == Change::bare || n->change == Change::bare_bias;
  Published p{at + n->to + (bare ? "" : "." + kind)};
  p.less_one = n->change == Change::norm && architecture_.adds_one();
  if (n->change == Change::tiled || bare) tile(stem, p);
  p.transposed = n->change == Change::transposed && kind == "weight";
  if (architecture_.rotated && (n->change == Change::queries || n->change == Change::keys)) {
    p.rotated_heads = n->change == Change::queries ? heads_ : kv_heads_;
    if (t.shape.front() % (2 * p.rotated_heads) != 0)
      keys_.fail(t.name, "rows of whole heads", std::to_string(t.shape.front()));
  }
  if (n->change == Change::fused) {
    p.fused_heads = heads_;
    if (t.shape.front() % (3 * heads_) != 0)
      keys_.fail(t.name, "rows of whole heads", std::to_string(t.shape.front()));
  }
  if (p.transposed && t.shape.size() != 2) keys_.fail(t.name, "a matrix", "another shape");
  return p;
}

// Notes how qwen35 and qwen35moe order heads of values, where there are more of them than heads of
// keys.
void GgufNames::tile(const std::string& stem, Published& p) const {
  const std::string name = architecture_.name;
  if (name != "qwen35" && name != "qwen35moe") return;
  const int64_t keys = need("ssm.group_count", kMaxHeads),
                values = need("ssm.time_step_rank", kMaxHeads);
  if (keys == values || values % keys != 0) return;
  const int64_t width = need("ssm.inner_size", kMaxSize) / values;
  const bool single =
      stem == "ssm_beta" || stem == "ssm_alpha" || stem == "ssm_a" || stem == "ssm_dt";
  p.tiled_groups = keys;
  p.head_width = single ? 1 : width;
  p.tiled_columns = stem == "ssm_out";
  if (stem == "attn_qkv" || stem == "ssm_conv1d")
    p.first = 2 * keys * need("ssm.state_size", kMaxHeadDim);
}

bool GgufNames::in_model(const GgufTensor& t) const {
  const auto layer = numbered(t.name, "blk");
  if (!layer) return true;
  const int64_t blocks = need("block_count", kMaxLayers);
  if (layer->first >= blocks)
    keys_.fail(printable(t.name, 80),
               fmt::format("a block below {}, {}", key("block_count"), blocks),
               std::to_string(layer->first));
  return architecture_.layout != GgufLayout::qwen_hybrid ||
         layer->first <
             blocks - keys_.integer(key("nextn_predict_layers"), 0, kMaxLayers).value_or(0);
}

std::optional<GgufNames::Published> GgufNames::published(const GgufTensor& t) const {
  const bool long_factors =
      t.name == "rope_factors_long.weight" || t.name == "rope_factors_short.weight";
  if ((t.name == "rope_freqs.weight" && architecture_.layout != GgufLayout::gpt2) ||
      (long_factors && architecture_.layout == GgufLayout::phi3) ||
      (t.name == "output.weight" && tied()))
    return std::nullopt;
  const Names& names = names_of(architecture_.layout);
  if (const Rename* const end = find_in(names.ends, t.name, &Rename::from))
    return Published{end->to, 0, end->change == Change::norm && architecture_.adds_one()};
  if (const auto layer = numbered(t.name, "blk")) {
    const auto& [number, rest] = *layer;
    if (rest == "ssm_a" || rest == "ssm_d") {
      const std::string at = fmt::format("{}{}.{}.", names.prefix, names.layers, number);
      if (const auto p = of_layer(at, rest, "weight", t)) return p;
    }
    const size_t dot = rest.rfind('.');
    if (dot != std::string::npos) {
      const std::string at = fmt::format("{}{}.{}.", names.prefix, names.layers, number);
      if (const auto p = of_layer(at, rest.substr(0, dot), rest.substr(dot + 1), t)) return p;
    }
  }
  throw Error(ErrorKind::unsupported, keys_.path(), printable(t.name, 80), "",
              std::string("the architecture ") + architecture_.name + " has no such tensor");
}

std::optional<GgufStored> stored_as(const GgufArchitecture& a, const std::string& canonical) {
  const Names& names = names_of(a.layout);
  for (const std::string& published : {names.prefix + canonical, canonical}) {
    if (const Rename* const end = find_in(names.ends, published, &Rename::to))
      return GgufStored{end->from, {}, end->change == Change::norm && a.adds_one()};
  }
  const auto layer = numbered(canonical, names.layers);
  const WholeName* const whole =
      layer ? find_whole(a.layout, layer->second, &WholeName::to) : nullptr;
  if (whole != nullptr)
    return GgufStored{fmt::format("blk.{}.{}", layer->first, whole->from), {}, false};
  if (!layer) return std::nullopt;
  if (a.layout == GgufLayout::qwen_hybrid && layer->second == "self_attn.q_gate.weight")
    return GgufStored{fmt::format("blk.{}.attn_q.weight", layer->first), {}, false, true};
  for (const char part : {'b', 'a'}) {
    if (std::string_view(a.name) == "qwen3next" &&
        layer->second == fmt::format("linear_attn.in_proj_{}.weight", part))
      return GgufStored{fmt::format("blk.{}.ssm_ba.weight", layer->first), {}, false, part == 'a'};
  }
  if (const Rename* const bare = find_in(names.layer, layer->second, &Rename::to);
      bare != nullptr && (bare->change == Change::bare || bare->change == Change::bare_bias))
    return GgufStored{fmt::format("blk.{}.{}{}", layer->first, bare->from,
                                  bare->change == Change::bare ? "" : ".bias"),
                      {},
                      false};
  const size_t dot = layer->second.rfind('.');
  if (dot == std::string::npos) return std::nullopt;
  const std::string kind = layer->second.substr(dot + 1);
  const GgufExpertNames* const experts = experts_of(a);
  if (experts != nullptr && layer->second == std::string(experts->router) + "." + kind)
    return GgufStored{fmt::format("blk.{}.{}.{}", layer->first, kGgufRouter, kind), {}, false};
  const Rename* const n = layer_name(a.layout, layer->second.substr(0, dot), &Rename::to);
  if (n == nullptr || !fits(*n, a.layout, kind)) return std::nullopt;
  GgufStored stored{fmt::format("blk.{}.{}.{}", layer->first, n->from, kind),
                    {},
                    n->change == Change::norm && a.adds_one()};
  using Rows = GgufStored::Rows;
  if (a.rotated && n->change == Change::queries) stored.rows = Rows::queries;
  if (a.rotated && n->change == Change::keys) stored.rows = Rows::keys;
  return stored;
}

}  // namespace stet

// Translates tensor names between llama.cpp's and the published ones.
#include <fmt/format.h>

#include <charconv>

#include "src/gguf/names.hpp"
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

// The names in layers of Gemma 4 that Llama does not have. `bare`: published without ".weight".
constexpr Rename kGemma4Layer[] = {{"ffn_norm", "pre_feedforward_layernorm", Change::norm},
                                   {"inp_gate", "per_layer_input_gate"},
                                   {"proj", "per_layer_projection"},
                                   {"post_norm", "post_per_layer_input_norm", Change::norm},
                                   {"layer_output_scale", "layer_scalar", Change::bare}};

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

// The one tensor of a layer that was published without an ending.
constexpr const char *kSinks = "attn_sinks", *kPublishedSinks = "self_attn.sinks";

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
                         kGemma4 = {kGemma4Ends, kLlamaLayer, "model.", "layers"},
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
         : layout == GgufLayout::gemma4   ? kGemma4
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
  if (layout == GgufLayout::gemma4) {
    if (const Rename* const own = find_in(kGemma4Layer, name, side)) return own;
  }
  return find_in(names_of(layout).layer, name, side);
}

// Published names of experts, by GGUF architecture: the router, what precedes an expert's number,
// and what follows it.
struct GgufExpertNames {
  std::string_view architecture, router, experts, gate, up, down;
};
constexpr GgufExpertNames kExperts[] = {
    {"llama", "block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"},
    {"granitemoe", "block_sparse_moe.router.layer", "block_sparse_moe.experts", "gate_proj",
     "up_proj", "down_proj"},
    {"gpt-oss", "mlp.router", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"qwen3moe", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"olmoe", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"qwen3next", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"qwen35moe", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"lfm2moe", "feed_forward.gate", "feed_forward.experts", "w1", "w3", "w2"},
    {"granitehybrid", "block_sparse_moe.router.layer", "block_sparse_moe.experts", "gate_proj",
     "up_proj", "down_proj"}};

const GgufExpertNames* experts_of(const GgufArchitecture& a) {
  for (const GgufExpertNames& n : kExperts) {
    if (n.architecture == a.name) return &n;
  }
  return nullptr;
}

// llama.cpp's name of a tensor of experts, and the expert's matrix in it. If there are two, the rows
// of the second follow those of the first.
struct GgufExpertTensor {
  std::string_view stem;
  std::string_view GgufExpertNames::*first;
  std::string_view GgufExpertNames::*second;
};
constexpr GgufExpertTensor kExpertTensors[] = {
    {"ffn_gate", &GgufExpertNames::gate, nullptr},
    {"ffn_up", &GgufExpertNames::up, nullptr},
    {"ffn_down", &GgufExpertNames::down, nullptr},
    {"ffn_gate_up", &GgufExpertNames::gate, &GgufExpertNames::up}};

constexpr std::string_view kRouter = "ffn_gate_inp";

// Splits "STEM.3.REST" into the number and REST.
std::optional<std::pair<int64_t, std::string>> numbered(const std::string& name,
                                                        const std::string& stem) {
  if (!name.starts_with(stem + ".")) return std::nullopt;
  int64_t number = 0;
  const char *const begin = name.data() + stem.size() + 1, *const last = name.data() + name.size();
  const auto [stop, error] = std::from_chars(begin, last, number);
  if (error != std::errc() || stop == last || *stop != '.') return std::nullopt;
  return std::pair(number, std::string(stop + 1, last));
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
  if (experts != nullptr && stem == kRouter && (kind == "weight" || (gpt_oss && kind == "bias")))
    return Published{at + std::string(experts->router) + "." + kind};
  if (gpt_oss && stem == kSinks && kind == "weight") return Published{at + kPublishedSinks};
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

std::optional<GgufNames::Published> GgufNames::published(const GgufTensor& t) const {
  if (t.name == "rope_freqs.weight" || t.name == "rope_factors_long.weight" ||
      t.name == "rope_factors_short.weight" || (t.name == "output.weight" && tied()))
    return std::nullopt;
  const Names& names = names_of(architecture_.layout);
  if (const Rename* const end = find_in(names.ends, t.name, &Rename::from))
    return Published{end->to, 0, end->change == Change::norm && architecture_.adds_one()};
  if (const auto layer = numbered(t.name, "blk")) {
    const auto& [number, rest] = *layer;
    // Blocks for speculation are no part of the model.
    if (architecture_.layout == GgufLayout::qwen_hybrid &&
        number >= need("block_count", kMaxLayers) -
                      keys_.integer(key("nextn_predict_layers"), 0, kMaxLayers).value_or(0))
      return std::nullopt;
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

std::vector<std::pair<GgufTensor, GgufNames::Published>> GgufNames::experts(
    const GgufTensor& t) const {
  std::vector<std::pair<GgufTensor, Published>> parts;
  const GgufExpertNames* const names = experts_of(architecture_);
  const auto layer = names == nullptr ? std::nullopt : numbered(t.name, "blk");
  if (!layer) return parts;
  const Names& all = names_of(architecture_.layout);
  const std::string at =
      fmt::format("{}{}.{}.{}.", all.prefix, all.layers, layer->first, names->experts);
  for (const GgufExpertTensor& e : kExpertTensors) {
    const std::string stem(e.stem);
    const int64_t matrices = e.second == nullptr ? 1 : 2;
    const auto one = e.second == nullptr ? numbered(layer->second, stem) : std::nullopt;
    if (one && one->second == "weight") {  // as the first files of Mixtral have it
      parts.emplace_back(t,
                         Published{fmt::format("{}{}.{}.weight", at, one->first, names->*e.first)});
      return parts;
    }
    for (const char* const kind : {"weight", "bias"}) {
      const size_t dimensions = kind == std::string("weight") ? 3 : 2;
      if (layer->second != stem + "_exps." + kind) continue;
      if (t.shape.size() != dimensions || t.shape[1] % matrices != 0)
        keys_.fail(t.name, fmt::format("{} dimensions", dimensions),
                   std::to_string(t.shape.size()));
      const auto count = static_cast<size_t>(t.shape[0] * matrices);
      const size_t bytes = t.bytes.size() / count;
      for (size_t i = 0; i < count; ++i) {
        GgufTensor part = t;
        part.shape.erase(part.shape.begin());
        part.shape[0] /= matrices;
        part.bytes = t.bytes.subspan(i * bytes, bytes);
        const auto matrix = i % static_cast<size_t>(matrices) == 0 ? e.first : e.second;
        parts.emplace_back(std::move(part), Published{fmt::format("{}{}.{}.{}", at,
                                                                  i / static_cast<size_t>(matrices),
                                                                  names->*matrix, kind)});
      }
      return parts;
    }
  }
  return parts;
}

std::optional<GgufStoredExpert> stored_expert(const GgufArchitecture& a,
                                              const std::string& canonical) {
  const GgufExpertNames* const names = experts_of(a);
  const auto layer = names == nullptr ? std::nullopt : numbered(canonical, "layers");
  const auto expert = layer ? numbered(layer->second, std::string(names->experts)) : std::nullopt;
  if (!expert) return std::nullopt;
  for (const GgufExpertTensor& e : kExpertTensors) {
    for (const char* const kind : {"weight", "bias"}) {
      if (e.second == nullptr && expert->second == std::string(names->*e.first) + "." + kind)
        return GgufStoredExpert{fmt::format("blk.{}.{}_exps.{}", layer->first, e.stem, kind),
                                expert->first};
    }
  }
  return std::nullopt;
}

std::optional<GgufStored> stored_as(const GgufArchitecture& a, const std::string& canonical) {
  const Names& names = names_of(a.layout);
  for (const std::string& published : {names.prefix + canonical, canonical}) {
    if (const Rename* const end = find_in(names.ends, published, &Rename::to))
      return GgufStored{end->from, {}, end->change == Change::norm && a.adds_one()};
  }
  const auto layer = numbered(canonical, names.layers);
  if (layer && layer->second == "layer_scalar" && a.layout == GgufLayout::gemma4)
    return GgufStored{fmt::format("blk.{}.layer_output_scale.weight", layer->first), {}, false};
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
    return GgufStored{fmt::format("blk.{}.{}.{}", layer->first, kRouter, kind), {}, false};
  if (layer->second == kPublishedSinks)
    return GgufStored{fmt::format("blk.{}.{}.weight", layer->first, kSinks), {}, false};
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

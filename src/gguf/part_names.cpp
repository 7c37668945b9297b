#include "src/gguf/part_names.hpp"

#include <fmt/format.h>

#include <vector>

namespace stet {
namespace {

constexpr GgufExpertNames kGgufExperts[] = {
    {"llama", "block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"},
    {"granitemoe", "block_sparse_moe.router.layer", "block_sparse_moe.experts", "gate_proj",
     "up_proj", "down_proj"},
    {"gpt-oss", "mlp.router", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"gemma4", "router.proj", "experts", "gate_proj", "up_proj", "down_proj", true},
    {"qwen3moe", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"olmoe", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"qwen3next", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"qwen35moe", "mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"lfm2moe", "feed_forward.gate", "feed_forward.experts", "w1", "w3", "w2"},
    {"granitehybrid", "block_sparse_moe.router.layer", "block_sparse_moe.experts", "gate_proj",
     "up_proj", "down_proj"}};

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

// Matrices outside of layers that llama.cpp stores one after another in one tensor.
struct GgufStackName {
  GgufLayout layout;
  std::string from, to;  // the names of the whole and, before ".N.weight", of each
};
const GgufStackName kGgufStacks[] = {
    {GgufLayout::gemma3n, "altup_proj.weight", "altup_projections"},
    {GgufLayout::gemma3n, "altup_unembd_proj.weight", "altup_unembed_projections"}};

// Splits a tensor into parts: one for each index of its outermost dimension, or `matrices` of equal
// size for each.
std::vector<GgufTensor> split_parts(const GgufTensor& t, int64_t matrices) {
  std::vector<GgufTensor> parts;
  const auto count = static_cast<size_t>(t.shape[0] * matrices);
  const size_t bytes = t.bytes.size() / count;
  for (size_t i = 0; i < count; ++i) {
    GgufTensor part = t;
    part.shape.erase(part.shape.begin());
    part.shape[0] /= matrices;
    part.bytes = t.bytes.subspan(i * bytes, bytes);
    parts.push_back(std::move(part));
  }
  return parts;
}

void require_dimensions(const Gguf& keys, const GgufTensor& t, size_t dimensions,
                        int64_t matrices) {
  if (t.shape.size() != dimensions)
    keys.fail(t.name, fmt::format("{} dimensions", dimensions), std::to_string(t.shape.size()));
  if (t.shape[1] % matrices != 0)
    keys.fail(t.name, "as many gates as ups", fmt::format("{} rows", t.shape[1]));
}

}  // namespace

const GgufExpertNames* experts_of(const GgufArchitecture& a) {
  for (const GgufExpertNames& n : kGgufExperts) {
    if (n.architecture == a.name) return &n;
  }
  return nullptr;
}

std::vector<std::pair<GgufTensor, GgufNames::Published>> GgufNames::parts_of(
    const GgufTensor& t) const {
  for (const GgufStackName& stack : kGgufStacks) {
    if (architecture_.layout != stack.layout || t.name != stack.from) continue;
    require_dimensions(keys_, t, 3, 1);
    std::vector<std::pair<GgufTensor, Published>> parts;
    for (GgufTensor& part : split_parts(t, 1)) {
      std::string name = fmt::format("model.{}.{}.weight", stack.to, parts.size());
      parts.emplace_back(std::move(part), Published{std::move(name)});
    }
    return parts;
  }
  return experts_of_layer(t);
}

std::vector<std::pair<GgufTensor, GgufNames::Published>> GgufNames::experts_of_layer(
    const GgufTensor& t) const {
  std::vector<std::pair<GgufTensor, Published>> parts;
  const GgufExpertNames* const names = experts_of(architecture_);
  const auto layer = names == nullptr ? std::nullopt : numbered(t.name, "blk");
  if (!layer) return parts;
  const std::string at = fmt::format("model.layers.{}.{}.", layer->first, names->experts);
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
      if (layer->second != stem + "_exps." + kind) continue;
      require_dimensions(keys_, t, kind == std::string("weight") ? 3 : 2, matrices);
      for (GgufTensor& part : split_parts(t, matrices)) {
        const size_t i = parts.size(), expert = i / static_cast<size_t>(matrices);
        const auto matrix = i % static_cast<size_t>(matrices) == 0 ? e.first : e.second;
        parts.emplace_back(std::move(part),
                           Published{fmt::format("{}{}.{}.{}", at, expert, names->*matrix, kind)});
      }
      return parts;
    }
  }
  return parts;
}

std::optional<GgufStoredPart> stored_part(const GgufArchitecture& a, const std::string& canonical) {
  for (const GgufStackName& stack : kGgufStacks) {
    const auto one = a.layout == stack.layout ? numbered(canonical, stack.to) : std::nullopt;
    if (one && one->second == "weight") return GgufStoredPart{stack.from, one->first};
  }
  const GgufExpertNames* const names = experts_of(a);
  const auto layer = names == nullptr ? std::nullopt : numbered(canonical, "layers");
  const auto expert = layer ? numbered(layer->second, std::string(names->experts)) : std::nullopt;
  if (!expert) return std::nullopt;
  const auto is = [&](std::string_view matrix, const std::string& kind) {
    return expert->second == std::string(matrix) + "." + kind;
  };
  for (const GgufExpertTensor& e : kExpertTensors) {
    const bool fits = e.first == &GgufExpertNames::down || (e.second != nullptr) == names->together;
    for (const char* const kind : {"weight", "bias"}) {
      const bool second = e.second != nullptr && is(names->*e.second, kind);
      if (!fits || !(second || is(names->*e.first, kind))) continue;
      return GgufStoredPart{fmt::format("blk.{}.{}_exps.{}", layer->first, e.stem, kind),
                            expert->first, second ? 1 : 0, e.second == nullptr ? 1 : 2};
    }
  }
  return std::nullopt;
}

}  // namespace stet

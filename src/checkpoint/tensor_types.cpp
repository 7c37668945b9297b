#include "src/checkpoint/tensor_types.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "stet/base/sha256.hpp"
#include "stet/model/contract.hpp"
#include "stet/model/matrix.hpp"

namespace stet {
namespace {

// Endings of published names and GGUF's names for them.
constexpr std::pair<const char*, const char*> kKinds[] = {{"embed_tokens", "token_embd"},
                                                          {"wte", "token_embd"},
                                                          {"lm_head", "output"},
                                                          {"q_proj", "attn_q"},
                                                          {"k_proj", "attn_k"},
                                                          {"v_proj", "attn_v"},
                                                          {"qkv_proj", "attn_qkv"},
                                                          {"o_proj", "attn_output"},
                                                          {"gate_up_proj", "ffn_up"},
                                                          {"w1", "ffn_gate"},
                                                          {"w3", "ffn_up"},
                                                          {"w2", "ffn_down"},
                                                          {"gate_proj", "ffn_gate"},
                                                          {"up_proj", "ffn_up"},
                                                          {"down_proj", "ffn_down"},
                                                          {"attn.c_attn", "attn_qkv"},
                                                          {"attn.c_proj", "attn_output"},
                                                          {"mlp.c_fc", "ffn_up"},
                                                          {"mlp.c_proj", "ffn_down"}};

// Returns ggml's name of a type that the kernels compute with. Q5_0 computes as Q8_0 does; it only
// takes fewer bytes.
std::string type_name(WeightType type) {
  const std::string own = weight_type_name(type);
  return type == WeightType::q8 || type == WeightType::q4 ? own + "_0" : own;
}
WeightType computed(WeightType type) { return type == WeightType::q5 ? WeightType::q8 : type; }

struct Name {
  std::string layer;  // "blk.3.", or empty
  std::string kind;
};

std::string in_alphabet(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool known = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    if (!known && c != '.') c = '_';
  }
  return text;
}

// Splits names such as "layers.3.mlp.down_proj.weight" and "h.3.mlp.c_fc.weight".
Name name_of(std::string published) {
  const std::string end = ".weight";
  if (published.ends_with(end)) published.resize(published.size() - end.size());
  Name name;
  for (const std::string layers : {"layers.", "h."}) {
    const size_t dot = published.find('.', layers.size());
    if (!published.starts_with(layers) || dot == std::string::npos) continue;
    name.layer = "blk." + published.substr(layers.size(), dot + 1 - layers.size());
    published.erase(0, dot + 1);
    break;
  }
  name.kind = published;
  for (const auto& [from, to] : kKinds) {
    const std::string whole = from;
    if (published == whole || published.ends_with("." + whole)) name.kind = to;
  }
  if (published.find("experts.") != std::string::npos) name.kind += "_exps";
  return {in_alphabet(name.layer), in_alphabet(name.kind)};
}

}  // namespace

std::string types_text(std::vector<std::pair<std::string, WeightType>> types) {
  for (auto& tensor : types) tensor.second = computed(tensor.second);
  std::map<WeightType, size_t> counts;
  std::map<std::string, std::set<WeightType>> of_kind;
  for (const auto& [published, type] : types) {
    ++counts[type];
    of_kind[name_of(published).kind].insert(type);
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  const WeightType most = std::max_element(counts.begin(), counts.end(), fewer)->first;
  std::map<std::string, std::string> entries = {{"*", type_name(most)}};
  for (const auto& [published, type] : types) {
    const Name name = name_of(published);
    if (type == most) continue;
    const bool all = of_kind[name.kind].size() == 1;
    entries[all ? name.kind : name.layer + name.kind] = type_name(type);
  }
  ContractName name{contract_name(Contract::ggml), {entries.begin(), entries.end()}};
  const std::string text = name.text();
  if (text.size() <= kMaxContractName) return text;
  const std::string digest = sha256_text(sha256_of(std::as_bytes(std::span(text))));
  name.types = {{"*", "sha256-" + digest.substr(digest.find(':') + 1)}};
  return name.text();
}

}  // namespace stet

// Numeric contracts. Together with weights, tokens, positions and visibility, a contract determines
// every bit. docs/contracts-and-identity.md describes their versions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stet {

// The arithmetic of linear layers (kernels.hpp). Everything else is the same under all contracts.
//   f32       weights widened exactly, float32 activations
//   f32_blas  the same, with OpenBLAS for several rows; bits depend on shapes and threads
//   bf16      activations rounded to bfloat16, denormals flushed
//   q8, q4    integer weights and activations in blocks of 32
//   ggml      each tensor in its own type, as stored in GGUF files
enum class Contract : uint8_t { f32, f32_blas, bf16, q8, q4, ggml };
constexpr Contract kContracts[] = {Contract::f32, Contract::f32_blas, Contract::bf16,
                                   Contract::q8,  Contract::q4,       Contract::ggml};
// Returns "f32", "f32-blas", "bf16", "q8", "q4" or "ggml". Name and version identify the bits,
// except for ggml, whose full name lists types: contract_name(model, contract).
const char* contract_name(Contract contract);
std::optional<Contract> parse_contract(const std::string& name);  // accepts full names, too
constexpr int kContractVersion = 1;
// Returns true if the same tokens always give the same keys and values: for all but f32_blas.
bool is_replayable(const std::string& contract);

// A contract's name in text form, which every state carries:
//
//   name    = rule [ "(" entry { "," entry } ")" ]
//   entry   = tensors "=" type         each value of tensors once, sorted bytewise
//   rule, tensors, type = one or more of a-z 0-9 _ - . *
//
// The list is for rules under which tensors have different types: "ggml(*=q4_k,ffn_down=q6_k)".
struct ContractName {
  std::string rule;
  std::vector<std::pair<std::string, std::string>> types;  // (tensors, type)

  std::string text() const;
  bool operator==(const ContractName&) const = default;
};
constexpr size_t kMaxContractName = 4096;  // bytes
std::optional<ContractName> parse_contract_name(const std::string& text);

inline const char* contract_name(Contract contract) {
  switch (contract) {
    case Contract::f32:
      return "f32";
    case Contract::f32_blas:
      return "f32-blas";
    case Contract::bf16:
      return "bf16";
    case Contract::q8:
      return "q8";
    case Contract::q4:
      return "q4";
    case Contract::ggml:
      return "ggml";
  }
  return "";
}

inline std::optional<Contract> parse_contract(const std::string& name) {
  for (const Contract contract : kContracts) {
    if (name == contract_name(contract)) return contract;
  }
  const auto typed = parse_contract_name(name);
  if (typed && typed->rule == contract_name(Contract::ggml)) return Contract::ggml;
  return std::nullopt;
}

inline bool is_replayable(const std::string& contract) {
  return contract != contract_name(Contract::f32_blas);
}

inline std::string ContractName::text() const {
  std::string text = rule;
  for (size_t i = 0; i < types.size(); ++i)
    text += (i == 0 ? "(" : ",") + types[i].first + "=" + types[i].second;
  return types.empty() ? text : text + ")";
}

namespace detail {

// Returns the longest word at the front of `rest` and removes it.
inline std::string take_word(std::string_view& rest) {
  const size_t end =
      std::min(rest.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-.*"), rest.size());
  const std::string word(rest.substr(0, end));
  rest.remove_prefix(end);
  return word;
}

inline bool take(std::string_view& rest, char c) {
  if (!rest.starts_with(c)) return false;
  rest.remove_prefix(1);
  return true;
}

}  // namespace detail

inline std::optional<ContractName> parse_contract_name(const std::string& text) {
  std::string_view rest = text;
  ContractName name;
  name.rule = detail::take_word(rest);
  if (name.rule.empty() || text.size() > kMaxContractName) return std::nullopt;
  if (rest.empty()) return name;
  for (char before = '('; detail::take(rest, before); before = ',') {
    const std::string tensors = detail::take_word(rest),
                      type = detail::take(rest, '=') ? detail::take_word(rest) : "";
    if (tensors.empty() || type.empty() ||
        (!name.types.empty() && tensors <= name.types.back().first))
      return std::nullopt;
    name.types.emplace_back(tensors, type);
  }
  if (rest != ")") return std::nullopt;
  return name;
}

}  // namespace stet

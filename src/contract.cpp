#include "stet/model/contract.hpp"

#include <algorithm>
#include <string_view>

namespace stet {

const char* contract_name(Contract contract) {
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
  }
  return "";
}

std::optional<Contract> contract_of(const std::string& name) {
  for (const Contract contract : kContracts) {
    if (name == contract_name(contract)) return contract;
  }
  return std::nullopt;
}

bool is_replayable(const std::string& contract) {
  return contract != contract_name(Contract::f32_blas);
}

std::string ContractName::text() const {
  std::string text = rule;
  for (size_t i = 0; i < types.size(); ++i)
    text += (i == 0 ? "(" : ",") + types[i].first + "=" + types[i].second;
  return types.empty() ? text : text + ")";
}

namespace {

// Takes a word from the front.
std::string take_word(std::string_view& rest) {
  const size_t end =
      std::min(rest.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-.*"), rest.size());
  const std::string word(rest.substr(0, end));
  rest.remove_prefix(end);
  return word;
}

bool take(std::string_view& rest, char c) {
  if (!rest.starts_with(c)) return false;
  rest.remove_prefix(1);
  return true;
}

}  // namespace

std::optional<ContractName> parse_contract_name(const std::string& text) {
  std::string_view rest = text;
  ContractName name;
  name.rule = take_word(rest);
  if (name.rule.empty() || text.size() > kMaxContractName) return std::nullopt;
  if (rest.empty()) return name;
  for (char before = '('; take(rest, before); before = ',') {
    const std::string tensors = take_word(rest), type = take(rest, '=') ? take_word(rest) : "";
    if (tensors.empty() || type.empty() ||
        (!name.types.empty() && tensors <= name.types.back().first))
      return std::nullopt;
    name.types.emplace_back(tensors, type);
  }
  if (rest != ")") return std::nullopt;
  return name;
}

}  // namespace stet

// Names of matrices that GGUF files store together in one tensor: those of all experts of a layer, and
// others one after another.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "src/gguf/names.hpp"

namespace stet {

// Published names of experts: the router, what precedes an expert's number, and what follows it.
struct GgufExpertNames {
  std::string_view architecture, router, experts, gate, up, down;
  bool together = false;  // gates and ups are written as one tensor
};
// Returns the names in models of an architecture; null if it has no experts.
const GgufExpertNames* experts_of(const GgufArchitecture& architecture);

// llama.cpp's name of routers, without an ending.
inline constexpr std::string_view kGgufRouter = "ffn_gate_inp";

// Splits "STEM.3.REST" into the number and REST.
inline std::optional<std::pair<int64_t, std::string>> numbered(const std::string& name,
                                                               const std::string& stem) {
  if (!name.starts_with(stem + ".")) return std::nullopt;
  int64_t number = 0;
  const char *const begin = name.data() + stem.size() + 1, *const last = name.data() + name.size();
  const auto [stop, error] = std::from_chars(begin, last, number);
  if (error != std::errc() || stop == last || *stop != '.') return std::nullopt;
  return std::pair(number, std::string(stop + 1, last));
}

}  // namespace stet

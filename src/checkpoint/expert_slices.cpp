#include "src/checkpoint/expert_slices.hpp"
#include "src/checkpoint/gpt_oss_tensors.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "stet/base/error.hpp"

namespace stet {
namespace {

constexpr int64_t kMostSlices = 4096;  // maximal number of experts in one tensor

// A tensor of all experts of a layer. `ending` is the end of its name. Each expert's slice is named
// `experts` + number + one of `matrices`. Two matrices share a tensor: rows of the first, then rows
// of the second.
struct Stack {
  std::string_view ending, experts;
  std::array<std::string_view, 2> matrices;
};
constexpr Stack kStacks[] = {
    {".block_sparse_moe.experts.gate_up_proj", ".block_sparse_moe.experts.", {"w1", "w3"}},
    {".block_sparse_moe.experts.down_proj", ".block_sparse_moe.experts.", {"w2", ""}},
    {".experts.gate_up_proj", ".experts.", {"gate_proj", "up_proj"}},
    {".experts.gate_proj", ".experts.", {"gate_proj", ""}},
    {".experts.up_proj", ".experts.", {"up_proj", ""}},
    {".experts.down_proj", ".experts.", {"down_proj", ""}},
    {".block_sparse_moe.input_linear.weight",
     ".block_sparse_moe.experts.",
     {"gate_proj", "up_proj"}},
    {".block_sparse_moe.output_linear.weight", ".block_sparse_moe.experts.", {"down_proj", ""}}};

const Stack* stack_of(const TensorView& t) {
  if (t.shape.size() != 3 || t.shape[0] < 1 || t.shape[0] > kMostSlices ||
      !is_weight_dtype(t.dtype))
    return nullptr;
  for (const Stack& s : kStacks) {
    const int64_t matrices = s.matrices[1].empty() ? 1 : 2;
    if (t.name.ends_with(s.ending) && t.shape[1] % matrices == 0) return &s;
  }
  return nullptr;
}

void add_slices(const TensorView& t, const Stack& s, std::vector<TensorView>& to) {
  const int64_t matrices = s.matrices[1].empty() ? 1 : 2, rows = t.shape[1] / matrices;
  const size_t bytes = t.bytes.size() / static_cast<size_t>(t.shape[0] * matrices);
  const std::string before =
      t.name.substr(0, t.name.size() - s.ending.size()) + std::string(s.experts);
  for (int64_t i = 0; i < t.shape[0] * matrices; ++i) {
    TensorView slice = t;
    slice.name = before + std::to_string(i / matrices) + "." +
                 std::string(s.matrices[static_cast<size_t>(i % matrices)]) + ".weight";
    slice.shape = {rows, t.shape[2]};
    slice.bytes = t.bytes.subspan(static_cast<size_t>(i) * bytes, bytes);
    slice.stack = t.name;
    to.push_back(std::move(slice));
  }
}

}  // namespace

std::vector<std::string> stacks_of(const std::string& expert) {
  std::vector<std::string> names;
  for (const Stack& s : kStacks) {
    const size_t at = expert.rfind(s.experts);
    const bool is = std::ranges::any_of(s.matrices, [&](std::string_view matrix) {
      return !matrix.empty() && expert.ends_with("." + std::string(matrix) + ".weight");
    });
    if (is && at != std::string::npos)
      names.push_back(expert.substr(0, at) + std::string(s.ending));
  }
  return names;
}

std::vector<TensorView> split_experts(std::vector<TensorView> tensors) {
  if (std::ranges::any_of(tensors, [](const TensorView& t) { return is_of_gpt_oss(t.name); }))
    return tensors;  // gpt-oss stacks its experts in another way
  std::vector<TensorView> all;
  for (TensorView& t : tensors) {
    if (const Stack* const s = stack_of(t))
      add_slices(t, *s, all);
    else
      all.push_back(std::move(t));
  }
  return all;
}

bool is_of_expert(const std::string& name) { return name.find(".experts.") != std::string::npos; }

void require_experts(const ModelConfig& config, const std::string& file) {
  if (config.experts.count > 0) return;
  throw Error(ErrorKind::unsupported, file, "", "",
              "MXFP4 is for matrices of experts, and this model has none; take q4 or a K type");
}

}  // namespace stet

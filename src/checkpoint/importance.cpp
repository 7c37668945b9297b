#include "stet/model/importance.hpp"

#include <charconv>
#include <optional>
#include <string_view>

namespace stet {
namespace {

struct MatrixInput {
  std::string_view part;  // part of a matrix's name
  Point point;
};
constexpr MatrixInput kInputs[] = {{".q_proj.", Point::ln1},
                                   {".k_proj.", Point::ln1},
                                   {".v_proj.", Point::ln1},
                                   {".qkv_proj.", Point::ln1},
                                   {".c_attn.", Point::ln1},
                                   {".query_key_value.", Point::ln1},
                                   {".q_gate.", Point::ln1},
                                   {".in_proj", Point::ln1},
                                   {".o_proj.", Point::z},
                                   {"self_attn.out_proj.", Point::z},
                                   {"attn.c_proj.", Point::z},
                                   {"attention.dense.", Point::z},
                                   {".gate_proj.", Point::ln2},
                                   {".up_proj.", Point::ln2},
                                   {".gate_up_proj.", Point::ln2},
                                   {".w1.", Point::ln2},
                                   {".w3.", Point::ln2},
                                   {".w2.", Point::mlp_post},
                                   {".c_fc.", Point::ln2},
                                   {".dense_h_to_4h.", Point::ln2},
                                   {".down_proj.", Point::mlp_post},
                                   {"mlp.c_proj.", Point::mlp_post},
                                   {".dense_4h_to_h.", Point::mlp_post}};

bool is_head(const ModelConfig& c, std::string_view name) {
  if (name == "lm_head.weight" || name == "embed_out.weight") return true;
  return c.tied_head &&
         (name == "embed_tokens.weight" || name == "wte.weight" || name == "embed_in.weight");
}

// Returns the point whose values a matrix reads: `p`, or the residual stream before attention or MLP
// if the family has no norm there.
Point there(const ModelConfig& c, Point p) {
  if (has_point(c, p) || (p != Point::ln1 && p != Point::ln2)) return p;
  return p == Point::ln1 ? Point::resid_pre : Point::resid_mid;
}

// Returns the number that follows `before` in the name.
std::optional<int64_t> number_after(std::string_view name, std::string_view before) {
  const size_t at = name.find(before);
  if (at == std::string_view::npos) return std::nullopt;
  int64_t number = -1;
  const auto [end, error] =
      std::from_chars(name.data() + at + before.size(), name.data() + name.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  return number;
}

// Returns the point, the layer and the expert of a matrix's input.
std::optional<std::tuple<Point, int64_t, int64_t>> input_of(const ModelConfig& c,
                                                            std::string_view name) {
  if (!name.ends_with(".weight")) return std::nullopt;
  if (is_head(c, name)) return std::tuple(Point::ln_final, 0, 0);
  const auto layer = number_after(name, "."), expert = number_after(name, "experts.");
  for (const MatrixInput& input : kInputs) {
    if (!layer || name.find(input.part) == std::string_view::npos) continue;
    if (!expert) return std::tuple(there(c, input.point), *layer, 0);
    if (input.point == Point::mlp_post) return std::tuple(Point::expert_post, *layer, *expert);
    if (has_point(c, Point::expert_in)) return std::tuple(Point::expert_in, *layer, 0);
    return std::tuple(there(c, input.point), *layer, 0);
  }
  return std::nullopt;
}

}  // namespace

std::vector<PointAt> Importance::points() const {
  std::vector<PointAt> all;
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    for (const Point p : {Point::ln1, Point::z, Point::ln2, Point::mlp_post, Point::expert_indices,
                          Point::expert_in, Point::expert_post}) {
      const PointAt at = {there(config_, p), layer};
      if (has_point(config_, at)) all.push_back(at);
    }
  }
  all.push_back({Point::ln_final, 0});
  return all;
}

void Importance::add(const PointAt& at, Rows rows) {
  const auto each = static_cast<size_t>(config_.experts.chosen);
  if (at.point == Point::expert_indices) chosen_.clear();
  for (size_t i = 0; i < rows.count; ++i) {
    const float* const x = rows.row(i);
    if (at.point == Point::expert_indices) {
      chosen_.insert(chosen_.end(), x, x + each);
    } else if (at.point == Point::expert_post) {
      const size_t width = rows.width / each;
      for (size_t k = 0; k < each; ++k)
        add_squares({at.point, at.layer, chosen_.at(i * each + k)}, x + k * width, width);
    } else {
      add_squares({at.point, at.layer, 0}, x, rows.width);
    }
  }
}

void Importance::add_squares(const Input& input, const float* x, size_t width) {
  std::vector<double>& squares = squares_[input];
  squares.resize(width);
  for (size_t c = 0; c < width; ++c)
    squares[c] += static_cast<double>(x[c]) * static_cast<double>(x[c]);
}

std::vector<float> Importance::of(const std::string& name) const {
  const auto input = input_of(config_, name);
  const auto found = input ? squares_.find(*input) : squares_.end();
  if (found == squares_.end()) return {};
  const std::vector<double>& squares = found->second;
  double total = 0;
  for (const double s : squares) total += s;
  const double mean = total / static_cast<double>(squares.size());
  if (!(mean > 0)) return {};
  // An input that was zero throughout keeps a small weight.
  constexpr double kLeast = 1e-4;
  std::vector<float> importance;
  for (const double s : squares)
    importance.push_back(static_cast<float>((s / mean + kLeast) / (1 + kLeast)));
  return importance;
}

}  // namespace stet

#include "stet/model/importance.hpp"

#include <charconv>
#include <optional>
#include <string_view>

namespace stet {
namespace {

struct Input {
  std::string_view part;  // part of a matrix's name
  Point point;
};
constexpr Input kInputs[] = {{".q_proj.", Point::ln1},
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
  if (has_point(c, p) || p == Point::mlp_post) return p;
  return p == Point::ln1 ? Point::resid_pre : Point::resid_mid;
}

// Returns the layer's number, which follows the first dot.
std::optional<int64_t> layer_of(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  int64_t layer = -1;
  const auto [end, error] =
      std::from_chars(name.data() + dot + 1, name.data() + name.size(), layer);
  if (error != std::errc() || layer < 0) return std::nullopt;
  return layer;
}

// Returns true for matrices of experts whose inputs no point shows. These are the down projection
// of each expert and, in Gemma 4, all of them: its experts read another norm than the MLP.
bool is_unmeasured(const ModelConfig& c, std::string_view name) {
  return name.find("experts.") != std::string_view::npos &&
         (c.family == "gemma4" || name.find(".down_proj.") != std::string_view::npos ||
          name.find(".w2.") != std::string_view::npos);
}

std::optional<PointAt> input_of(const ModelConfig& c, std::string_view name) {
  if (!name.ends_with(".weight") || is_unmeasured(c, name)) return std::nullopt;
  if (is_head(c, name)) return PointAt{Point::ln_final, 0};
  const auto layer = layer_of(name);
  for (const Input& input : kInputs) {
    if (layer && name.find(input.part) != std::string_view::npos)
      return PointAt{there(c, input.point), *layer};
  }
  return std::nullopt;
}

}  // namespace

std::vector<PointAt> Importance::points() const {
  std::vector<PointAt> all;
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    for (const Point p : {Point::ln1, Point::z, Point::ln2, Point::mlp_post}) {
      const PointAt at = {there(config_, p), layer};
      if (has_point(config_, at)) all.push_back(at);  // experts, for one, have no mlp_post
    }
  }
  all.push_back({Point::ln_final, 0});
  return all;
}

void Importance::add(const PointAt& at, Rows rows) {
  std::vector<double>& squares = squares_[{at.point, at.layer}];
  squares.resize(rows.width);
  for (size_t i = 0; i < rows.count; ++i) {
    const float* const x = rows.row(i);
    for (size_t c = 0; c < rows.width; ++c)
      squares[c] += static_cast<double>(x[c]) * static_cast<double>(x[c]);
  }
}

std::vector<float> Importance::of(const std::string& name) const {
  const auto at = input_of(config_, name);
  const auto found = at ? squares_.find({at->point, at->layer}) : squares_.end();
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

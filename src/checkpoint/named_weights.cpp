#include "stet/model/named_weights.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "stet/base/error.hpp"
#include "stet/kernels/steer.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

// Tells how a named weight's numbers are arranged in the rows it was loaded as.
enum class WeightLayout : uint8_t {
  plain,      // unchanged
  turned,     // transposed
  heads_out,  // the rows of each head, transposed: queries, keys and values
  heads_in,   // the columns of each head, transposed: the output matrix
};

// A TransformerLens name and the rows of a tensor that it stands for.
struct WeightSource {
  std::string name;
  const LoadedWeight* tensor;
  WeightLayout layout;
  int64_t first, rows;  // rows of the tensor, or elements of a vector
  int64_t heads;        // of a layout by head or a vector of heads; otherwise 0
  float scale = 1;
};

// One part of a tensor that stacks several. 0 `rows` means all.
struct WeightPart {
  const char* name;
  WeightLayout layout;
  int64_t rows = 0, heads = 0;
};

class WeightNames {
 public:
  explicit WeightNames(const Model& model) : config_(model.config()) {
    for (const LoadedWeight& w : model.loaded()) {
      if (w.name.ends_with("post_feedforward_layernorm.weight")) norms_behind_ = true;
    }
    const LoadedWeight* table = nullptr;
    for (const LoadedWeight& w : model.loaded()) {
      if (is_embedding(w.name)) table = &w;
      if (is_head(w.name))
        head_ = &w;
      else
        add(w);
    }
    if (head_ == nullptr) head_ = table;
    if (head_ != nullptr)
      all_.push_back({"unembed.W_U", head_, WeightLayout::turned, 0, head_->rows, 0});
  }
  const std::vector<WeightSource>& all() const { return all_; }

 private:
  static bool is_embedding(std::string_view name) {
    return name == "embed_tokens.weight" || name == "wte.weight" || name == "embed_in.weight";
  }
  static bool is_head(std::string_view name) {
    return name == "lm_head.weight" || name == "embed_out.weight";
  }

  void add(const LoadedWeight& w) {
    if (is_embedding(w.name)) {
      all_.push_back({"embed.W_E", &w, WeightLayout::plain, 0, w.rows, 0,
                      static_cast<float>(config_.embedding_scale)});
      return;
    }
    if (const auto name = end_name(w.name))
      return all_.push_back({*name, &w, WeightLayout::plain, 0, extent(w), 0});
    std::string_view rest = w.name;
    for (const std::string_view stem : {"layers.", "h."}) {
      if (!rest.starts_with(stem)) continue;
      rest.remove_prefix(stem.size());
      const size_t dot = rest.find('.');
      if (dot == std::string_view::npos) break;
      const std::string at = "blocks." + std::string(rest.substr(0, dot)) + ".";
      const int64_t layer = std::atoll(std::string(rest.substr(0, dot)).c_str());
      if (layer < config_.layers && add_of_layer(w, at, rest.substr(dot + 1), config_.layer(layer)))
        return;
      break;
    }
    all_.push_back({w.name, &w, WeightLayout::plain, 0, extent(w), 0});
  }

  static std::optional<std::string> end_name(std::string_view name) {
    if (name == "wpe.weight") return "pos_embed.W_pos";
    if (name == "norm.weight" || name == "ln_f.weight" || name == "final_layer_norm.weight" ||
        name == "embedding_norm.weight")
      return "ln_final.w";
    if (name == "ln_f.bias" || name == "final_layer_norm.bias") return "ln_final.b";
    return {};
  }

  // Adds the parts of a tensor whose name within its layer is `rest`. Returns false if
  // TransformerLens has no name for it.
  bool add_of_layer(const LoadedWeight& w, const std::string& at, std::string_view rest,
                    const LayerShape& layer) {
    const bool bias = rest.ends_with(".bias");
    if (!bias && !rest.ends_with(".weight")) return false;
    rest.remove_suffix(bias ? 5 : 7);
    if (const auto norm = norm_name(rest)) {
      all_.push_back({at + *norm + (bias ? ".b" : ".w"), &w, WeightLayout::plain, 0, extent(w), 0});
      return true;
    }
    const std::vector<WeightPart> parts = parts_of(rest, layer);
    int64_t first = 0;
    for (const WeightPart& part : parts) {
      const int64_t rows = part.rows > 0 ? part.rows : extent(w) - first;
      std::string name = part.name;
      name.insert(name.find('.') + 1, bias ? "b_" : "W_");
      // The output matrix's bias is added to the residual stream, so it has no heads.
      const int64_t heads = bias && part.layout == WeightLayout::heads_in ? 0 : part.heads;
      all_.push_back({at + name, &w, part.layout, first, rows, heads});
      first += rows;
    }
    return !parts.empty();
  }

  std::optional<std::string> norm_name(std::string_view name) const {
    if (name == "input_layernorm" || name == "ln_1" || name == "operator_norm") return "ln1";
    if (name == "ln_2" || name == "pre_feedforward_layernorm" || name == "ffn_norm") return "ln2";
    if (name == "post_attention_layernorm") return norms_behind_ ? "ln1_post" : "ln2";
    if (name == "post_feedforward_layernorm") return "ln2_post";
    if (name == "self_attn.q_norm" || name == "self_attn.q_layernorm") return "attn.q_norm";
    if (name == "self_attn.k_norm" || name == "self_attn.k_layernorm") return "attn.k_norm";
    return {};
  }

  static std::vector<WeightPart> parts_of(std::string_view name, const LayerShape& layer) {
    const int64_t heads = layer.heads, kv = layer.kv_heads;
    const WeightPart q = {"attn.Q", WeightLayout::heads_out, layer.queries(), heads},
                     k = {"attn.K", WeightLayout::heads_out, layer.keys(), kv},
                     v = {"attn.V", WeightLayout::heads_out, layer.values(), kv},
                     o = {"attn.O", WeightLayout::heads_in, 0, heads},
                     in = {"mlp.in", WeightLayout::turned},
                     gate = {"mlp.gate", WeightLayout::turned},
                     out = {"mlp.out", WeightLayout::turned};
    if (name == "self_attn.q_proj") return {q};
    if (name == "self_attn.k_proj") return {k};
    if (name == "self_attn.v_proj") return {v};
    if (name == "self_attn.qkv_proj" || name == "attn.c_attn" ||
        name == "attention.query_key_value")
      return {q, k, v};
    if (name == "self_attn.o_proj" || name == "self_attn.out_proj" || name == "attn.c_proj" ||
        name == "attention.dense")
      return {o};
    if (name == "mlp.gate_proj" || name == "feed_forward.w1") return {gate};
    if (name == "mlp.up_proj" || name == "mlp.c_fc" || name == "mlp.dense_h_to_4h" ||
        name == "feed_forward.w3")
      return {in};
    if (name == "mlp.gate_up_proj") return {{gate.name, gate.layout, layer.intermediate}, in};
    if (name == "mlp.down_proj" || name == "mlp.c_proj" || name == "mlp.dense_4h_to_h" ||
        name == "feed_forward.w2")
      return {out};
    return {};
  }

  // Returns the number of rows of a matrix, or of elements of a vector.
  static int64_t extent(const LoadedWeight& w) { return is_vector(w) ? w.columns : w.rows; }
  static bool is_vector(const LoadedWeight& w) { return !w.vector.empty(); }

  const ModelConfig& config_;
  bool norms_behind_ = false;  // a layer normalises its outputs before it adds them
  const LoadedWeight* head_ = nullptr;
  std::vector<WeightSource> all_;
};

std::vector<int64_t> shape_of_weight(const WeightSource& s) {
  const int64_t columns = s.tensor->columns;
  if (!s.tensor->vector.empty()) {
    if (s.heads > 0) return {s.heads, s.rows / s.heads};
    return {s.rows};
  }
  switch (s.layout) {
    case WeightLayout::plain:
      return {s.rows, columns};
    case WeightLayout::turned:
      return {columns, s.rows};
    case WeightLayout::heads_out:
      return {s.heads, columns, s.rows / s.heads};
    case WeightLayout::heads_in:
      return {s.heads, columns / s.heads, s.rows};
  }
  return {};
}

// Copies row `row` of a [rows][columns] matrix to where the layout puts it.
void place_row(const WeightSource& s, size_t row, const std::vector<float>& from,
               std::vector<float>& to) {
  const size_t columns = from.size(), rows = static_cast<size_t>(s.rows);
  if (s.layout == WeightLayout::plain) {
    std::copy(from.begin(), from.end(), to.begin() + static_cast<std::ptrdiff_t>(row * columns));
    return;
  }
  // This layout is transposed within each head. A matrix without heads counts as one head.
  if (s.layout == WeightLayout::heads_out) {
    const size_t each = rows / static_cast<size_t>(s.heads);
    float* const head = to.data() + row / each * each * columns;
    for (size_t c = 0; c < columns; ++c) head[c * each + row % each] = from[c];
    return;
  }
  for (size_t c = 0; c < columns; ++c) to[c * rows + row] = from[c];
}

}  // namespace

std::vector<NamedWeight> named_weights(const Model& model) {
  std::vector<NamedWeight> all;
  const WeightNames names(model);
  for (const WeightSource& s : names.all()) all.push_back({s.name, shape_of_weight(s)});
  return all;
}

std::shared_ptr<const std::vector<float>> load_named_weight(const Model& model,
                                                            const std::string& name, int threads) {
  const WeightNames names(model);
  const auto found =
      std::ranges::find_if(names.all(), [&](const WeightSource& s) { return s.name == name; });
  if (found == names.all().end())
    throw Error(ErrorKind::argument, "", "name",
                "the name of a weight of family " + model.config().family, name);
  const WeightSource& s = *found;
  const LoadedWeight& w = *s.tensor;
  if (!w.vector.empty()) {
    const auto begin = w.vector.begin() + static_cast<std::ptrdiff_t>(s.first);
    return std::make_shared<const std::vector<float>>(begin,
                                                      begin + static_cast<std::ptrdiff_t>(s.rows));
  }
  const size_t columns = static_cast<size_t>(w.columns), rows = static_cast<size_t>(s.rows);
  auto values = std::make_shared<std::vector<float>>(rows * columns);
  const uint64_t version = model.weights_version();
  run_each(threads > 0 ? threads : default_threads(), rows, [&](size_t row) {
    std::vector<float> one(columns);
    w.matrix.gather(w.first_row + static_cast<size_t>(s.first) + row, one.data());
    if (s.scale != 1.0f) steer_scale(one.data(), s.scale, columns);
    place_row(s, row, one, *values);
  });
  if (!model.weights_intact_since(version))
    throw Error(ErrorKind::format, model.directory(), name, "",
                "the file of the weights was changed while they were read");
  return values;
}

}  // namespace stet

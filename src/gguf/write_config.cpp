// Writes a config as llama.cpp's keys.
#include <algorithm>
#include <cmath>

#include "src/gguf/write.hpp"

namespace stet {
namespace {

class Writer {
 public:
  Writer(const ModelConfig& c, const GgufArchitecture& a, GgufKeys& keys)
      : c_(c), a_(a), keys_(keys) {}

  void add_sizes() {
    count("vocab_size", c_.vocab_size);
    count("context_length", c_.max_positions);
    count("embedding_length", c_.hidden_size);
    count("block_count", c_.layers);
    // llama.cpp's Granite 4 has the width of an expert here.
    const bool of_expert = a_.layout == GgufLayout::granite_hybrid && c_.experts.count > 0;
    counts("feed_forward_length", c_.intermediate_of,
           of_expert ? c_.experts.width : c_.intermediate_size);
    count("attention.head_count", c_.heads);
    std::vector<int64_t> kv_heads = c_.kv_heads_of;
    // llama.cpp recognizes recurrent layers by these zeros. It derives those of Qwen.
    if (a_.layout == GgufLayout::lfm2 || a_.layout == GgufLayout::granite_hybrid) {
      for (const LayerShape& l : layers()) kv_heads.push_back(l.recurrent ? 0 : l.kv_heads);
    }
    counts("attention.head_count_kv", kv_heads, c_.kv_heads);
    if (std::ranges::count(kv_heads, 0) == c_.layers)
      keys_.u32(kGgufKvHeads, static_cast<uint64_t>(c_.kv_heads));
    const bool layer_norm = a_.layout == GgufLayout::gpt2 || a_.layout == GgufLayout::gpt_neox;
    number(layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
           c_.norm_eps);
    if (c_.logit_softcap != 0) number("final_logit_softcapping", c_.logit_softcap);
    if (c_.attention_softcap != 0) number("attn_logit_softcapping", c_.attention_softcap);
  }

  void add_rope() {
    if (c_.ropes.empty()) return;
    const Rope& rope = c_.ropes[0];
    const bool gemma4 = a_.layout == GgufLayout::gemma4, gemma3n = a_.layout == GgufLayout::gemma3n;
    const int64_t dim = gemma4 ? c_.rotated(rope) : c_.head_dim;
    count("attention.key_length", dim);
    count("attention.value_length", dim);
    count("rope.dimension_count", c_.rotated(rope));
    // llama.cpp rotates pairs by a token's place in time, height and width, which are equal in text.
    // Its Qwen3.5 requires how many of the pairs each has.
    if (const auto n = static_cast<int32_t>(c_.rotated(rope) / 2); c_.family.starts_with("qwen3_5"))
      keys_.i32s(key("rope.dimension_sections"), {(n + 2) / 3, (n + 1) / 3, n / 3, 0});
    if (gemma4 && c_.ropes.size() > 1) {
      for (const char* name :
           {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"})
        count(name, c_.rotated(c_.ropes[1]));
    }
    number("rope.freq_base", rope.theta);
    if (c_.ropes.size() > 1 && (a_.gemma || gemma4 || gemma3n))
      number("rope.freq_base_swa", c_.ropes[1].theta);
    if (rope.scaling == Rope::Scaling::linear || rope.scaling == Rope::Scaling::yarn) {
      keys_.text(key("rope.scaling.type"), rope.scaling == Rope::Scaling::yarn ? "yarn" : "linear");
      number("rope.scaling.factor", rope.factor);
    }
    if (rope.scaling == Rope::Scaling::yarn || rope.scaling == Rope::Scaling::longrope)
      count("rope.scaling.original_context_length", static_cast<int64_t>(rope.original_positions));
    if (rope.scaling == Rope::Scaling::yarn) {
      if (rope.beta_fast != 32) number("rope.scaling.yarn_beta_fast", rope.beta_fast);
      if (rope.beta_slow != 1) number("rope.scaling.yarn_beta_slow", rope.beta_slow);
    }
    if (rope.scaling == Rope::Scaling::longrope)
      number("rope.scaling.attn_factor", static_cast<double>(rope_magnitude(rope)));
  }

  void add_windows() {
    const int64_t window =
        c_.window.empty() ? 0 : *std::max_element(c_.window.begin(), c_.window.end());
    // llama.cpp requires the key in any case for Phi-3, and for Gemma 4 and 3n with a positive value.
    const bool positive = c_.family == "gemma4" || c_.family == "gemma3n";
    if (window == 0 && a_.layout != GgufLayout::phi3 && !positive) return;
    // llama.cpp does not read the window of these families: the config differs when it is read back.
    if (c_.family == "mixtral" || c_.family == "qwen3_moe") return;
    count("attention.sliding_window", window == 0 && positive ? 512 : window);
    if (c_.family != "gemma3" && c_.family != "olmo3" && c_.family != "gemma4" &&
        c_.family != "gemma3n")
      return;
    std::vector<bool> slides;
    for (const int64_t w : c_.window) slides.push_back(w != 0);
    keys_.booleans(key("attention.sliding_window_pattern"), slides);
  }

  void add_experts() {
    if (c_.experts.count == 0) return;
    count("expert_count", c_.experts.count);
    count("expert_used_count", c_.experts.chosen);
    count("expert_feed_forward_length", c_.experts.width);
    if (c_.qkv_clip != 0) number("attention.clamp_kqv", c_.qkv_clip);
  }

  void add_recurrence() {
    const Recurrence& r = c_.recurrence;
    if (r.kind == Recurrence::Kind::none) return;
    if (r.kind == Recurrence::Kind::short_conv) return count("shortconv.l_cache", r.taps);
    count("ssm.conv_kernel", r.taps);
    count("ssm.state_size", r.key_dim);
    count("ssm.group_count", r.groups);
    count("ssm.time_step_rank", r.heads);
    count("ssm.inner_size", r.output());
    if (r.kind == Recurrence::Kind::delta_net) add_kinds_of_layers();
  }

  // llama.cpp gives attention to every n-th layer, unless the file says of each whether it is
  // recurrent.
  void add_kinds_of_layers() {
    const std::vector<int64_t>& kinds = c_.recurrent_of;
    const auto interval = std::ranges::find(kinds, 0) - kinds.begin() + 1;
    std::vector<bool> recurrent, regular;
    for (int64_t i = 0; i < c_.layers; ++i) {
      recurrent.push_back(kinds[static_cast<size_t>(i)] != 0);
      regular.push_back((i + 1) % interval != 0);
    }
    if (recurrent == regular) return count("full_attention_interval", interval);
    keys_.booleans(key("attention.recurrent_layers"), recurrent);
  }

  void add_own() {
    if (c_.experts.shared > 0) count("expert_shared_feed_forward_length", c_.experts.shared);
    if (c_.family == "lfm2_moe") {
      count("leading_dense_block_count", std::ssize(c_.experts.dense));
      count("expert_gating_func", 2);
      number("expert_weights_scale", c_.experts.factor);
      keys_.boolean(key("expert_weights_norm"), c_.experts.rule == RouterRule::sigmoid_divided);
    }
    if (c_.family == "granite" || c_.family == "granitemoe" || c_.family == "granitemoehybrid") {
      number("embedding_scale", c_.embedding_scale);
      number("attention.scale", c_.attention_scale);
      number("residual_scale", c_.residual_scale);
      number("logit_scale", c_.logit_divisor);
      keys_.boolean(key("rope.scaling.finetuned"), std::ranges::count(c_.rope_of, 0) > 0);
    }
    if (c_.family == "gemma3n") {
      count("altup.num_inputs", c_.streams);
      count("altup.active_idx", c_.active_stream);
      // Layers that drop nothing have -infinity, the normal quantile of 0, as in llama.cpp's files.
      std::vector<float> quantiles(static_cast<size_t>(c_.layers), -INFINITY);
      for (size_t i = 0; i < c_.gate_floor.size(); ++i) {
        if (c_.gate_floor[i] != 0) quantiles[i] = static_cast<float>(c_.gate_floor[i]);
      }
      keys_.f32s(key("activation_sparsity_scale"), quantiles);
    }
    if (c_.family == "gemma4" || c_.family == "gemma3n") {
      count("embedding_length_per_layer_input", c_.layer_inputs);
      count("attention.shared_kv_layers",
            std::ranges::count_if(layers(), [](const LayerShape& l) { return !l.own; }));
    }
    if (c_.family == "gpt_neox") keys_.boolean(key("use_parallel_residual"), c_.parallel_residual);
    if (c_.family == "mistral") keys_.text(kGgufModelType, "mistral");
  }

 private:
  std::string key(const char* name) const { return std::string(a_.name) + "." + name; }
  // Writes one number, or, of layers that differ, one per layer.
  void counts(const char* name, const std::vector<int64_t>& each, int64_t all) {
    if (each.empty() || std::ranges::count(each, each.front()) == std::ssize(each))
      return count(name, each.empty() ? all : each.front());
    keys_.i32s(key(name), {each.begin(), each.end()});
  }
  std::vector<LayerShape> layers() const {
    std::vector<LayerShape> all;
    for (int64_t i = 0; i < c_.layers; ++i) all.push_back(c_.layer(i));
    return all;
  }
  void count(const char* name, int64_t n) { keys_.u32(key(name), static_cast<uint64_t>(n)); }
  void number(const char* name, double x) { keys_.f32(key(name), x); }

  const ModelConfig& c_;
  const GgufArchitecture& a_;
  GgufKeys& keys_;
};

}  // namespace

void add_config_keys(const ModelConfig& c, const GgufArchitecture& a, GgufKeys& keys) {
  keys.text("general.architecture", a.name);
  keys.text("general.type", "model");
  Writer writer(c, a, keys);
  writer.add_sizes();
  writer.add_rope();
  writer.add_windows();
  writer.add_experts();
  writer.add_recurrence();
  writer.add_own();
}

}  // namespace stet

#include "tests/support/recurrent_family.hpp"

#include <atomic>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <string>

#include "stet/model/decoder.hpp"
#include "tests/support/checkpoint_parts.hpp"
#include "tests/support/files.hpp"
#include "tests/support/models.hpp"

namespace stet::test {
namespace {

std::atomic<int64_t> rows_processed = 0;

class RecurrentDecoder : public Decoder {
 public:
  RecurrentDecoder(ModelConfig config, WeightLoader& w) : Decoder(std::move(config), w, 0) {
    each_layer([&](const std::string& at) {
      layers_.push_back({LinearLayers(w, config_, at),
                         load_rms_norm(w, at + "input_layernorm", config_.hidden_size),
                         load_rms_norm(w, at + "post_attention_layernorm", config_.hidden_size)});
    });
  }

 private:
  struct Layer : LinearLayers {
    Norm input_norm, post_attention_norm;
  };

  void layer(const LayerPass& at) const override {
    const Layer& l = layers_[at.index];
    const Pass& p = at.p;
    if (at.shape.recurrent) {
      norm(at, Point::ln1, l.input_norm, p.x, p.normed);
      at.t.each(p.spans.size(), [&](size_t i) { recur(at, p.spans[i]); });
    } else {
      const Qkv x = attention_input(at, l.input_norm, l.qkv);
      rotate(at, x);
      attend(at, x);
      attention_output(at, l.o);
    }
    add_attention(at);
    norm(at, Point::ln2, l.post_attention_norm, p.x, p.normed);
    gated_mlp(at, l.gate_up, l.down, Gate::silu, p.normed);
    add_mlp(at);
  }

  // Reads the normed residual stream. Writes the arrays after the span, and p.out.
  void recur(const LayerPass& at, const Span& span) const {
    const std::vector<RecurrentArray>& arrays = shape_.layers[at.index];
    const RecurrentArray &state = arrays[0], &conv = arrays[1];
    if (at.index == 0) rows_processed += static_cast<int64_t>(span.count);
    float *const s = span.recurrent_after + state.offset, *const c =
                                                              span.recurrent_after + conv.offset;
    std::copy_n(span.recurrent_before + state.offset, state.count(), s);
    std::copy_n(span.recurrent_before + conv.offset, conv.count(), c);
    const auto channels = static_cast<size_t>(conv.dims[1]);
    for (size_t row = span.row; row < span.row + span.count; ++row) {
      const int64_t id = at.p.ids[row],
                    h = std::abs(std::lround(at.p.normed.row(row)[id % 64] * 64)) % 251;
      for (size_t i = 0; i < state.count(); ++i)
        s[i] = static_cast<float>(
            (static_cast<int64_t>(s[i]) * 3 + id + h + static_cast<int64_t>(i * at.index)) % 4093);
      std::copy(c + channels, c + conv.count(), c);
      for (size_t i = 0; i < channels; ++i)
        c[conv.count() - channels + i] =
            static_cast<float>((id * 7 + h + static_cast<int64_t>(i)) % 509);
      float* const out = at.p.out.row(row);
      for (size_t i = 0; i < at.p.out.width; ++i) {
        const auto mixed = static_cast<int64_t>(s[i % state.count()] + c[i % conv.count()]);
        out[i] = static_cast<float>(mixed % 17 - 8) / 64;
      }
    }
  }

  const RecurrentShape shape_ = recurrent_shape(config_);
  std::vector<Layer> layers_;
};

ModelConfig read_recurrent_config(const JsonReader& json) {
  ModelConfig c = read_common(json, "recurrent_test");
  c.ropes = {read_rope(json, "", 10000)};
  c.window = {0, 40, 0, 0};
  c.recurrent_of = {1, 0, 1, 0};
  c.recurrence = {Recurrence::Kind::delta_net, 2, 2, 3, 5, 4, 6};
  return c;
}

}  // namespace

std::string recurrent_model_directory() {
  static const TemporaryDirectory directory;
  static std::once_flag made;
  std::call_once(made, [] {
    register_family({{"RecurrentTestForCausalLM"},
                     {"recurrent_test"},
                     read_recurrent_config,
                     "embed_tokens.weight",
                     {"model."},
                     load_model<RecurrentDecoder>});
    const std::string llama = data_path("models/llama31-tiny");
    std::string config = read_text(llama + "/config.json");
    config.replace(config.find("LlamaForCausalLM"), 16, "RecurrentTestForCausalLM");
    write_file(directory / "config.json", config);
    std::filesystem::copy_file(llama + "/model.safetensors", directory / "model.safetensors");
  });
  return directory.path();
}

int64_t recurrent_test_rows() { return rows_processed; }

std::vector<Subject> subjects_without_attention() {
  static const TemporaryDirectory directory;
  static const std::vector<Subject> all = [] {
    std::vector<Subject> made;
    for (const auto& [name, layers] : {std::pair{"qwen35-tiny", 3},
                                       {"qwen3next-tiny", 3},
                                       {"lfm2-tiny", 2},
                                       {"granite-h-tiny", 2}}) {
      CheckpointParts parts(name);
      parts.keep_layers(layers);
      if (parts.config.contains("full_attn_idxs"))
        parts.config["full_attn_idxs"] = nlohmann::json::array();
      const std::string to = directory / name;
      std::filesystem::create_directory(to);
      made.push_back({std::string(name) + "-without-attention", parts.write(to), Contract::f32});
    }
    return made;
  }();
  return all;
}

std::shared_ptr<const Model> recurrent_model() { return model(recurrent_model_directory()); }

}  // namespace stet::test

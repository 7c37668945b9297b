// A family that stet does not know, defined outside of the library and run like any other: a
// decoder whose attention and feed-forward network stand side by side,
//     y = x + Attention(RMSNorm(x)) + SwiGLU(RMSNorm(x))      (arXiv 2204.02311, section 2),
// with one norm for both. Arguments: a checkpoint directory, a file for the state.
#include <cstdio>

#include "stet/stet.hpp"

namespace {

using namespace stet;

class Parallel : public Decoder {
 public:
  Parallel(ModelConfig config, WeightLoader& w) : Decoder(std::move(config), w, 0) {
    each_layer([&](const std::string& at) {
      layers_.push_back({LinearLayers(w, config_, at),
                         w.vector("norms", at + "input_layernorm.weight", config_.hidden_size)});
    });
  }

  bool begins_anywhere() const override { return true; }
  void forward(Team t, const Pass& p) const override {
    const Qkv qkv(config_, p.qkv);
    const double eps = config_.norm_eps;
    rope_tables(t, p, frequencies_);
    if (p.first_layer == 0) {
      embed(t, p, embedding_, 1.0f, p.x);
      point(t, p, Point::embed, 0, p.x);
    }
    for (size_t i = p.first_layer; i < layers_.size(); ++i) {
      const Layer& l = layers_[i];
      point(t, p, Point::resid_pre, i, p.x);
      rms_norm(t, p, l.norm, eps, p.x, p.normed);
      norm_point(t, p, Point::ln1, i, eps, p.x, p.normed);

      linear(t, p, l.qkv, p.normed, p.qkv);
      point(t, p, i, qkv);
      rotate(t, p, config_, i, qkv);
      attend(t, p, config_, i, qkv, p.attention);
      result_point(t, p, config_, i, l.o.weight);
      linear(t, p, l.o, p.attention, p.out);
      add_attention(t, p, i);

      linear_gated(t, p, i, l.gate_up, Gate::silu, p.normed, p.gate_up, p.mlp);
      linear(t, p, l.down, p.mlp, p.out);
      add_mlp(t, p, i);
    }
    rms_norm(t, p, final_norm_, eps, p.x, p.out);
    norm_point(t, p, Point::ln_final, 0, eps, p.x, p.out);
  }

 private:
  struct Layer : LinearLayers {
    Vector norm;  // [hidden]
  };
  std::vector<Layer> layers_;
};

ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_common(json, "parallel");
  c.ropes = {read_rope(json, "", 10000)};
  require_activation(json, "hidden_act", {"silu"});
  return c;
}

// What config.json calls the family, how to read that file, the name of the embeddings, what stands
// before the names of all tensors, and how to make a model of them.
void add_parallel() {
  register_family({{"ParallelForCausalLM"},
                   {"parallel"},
                   read_config,
                   "embed_tokens.weight",
                   {"model."},
                   load_model<Parallel>});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    add_parallel();
    const auto model = Model::load(argv[1]);
    Session session(model);
    session.append(std::vector<int32_t>{1, 20, 3, 100, 7});
    Snapshot::save(session, argv[2]);

    Session resumed = Snapshot::open(argv[2]).restore(model);
    const Reply a = generate(session, nullptr, {.max_tokens = 100}),
                b = generate(resumed, nullptr, {.max_tokens = 100});
    const bool equal = a.ids == b.ids && digests_of(session).state == digests_of(resumed).state;
    std::printf("%zu tokens, %s\n", a.ids.size(), equal ? "equal" : "different");
    return equal ? 0 : 1;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

// Defines a new family outside of the library and runs it like any other. It is a decoder with
// attention and feed-forward network in parallel and one norm for both,
//     y = x + Attention(RMSNorm(x)) + SwiGLU(RMSNorm(x))      (arXiv 2204.02311, section 2).
// Arguments: a checkpoint directory, a file for the state.
#include <cstdio>

#include "stet/stet.hpp"

namespace {

using namespace stet;

class Parallel : public Decoder {
 public:
  Parallel(ModelConfig config, WeightLoader& w) : Decoder(std::move(config), w, 0) {
    each_layer([&](const std::string& at) {
      layers_.push_back({LinearLayers(w, config_, at),
                         load_rms_norm(w, at + "input_layernorm", config_.hidden_size)});
    });
  }

 private:
  void layer(const LayerPass& at) const override {
    const Layer& l = layers_[at.index];
    const Pass& p = at.p;
    const Qkv x = attention_input(at, l.norm, l.qkv);  // leaves RMSNorm(x) in p.normed
    rotate(at, x);
    attend(at, x);
    attention_output(at, l.o);
    add_attention(at);

    gated_mlp(at, l.gate_up, l.down, Gate::silu, p.normed);
    add_mlp(at);
  }

  struct Layer : LinearLayers {
    Norm norm;  // over hidden_size
  };
  std::vector<Layer> layers_;
};

ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_common(json, "parallel");
  c.ropes = {read_rope(json, "", 10000)};
  require_activation(json, "hidden_act", {"silu"});
  return c;
}

// Registers the family: its names in config.json, a function that reads the file, and the name of
// the embeddings. Then the prefix of all tensors, and a function that makes a model.
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

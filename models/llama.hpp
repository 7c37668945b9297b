// Llama's layers, which Mistral and Qwen 2 have too.
#pragma once

#include "models/decoder.hpp"

namespace stet {

class Llama : public Decoder {
 public:
  Llama(ModelConfig config, WeightLoader& w, Biases biases = {});
  void forward(Team t, const Pass& p) const override;

 private:
  struct Layer : LinearLayers {
    Vector input_norm, post_attention_norm;  // [hidden]
  };
  std::vector<Layer> layers_;
};

}  // namespace stet

// Rotary-position families in plain float64, written from the papers and from transformers'
// modeling files. It computes one position at a time without a cache, and uses none of the
// library's configs or operations. It is slow, but short enough to check by eye. YaRN and LongRoPE
// are the only RoPE scalings.
//
// Sources: GPT-NeoX, arXiv 2204.06745 and modeling_gpt_neox.py; Phi-3, modeling_phi3.py; LongRoPE,
// arXiv 2402.13753 and modeling_rope_utils.py.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stet::test {

class ReferenceModel {
 public:
  using Vec = std::vector<double>;
  struct Result {
    Vec logits;               // [T][vocab]
    std::vector<Vec> hidden;  // like Pass::hidden: [layers + 1][T][hidden]
    std::vector<Vec> k, v;    // per layer: [T][kv_heads][head_dim]
  };
  // Receives the values at a point ("blocks.0.attn.hook_q") of position t, and may change them.
  using Hook = std::function<void(const std::string& point, size_t t, Vec& x)>;

  // Reads config.json and model.safetensors from a directory.
  explicit ReferenceModel(const std::string& directory);
  Result run(const std::vector<int32_t>& ids, const Hook& hook = nullptr) const;

 private:
  class Weights;
  std::shared_ptr<const Weights> weights_;
};

// GPT-2 in plain float64, written from its paper and from transformers' modeling_gpt2.py. It
// computes one position at a time and uses none of the library's configs or operations.
class Gpt2Reference {
 public:
  explicit Gpt2Reference(const std::string& directory);
  // Returns the logits, [T][vocab].
  ReferenceModel::Vec run(const std::vector<int32_t>& ids,
                          const ReferenceModel::Hook& hook = nullptr) const;

 private:
  class Weights;
  std::shared_ptr<const Weights> weights_;
};

}  // namespace stet::test

// Samples the next token from the logits of one position.
//
// Processors and their order follow Hugging Face transformers (generation/logits_process.py):
// repetition penalty, temperature, top-k, top-p, min-p, typical. As there, scores are float32
// through penalty and temperature. Each later processor sees the renormalized distribution that the
// previous ones left. Probabilities are accumulated in double.
//
// Frequency and presence penalties are OpenAI's (API reference, "Advanced usage: parameter
// details"); transformers has none. The order follows vLLM (v1/sample/sampler.py) and llama.cpp
// (llama-sampling.cpp): first a token's bias, then the repetition penalty, then these, then the
// temperature. Sums are computed in double and rounded to float32 once. With c the number of times
// that a token was drawn:
//   bias     score += bias
//   drawn    score -= c * frequency_penalty + presence_penalty, where c > 0
//
// Equal scores are treated as in transformers:
//   top-k    keeps every token whose score equals that of the k-th
//   top-p    drops the lowest scores while their probabilities sum to at most 1 - p; of equal
//            scores the lower ids go first; the last token in that order stays
//   min-p    keeps p(token) >= min_p * p(best)
//   typical  (Meister et al., "Locally typical sampling", 2022) orders by |-log p - entropy| and
//            keeps every token up to the value at which the probabilities reach the mass
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "stet/kernels/float_environment.hpp"
#include "stet/sampling/philox.hpp"

namespace stet {

// A value added to the logit of a token.
struct TokenBias {
  int32_t id = 0;
  double bias = 0;

  bool operator==(const TokenBias&) const = default;
};

// Returns biases in the form used by settings: in ascending order of id, without zeros. Throws an
// argument Error for a repeated id.
STET_API std::vector<TokenBias> logit_bias_of(std::vector<TokenBias> biases);
constexpr size_t kMaxLogitBias = 4096;  // tokens with a bias

// Settings for drawing tokens.
struct STET_API SamplingSettings {
  // True: takes the token with the best score after biases and penalties, among equals the lowest
  // id. The other settings are then ignored.
  bool greedy = true;
  double temperature = 1;         // [1e-30, 1e30]
  int top_k = 0;                  // >= 0; 0: off
  double top_p = 1;               // [0, 1]; 1: off
  double min_p = 0;               // [0, 1]; 0: off
  double typical_p = 1;           // (0, 1]; 1: off
  double repetition_penalty = 1;  // [1e-30, 1e30]; 1: off
  uint64_t seed = 0;
  double frequency_penalty = 0;            // [-2, 2]; 0: off
  double presence_penalty = 0;             // [-2, 2]; 0: off
  std::vector<TokenBias> logit_bias = {};  // as from logit_bias_of(), each in [-100, 100]

  // Throws an argument Error that names `source` (a file, or empty), the field, its range and the
  // value.
  void validate(const std::string& source) const;
  // Returns true if a frequency or presence penalty or a bias is set.
  bool weighs_tokens() const {
    return frequency_penalty != 0 || presence_penalty != 0 || !logit_bias.empty();
  }
  bool operator==(const SamplingSettings&) const = default;
};

// Returns the natural logarithm of a token's probability under the softmax of the logits: at
// temperature 1, without penalties and filters. logits: [vocab_size], finite or -inf, at least one
// finite. Summed in double in order of ids, with the same bits on every machine.
STET_API double log_probability(std::span<const float> logits, int32_t id);

// Draws tokens. Holds only scratch memory: a token is a pure function of settings, logits, previous
// ids and position, with the same bits on every machine. Must not be shared between threads.
//
// Arguments of both calls:
//   logits        [vocab_size]: finite or -inf, at least one finite; anything else, such as a nan,
//                 is an argument Error
//   previous_ids  tokens that the repetition penalty applies to, in any order and number
//   drawn_ids     tokens that frequency and presence penalties count, in any order and number
class STET_API Sampler {
 public:
  explicit Sampler(int vocab_size);  // throws an argument Error unless >= 1

  // Computes the distribution that sample() draws from. out: [vocab_size], exactly zero for dropped
  // tokens.
  void probabilities(const SamplingSettings& settings, std::span<const float> logits,
                     std::span<const int32_t> previous_ids, std::span<float> out,
                     std::span<const int32_t> drawn_ids = {});

  // Draws the token for `position`, counted in tokens from the start of the session. Takes the
  // first kept token, in order of ids, whose cumulative probability exceeds u =
  // philox_uniform(seed, position). Allocates nothing.
  int32_t sample(const SamplingSettings& settings, std::span<const float> logits,
                 std::span<const int32_t> previous_ids, uint64_t position,
                 std::span<const int32_t> drawn_ids = {});

 private:
  // Decides which steps run; kernels/sampler.cpp implements them.
  void process(const SamplingSettings& settings, std::span<const float> logits,
               std::span<const int32_t> previous_ids, std::span<const int32_t> drawn_ids);
  void score(const SamplingSettings& settings, std::span<const float> logits,
             std::span<const int32_t> previous_ids);
  void score_tokens(const SamplingSettings& settings, std::span<const float> logits,
                    std::span<const int32_t> previous_ids, std::span<const int32_t> drawn_ids);
  void check(std::span<const float> logits) const;
  void check(std::span<const int32_t> ids, const char* field) const;
  void find_best();
  void keep_best();
  void keep_top_k(size_t k);
  void keep_near(double p);
  void weigh();
  void keep_top_p(double p);
  void keep_min_p(double p);
  void keep_typical(double p);
  template <typename Kept>
  void keep_if(Kept kept);
  double total() const;
  void normalize(std::span<float> out) const;
  int32_t draw(double u) const;

  float best_ = 0;  // best of all scores

  // The remaining candidates in order of ids: the first count_ entries of three arrays [vocab].
  size_t count_ = 0;
  std::vector<int32_t> ids_;
  std::vector<float> scores_;
  std::vector<double> weights_;  // exp(score - best score), after weigh()

  std::vector<float> group_best_;  // [groups] best score of ids that are equal modulo groups
  std::vector<float> values_;      // [vocab] scratch for keep_typical and score_tokens
  std::vector<double> bins_;       // [2048] scratch
};

// Leaves the kept tokens in ids_ and their weights in weights_.
inline void Sampler::process(const SamplingSettings& settings, std::span<const float> logits,
                             std::span<const int32_t> previous_ids,
                             std::span<const int32_t> drawn_ids) {
  settings.validate("");
  check(logits);
  check(previous_ids, "previous_ids");
  check(drawn_ids, "drawn_ids");
  if (settings.weighs_tokens())
    score_tokens(settings, logits, previous_ids, drawn_ids);
  else
    score(settings, logits, previous_ids);
  find_best();
  if (settings.greedy) return keep_best();
  if (settings.top_k > 0) keep_top_k(static_cast<size_t>(settings.top_k));
  if (settings.top_p == 1 && settings.min_p > 0) keep_near(settings.min_p);
  weigh();
  if (settings.top_p < 1) keep_top_p(settings.top_p);
  if (settings.min_p > 0) keep_min_p(settings.min_p);
  if (settings.typical_p < 1) keep_typical(settings.typical_p);
}

inline void Sampler::probabilities(const SamplingSettings& settings, std::span<const float> logits,
                                   std::span<const int32_t> previous_ids, std::span<float> out,
                                   std::span<const int32_t> drawn_ids) {
  if (out.size() != scores_.size()) {
    throw Error(ErrorKind::argument, "", "out", std::to_string(scores_.size()) + " values",
                std::to_string(out.size()));
  }
  const FloatEnvironment contract;
  process(settings, logits, previous_ids, drawn_ids);
  normalize(out);
}

inline int32_t Sampler::sample(const SamplingSettings& settings, std::span<const float> logits,
                               std::span<const int32_t> previous_ids, uint64_t position,
                               std::span<const int32_t> drawn_ids) {
  const FloatEnvironment contract;
  process(settings, logits, previous_ids, drawn_ids);
  return draw(philox_uniform(settings.seed, position));
}

}  // namespace stet

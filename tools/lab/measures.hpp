// What can be measured of a model and a text, as numbers and as pictures; nothing is printed here.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/lab/lab.hpp"
#include "tools/lab/picture.hpp"

namespace stet::tool {

// Of one row of logits; sums are float64.
struct Next {
  int32_t best = 0;
  double probability = 0, entropy = 0, log_sum = 0;  // nats
};
Next next_of(std::span<const float> logits);

// Each of these lets work.ids through the session. What it saw of them, as JSON: entropy and
// likeliest next token of each position, and log-probability of the token that comes.
Json measure_tokens(LabWork& work);

// The head over the residual stream of each layer, as if the layers behind it were not there
// (nostalgebraist, "interpreting GPT: the logit lens", 2020). A tuned lens, a safetensors file,
// first adds a map of its own: tensors "lens.N.weight" [hidden][hidden] and "lens.N.bias" [hidden],
// x += W x + b. `rows` gets an entry for each layer and position.
HeatMap measure_lens(LabWork& work, const std::string& tuned, Json& rows);

// What each layer's attention and MLP add to the logit of one token (none: the likeliest) at the
// last position: through the final norm as it was there, so that the parts add up to the logit, but
// for a final norm's bias and a softcap of the logits.
HeatMap measure_attribution(LabWork& work, std::optional<int32_t> target, Json& parts);

// Who looks where: a picture for each head of one layer (-1: of all).
std::vector<HeatMap> measure_attention(LabWork& work, int64_t layer);

// Which expert takes which token, and by which weight: a picture for each layer that has experts, or
// for one layer. `rows` gets an entry for each layer and position.
std::vector<HeatMap> measure_experts(LabWork& work, int64_t layer, Json& rows);

// Norms of the keys and values that a state holds, by layer and position, over all heads.
std::vector<HeatMap> measure_norms(const State& state, const Tokenizer* tokenizer);

// How the distributions of the next token that two rows of logits give differ.
Json measure_kl(std::span<const float> p, std::span<const float> q);

}  // namespace stet::tool

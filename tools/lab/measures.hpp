// Measurements of a model on a text, as numbers and pictures. Nothing is printed here.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/lab/lab.hpp"
#include "tools/lab/picture.hpp"

namespace stet::tool {

// The distribution of one row of logits. Sums are in float64.
struct Next {
  int32_t best = 0;
  double probability = 0, entropy = 0, log_sum = 0;  // nats
};
Next next_of(std::span<const float> logits);

// Each measure processes work.ids in the session. This one returns JSON: entropy and likeliest next
// token of each position, and the log-probability of the token that follows. After a state, the
// first row is that of its last position, whose logits precede the first token.
Json measure_tokens(LabWork& work);

// Applies the head to the residual stream of each layer (nostalgebraist, "interpreting GPT: the
// logit lens", 2020). A tuned lens is a safetensors file with a map for each layer, x += W x + b:
// tensors "lens.N.weight" [hidden][hidden] and "lens.N.bias" [hidden]. `rows` gets an entry for
// each layer and position.
HeatMap measure_lens(LabWork& work, const std::string& tuned, Json& rows);

// Orders the rows of a measure by layer, then by position. A pass gives them chunk by chunk.
void order_rows(Json& rows);

// Throws an argument Error, for this option, if the model has several residual streams (Gemma 3n).
// Points show one of them, and the head reads all.
void require_one_stream(const ModelConfig& config, const char* option);

// Computes the part of each layer's attention and MLP in the logit of one token at the last
// position. The token is `target` or else the likeliest. The final norm's scale is fixed, so the
// parts add up to the logit before its soft cap. The final norm's bias is a part, and so are the
// layers' own inputs of Gemma 4. Interventions on the residual stream and the final norm are parts,
// too.
HeatMap measure_attribution(LabWork& work, std::optional<int32_t> target, Json& parts);

// Draws the attention pattern of each head of one layer, or of all layers that have attention (-1).
std::vector<HeatMap> measure_attention(LabWork& work, int64_t layer);

// Draws which expert takes which token, and with which weight: a picture for each layer that has
// experts, or for one layer. `rows` gets an entry for each layer and position.
std::vector<HeatMap> measure_experts(LabWork& work, int64_t layer, Json& rows);

// Draws the norms of a state's keys and values, by layer and position, over all heads. The row of a
// recurrent layer, which has none, is empty.
std::vector<HeatMap> measure_norms(const State& state, const Tokenizer* tokenizer);

// Returns the divergences between the next token's distributions of two rows of logits.
Json measure_kl(std::span<const float> p, std::span<const float> q);

}  // namespace stet::tool

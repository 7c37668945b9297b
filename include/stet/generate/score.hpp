// Log-probabilities of tokens given those before them, of many texts at once: what evaluations ask
// a model for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/session/session.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

// Tokens of which ids[begin], ids[begin + 1], ... are scored, each given all before it.
struct ScoreRequest {
  std::vector<int32_t> ids;
  size_t begin = 1;
};

struct TokenScore {
  int32_t id = 0;
  int32_t best = 0;  // the likeliest token in its place; of equals the lowest id
  double log_probability = 0;

  bool operator==(const TokenScore&) const = default;
};

struct Score {
  double sum = 0;                  // of the log-probabilities, in the order of the tokens
  bool greedy = true;              // each token is the likeliest in its place
  std::vector<TokenScore> tokens;  // of ids[begin], ids[begin + 1], ...

  bool operator==(const Score&) const = default;
};

struct ScoreOptions {
  size_t batch = 16;  // texts that are processed together, at most; changes no bit
  // Called once for each request, as soon as its score is known, in any order. What it throws ends
  // the call.
  std::function<void(size_t index, const Score& score)> done = nullptr;
};

// Returns the scores of all requests, each after what `before` holds, which stays as it is. The
// numbers are those of log_probability() over the logits that append() gives, whatever stands
// beside a request (not under f32_blas). What requests begin with alike is processed once, and the
// last token of each is not processed at all. Throws, before anything is computed, an argument
// Error for a batch of 0, ids outside of the vocabulary, a `begin` beyond the ids, and one of 0
// where `before` is empty; a capacity Error for a request that does not fit. The field of each
// names the request ("requests[2]: ids").
STET_API std::vector<Score> score(const Session& before, std::span<const ScoreRequest> requests,
                                  const ScoreOptions& options = {});

// Returns the tokens of a context and of a text that goes on from it, to be scored, cut as the
// lm-evaluation-harness cuts them (api/model.py, _encode_pair): white space at the context's end
// belongs to the continuation; of the tokens of both texts put together, as many are the context's
// as it has alone.
STET_API ScoreRequest encode_pair(const Tokenizer& tokenizer, std::string_view context,
                                  std::string_view continuation,
                                  Tokenizer::Bos bos = Tokenizer::Bos::automatic,
                                  bool special_in_text = true);

}  // namespace stet

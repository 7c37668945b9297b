// Scores texts: log-probabilities of tokens given the preceding ones, for many texts at once, as
// evaluations need them.
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

// A text to score: ids[begin], ids[begin + 1], ..., each given all tokens before it.
struct ScoreRequest {
  std::vector<int32_t> ids;
  size_t begin = 1;
};

// The score of one token.
struct TokenScore {
  int32_t id = 0;
  int32_t best = 0;  // the most probable token at this place; among equals the lowest id
  double log_probability = 0;

  bool operator==(const TokenScore&) const = default;
};

// The score of a request.
struct Score {
  double sum = 0;                  // sum of log-probabilities, in token order
  bool greedy = true;              // every token is the most probable at its place
  std::vector<TokenScore> tokens;  // for ids[begin], ids[begin + 1], ...

  bool operator==(const Score&) const = default;
};

// Options of score().
struct ScoreOptions {
  size_t batch = 16;  // maximal number of texts processed together; does not change bits
  // Called once for each request as soon as its score is known, in any order. An exception ends the
  // call.
  std::function<void(size_t index, const Score& score)> done = nullptr;
};

// Returns the scores of all requests, each after the tokens of `before`, which does not change. The
// numbers are those of log_probability() on the logits of append(), independent of the other
// requests (not under f32_blas). Common beginnings of requests are processed once; a request's last
// token is not processed at all.
//
// Throws an argument Error, before anything is computed, for a batch of 0, for ids outside the
// vocabulary, and for an invalid `begin`. A `begin` of 0 is invalid if `before` is empty. Throws a
// capacity Error for a request that does not fit. The error's field names the request
// ("requests[2]: ids").
STET_API std::vector<Score> score(const Session& before, std::span<const ScoreRequest> requests,
                                  const ScoreOptions& options = {});

// Returns the tokens of a context and its continuation for scoring, divided as in
// lm-evaluation-harness (api/model.py, _encode_pair). White space at the end of the context belongs
// to the continuation. Both texts are tokenized together, and the context takes as many tokens as
// it has alone.
STET_API ScoreRequest encode_pair(const Tokenizer& tokenizer, std::string_view context,
                                  std::string_view continuation,
                                  Tokenizer::Bos bos = Tokenizer::Bos::automatic,
                                  bool special_in_text = true);

}  // namespace stet

// Tokens and their log-probabilities in the form of answers.
#include <algorithm>
#include <numeric>

#include "stet/text/utf8.hpp"
#include "tools/serve/service.hpp"

namespace stet::serve {

std::string token_bytes(const Tokenizer* tokenizer, int32_t id) {
  // A model may have more rows than the tokenizer has tokens, or no tokenizer.
  return tokenizer != nullptr && id < tokenizer->size() ? tokenizer->bytes(id) : "";
}

Json bytes_json(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

std::vector<std::pair<int32_t, double>> top_candidates(std::span<const float> logits, size_t n) {
  if (n == 0) return {};
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  n = std::min(n, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n), ids.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)],
                                  y = logits[static_cast<size_t>(b)];
                      return x > y || (x == y && a < b);
                    });
  std::vector<std::pair<int32_t, double>> top;
  for (size_t i = 0; i < n; ++i) top.emplace_back(ids[i], log_probability(logits, ids[i]));
  return top;
}

Json logprob_json(const Tokenizer* tokenizer, const TokenLogprob& token) {
  const auto entry = [&](int32_t id, double logprob) {
    const std::string bytes = token_bytes(tokenizer, id);
    return Json{{"token", utf8_lossy(bytes)}, {"logprob", logprob}, {"bytes", bytes_json(bytes)}};
  };
  Json j = entry(token.id, token.logprob);
  j["top_logprobs"] = Json::array();
  for (const auto& [id, logprob] : token.top) j["top_logprobs"].push_back(entry(id, logprob));
  return j;
}

}  // namespace stet::serve

// Figures of speculative decoding: replies whose drafts are right at a given rate, and passes of
// several rows.
#pragma once

#include <memory>
#include <vector>

#include "tools/command/command.hpp"

namespace stet::tool {

// Measures replies of `tokens` tokens after a prompt, alternately without and with drafts. The
// drafter of each rate knows the reply and errs on purpose. Throws if two of the states differ.
Json speculation_figures(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                         int64_t prompt, int64_t tokens, const std::vector<double>& rates,
                         int repeat);

// Measures passes of one token with drafts. They alternate with passes of the token alone and with
// prefills of the prompt. The bound of r rows is max(1, r * decode rate / prefill rate) passes of
// one row.
Json row_figures(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                 int64_t prompt, const std::vector<int64_t>& rows, int repeat);

void print_speculation(const Json& j);  // of both

}  // namespace stet::tool

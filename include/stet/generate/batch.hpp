// Generates replies of many sessions in shared passes.
#pragma once

#include <chrono>
#include <deque>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "stet/generate/generate.hpp"

namespace stet {

// One session of a batch, with its own sampling, stops, interventions and options.
struct BatchReply {
  Session* session;
  GenerateOptions options = {};
  TextSink sink = nullptr;       // see generate()
  const Watch* watch = nullptr;  // for the drawn tokens
};

// Generates a reply for each entry, bit for bit as a call of generate() for that entry alone. An
// entry whose reply has ended leaves the batch. Throws what generate() and append() of a batch
// throw; the error's field names the entry at fault. Tokens drawn so far stay in the sessions.
std::vector<Reply> generate(std::span<const BatchReply> batch, const Tokenizer* tokenizer);

namespace detail {

// Adds drafts to the entries of a pass, which hold the drawn token of each reply. The pass takes at
// most `slowest` times as long as one without drafts. Returns the costs to which the time of the
// pass can be added; null if there is no speculation.
PassCosts* add_drafts(std::span<Generator* const> replies, std::span<BatchEntry> entries,
                      double slowest = std::numeric_limits<double>::infinity());

size_t rows_of(std::span<const BatchEntry> entries);

}  // namespace detail

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/generate/batch-inl.hpp"
#endif

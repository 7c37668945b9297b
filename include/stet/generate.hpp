// The loop that turns logits into a reply: draw, append, decode, look for a stop.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "stet/session.hpp"
#include "stet/tokenizer.hpp"

namespace stet {

struct Reply {
  std::vector<int32_t> ids;  // drawn in this call, a stop token included
  std::string text;          // of these ids, special tokens and a stop string left out
  std::string stop;          // "eos": a stop token; "stop": a stop string; "length": the limit, or a full session;
                             // "interrupt": the sink said so
};

// Receives text as soon as it is certain; false ends the reply after the current token.
using TextSink = std::function<bool(std::string_view)>;

struct GenerateOptions {
  int64_t max_tokens = 256;
  bool ignore_eos = false;
};

// The sampling settings and stop tokens that the checkpoint recommends.
GenerationState default_generation(const Model& model);

// Puts a prompt at the end of the session and opens a turn. An open reply before it is closed as it is.
void append_prompt(Session& session, std::span<const int32_t> ids, const Progress& progress = nullptr);

// Draws a reply, or goes on with one that was cut by its limit: the session afterwards is the same, bit for bit,
// wherever the reply was cut. Every drawn token has been processed, so that the session's logits follow it.
// `tokenizer` may be null: then there is no text, and stop strings are an argument Error. Throws an argument
// Error when the session has no tokens, or for sampling settings out of range, before anything is drawn.
Reply generate(Session& session, const Tokenizer* tokenizer, const GenerateOptions& options,
               const TextSink& sink = nullptr);

}  // namespace stet

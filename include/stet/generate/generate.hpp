// The loop that turns logits into a reply: draw, append, decode, look for a stop.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stet/session/session.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

struct Reply {
  std::vector<int32_t> ids;  // drawn in this call, a stop token included
  std::string text;          // of these ids, special tokens and a stop string left out
  std::string stop;  // "eos": a stop token; "stop": a stop string; "length": the limit, or a full
                     // session; "interrupt": the sink said so
};

// Called after every token with the text that is certain now, often none; false ends the reply
// after this token.
using TextSink = std::function<bool(std::string_view)>;

// Called for every token that is drawn, before it is processed, with the logits it was drawn from,
// [vocab_size]. It sees them as the model gave them, and changes nothing of the draw.
using TokenObserver = std::function<void(int32_t id, std::span<const float> logits)>;

struct GenerateOptions {
  int64_t max_tokens = 256;
  bool ignore_eos = false;
  TokenObserver observe = nullptr;
};

// The sampling settings and stop tokens that the checkpoint recommends.
GenerationState default_generation(const Model& model);

// Throws an argument Error, naming `source` where it is not empty, for sampling settings out of
// range, stop ids outside the vocabulary, stop strings that are no UTF-8 or not of 1 to 65536
// bytes, and turns that are out of order or beyond `positions`.
void check_generation(const GenerationState& state, int64_t vocab_size, int64_t positions,
                      const std::string& source);

// Puts a prompt at the end of the session and opens a turn. An open reply before it is closed as it
// is: end_reply() gives what it held back.
void append_prompt(Session& session, std::span<const int32_t> ids,
                   const Progress& progress = nullptr);

// Draws a reply, or goes on with one that was cut by its limit: the session afterwards is the same,
// bit for bit, wherever the reply was cut. Every drawn token has been processed, so that the
// session's logits follow it. Text that may yet become a stop string, or a character, is held back
// in the session. Where other stop strings were set meanwhile, it is judged by those. `tokenizer`
// may be null: then there is no text, and stop strings are an argument Error. Throws an argument
// Error when the session has no tokens, or where check_generation does, before anything is drawn.
Reply generate(Session& session, const Tokenizer* tokenizer, const GenerateOptions& options,
               const TextSink& sink = nullptr);

// Closes an open reply that is not to go on. Returns the end of its text, which was held back until
// now.
std::string end_reply(Session& session, const Tokenizer* tokenizer);

}  // namespace stet

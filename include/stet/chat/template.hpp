// Renders chat messages to the text of a prompt by the checkpoint's chat template, as transformers'
// apply_chat_template does. text/jinja.hpp describes the supported part of Jinja.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/text/jinja.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

// Returns the ranges of a rendering that came from messages and variables and must be tokenized as
// ordinary text (see Tokenizer::encode). Considers bytes begin .. end-1; ranges count from `begin`.
STET_API std::vector<TextRange> plain_ranges(const jinja::Text& text, size_t begin = 0,
                                             size_t end = SIZE_MAX);

// A parsed chat template. Immutable: any number of threads may use one at once.
class STET_API ChatTemplate {
 public:
  // Uses the tokenizer's own template. If tokenizer_config.json lists one named tool_use, that one
  // is used when there are tools. Throws an argument Error if there is no template. Throws a format
  // or unsupported Error with the template's file, the place in it and the reason.
  explicit ChatTemplate(const Tokenizer& tokenizer);
  // Uses another template with the tokenizer's special tokens. Errors report `name` as the file.
  ChatTemplate(std::string_view source, const std::string& name, const Tokenizer& tokenizer);

  // Returns the rendered prompt. `messages` is a list of objects. Strings of the i-th message get i
  // as origin. `variables` is an object of further variables, such as tools, documents or
  // enable_thinking. They override special tokens of the same name. Their strings get the number of
  // messages as origin. The template's own text and special tokens are not marked. `now` is for
  // strftime_now, in seconds since 1970.
  //
  // Throws jinja::Refused if the template refuses the messages; `found` is its message. Throws an
  // argument Error for messages or variables of other kinds. Throws the format, unsupported and
  // capacity Errors of the engine (text/jinja.hpp).
  jinja::Text render(const jinja::Value& messages, bool add_generation_prompt,
                     const jinja::Value& variables, double now) const;

 private:
  jinja::Program standard_, with_tools_;
  jinja::Variables special_tokens_;
};

}  // namespace stet

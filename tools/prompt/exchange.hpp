// A session that is prompted and replies, either with raw text or as a conversation through the
// chat template.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "stet/chat/conversation.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {

class Exchange {
 public:
  enum class Kind { raw, conversation };

  // Makes an exchange. A conversation needs a tokenizer; raw text does not.
  Exchange(Session session, std::shared_ptr<const Tokenizer> tokenizer, Kind kind);
  // Returns a copy that continues on its own.
  Exchange fork() const;

  Kind kind() const { return content_.index() == 0 ? Kind::raw : Kind::conversation; }
  Session& session();
  const Session& session() const;
  // Return the conversation, or null for raw text.
  Conversation* conversation() { return std::get_if<Conversation>(&content_); }
  const Conversation* conversation() const { return std::get_if<Conversation>(&content_); }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }

  // Gives a conversation what the options say before the first message.
  void begin(const PromptOptions& options);
  // Processes a prompt of this kind. If `progress` throws, everything stays as it was.
  PromptReport prompt(const Prompt& prompt, const Progress& progress = nullptr);
  // Draws a reply, or continues one that was stopped.
  Reply reply(const GenerateOptions& options, const TextSink& sink = nullptr);
  // Ends a reply that will not be continued. Returns the rest of its text.
  std::string close();

 private:
  Exchange(std::variant<Session, Conversation> content, std::shared_ptr<const Tokenizer> tokenizer);

  std::variant<Session, Conversation> content_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

// Returns the kind of exchange: that of `prompts` on an empty session, else that of the session. A
// conversation without a tokenizer is treated as raw text.
Exchange::Kind kind_of(const PromptOptions& prompts, const Session& session,
                       const std::shared_ptr<const Tokenizer>& tokenizer);

}  // namespace stet::tool

// A session that is prompted and replies: with raw text, or as a conversation through the chat
// template.
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

  // A conversation needs a tokenizer; raw text goes without one.
  Exchange(Session session, std::shared_ptr<const Tokenizer> tokenizer, Kind kind);
  // A second one from here on.
  Exchange fork() const;

  Kind kind() const { return content_.index() == 0 ? Kind::raw : Kind::conversation; }
  Session& session();
  const Session& session() const;
  Conversation* conversation() { return std::get_if<Conversation>(&content_); }  // null: raw text
  const Conversation* conversation() const { return std::get_if<Conversation>(&content_); }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }

  // "": none. Of a conversation alone.
  void set_system(const std::string& text);
  // Processes a prompt of this kind; a `progress` that throws leaves everything as it was.
  PromptReport prompt(const Prompt& prompt, const Progress& progress = nullptr);
  // Draws a reply, or goes on with one that was cut.
  Reply reply(const GenerateOptions& options, const TextSink& sink = nullptr);
  // Ends a reply that is not to go on: the end of its text.
  std::string close();

 private:
  Exchange(std::variant<Session, Conversation> talk, std::shared_ptr<const Tokenizer> tokenizer);

  std::variant<Session, Conversation> content_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

// What `prompts` begin on an empty session, and what a state can go on as; for one whose messages
// no tokenizer can read, raw.
Exchange::Kind kind_of(const PromptOptions& prompts, const Session& session,
                       const std::shared_ptr<const Tokenizer>& tokenizer);

}  // namespace stet::tool

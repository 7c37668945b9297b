// A conversation with a model through its chat template, exact to the token.
//
// The session's tokens are the only truth. A turn renders all messages through the template, but
// text becomes tokens only where there are none yet: a generated reply stays the tokens that
// it is (white space that a template strips from a reply stays as the model wrote it), and
// what a rendering has in common with the transcript, from its beginning, stays in the cache. Where
// the two part (a message was edited, the system prompt changed, the template writes earlier turns
// in another way) the session rewinds to that very token.
//
// Text of messages is ordinary text: a mark of the template that a user types ends no turn, unless
// ChatState::special_in_text says otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/chat/template.hpp"
#include "stet/generate/generate.hpp"
#include "stet/session/session.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

// What became of the tokens of a prompt.
struct PromptReport {
  int64_t kept = 0;        // were in the cache, and stay
  int64_t recomputed = 0;  // processed again, since something before them has changed
  int64_t added = 0;       // of new or changed messages
};

// The messages as a chat template sees them: a list of objects with role, content and their fields.
STET_API jinja::Value template_messages(const std::vector<Message>& messages);

class Conversation {
 public:
  // Goes on with the messages that the session has (Session::chat), if any.
  // Throws Error where the template is malformed, or there is none.
  Conversation(Session session, std::shared_ptr<const Tokenizer> tokenizer);

  const std::vector<Message>& messages() const { return session_.chat().messages; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  const Session& session() const { return session_; }
  Session& session() { return session_; }
  // A second conversation from here on; costs the last block of the cache.
  Conversation fork() const;

  // Makes `messages`, and the beginning of a reply, what the session holds. A reply that was cut is
  // closed first. Of messages taken from messages(), generated replies stay the tokens they are;
  // clear `generated` of one whose content was changed. When this throws (the template refuses, the
  // session would be too small: a capacity Error with both counts, a `progress` that throws), the
  // conversation is as it was before.
  PromptReport prompt(std::vector<Message> messages, const Progress& progress = nullptr);
  // The same with one more message of the user.
  PromptReport say(const std::string& text, const Progress& progress = nullptr);
  // How many tokens prompt() would keep, recompute and add.
  PromptReport plan(const std::vector<Message>& messages) const;

  // prompt() and reply() in steps, for whoever processes the tokens of many conversations together
  // (append(batch), Generator). prepare() changes nothing; begin() rewinds the session to what it
  // keeps; then the tokens of to_process() go through it; then prompted(). A conversation that was
  // begun and not prompted is to be thrown away.
  struct Plan;
  Plan prepare(std::vector<Message> messages) const;
  // prepare() in two steps. `continued`: the last message, the assistant's, is the beginning of a
  // reply. Its text becomes tokens by itself, as if they had been drawn, and the reply goes on
  // behind them as one that was cut does. Returns nothing where the template does not write this
  // text as it is, and then no more than the marks that end a turn.
  std::optional<Plan> lay_out(std::vector<Message> messages, bool continued) const;
  void check_fit(const Plan& plan) const;
  void begin(const Plan& plan);
  static std::span<const int32_t> to_process(const Plan& plan);
  void prompted(const Plan& plan);
  // Around a Generator: the message that its tokens make.
  void begin_reply();
  void end_reply(const Reply& reply);

  // Draws a reply, or goes on with one that was cut; see generate().
  Reply reply(const GenerateOptions& options, const TextSink& sink = nullptr);
  // Whether the last reply was cut by a limit, and can go on.
  bool open() const;
  // Closes a reply that was cut. Returns the end of its text, held back until now.
  std::string close();

  // Forgets the last `turns` messages of the user and all that followed each: the session
  // afterwards is as it was before the first of them. Throws an argument Error when there are not
  // so many.
  void rewind(int64_t turns);
  // Forgets the last reply, so that reply() draws another. Throws an argument Error when there is
  // none.
  void retry();
  // Puts, changes or (text "") removes the system message. The next prompt() processes what that
  // changes.
  void set_system(const std::string& text);

 private:
  Conversation(Session session, std::shared_ptr<const Tokenizer> tokenizer,
               std::shared_ptr<const ChatTemplate> chat_template);
  jinja::Text render(const std::vector<Message>& messages, bool add_generation_prompt) const;
  Plan make_plan(const std::vector<Message>& messages, const jinja::Text& text,
                 std::optional<TextRange> begun) const;
  bool ends_turn(std::string_view text) const;
  void begin_continued(int64_t tokens);
  static std::vector<int32_t> tokens_at(const Message& m, const std::vector<int32_t>& transcript);
  std::vector<int32_t> tokens_of(const Message& reply,
                                 const std::vector<int32_t>& transcript) const;
  std::string text_of(const Message& reply) const;
  std::string shown_of(const Message& reply) const;
  void settle(const Reply& reply);
  void end_at(Message& m, const std::string& content);
  void cut(int64_t position, size_t messages);

  Session session_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;
  std::string shown_;  // of a reply that goes on: its text before
};

}  // namespace stet

#include "stet/chat/conversation-inl.hpp"

// A conversation with a model through its chat template, exact to the token.
//
// The session's tokens are authoritative. Each turn renders all messages through the template, but
// only new text is tokenized. A generated reply keeps its tokens, including white space that a
// template would strip. The common beginning of the rendering and the transcript stays in the
// cache. At the first different token, the session is rewound: a message was edited, the system
// prompt changed, or the template renders earlier turns differently.
//
// Text of messages is ordinary text. A special token typed by a user ends no turn, unless
// ChatState::special_in_text is set.
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

// Token counts of a prompt.
struct PromptReport {
  int64_t kept = 0;        // already in the cache and kept
  int64_t recomputed = 0;  // processed again because of a change before them
  int64_t added = 0;       // tokens of new or changed messages
};

// Returns the messages in the form that chat templates receive: a list of objects with role,
// content and further fields.
STET_API jinja::Value template_messages(const std::vector<Message>& messages);

// Throws an Error for a chat that a snapshot could not hold. Texts must be UTF-8. Variables and
// fields must be JSON objects that have each key once. Positions must be in order and within
// `positions` of the transcript. `source` names the file in errors.
STET_API void check_chat(const ChatState& chat, int64_t positions, const std::string& source);

// A conversation: a session, its tokenizer and its chat template.
class Conversation {
 public:
  // Continues with the session's messages (Session::chat). Throws Error if there is no template or
  // it is malformed. Throws what check_tokenizer() and check_chat() throw.
  Conversation(Session session, std::shared_ptr<const Tokenizer> tokenizer);

  const std::vector<Message>& messages() const { return session_.chat().messages; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  const Session& session() const { return session_; }
  Session& session() { return session_; }
  // Returns an independent copy, which shares all but the last block of the cache.
  Conversation fork() const;

  // Makes the session hold `messages` and the beginning of a reply. Closes a reply that was cut
  // first. Generated replies taken from messages() keep their tokens; clear `generated` if you
  // change the content, which is an argument Error otherwise.
  //
  // If anything throws, the conversation is unchanged. Throws a capacity Error with both counts if
  // the session is too small. Errors of the template and exceptions of `progress` are passed on.
  PromptReport prompt(std::vector<Message> messages, const Progress& progress = nullptr);
  // Like prompt(), with one more user message.
  PromptReport say(const std::string& text, const Progress& progress = nullptr);
  // Returns the number of tokens that prompt() would keep, recompute and add.
  PromptReport plan(const std::vector<Message>& messages) const;

  // prompt() in steps, for callers that process tokens of many conversations together
  // (append(batch), Generator). prepare() changes nothing, and begin() rewinds the session to the
  // kept tokens. Process to_process(), then call prompted(). Discard a conversation for which only
  // begin() was called.
  struct Plan;
  Plan prepare(std::vector<Message> messages) const;
  // Renders and tokenizes without checking the size; prepare() is lay_out() and check_fit(). With
  // `continued`, the last message must be the assistant's and is the beginning of a reply. Its text
  // is tokenized separately, as if drawn, and the reply continues after it. Returns nothing if the
  // template changes this text or writes more than the end of the turn after it.
  std::optional<Plan> lay_out(std::vector<Message> messages, bool continued) const;
  void check_fit(const Plan& plan) const;
  void begin(const Plan& plan);
  static std::span<const int32_t> to_process(const Plan& plan);
  void prompted(const Plan& plan);
  // Call these before and after running a Generator on the session. The drawn tokens become a
  // message.
  void begin_reply();
  void end_reply(const Reply& reply);

  // Generates a reply, or continues one that was cut; see generate(). While the sink runs, session
  // and messages are those of a reply that was cut after the latest token.
  Reply reply(const GenerateOptions& options, const TextSink& sink = nullptr);
  // Returns true if the last reply was cut by a limit and can continue.
  bool open() const;
  // Closes a reply that was cut and returns the end of its text, which was held back until then.
  std::string close();

  // Discards the last `turns` user messages and everything after each of them. Restores the session
  // as it was before the first of them. Throws an argument Error if there are fewer, or if the first
  // did not begin after the last prune.
  void rewind(int64_t turns);
  // Discards the last reply, so that reply() generates another. Throws an argument Error if there
  // is none.
  void retry();
  // Sets the system message, or removes it (""). The next prompt() processes the change.
  void set_system(const std::string& text);

 private:
  Conversation(Session session, std::shared_ptr<const Tokenizer> tokenizer,
               std::shared_ptr<const ChatTemplate> chat_template);
  jinja::Text render(const std::vector<Message>& messages, bool add_generation_prompt) const;
  Plan make_plan(const std::vector<Message>& messages, const jinja::Text& text,
                 std::optional<TextRange> begun) const;
  void add_ends(Plan& plan, const jinja::Text& text, TextRange part,
                const std::vector<int32_t>& tokens) const;
  bool ends_turn(std::string_view text) const;
  void begin_continued(int64_t tokens);
  static std::vector<int32_t> tokens_at(const Message& m, const std::vector<int32_t>& transcript);
  std::vector<int32_t> tokens_of(const Message& reply,
                                 const std::vector<int32_t>& transcript) const;
  std::string text_of(const Message& reply) const;
  std::string shown_text(const Message& reply) const;
  Message* settle(const Reply& reply);
  std::string held_back() const;
  void end_at(Message& m, const std::string& content);
  void cut(int64_t position, size_t messages);

  Session session_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;
  // The reply being drawn: its first position in the transcript, and the text that it had shown.
  int64_t reply_begin_ = 0;
  std::string shown_;
};

namespace detail {
// Returns the number of messages with the role "user".
int64_t count_users(const std::vector<Message>& messages);
}  // namespace detail

// The tokens of a rendering, and the positions of the messages in them.
struct Conversation::Plan {
  std::string text;  // the rendered text
  std::vector<int32_t> ids;
  std::vector<Message> messages;
  int64_t kept = 0;
  PromptReport report;
  int64_t begun = 0;          // tokens at the end that begin a continued reply
  std::vector<int64_t> ends;  // positions after the contents of messages, where anchors are kept

  // Adds tokens that contain messages first .. last-1, none of them generated.
  void add_text(const std::vector<int32_t>& tokens, size_t first, size_t last, bool fresh);
  void add(const std::vector<int32_t>& tokens, bool fresh);
  // Sets `kept` and `report`: how much of the tokens a session with `transcript` has.
  void compare(const std::vector<int32_t>& transcript);

 private:
  // Pieces of the tokens: the end position, and whether a message in the piece is new.
  std::vector<std::pair<int64_t, bool>> pieces;
};

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/chat/conversation-inl.hpp"
#endif

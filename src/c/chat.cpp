// C interface: conversations.
#include "src/c/internal.hpp"

struct stet_chat {
  explicit stet_chat(stet::Conversation c)
      : conversation(std::move(c)), session(&conversation.session()) {}

  stet::Conversation conversation;
  stet_session session;  // refers to the conversation's session
};

namespace stet::c {
namespace {

std::vector<Message> messages_of(const stet_message* messages, size_t count) {
  std::vector<Message> all;
  for (const stet_message& message : items(messages, count, "messages"))
    all.push_back(message_of(message));
  return all;
}

void give_report(const PromptReport& report, stet_prompt_report* to) {
  if (to != nullptr) give(stet_prompt_report{0, report.kept, report.recomputed, report.added}, *to);
}

void apply(const stet_chat_options& o, ChatState* chat) {
  constexpr uint64_t kBoth = STET_CHAT_SPECIAL_IN_TEXT | STET_CHAT_PLAIN_TEXT;
  check_flags(o.flags, kBoth, "options");
  if (o.flags == kBoth)
    fail("options.flags", "STET_CHAT_SPECIAL_IN_TEXT or STET_CHAT_PLAIN_TEXT", "both");
  if (o.variables.size > 0) chat->variables = string_of(o.variables, "variables");
  if (o.chat_template.size > 0) chat->chat_template = string_of(o.chat_template, "chat_template");
  if (o.now != 0) chat->now = o.now;
  if (o.flags != 0) chat->special_in_text = o.flags == STET_CHAT_SPECIAL_IN_TEXT;
}

}  // namespace
}  // namespace stet::c

using namespace stet::c;

stet_status stet_session_message(const stet_session* session, size_t index, stet_message* message,
                                 stet_error** error) {
  return guarded(error, [&] {
    stet_message& to = output(message, "message");
    const stet::Session& s = *at(session, "session").at;
    to = message_value(element(s.chat().messages, index, "index"));
  });
}

stet_status stet_chat_new(const stet_session* session, const stet_tokenizer* tokenizer,
                          const stet_chat_options* options, stet_chat** chat, stet_error** error) {
  return guarded(error, [&] {
    stet_chat*& to = output(chat, "chat");
    stet::Session own = at(session, "session").at->fork();
    const std::shared_ptr<const stet::Tokenizer>& t = at(tokenizer, "tokenizer").tokenizer;
    apply(input(options, "options"), &own.chat());
    to = new stet_chat(stet::Conversation(std::move(own), t));
  });
}

void stet_chat_free(stet_chat* chat) { delete chat; }

stet_status stet_chat_fork(const stet_chat* chat, stet_chat** fork, stet_error** error) {
  return guarded(error, [&] {
    stet_chat*& to = output(fork, "fork");
    to = new stet_chat(at(chat, "chat").conversation.fork());
  });
}

stet_status stet_chat_session(stet_chat* chat, stet_session** session, stet_error** error) {
  return guarded(error, [&] {
    stet_session*& to = output(session, "session");
    to = &at(chat, "chat").session;
  });
}

// ---------------------------------------------------------------- prompts

stet_status stet_chat_say(stet_chat* chat, const char* text, size_t size,
                          stet_prompt_report* report, stet_error** error) {
  return guarded(error, [&] {
    if (report != nullptr) checked(report, "report");
    stet::Conversation& c = at(chat, "chat").conversation;
    give_report(c.say(std::string(text_of(text, size, "text"))), report);
  });
}

stet_status stet_chat_prompt(stet_chat* chat, const stet_message* messages, size_t count,
                             stet_progress_callback on_progress, void* context,
                             stet_prompt_report* report, stet_error** error) {
  return guarded(error, [&] {
    if (report != nullptr) checked(report, "report");
    stet::Conversation& c = at(chat, "chat").conversation;
    give_report(c.prompt(messages_of(messages, count), progress_of(on_progress, context)), report);
  });
}

stet_status stet_chat_plan(const stet_chat* chat, const stet_message* messages, size_t count,
                           stet_prompt_report* report, stet_error** error) {
  return guarded(error, [&] {
    checked(report, "report");
    const stet::Conversation& c = at(chat, "chat").conversation;
    give_report(c.plan(messages_of(messages, count)), report);
  });
}

stet_status stet_chat_set_system(stet_chat* chat, const char* text, size_t size,
                                 stet_error** error) {
  return guarded(error, [&] {
    at(chat, "chat").conversation.set_system(std::string(text_of(text, size, "text")));
  });
}

// ---------------------------------------------------------------- replies and undo

stet_status stet_chat_reply(stet_chat* chat, const stet_generate_options* options,
                            stet_reply** reply, stet_error** error) {
  return guarded(error, [&] {
    stet_reply*& to = output(reply, "reply");
    stet::Conversation& c = at(chat, "chat").conversation;
    Generation generation(options, c.session());
    to = new_reply(c.reply(generation.options(), generation.sink()));
  });
}

stet_status stet_chat_is_open(const stet_chat* chat, int32_t* open, stet_error** error) {
  return guarded(error, [&] {
    int32_t& to = output(open, "open");
    to = at(chat, "chat").conversation.open() ? 1 : 0;
  });
}

stet_status stet_chat_close(stet_chat* chat, char** text, size_t* size, stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(text, "text", size, "size");
    give_text(at(chat, "chat").conversation.close(), to);
  });
}

stet_status stet_chat_rewind(stet_chat* chat, int64_t turns, stet_error** error) {
  return guarded(error, [&] { at(chat, "chat").conversation.rewind(turns); });
}

stet_status stet_chat_retry(stet_chat* chat, stet_error** error) {
  return guarded(error, [&] { at(chat, "chat").conversation.retry(); });
}

stet_status stet_chat_message_count(const stet_chat* chat, size_t* count, stet_error** error) {
  return guarded(error, [&] {
    size_t& to = output(count, "count");
    to = at(chat, "chat").conversation.messages().size();
  });
}

stet_status stet_chat_message(const stet_chat* chat, size_t index, stet_message* message,
                              stet_error** error) {
  return guarded(error, [&] {
    stet_message& to = output(message, "message");
    to = message_value(element(at(chat, "chat").conversation.messages(), index, "index"));
  });
}

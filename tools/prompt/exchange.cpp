#include "tools/prompt/exchange.hpp"

namespace stet::tool {
namespace {

std::variant<Session, Conversation> talk_of(Session session,
                                            const std::shared_ptr<const Tokenizer>& tokenizer,
                                            Exchange::Kind kind) {
  if (kind == Exchange::Kind::raw) return session;
  return Conversation(std::move(session), tokenizer);
}

}  // namespace

Exchange::Exchange(Session session, std::shared_ptr<const Tokenizer> tokenizer, Kind kind)
    : Exchange(talk_of(std::move(session), tokenizer, kind), tokenizer) {}

Exchange::Exchange(std::variant<Session, Conversation> content,
                   std::shared_ptr<const Tokenizer> tokenizer)
    : content_(std::move(content)), tokenizer_(std::move(tokenizer)) {}

Exchange Exchange::fork() const {
  if (const Session* session = std::get_if<Session>(&content_))
    return {session->fork(), tokenizer_};
  return {std::get<Conversation>(content_).fork(), tokenizer_};
}

Session& Exchange::session() {
  return conversation() != nullptr ? conversation()->session() : std::get<Session>(content_);
}

const Session& Exchange::session() const {
  return conversation() != nullptr ? conversation()->session() : std::get<Session>(content_);
}

void Exchange::begin(const PromptOptions& options) {
  if (conversation() != nullptr) options.apply_to(*conversation(), *tokenizer_);
}

PromptReport Exchange::prompt(const Prompt& prompt, const Progress& progress) {
  if (kind() == Kind::conversation)
    return std::get<Conversation>(content_).say(prompt.message, progress);
  const PromptReport report{session().transcript_size(), 0,
                            static_cast<int64_t>(prompt.ids.size())};
  append_prompt(session(), prompt.ids, progress);
  return report;
}

Reply Exchange::reply(const GenerateOptions& options, const TextSink& sink) {
  if (kind() == Kind::conversation) return std::get<Conversation>(content_).reply(options, sink);
  return generate(session(), tokenizer_.get(), options, sink);
}

std::string Exchange::close() {
  return kind() == Kind::conversation ? std::get<Conversation>(content_).close()
                                      : end_reply(session(), tokenizer_.get());
}

Exchange::Kind kind_of(const PromptOptions& prompts, const Session& session,
                       const std::shared_ptr<const Tokenizer>& tokenizer) {
  const bool messages =
      prompts.conversation() || (!prompts.given() && !session.chat().messages.empty());
  return messages && tokenizer != nullptr ? Exchange::Kind::conversation : Exchange::Kind::raw;
}

}  // namespace stet::tool

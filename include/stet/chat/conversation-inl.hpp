// Implements Conversation.
#pragma once

#include <algorithm>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"

namespace stet {

namespace detail {

STET_INL std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos
             ? ""
             : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// Returns the range where a rendering contains the whole content of message `origin`, at or after
// `from`. Returns an empty range if it does not.
STET_INL TextRange find_content(const jinja::Text& text, const std::string& content, int origin,
                                size_t from) {
  // search from the end, because the role printed before the content may be the same text
  for (size_t i = text.marks.size(); i > 0; --i) {
    const jinja::Mark& mark = text.marks[i - 1];
    if (mark.origin != origin || mark.begin < from) continue;
    const std::string_view there(text.bytes.data() + mark.begin, mark.end - mark.begin);
    if (there == content || there == trimmed(content)) return {mark.begin, mark.end};
  }
  return {};
}

// Returns true if two messages are equal apart from their positions.
STET_INL bool same_text(const Message& a, const Message& b) {
  return a.role == b.role && a.content == b.content && a.fields == b.fields &&
         a.generated == b.generated;
}

// Returns the number of tokens whose text lies before byte `end` of their text.
STET_INL int64_t tokens_before(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                               size_t end) {
  size_t bytes = 0;
  int64_t count = 0;
  for (const int32_t id : ids) {
    bytes += tokenizer.bytes(id).size();
    if (bytes > end) break;
    ++count;
  }
  return count;
}

STET_INL int64_t count_users(const std::vector<Message>& messages) {
  return std::count_if(messages.begin(), messages.end(),
                       [](const Message& m) { return m.role == "user"; });
}

STET_INL size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first -
      a.begin());
}

}  // namespace detail

STET_INL void Conversation::Plan::add_text(const std::vector<int32_t>& tokens, size_t first,
                                           size_t last, bool fresh) {
  const auto begin = static_cast<int64_t>(ids.size());
  add(tokens, fresh);
  for (size_t i = first; i < last; ++i) {
    messages[i].begin = begin;
    messages[i].end = static_cast<int64_t>(ids.size());
    messages[i].generated = false;
  }
}

STET_INL void Conversation::Plan::add(const std::vector<int32_t>& tokens, bool fresh) {
  ids.insert(ids.end(), tokens.begin(), tokens.end());
  pieces.emplace_back(static_cast<int64_t>(ids.size()), fresh);
}

STET_INL void Conversation::Plan::compare(const std::vector<int32_t>& transcript) {
  report = {};
  kept = report.kept = static_cast<int64_t>(detail::common_prefix(ids, transcript));
  int64_t begin = kept;
  for (const auto& [end, fresh] : pieces) {
    (fresh ? report.added : report.recomputed) += std::max<int64_t>(0, end - begin);
    begin = std::max(begin, end);
  }
}

STET_INL Conversation::Conversation(Session session, std::shared_ptr<const Tokenizer> tokenizer)
    : session_(std::move(session)), tokenizer_(std::move(tokenizer)) {
  check_tokenizer(session_.model(), *tokenizer_);
  ChatState& chat = session_.chat();
  const std::string_view source = chat.chat_template.empty() ? tokenizer_->chat_template()
                                                             : std::string_view(chat.chat_template);
  check_chat(chat, session_.transcript_size(), "");
  // The time is stored only if the template uses it, so that other states do not depend on it.
  const bool asks = source.find("strftime_now") != std::string_view::npos;
  if (asks && chat.now == 0) chat.now = static_cast<int64_t>(std::time(nullptr));
  for (Message& m : chat.messages) {
    if (m.generated && m.content.empty())
      m.content = text_of(m);  // the session was rewound into this message
  }
  template_ = std::make_shared<const ChatTemplate>(
      chat.chat_template.empty() ? ChatTemplate(*tokenizer_)
                                 : ChatTemplate(chat.chat_template, "chat_template", *tokenizer_));
}

STET_INL Conversation::Conversation(Session session, std::shared_ptr<const Tokenizer> tokenizer,
                                    std::shared_ptr<const ChatTemplate> chat_template)
    : session_(std::move(session)),
      tokenizer_(std::move(tokenizer)),
      template_(std::move(chat_template)) {}

STET_INL Conversation Conversation::fork() const {
  return {session_.fork(), tokenizer_, template_};
}

STET_INL std::vector<int32_t> Conversation::tokens_at(const Message& m,
                                                      const std::vector<int32_t>& transcript) {
  if (m.begin < 0 || m.end < m.begin || m.end > static_cast<int64_t>(transcript.size())) {
    throw Error(ErrorKind::argument, "", "messages", "generated replies of this transcript",
                "one at " + std::to_string(m.begin));
  }
  return {transcript.begin() + m.begin, transcript.begin() + m.end};
}

// Returns the tokens of a reply, followed by tokens for the part of its content that exceeds their
// text. Such a part exists if a stop string begins inside a token. Throws an argument Error for
// content that the tokens do not begin, since the model would not see it.
STET_INL std::vector<int32_t> Conversation::tokens_of(
    const Message& m, const std::vector<int32_t>& transcript) const {
  std::vector<int32_t> ids = tokens_at(m, transcript);
  const std::string text = tokenizer_->decode(ids, true);
  const std::vector<Message>& own = messages();
  if (!m.content.starts_with(text) && std::ranges::find(own, m) == own.end()) {
    throw Error(ErrorKind::argument, "", "messages", "",
                "the reply at " + std::to_string(m.begin) +
                    " has another text than its tokens; a reply that was changed must not be marked"
                    " as drawn");
  }
  if (m.content.size() > text.size() && m.content.starts_with(text)) {
    const std::string rest = m.content.substr(text.size());
    const TextRange whole{0, rest.size()};
    const std::vector<int32_t> more =
        tokenizer_->encode(rest, Tokenizer::Bos::off, {&whole, 1}, true);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

STET_INL jinja::Text Conversation::render(const std::vector<Message>& messages,
                                          bool add_generation_prompt) const {
  const ChatState& chat = session_.chat();
  return template_->render(
      template_messages(messages), add_generation_prompt,
      jinja::Value::from_json(chat.variables.empty() ? "{}" : chat.variables, "variables"),
      static_cast<double>(chat.now));
}

// Adds to the plan the positions where messages end whose contents lie within `part` of the text.
// `tokens` are those of the part.
STET_INL void Conversation::add_ends(Plan& plan, const jinja::Text& text, TextRange part,
                                     const std::vector<int32_t>& tokens) const {
  if (session_.recurrent().empty()) return;
  for (size_t i = 0; i < text.marks.size(); ++i) {
    const jinja::Mark& mark = text.marks[i];
    const bool last = i + 1 == text.marks.size() || text.marks[i + 1].origin != mark.origin;
    if (!last || mark.origin < 0 || mark.begin < part.begin || mark.end > part.end) continue;
    plan.ends.push_back(static_cast<int64_t>(plan.ids.size()) +
                        detail::tokens_before(*tokenizer_, tokens, mark.end - part.begin));
  }
}

// Builds the plan of a rendering. `begun` is the range of the last message, at the end of the text,
// if it is a reply to continue.
STET_INL Conversation::Plan Conversation::make_plan(const std::vector<Message>& messages,
                                                    const jinja::Text& text,
                                                    std::optional<TextRange> begun) const {
  const ChatState& chat = session_.chat();
  const std::vector<int32_t> transcript = session_.transcript();
  Plan plan;
  plan.messages = messages;
  const auto is_new = [&](size_t i) {
    return std::none_of(chat.messages.begin(), chat.messages.end(), [&](const Message& m) {
      return m.end > 0 && detail::same_text(m, messages[i]);
    });
  };
  size_t at = 0, first = 0;  // next byte of the text, next message
  const auto add_text = [&](size_t end, size_t last, bool fresh) {
    const std::vector<TextRange> plain =
        chat.special_in_text ? std::vector<TextRange>() : plain_ranges(text, at, end);
    for (size_t i = first; i < last; ++i) fresh = fresh || is_new(i);
    const std::vector<int32_t> tokens = tokenizer_->encode(
        std::string_view(text.bytes).substr(at, end - at), Tokenizer::Bos::off, plain, at > 0);
    add_ends(plan, text, {at, end}, tokens);
    plan.add_text(tokens, first, last, fresh);
  };
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].generated) continue;
    const TextRange there =
        detail::find_content(text, messages[i].content, static_cast<int>(i), at);
    if (there.end == 0) continue;  // the template has changed it, or it is empty
    add_text(there.begin, i, false);
    plan.messages[i].begin = static_cast<int64_t>(plan.ids.size());
    plan.add(tokens_of(messages[i], transcript), is_new(i));
    plan.messages[i].end = static_cast<int64_t>(plan.ids.size());
    plan.ends.push_back(plan.messages[i].end);
    at = there.end;
    first = i + 1;
  }
  if (begun) {
    add_text(begun->begin, messages.size() - 1, false);
    const auto before = static_cast<int64_t>(plan.ids.size());
    at = begun->begin;
    first = messages.size() - 1;
    add_text(begun->end, messages.size(), false);
    plan.messages.back().generated = true;
    plan.begun = static_cast<int64_t>(plan.ids.size()) - before;
  } else {
    add_text(text.bytes.size(), messages.size(), false);
  }
  plan.text = text.bytes.substr(0, begun ? begun->end : text.bytes.size());
  plan.compare(transcript);
  ChatState made = chat;
  made.messages = plan.messages;
  check_chat(made, std::ssize(plan.ids), "");
  return plan;
}

STET_INL PromptReport Conversation::plan(const std::vector<Message>& messages) const {
  return lay_out(messages, false)->report;
}

STET_INL Conversation::Plan Conversation::prepare(std::vector<Message> messages) const {
  Plan plan = *lay_out(std::move(messages), false);
  check_fit(plan);
  return plan;
}

STET_INL std::optional<Conversation::Plan> Conversation::lay_out(std::vector<Message> messages,
                                                                 bool continued) const {
  for (Message& m : messages) m.content = utf8_lossy(m.content);
  const jinja::Text text = render(messages, !continued);
  if (!continued) return make_plan(messages, text, std::nullopt);
  if (text.marks.empty()) return std::nullopt;
  const jinja::Mark& last = text.marks.back();
  const std::string_view all = text.bytes;
  if (last.origin != static_cast<int>(messages.size()) - 1 ||
      all.substr(last.begin, last.end - last.begin) != messages.back().content ||
      !ends_turn(all.substr(last.end)))
    return std::nullopt;
  return make_plan(messages, text, TextRange{last.begin, last.end});
}

// Returns true if text written by the template consists only of special tokens and white space.
STET_INL bool Conversation::ends_turn(std::string_view text) const {
  for (const int32_t id : tokenizer_->encode(text, Tokenizer::Bos::off, {}, true)) {
    const std::string piece = tokenizer_->bytes(id);
    if (tokenizer_->is_special(id) || detail::trimmed(piece).empty()) continue;
    const TextRange whole{0, piece.size()};
    const std::vector<int32_t> plain =
        tokenizer_->encode(piece, Tokenizer::Bos::off, {&whole, 1}, true);
    // an ordinary token; special tokens never come from plain text
    if (plain.size() == 1 && plain[0] == id) return false;
  }
  return true;
}

STET_INL void Conversation::check_fit(const Plan& plan) const {
  const int64_t size = static_cast<int64_t>(plan.ids.size()) - shifted_out(session_.prunes());
  if (size > session_.capacity()) {
    throw Error(ErrorKind::capacity, "", "tokens",
                "at most " + std::to_string(session_.capacity()) + " positions (--ctx)",
                std::to_string(size));
  }
}

STET_INL void Conversation::begin(const Plan& plan) {
  close();
  session_.rewind(std::max<int64_t>(0, plan.kept - shifted_out(session_.prunes())));
  session_.anchor_at(plan.ends);
}

STET_INL std::span<const int32_t> Conversation::to_process(const Plan& plan) {
  return std::span(plan.ids).subspan(static_cast<size_t>(plan.kept));
}

STET_INL void Conversation::prompted(const Plan& plan) {
  open_prompt_turn(session_, session_.size() - static_cast<int64_t>(plan.ids.size()) + plan.kept);
  session_.chat().messages = plan.messages;
  if (plan.begun > 0) begin_continued(plan.begun);
}

// Makes the last `tokens` tokens the beginning of a reply that was cut.
STET_INL void Conversation::begin_continued(int64_t tokens) {
  GenerationState& state = session_.generation();
  const int64_t reply = session_.size() - tokens;
  Turn turn{reply, reply, session_.size(), true};
  for (; !state.turns.empty() && state.turns.back().end > reply; state.turns.pop_back())
    turn.prompt = std::min(turn.prompt, state.turns.back().prompt);
  state.turns.push_back(turn);
  TextStream stream(*tokenizer_, true);
  for (const int32_t id : std::span(session_.tokens()).last(static_cast<size_t>(tokens)))
    stream.push(id);
  state.stream = stream.state();
}

STET_INL PromptReport Conversation::prompt(std::vector<Message> messages,
                                           const Progress& progress) {
  session_.refuse_changes("prompt");
  const Plan plan = prepare(std::move(messages));
  Session before = session_.fork();
  try {
    begin(plan);
    session_.append(to_process(plan), nullptr, nullptr, progress);
  } catch (...) {
    session_ = std::move(before);
    throw;
  }
  prompted(plan);
  return plan.report;
}

STET_INL PromptReport Conversation::say(const std::string& text, const Progress& progress) {
  std::vector<Message> all = messages();
  all.push_back({"user", text, "", 0, 0, false});
  return prompt(std::move(all), progress);
}

// ---------------------------------------------------------------- replies

STET_INL bool Conversation::open() const {
  const std::vector<Turn>& turns = session_.generation().turns;
  return !turns.empty() && turns.back().open && turns.back().end > turns.back().reply &&
         !messages().empty() && messages().back().generated;
}

STET_INL std::string Conversation::text_of(const Message& m) const {
  return tokenizer_->decode(tokens_at(m, session_.transcript()), true);
}

STET_INL void Conversation::begin_reply() {
  reply_begin_ = open() ? messages().back().begin : session_.transcript_size();
  shown_ = open() ? shown_text(messages().back()) : "";
}

STET_INL void Conversation::end_reply(const Reply& reply) {
  if (Message* const m = settle(reply); m != nullptr && reply.stop != StopReason::stop_string)
    m->content = text_of(*m);
  session_.keep_anchor();
}

STET_INL Reply Conversation::reply(const GenerateOptions& options, const TextSink& sink) {
  session_.refuse_changes("reply");
  begin_reply();
  Generator generator(session_, tokenizer_.get(), options);
  try {
    generator.run([&](std::string_view text) {
      settle(generator.reply());
      return !sink || sink(text);
    });
  } catch (...) {
    end_reply(generator.reply());
    throw;
  }
  Reply reply = generator.finish();
  end_reply(reply);
  return reply;
}

// Returns the text that a reply has shown so far: that of all its tokens without what is held back.
STET_INL std::string Conversation::shown_text(const Message& m) const {
  TextStream stream(*tokenizer_, true);
  std::string text;
  for (const int32_t id : tokens_at(m, session_.transcript())) text += stream.push(id);
  return text.substr(0, text.size() - std::min(text.size(), session_.generation().held.size()));
}

// Makes the message hold the tokens drawn so far, except a stop token at the end. Returns it,
// or null if nothing was drawn.
STET_INL Message* Conversation::settle(const Reply& reply) {
  std::vector<Message>& all = session_.chat().messages;
  const int64_t end = session_.transcript_size();
  if (end == reply_begin_) return nullptr;
  if (all.empty() || !all.back().generated || all.back().begin != reply_begin_)
    all.push_back({"assistant", "", "", reply_begin_, end, true});
  Message& m = all.back();
  m.end = end - (reply.stop == StopReason::eos ? 1 : 0);
  m.content = shown_ + reply.text;
  if (reply.stop == StopReason::stop_string)
    end_at(m, m.content);
  else
    m.content += held_back();
  return &m;
}

// Returns the text that the session holds back, as text_of() has it.
STET_INL std::string Conversation::held_back() const {
  const GenerationState& state = session_.generation();
  TextStream stream(*tokenizer_, true);
  if (!state.stream.empty()) stream.restore(state.stream);
  return state.held + stream.finish();
}

// Ends a message at a stop string. Keeps the tokens before it; the stop string may begin inside a
// token.
STET_INL void Conversation::end_at(Message& m, const std::string& content) {
  TextStream stream(*tokenizer_, true);
  std::string text;
  int64_t end = m.begin, at = m.begin;
  for (const int32_t id : tokens_at(m, session_.transcript())) {
    text += stream.push(id);
    ++at;
    if (text.size() > content.size()) break;
    if (stream.pending().empty()) end = at;
  }
  m.end = end;
  m.content = content;
}

STET_INL std::string Conversation::close() {
  return open() ? stet::end_reply(session_, tokenizer_.get()) : "";
}

// ---------------------------------------------------------------- going back

// Rewinds to a position of the transcript and drops later messages.
STET_INL void Conversation::cut(int64_t position, size_t messages) {
  session_.rewind(std::max<int64_t>(0, position - shifted_out(session_.prunes())));
  std::vector<Message>& all = session_.chat().messages;
  all.resize(std::min(all.size(), messages));
}

namespace detail {

// Throws if the session cannot be rewound to `to`, where the first of the `turns` begins.
inline void check_after_prune(const Session& session, int64_t to, int64_t turns) {
  if (session.prunes().empty() || to > session.prunes().back().left()) return;
  const bool at_prune = to == session.prunes().back().left();
  throw Error(ErrorKind::argument, "", "turns", "turns that began after the last prune",
              std::to_string(turns) + ", of which the first began " +
                  (at_prune ? "at the prune; edit its message instead"
                            : "before; fork or save a chat before it is pruned"));
}

}  // namespace detail

STET_INL void Conversation::rewind(int64_t turns) {
  const std::vector<Message>& all = messages();
  size_t first = all.size();
  int64_t found = 0;
  while (found < turns && first > 0) found += all[--first].role == "user" ? 1 : 0;
  const int64_t most = detail::count_users(all);
  if (turns < 1 || found < turns) {
    throw Error(
        ErrorKind::argument, "", "turns",
        most == 0 ? "a conversation with a message of the user" : "1 .. " + std::to_string(most),
        most == 0 ? "none" : std::to_string(turns));
  }
  const bool later = std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first),
                                 [](const Message& m) { return m.generated; });
  int64_t position = later ? all[first].begin : 0;
  // The prompt begins one token later if the preceding reply drew its own stop token.
  for (const Turn& turn : session_.generation().turns) {
    const int64_t begin = turn.prompt + shifted_out(session_.prunes());
    if (later && begin == position + 1) position = begin;
  }
  const int64_t to = std::max<int64_t>(0, position - shifted_out(session_.prunes()));
  detail::check_after_prune(session_, to, turns);
  cut(position, first);
}

STET_INL void Conversation::retry() {
  const std::vector<Message>& all = messages();
  if (all.empty() || !all.back().generated)
    throw Error(ErrorKind::argument, "", "retry", "a reply to draw again", "none");
  cut(all.back().begin, all.size() - 1);
}

STET_INL void Conversation::set_system(const std::string& text) {
  session_.refuse_changes("set_system");
  std::vector<Message>& all = session_.chat().messages;
  const bool there = !all.empty() && all.front().role == "system";
  if (text.empty()) {
    if (there) all.erase(all.begin());
    return;
  }
  ChatState changed = session_.chat();
  if (!there)
    changed.messages.insert(changed.messages.begin(), Message{"system", "", "", 0, 0, false});
  changed.messages.front().content = utf8_lossy(text);
  changed.messages.front().begin = changed.messages.front().end = 0;  // not processed yet
  check_chat(changed, session_.transcript_size(), "");
  session_.chat() = std::move(changed);
}

}  // namespace stet

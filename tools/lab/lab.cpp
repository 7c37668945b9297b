#include "tools/lab/lab.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "stet/base/error.hpp"
#include "stet/chat/conversation.hpp"
#include "stet/text/utf8.hpp"
#include "tools/command/streams.hpp"

namespace stet::tool {

void LabOptions::add_to(Command& app) {
  prompt.add_to(app);
  prompt.add_messages_to(app);
  app.get_option("--prompt")->description("raw text; each further one is appended");
  app.get_option("--say")->description("a user message, through the chat template");
  add_without_prompt_to(app);
}

void LabOptions::add_without_prompt_to(Command& app) {
  Option* snapshot =
      app.add_option("--from", from, "a snapshot to continue from")->type_name("FILE");
  restore.add_to(app, snapshot);
  interventions.add_to(app);
  model.add_to(app);
}

LabWork begin(LabOptions& o) {
  if (o.prompt.messages.size() > 1)
    usage_error(
        "--say can be given once here; stet generate --save draws replies, --from continues");
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<Session> session;
  if (o.from.empty()) {
    tokenizer = load_tokenizer(o.model.checkpoint);
    session.emplace(o.model.load_model(), o.model.session_options());
  } else {
    const Snapshot snapshot = o.restore.open(o.from);
    if (o.prompt.conversation()) o.prompt.require_fit(snapshot);
    choose_checkpoint(o.model, snapshot);
    follow(o.model, snapshot, o.restore.how.replay);
    tokenizer = tokenizer_of(snapshot, o.model);
    session.emplace(restore_session(snapshot, o.model, o.restore.how, tokenizer.get()));
  }
  std::vector<int32_t> ids;
  if (o.prompt.given()) {
    for (const Prompt& p : o.prompt.read(o.model.source()->path(), tokenizer, session->size() == 0))
      ids.insert(ids.end(), p.ids.begin(), p.ids.end());
  }
  if (o.prompt.conversation())
    ids = begin_message(*session, tokenizer, o.prompt, o.prompt.messages[0]);
  o.interventions.attach_to(*session);
  return {tokenizer, std::move(*session), std::move(ids)};
}

Json parse_line(const std::string& line, const std::string& where,
                const std::vector<std::string>& fields) {
  Json json = Json::parse(line, nullptr, false);
  if (!json.is_object())
    throw Error(ErrorKind::format, where, "", "an object of JSON", printable(line, 60));
  for (const auto& [name, value] : json.items()) {
    if (std::find(fields.begin(), fields.end(), name) != fields.end()) continue;
    std::string known;
    for (const std::string& field : fields) known += (known.empty() ? "" : ", ") + field;
    throw Error(ErrorKind::format, where, "", known, printable(name, 60));
  }
  return json;
}

namespace {

LabLine lab_line(const LabOptions& o, const LabWork& base, const std::string& text,
                 const std::string& where) {
  const Json json = parse_line(text, where, {"prompt", "ids", "say", "id"});
  if (json.contains("prompt") + json.contains("ids") + json.contains("say") != 1)
    throw Error(ErrorKind::format, where, "", "one of prompt, ids and say", printable(text, 60));
  LabLine line{where, json.value("id", Json()), {base.tokenizer, base.session.fork(), {}}};
  const auto string = [&](const char* name) {
    if (!json[name].is_string())
      throw Error(ErrorKind::format, where, name, "a string", dump(json[name]).substr(0, 60));
    if (base.tokenizer == nullptr) no_tokenizer(o.model.source()->path(), " (or use ids)");
    return json[name].get<std::string>();
  };
  const Tokenizer::Bos bos =
      base.session.size() == 0 || o.prompt.bos == "on" ? bos_of(o.prompt.bos) : Tokenizer::Bos::off;
  if (json.contains("ids"))
    line.work.ids = parse_ids(dump(json["ids"]), where + ": ids");
  else if (json.contains("prompt"))
    line.work.ids = base.tokenizer->encode(string("prompt"), bos);
  else
    line.work.ids = begin_message(line.work.session, base.tokenizer, o.prompt, string("say"));
  if (line.work.ids.empty())
    throw Error(ErrorKind::argument, where, "", "at least one token", "none");
  return line;
}

}  // namespace

void each_lab_line(LabOptions& o, const std::function<void(LabLine&)>& f) {
  if (o.prompt.given())
    usage_error("--jsonl takes its prompts from standard input; leave the prompt out");
  const LabWork base = begin(o);
  std::string text;
  for (size_t number = 1; out("") && read_line(text); ++number) {
    const std::string where = fmt::format("standard input: line {}", number);
    LabLine line = lab_line(o, base, text, where);
    try {
      f(line);
    } catch (const Error& e) {
      if (!e.file.empty()) throw;
      throw Error(e.kind, where, e.field, e.expected, e.found);
    } catch (const UsageError& e) {  // an option does not fit this line
      throw UsageError(where + ": " + e.what());
    }
    flush_output();
  }
}

std::vector<int32_t> begin_message(Session& session,
                                   const std::shared_ptr<const Tokenizer>& tokenizer,
                                   const PromptOptions& options, const std::string& text) {
  Conversation conversation(std::move(session), tokenizer);
  options.apply_to(conversation, *tokenizer);
  std::vector<Message> messages = conversation.messages();
  messages.emplace_back();
  messages.back().role = "user";
  messages.back().content = text;
  const Conversation::Plan plan = conversation.prepare(std::move(messages));
  conversation.begin(plan);
  session = std::move(conversation.session());
  const std::span<const int32_t> ids = Conversation::to_process(plan);
  return {ids.begin(), ids.end()};
}

void require_finite(const Json& results, const std::string& where) {
  const Json flat = results.flatten();
  for (const auto& [field, value] : flat.items()) {
    if (!value.is_number_float() || std::isfinite(value.get<double>())) continue;
    throw Error(
        ErrorKind::argument, where, field, "a finite number",
        fmt::format("{}: an edit, an intervention or a weight is too large", value.get<double>()));
  }
}

std::vector<int64_t> parse_positions(const std::string& text, const char* option, int64_t begin,
                                     int64_t end) {
  std::vector<int64_t> all;
  const auto add = [&](int64_t from, int64_t to) {
    for (int64_t p = from; p < to; ++p) all.push_back(p);
  };
  if (text.empty()) add(begin, end);
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view part(text.data() + at, comma - at);
    const char* const last = part.data() + part.size();
    int64_t from = -1, to = -1;
    auto [next, error] = std::from_chars(part.data(), last, from);
    if (error == std::errc() && next == last) {
      to = from;
    } else if (std::string_view(next, static_cast<size_t>(last - next)).starts_with("..")) {
      next = std::from_chars(next + 2, last, to).ptr;
    }
    if (next != last || from < begin || to < from || to >= end || comma + 1 == text.size())
      usage_error(option,
                  begin < end ? fmt::format("positions of {}..{}, as 3..9,12", begin, end - 1)
                              : std::string("none: there are no positions"),
                  printable(text, 60));
    add(from, to + 1);
    at = comma + 1;
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::vector<int64_t> parse_list(const std::string& text, const char* option) {
  const std::vector<int32_t> numbers = parse_ids(text, option, "number");
  return {numbers.begin(), numbers.end()};
}

std::string token_text(const Tokenizer* tokenizer, int32_t id) {
  if (tokenizer == nullptr || id >= tokenizer->size()) return std::to_string(id);
  return printable(utf8_lossy(tokenizer->bytes(id)), 40);
}

}  // namespace stet::tool

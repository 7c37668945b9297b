#include <fmt/format.h>

#include "tools/chat/chat.hpp"
#include "tools/chat/signals.hpp"

namespace stet::tool {
namespace {

double rate(int64_t n, double s) { return s > 0 ? static_cast<double>(n) / s : 0; }

}  // namespace

TurnReport take_turn(Conversation& conversation, const std::vector<Message>& said, Then then,
                     const GenerateOptions& options,
                     const std::function<void(std::string_view)>& show, const Progress& progress) {
  TurnReport report;
  const double start = seconds();
  if (then == Then::reply && !said.empty()) {
    std::vector<Message> all = conversation.messages();
    all.insert(all.end(), said.begin(), said.end());
    report.prompt = conversation.prompt(std::move(all), [&](int64_t done) {
      if (ChatSignals::stopping()) throw Interrupted();
      if (progress) progress(done);
    });
    const std::vector<int32_t> transcript = conversation.session().transcript();
    report.prompt_ids.assign(transcript.begin() + report.prompt.kept, transcript.end());
  } else {
    report.prompt.kept = conversation.session().size();
  }
  const double middle = seconds();
  report.prefill_s = middle - start;
  report.reply = conversation.reply(options, [&](std::string_view text) {
    if (report.first_token_s == 0) report.first_token_s = seconds() - start;
    show(text);
    return !ChatSignals::stopping() && out("");
  });
  report.decode_s = seconds() - middle;
  report.speculated = options.speculator != nullptr;
  return report;
}

Json TurnReport::json() const {
  const int64_t processed = prompt.recomputed + prompt.added,
                drawn = static_cast<int64_t>(reply.ids.size());
  Json j;
  j["prompt_ids"] = prompt_ids;
  j["ids"] = reply.ids;
  j["text"] = reply.text;
  j["stop"] = stop_reason_name(reply.stop);
  j["tokens"] = {{"kept", prompt.kept}, {"recomputed", prompt.recomputed}, {"added", prompt.added}};
  j["timings"] = {{"prefill_s", prefill_s},
                  {"prefill_tokens", processed},
                  {"prefill_tokens_per_s", rate(processed, prefill_s)},
                  {"first_token_s", first_token_s},
                  {"decode_s", decode_s},
                  {"decode_tokens", drawn},
                  {"decode_tokens_per_s", rate(drawn, decode_s)}};
  add_drafted(j["timings"], reply, speculated);
  return j;
}

std::string TurnReport::text() const {
  const std::string drafts =
      speculated ? fmt::format(", {} of {} drafts accepted", reply.accepted, reply.drafted) : "";
  return fmt::format(
      "{} tokens kept, {}{} new; first token after {:.0f} ms, then {} at {:.1f} tokens/s{}",
      prompt.kept, prompt.recomputed > 0 ? fmt::format("{} recomputed, ", prompt.recomputed) : "",
      prompt.added, first_token_s * 1e3, reply.ids.size(),
      rate(static_cast<int64_t>(reply.ids.size()), decode_s), drafts);
}

}  // namespace stet::tool

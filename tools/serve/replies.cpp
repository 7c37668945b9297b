// Drawing of replies, their delivery piece by piece, and the states after them.
#include <algorithm>
#include <utility>

#include "stet/base/error.hpp"
#include "tools/serve/service.hpp"

namespace stet::serve {
namespace {

// Removes from a text in pieces a beginning that its reader knows already.
class KnownTextFilter {
 public:
  explicit KnownTextFilter(std::string known) : known_(std::move(known)) {}

  std::string operator()(std::string_view text) {
    size_t n = 0;
    while (n < text.size() && n < known_.size() && text[n] == known_[n]) ++n;
    const bool goes_on = n == text.size();
    while (n > 0 && n < text.size() && (static_cast<unsigned char>(text[n]) & 0xc0) == 0x80)
      --n;  // keep characters whole
    known_.erase(0, goes_on ? n : known_.size());
    return std::string(text.substr(n));
  }

 private:
  std::string known_;
};

// One reply being drawn. The engine shares its ownership while it draws.
struct Choice {
  Choice(Service& service, Exchange exchange_, const PreparedPrompt& prompted,
         const DrawOptions& options, size_t index)
      : exchange(std::move(exchange_)), without_known(prompted.known_text) {
    GenerationState& g = exchange.session().generation();
    options.apply(g, *service.model);
    if (options.seed) g.sampling.seed += index;
    if (exchange.conversation() != nullptr) exchange.conversation()->begin_reply();
    GenerateOptions o;
    o.max_tokens = options.max_tokens.value_or(INT64_MAX);
    o.ignore_eos = options.ignore_eos;
    if (options.top_logprobs >= 0) {
      o.observe = [this, n = static_cast<size_t>(options.top_logprobs)](
                      int32_t id, std::span<const float> logits) {
        const std::lock_guard lock(mutex);
        seen.push_back({id, log_probability(logits, id), top_candidates(logits, n)});
      };
    }
    speculator = service.engine.speculator();
    o.speculator = speculator.get();
    generator.emplace(exchange.session(), service.tokenizer.get(), o);
    first.text = without_known(generator->certain());
    job.emplace(exchange.session(), *generator, options.choose);
  }

  // Appends a piece to the text of the reply.
  const ReplyPiece& record(const ReplyPiece& piece) {
    text += piece.text;
    return piece;
  }

  Reply finish() {
    Reply reply = generator->finish();
    if (exchange.conversation() != nullptr) exchange.conversation()->end_reply(reply);
    reply.text = text;
    return reply;
  }

  Exchange exchange;
  KnownTextFilter without_known;
  ReplyPiece first;  // the text that was certain before anything was drawn
  std::unique_ptr<Speculator> speculator;
  std::optional<Generator> generator;
  std::optional<Job> job;
  std::string text;
  std::mutex mutex;  // guards the members that the engine's thread writes
  std::vector<TokenLogprob> seen;
  size_t logprobs_told = 0;
  bool over = false;
};
using Choices = std::vector<std::shared_ptr<Choice>>;

// Cancels all choices that are still being drawn when its scope ends.
class DrawGuard {
 public:
  explicit DrawGuard(const Choices& choices) : choices_(choices) {}
  ~DrawGuard() {
    for (const auto& choice : choices_) choice->job->cancel();
  }
  DrawGuard(const DrawGuard&) = delete;
  DrawGuard& operator=(const DrawGuard&) = delete;

 private:
  const Choices& choices_;
};

using PieceSink = std::function<bool(const ReplyPiece&)>;

// Passes new pieces of one choice to `sink`. Returns false when the choice is over.
bool take_pieces(Choice& choice, size_t index, const CancelCheck& cancelled, const PieceSink& sink,
                 bool& wanted) {
  std::vector<Job::Piece> pieces;
  if (!choice.job->wait(pieces, [&] { return !wanted || cancelled(); })) return false;
  ReplyPiece piece{index, "", {}, {}};
  for (const Job::Piece& p : pieces) {
    piece.text += p.text;
    piece.ids.push_back(p.id);
    const std::lock_guard lock(choice.mutex);
    if (choice.logprobs_told < choice.seen.size())
      piece.logprobs.push_back(choice.seen[choice.logprobs_told++]);
  }
  piece.text = choice.without_known(piece.text);
  if (!pieces.empty() && wanted && !sink(choice.record(piece))) wanted = false;
  return true;
}

// Draws all choices to their ends. Returns true if the client has disconnected.
bool draw_all(const Choices& choices, const CancelCheck& check, const PieceSink& sink) {
  bool wanted = true, cancelled = false;
  std::exception_ptr error;
  for (size_t left = choices.size(); left > 0;) {
    for (size_t i = 0; i < choices.size(); ++i) {
      Choice& choice = *choices[i];
      if (choice.over) continue;
      try {
        if (take_pieces(choice, i, check, sink, wanted)) continue;
      } catch (const Cancelled&) {
        cancelled = true;
      } catch (...) {
        if (error == nullptr) error = std::current_exception();
        wanted = false;
        if (!choice.job->over()) continue;
      }
      choice.over = true;
      --left;
    }
  }
  if (error != nullptr) std::rethrow_exception(error);
  return cancelled;
}

// Keeps the state after a reply, and returns it with the end of the text.
ReplyResult keep(Service& service, const Caller& caller, const PreparedPrompt& prompted,
                 const DrawOptions& options, Choice& choice, size_t index, bool cancelled,
                 const PieceSink& sink) {
  ReplyResult r;
  Json operation = prompted.operation;
  operation.erase("told");  // it described the previous state
  const GenerationState& g = choice.exchange.session().generation();
  r.reply = choice.finish();
  if (!options.hold_back && !cancelled && r.reply.stop == StopReason::length) {
    const std::string held = held_text(g, service.tokenizer.get());
    if (!held.empty()) operation["told"] = true;
    const ReplyPiece rest{index, choice.without_known(held), {}, {}};
    if (!rest.text.empty()) sink(choice.record(rest));
    r.reply.text = choice.text;
  }
  r.logprobs = std::move(choice.seen);
  r.cancelled = cancelled;
  operation["drawn"] = r.reply.ids.size();
  r.node = service.states.add(caller.client, prompted.parent, std::move(operation),
                              std::move(choice.exchange.session()));
  return r;
}

}  // namespace

std::vector<ReplyResult> draw_replies(Service& service, const Caller& caller,
                                      PreparedPrompt& prompted, const DrawOptions& options,
                                      const PieceSink& sink) {
  Choices choices;
  std::vector<JobPtr> jobs;
  for (int64_t i = 0; i < options.n; ++i) {
    choices.push_back(std::make_shared<Choice>(service, prompted.exchange.fork(), prompted, options,
                                               static_cast<size_t>(i)));
    jobs.emplace_back(choices.back(), &*choices.back()->job);
  }
  const DrawGuard guard(choices);
  const auto known =
      service.states.running(caller.client, prompted.parent, prompted.exchange.session());
  bool first = true;
  const PieceSink report = [&](const ReplyPiece& piece) {
    if (std::exchange(first, false))
      service.first_token_seconds.add(tool::seconds() - caller.since);
    return !sink || sink(piece);
  };
  service.engine.start(jobs);
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i]->first.choice = i;
    if (!choices[i]->first.text.empty()) report(choices[i]->record(choices[i]->first));
  }
  const bool cancelled = draw_all(choices, caller.cancelled, report);
  service.states.count(prompted.usage);
  std::vector<ReplyResult> results;
  for (size_t i = 0; i < choices.size(); ++i)
    results.push_back(keep(service, caller, prompted, options, *choices[i], i, cancelled, report));
  if (cancelled) throw Cancelled();
  return results;
}

}  // namespace stet::serve

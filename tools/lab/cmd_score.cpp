// stet score: log-probabilities of texts, alone or after a context, one or many at once.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <exception>

#include "stet/base/error.hpp"
#include "stet/generate/score.hpp"
#include "tools/command/streams.hpp"
#include "tools/lab/lab.hpp"

namespace stet::tool {
namespace {

constexpr size_t kLinesAtOnce = 1024;  // lines scored together; they may share common beginnings

struct ScoreCommand {
  LabOptions lab;
  std::optional<std::string> continuation;
  ScoreOptions how;
  int64_t batch = 16;
  bool jsonl = false, json = false;
};

// A request on a line of standard input.
struct Line {
  std::string where;
  Json id;  // null if absent
  ScoreRequest request;
};

class Scoring {
 public:
  Scoring(const ScoreCommand& o, LabWork& work) : o_(o), work_(work) {}

  ScoreRequest of_prompt() const {
    const PromptOptions& p = o_.lab.prompt;
    if (!o_.continuation) return {work_.ids, first()};
    if (p.prompts.size() == 1) return pair(p.prompts[0], *o_.continuation);
    ScoreRequest r{work_.ids, work_.ids.size()};
    const std::vector<int32_t> more = tokenizer().encode(*o_.continuation, Tokenizer::Bos::off);
    r.ids.insert(r.ids.end(), more.begin(), more.end());
    return r;
  }
  Line of_line(const std::string& text, const std::string& where) const {
    const Json json =
        parse_line(text, where, {"text", "context", "continuation", "ids", "begin", "id"});
    Line line{where, json.value("id", Json()), {}};
    const auto get = [&](const char* name) {
      if (!json.contains(name) || !json[name].is_string())
        throw Error(ErrorKind::format, where, name, "a string",
                    json.contains(name) ? dump(json[name]).substr(0, 60) : "none");
      return json[name].get<std::string>();
    };
    const bool whole = json.contains("text"), ids = json.contains("ids"),
               two = json.contains("context") || json.contains("continuation");
    if (whole + ids + two != 1 || (json.contains("begin") && !ids))
      throw Error(ErrorKind::format, where, "",
                  "text; context and continuation; or ids, with or without begin",
                  printable(text, 60));
    if (two) {
      line.request = pair(get("context"), get("continuation"));
      return line;
    }
    line.request.ids = whole ? tokenizer().encode(get("text"), bos())
                             : parse_ids(dump(json["ids"]), where + ": ids");
    line.request.begin = json.contains("begin") ? begin_of(json["begin"], where)
                                                : std::min(first(), line.request.ids.size());
    return line;
  }
  std::vector<Score> score(std::span<const ScoreRequest> requests) const {
    return stet::score(work_.session, requests, o_.how);
  }
  Json json(const ScoreRequest& request, const Score& score) const {
    Json j = {{"sum", score.sum}, {"greedy", score.greedy}, {"begin", request.begin}};
    for (const char* list : {"ids", "logprobs", "best"}) j[list] = Json::array();
    for (const TokenScore& t : score.tokens) {
      j["ids"].push_back(t.id);
      j["best"].push_back(t.best);
      j["logprobs"].push_back(t.log_probability);
    }
    return j;
  }

 private:
  // Returns the index of the first token to score, which needs a token before it.
  size_t first() const { return work_.session.size() == 0 ? 1 : 0; }
  Tokenizer::Bos bos() const {
    const Tokenizer::Bos asked = bos_of(o_.lab.prompt.bos);
    return first() == 1 || asked == Tokenizer::Bos::on ? asked : Tokenizer::Bos::off;
  }
  const Tokenizer& tokenizer() const {
    if (work_.tokenizer == nullptr) no_tokenizer(o_.lab.model.source()->path(), " (or use ids)");
    return *work_.tokenizer;
  }
  ScoreRequest pair(const std::string& context, const std::string& continuation) const {
    return encode_pair(tokenizer(), context, continuation, bos());
  }
  static size_t begin_of(const Json& json, const std::string& where) {
    if (!json.is_number_unsigned())
      throw Error(ErrorKind::format, where, "begin", "a number of ids", dump(json).substr(0, 60));
    return json.get<size_t>();
  }

  const ScoreCommand& o_;
  LabWork& work_;
};

void print(const Scoring& scores, std::span<const Line> lines) {
  std::vector<ScoreRequest> requests;
  for (const Line& line : lines) requests.push_back(line.request);
  const std::vector<Score> all = scores.score(requests);
  for (size_t i = 0; i < all.size(); ++i) {
    Json j = Json::object();
    if (!lines[i].id.is_null()) j["id"] = lines[i].id;
    const Json found = scores.json(requests[i], all[i]);
    require_finite(found, lines[i].where);
    j.update(found);
    out(dump(j) + "\n");
  }
  flush_output();
}

// Prints the scores of lines. If a line fails, prints those before it and throws an Error that
// names it.
void score_lines(const Scoring& scores, std::span<const Line> lines) {
  constexpr std::string_view kRequest = "requests[";
  try {
    print(scores, lines);
  } catch (const Error& e) {
    size_t index = lines.size();
    if (e.field.starts_with(kRequest))
      std::from_chars(e.field.data() + kRequest.size(), e.field.data() + e.field.size(), index);
    if (index >= lines.size()) throw;
    print(scores, lines.first(index));
    throw Error(e.kind, lines[index].where, e.field.substr(e.field.find("]: ") + 3), e.expected,
                e.found);
  }
}

// Reads and scores lines in groups. An error in a line is thrown after the lines before it were
// scored.
void score_input(const Scoring& scores) {
  size_t number = 0;
  for (bool more = true; more && out("");) {
    std::vector<Line> lines;
    std::exception_ptr fault;
    std::string text;
    while (lines.size() < kLinesAtOnce && (more = read_line(text))) {
      try {
        lines.push_back(scores.of_line(text, fmt::format("standard input: line {}", ++number)));
      } catch (...) {
        fault = std::current_exception();
        break;
      }
    }
    score_lines(scores, lines);
    if (fault) std::rethrow_exception(fault);
  }
}

void print_table(const ScoreRequest& request, const Score& score, const LabWork& work) {
  out("position  logprob  token\n");
  int64_t position = work.session.size() + static_cast<int64_t>(request.begin);
  for (const TokenScore& t : score.tokens) {
    out(fmt::format("{:8}  {:7.3f}  {}{}\n", position++, t.log_probability,
                    token_text(work.tokenizer.get(), t.id),
                    t.id == t.best ? ""
                                   : fmt::format("  (likeliest: {})",
                                                 token_text(work.tokenizer.get(), t.best))));
  }
  const auto n = static_cast<double>(std::max<size_t>(1, score.tokens.size()));
  out(fmt::format("sum {:.6f} over {} tokens, perplexity {:.4f}; {}\n", score.sum,
                  score.tokens.size(), std::exp(-score.sum / n),
                  score.greedy ? "greedy: each is the likeliest" : "not greedy"));
}

void check(const ScoreCommand& o) {
  if (o.jsonl && o.lab.prompt.given())
    usage_error("--jsonl takes its texts from standard input; leave the prompt out");
  if (o.jsonl && o.continuation) usage_error("--continuation cannot be used with --jsonl");
  if (!o.jsonl && !o.lab.prompt.given() && o.lab.from.empty())
    usage_error("score needs a prompt or --jsonl");
  if (!o.jsonl && !o.lab.prompt.given() && !o.continuation)
    usage_error("score --from needs a prompt or --continuation");
}

void run(ScoreCommand& o) {
  check(o);
  o.how.batch = static_cast<size_t>(o.batch);
  LabWork work = begin(o.lab);
  const Scoring scores(o, work);
  if (o.jsonl) return score_input(scores);
  const ScoreRequest request = scores.of_prompt();
  if (request.begin >= request.ids.size() && o.continuation)
    usage_error("--continuation", "at least one token", "none");
  if (request.begin >= request.ids.size())
    usage_error("score needs at least two tokens: the first has no log-probability");
  const Score score = scores.score({&request, 1})[0];
  const Json json = scores.json(request, score);
  require_finite(json, "score");
  if (o.json) {
    out(dump(json) + "\n");
    return;
  }
  print_table(request, score, work);
}

}  // namespace

void add_score(Command& app) {
  const auto o = std::make_shared<ScoreCommand>();
  Command* sub = app.add_subcommand(
      "score", "Print log-probabilities of the tokens of texts, for evaluation.");
  o->lab.add_to(*sub);
  sub->add_option("--continuation", o->continuation,
                  "the text to score after the prompt (default: the prompt itself)")
      ->type_name("TEXT")
      ->group("Prompt");
  sub->add_flag("--jsonl", o->jsonl,
                "an object per line of standard input: {\"text\"}, {\"context\", "
                "\"continuation\"} or {\"ids\", \"begin\"}; one per line out, in their order")
      ->group("Prompt");
  sub->add_option("--batch", o->batch,
                  "maximum texts processed together (default: 16); changes no bit")
      ->type_name("N")
      ->check(integer(1, 4096));
  sub->add_flag("--json", o->json, "print JSON")->group("Output");
  sub->callback([o] { run(*o); });
}

}  // namespace stet::tool

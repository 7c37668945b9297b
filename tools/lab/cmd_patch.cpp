// stet patch: activation patching. Runs a prompt with activations of another one put in, layer by
// layer and position by position, and shows where that changes the answer.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "stet/base/error.hpp"
#include "stet/session/trace.hpp"
#include "tools/command/streams.hpp"
#include "tools/lab/lab.hpp"
#include "tools/lab/picture.hpp"

namespace stet::tool {
namespace {

struct PatchCommand {
  LabOptions lab;  // its options for a prompt are not used
  std::string clean, corrupt, clean_ids, corrupt_ids, answer, wrong, point, positions;
  PictureOptions pictures;
  bool chat = false, heads = false, json = false, jsonl = false;
};

// The prompts to compare, from options or from a line of standard input.
struct Question {
  std::string clean, corrupt, clean_ids, corrupt_ids, answer, wrong;
  std::string where;  // the line of standard input; "" if the question was given by options
  Json id;            // null if absent

  // Throws an Error for a line, a UsageError for the command line.
  [[noreturn]] void refuse(const std::string& field, const std::string& expected,
                           const std::string& found) const {
    if (where.empty()) usage_error("--" + field, expected, found);
    throw Error(ErrorKind::argument, where, field, expected, found);
  }
};

struct Sweep {
  std::vector<int32_t> clean, corrupt;
  int32_t answer = 0, wrong = 0;
  Point point = Point::resid_pre;
  std::vector<int64_t> positions;
  bool by_head = false;  // a run for each head, at all positions; else one for each position

  // Returns the runs of a layer: 0 if it has no such point.
  size_t runs(const ModelConfig& c, int64_t layer) const {
    const PointAt at{point, layer};
    if (!has_point(c, at)) return 0;
    return by_head ? static_cast<size_t>(point_heads(c, at)) : positions.size();
  }
};

Question question_of(const PatchCommand& o) {
  return {o.clean, o.corrupt, o.clean_ids, o.corrupt_ids, o.answer, o.wrong, "", {}};
}

Question question_of(const std::string& line, const std::string& where) {
  const Json json = parse_line(
      line, where, {"clean", "corrupt", "clean_ids", "corrupt_ids", "answer", "wrong", "id"});
  const auto text = [&](const char* name) -> std::string {
    if (!json.contains(name)) return "";
    const Json& value = json[name];
    if (value.is_string()) return value.get<std::string>();
    if (value.is_array() && std::string_view(name).ends_with("_ids")) return dump(value);
    throw Error(ErrorKind::format, where, name, "a string (clean_ids, corrupt_ids: token ids)",
                dump(value).substr(0, 60));
  };
  Question q{
      text("clean"), text("corrupt"), text("clean_ids"),       text("corrupt_ids"), text("answer"),
      text("wrong"), where,           json.value("id", Json())};
  for (const auto& [name, value] : {std::pair("answer", &q.answer), std::pair("wrong", &q.wrong)})
    if (value->empty()) q.refuse(name, "a token", "an empty text");
  if (q.clean.empty() == q.clean_ids.empty()) q.refuse("clean", "clean or clean_ids", "not one");
  if (q.corrupt.empty() == q.corrupt_ids.empty())
    q.refuse("corrupt", "corrupt or corrupt_ids", "not one");
  return q;
}

std::vector<int32_t> ids_of(const std::string& text, const std::string& ids,
                            const std::string& name, const LabWork& work, const PatchCommand& o) {
  if (!ids.empty()) return parse_ids(ids, name);
  if (work.tokenizer == nullptr) no_tokenizer(o.lab.model.checkpoint.directory);
  if (!o.chat)
    return work.tokenizer->encode(
        text, work.session.size() == 0 ? Tokenizer::Bos::automatic : Tokenizer::Bos::off);
  Session session = work.session.fork();
  return begin_message(session, work.tokenizer, {}, text);
}

// Returns the token id of a text that must be one token or a number.
int32_t token_of(const Question& q, const std::string& text, const char* field,
                 const Tokenizer* tokenizer, int64_t vocab) {
  const std::vector<int32_t> ids =
      tokenizer == nullptr ? parse_ids(text, q.where.empty() ? std::string("--") + field : q.where)
                           : tokenizer->encode(text, Tokenizer::Bos::off);
  if (ids.size() != 1) q.refuse(field, "a text of one token", fmt::format("{} tokens", ids.size()));
  if (ids[0] < 0 || ids[0] >= vocab)
    q.refuse(field, fmt::format("a token id in 0..{}", vocab - 1), std::to_string(ids[0]));
  return ids[0];
}

double score(std::span<const float> logits, const Sweep& s) {
  return double{logits[static_cast<size_t>(s.answer)]} - logits[static_cast<size_t>(s.wrong)];
}

// Captures the rows of the clean run at the point: [layers][tokens][width]. A layer without the
// point has none.
using Captured = std::vector<std::vector<float>>;
Captured capture_clean(Session& session, const Sweep& s) {
  const ModelConfig& c = session.model().config();
  const int64_t layers = point_info(s.point).of_layer ? c.layers : 1;
  Captured rows(static_cast<size_t>(layers));
  Watch watch;
  for (int64_t l = 0; l < layers; ++l) {
    if (s.runs(c, l) > 0) watch.points.push_back({s.point, l});
  }
  watch.sink = [&](const PointAt& at, int64_t, Rows r) {
    for (size_t i = 0; i < r.count; ++i) {
      std::vector<float>& to = rows[static_cast<size_t>(at.layer)];
      to.insert(to.end(), r.row(i), r.row(i) + r.width);
    }
  };
  session.append(s.clean, nullptr, nullptr, nullptr, &watch);
  return rows;
}

// Returns the intervention that puts in the clean rows of positions [begin, end). `head` -1 stands
// for whole rows. `first` is the position of the prompts' first token.
Intervention patch_of(const Sweep& s, const ModelConfig& c, int64_t layer,
                      const std::vector<float>& clean, int64_t begin, int64_t end, int64_t head,
                      int64_t first) {
  const auto width = static_cast<size_t>(point_width(c, {s.point, layer}, 0));
  const size_t each = head < 0 ? width : width / s.runs(c, layer);
  Intervention w;
  w.point = s.point;
  if (point_info(s.point).of_layer) w.layers = {layer};
  if (head >= 0) w.heads = {head};
  w.begin = first + begin, w.end = first + end;
  w.op = Intervention::Op::set;
  std::vector<float> values;
  for (int64_t p = begin; p < end; ++p) {
    const float* const row = clean.data() + static_cast<size_t>(p) * width +
                             (head < 0 ? 0 : static_cast<size_t>(head) * each);
    values.insert(values.end(), row, row + each);
  }
  w.values = std::make_shared<const std::vector<float>>(std::move(values));
  return w;
}

// Returns a run for each cell of the table, row by row.
std::vector<TraceRun> runs_of(const Sweep& s, const ModelConfig& c, const Captured& clean,
                              int64_t first) {
  std::vector<TraceRun> runs;
  for (size_t l = 0; l < clean.size(); ++l) {
    const auto layer = static_cast<int64_t>(l);
    for (size_t h = 0; s.by_head && h < s.runs(c, layer); ++h) {
      runs.emplace_back();
      for (size_t i = 0, next = 0; i < s.positions.size(); i = next) {
        for (next = i + 1;
             next < s.positions.size() && s.positions[next] == s.positions[next - 1] + 1;)
          ++next;
        runs.back().changes.push_back(patch_of(s, c, layer, clean[l], s.positions[i],
                                               s.positions[next - 1] + 1, static_cast<int64_t>(h),
                                               first));
      }
    }
    for (size_t i = 0; !s.by_head && i < s.runs(c, layer); ++i)
      runs.push_back(
          {{patch_of(s, c, layer, clean[l], s.positions[i], s.positions[i] + 1, -1, first)}});
  }
  return runs;
}

// Returns the score of each patched run, [layers][positions or heads]. A run begins at the layer
// and position of its patch.
std::vector<std::vector<double>> sweep(Trace& corrupt, const Sweep& s, const Captured& clean,
                                       int64_t first) {
  const ModelConfig& c = corrupt.session().model().config();
  std::vector<std::vector<double>> scores(clean.size());
  std::vector<double*> cells;  // of each run
  for (size_t l = 0; l < clean.size(); ++l) {
    scores[l].resize(s.runs(c, static_cast<int64_t>(l)));
    for (double& cell : scores[l]) cells.push_back(&cell);
  }
  corrupt.run(runs_of(s, c, clean, first), [&](size_t i, int64_t, std::span<const float> logits) {
    *cells[i] = score(logits, s);
  });
  return scores;
}

Point point_of(const PatchCommand& o, const ModelConfig& config) {
  const std::string name = !o.point.empty() ? o.point : o.heads ? "attn.hook_z" : "hook_resid_pre";
  const auto point = parse_point(name);
  if (!point || !has_point(config, *point) || !point_info(*point).changes)
    usage_error("--point", "a point that can be changed, without its layer", name);
  if (o.heads && point_heads(config, {*point, 0}) == 0)
    usage_error("--heads is for points with heads, and " + name + " has none");
  return *point;
}

// Makes the sweep. Throws for every wrong option before anything runs.
Sweep sweep_of(const PatchCommand& o, const Question& q, const LabWork& work) {
  const ModelConfig& config = work.session.model().config();
  const Tokenizer* const tokenizer = work.tokenizer.get();
  const auto name = [&](const char* option) { return q.where.empty() ? option : q.where; };
  Sweep s;
  s.point = point_of(o, config);
  s.clean = ids_of(q.clean, q.clean_ids, name("--clean-ids"), work, o);
  s.corrupt = ids_of(q.corrupt, q.corrupt_ids, name("--corrupt-ids"), work, o);
  if (s.clean.size() != s.corrupt.size() || s.clean.empty())
    q.refuse("corrupt", fmt::format("as many tokens as clean has, {}", s.clean.size()),
             std::to_string(s.corrupt.size()));
  s.answer = token_of(q, q.answer, "answer", tokenizer, config.vocab_size);
  s.wrong = token_of(q, q.wrong, "wrong", tokenizer, config.vocab_size);
  s.positions =
      parse_positions(o.positions, "--positions", 0, static_cast<int64_t>(s.clean.size()));
  s.by_head = o.heads;
  if (o.chat && (!q.clean_ids.empty() || !q.corrupt_ids.empty()))
    q.refuse("chat", "texts, which become messages", "token ids");
  return s;
}

// Scores of both prompts and of each patched run: logit of the answer minus that of the wrong one.
struct Scores {
  double clean, corrupt;
  std::vector<std::vector<double>> patched;  // [layers][positions or heads]

  double restored(double x) const {
    return clean == corrupt ? 0 : (x - corrupt) / (clean - corrupt);
  }
  size_t columns() const {
    size_t most = 0;
    for (const std::vector<double>& row : patched) most = std::max(most, row.size());
    return most;
  }
};

HeatMap picture_of(const Scores& scores, const Sweep& s, const Tokenizer* tokenizer) {
  HeatMap map{fmt::format("How much of the difference between \"{}\" and \"{}\" comes back",
                          token_text(tokenizer, s.answer), token_text(tokenizer, s.wrong)),
              "layer",
              s.by_head ? "head" : "position",
              {},
              {},
              {},
              {},
              -1,
              1,
              "restored"};
  for (size_t i = 0; i < scores.columns(); ++i)
    map.columns.push_back(
        s.by_head ? std::to_string(i)
                  : token_text(tokenizer, s.corrupt[static_cast<size_t>(s.positions[i])]));
  for (size_t l = 0; l < scores.patched.size(); ++l) {
    map.rows.push_back(std::to_string(l));
    map.values.emplace_back();
    for (const double x : scores.patched[l]) map.values.back().push_back(scores.restored(x));
  }
  return map;
}

void print(const HeatMap& map, const Scores& scores, const Sweep& s, const Tokenizer* tokenizer) {
  const auto token = [&](int32_t id) {
    return fmt::format("\"{}\" ({})", token_text(tokenizer, id), id);
  };
  out(fmt::format(
      "logit of {} less that of {}: {:.3f} clean, {:.3f} corrupt; how much comes back:\n",
      token(s.answer), token(s.wrong), scores.clean, scores.corrupt));
  if (!s.by_head) {
    out("position");
    for (const int64_t p : s.positions) out(fmt::format(" {:>6}", p));
    out("\n");
  }
  out(s.by_head ? "    head" : "        ");
  for (const std::string& token : map.columns) out(fmt::format(" {:>6.6}", token));
  out("\n");
  for (size_t l = map.rows.size(); l-- > 0;) {
    if (map.values[l].empty()) continue;
    out(fmt::format("layer {:>2}", map.rows[l]));
    for (const double x : map.values[l]) out(fmt::format(" {:6.2f}", x));
    out("\n");
  }
}

Json json_of(const HeatMap& map, const Scores& scores, const Sweep& s, const Question& q,
             const Tokenizer* tokenizer) {
  const auto token = [&](int32_t id) {
    return Json{{"id", id}, {"text", token_text(tokenizer, id)}};
  };
  Json j = Json::object();
  if (!q.id.is_null()) j["id"] = q.id;
  j.update(Json{{"point", point_info(s.point).name},
                {"answer", token(s.answer)},
                {"wrong", token(s.wrong)},
                {"clean", scores.clean},
                {"corrupt", scores.corrupt},
                {"positions", s.positions}});
  if (s.by_head)
    j["heads"] = map.columns.size();
  else
    j["tokens"] = map.columns;
  j["scores"] = rows_json(scores.patched);  // null for a layer without the point
  j["restored"] = rows_json(map.values);
  return j;
}

// Says why the table has only zeros, if nothing can come back.
void explain_zeros(const Scores& scores, const Question& q) {
  if (scores.clean != scores.corrupt) return;
  say("{}nothing can come back: both prompts give the same difference between answer and wrong, "
      "{:.3f}\n",
      q.where.empty() ? "" : q.where + ": ", scores.clean);
}

// Runs one question and prints the result, as JSON or as a table.
void answer(const PatchCommand& o, const Question& q, const LabWork& work) {
  const Sweep s = sweep_of(o, q, work);
  Session clean = work.session.fork();
  const Captured rows = capture_clean(clean, s);
  const double start = seconds();
  Trace corrupt(work.session, s.corrupt);
  const Scores scores{score(clean.logits(), s), score(corrupt.session().logits(), s),
                      sweep(corrupt, s, rows, work.session.size())};
  const Tokenizer* const tokenizer = work.tokenizer.get();
  const HeatMap map = picture_of(scores, s, tokenizer);
  require_finite(json_of(map, scores, s, q, tokenizer), q.where.empty() ? "patch" : q.where);
  explain_zeros(scores, q);
  if (o.jsonl || o.json) out(dump(json_of(map, scores, s, q, tokenizer)) + "\n");
  if (o.jsonl) return flush_output();
  size_t runs = 0;
  for (const std::vector<double>& row : scores.patched) runs += row.size();
  say("{} runs in {:.2f} s\n", runs, seconds() - start);
  o.pictures.write(fmt::format("stet patch: {}", point_info(s.point).name), {map});
  if (!o.json) print(map, scores, s, tokenizer);
}

void check(const PatchCommand& o) {
  if (o.chat && !o.lab.from.empty()) usage_error("--chat cannot be used with --from");
  const bool any = !o.clean.empty() || !o.corrupt.empty() || !o.clean_ids.empty() ||
                   !o.corrupt_ids.empty() || !o.answer.empty() || !o.wrong.empty();
  if (o.jsonl && (any || o.pictures.asked()))
    usage_error("--jsonl takes prompts and tokens from standard input and draws no pictures");
  if (o.jsonl) return;
  if ((o.clean.empty() && o.clean_ids.empty()) || (o.corrupt.empty() && o.corrupt_ids.empty()))
    required_error("--clean and --corrupt, or --jsonl");
  if (o.answer.empty() || o.wrong.empty()) required_error("--answer and --wrong");
  for (const auto& [name, text, ids] : {std::tuple("clean", &o.clean, &o.clean_ids),
                                        std::tuple("corrupt", &o.corrupt, &o.corrupt_ids)}) {
    if (!text->empty() && !ids->empty())
      usage_error(fmt::format("--{0} cannot be used with --{0}-ids", name));
  }
}

void run(PatchCommand& o) {
  check(o);
  const LabWork work = begin(o.lab);
  if (!o.jsonl) return answer(o, question_of(o), work);
  std::string line;
  for (size_t number = 1; out("") && read_line(line); ++number)
    answer(o, question_of(line, fmt::format("standard input: line {}", number)), work);
}

}  // namespace

void add_patch(Command& app) {
  const auto o = std::make_shared<PatchCommand>();
  Command* sub = app.add_subcommand(
      "patch", "Patch activations of one prompt into another, and print the effect as a table.");
  const auto text = [&](const char* name, std::string& to, const char* help, const char* type) {
    return sub->add_option(name, to, help)->type_name(type)->group("Prompts");
  };
  text("--clean", o->clean, "the prompt that activations are taken from", "TEXT");
  text("--corrupt", o->corrupt, "the prompt that they are patched into, of as many tokens", "TEXT");
  text("--clean-ids", o->clean_ids, "the same as token ids", "IDS");
  text("--corrupt-ids", o->corrupt_ids, "the same as token ids", "IDS");
  text("--answer", o->answer, "the right next token after the clean prompt", "TEXT");
  text("--wrong", o->wrong, "the right next token after the corrupt prompt", "TEXT");
  sub->add_flag("--jsonl", o->jsonl,
                "an object per line of standard input, {\"clean\", \"corrupt\", \"answer\", "
                "\"wrong\"}, with --json's object for each")
      ->group("Prompts");
  sub->add_flag("--chat", o->chat, "treat prompts as user messages")->group("Prompts");
  text("--point", o->point,
       "the point to patch (default: hook_resid_pre; with --heads: attn.hook_z)", "NAME");
  text("--positions", o->positions, "positions to patch: 3..9,12 (default: all)", "LIST");
  sub->add_flag("--heads", o->heads, "a column for each head, patched at all positions")
      ->group("Prompts");
  o->pictures.add_to(*sub);
  sub->add_flag("--json", o->json, "print JSON")->group("Output");
  o->lab.add_without_prompt_to(*sub);
  sub->callback([o] { run(*o); });
}

}  // namespace stet::tool

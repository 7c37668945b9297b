// stet patch: where in a model what makes a difference is kept. A prompt is run with activations of
// another one put in, layer by layer and position by position (activation patching).
#include <fmt/format.h>

#include <algorithm>

#include "stet/base/error.hpp"
#include "stet/session/trace.hpp"
#include "tools/lab/lab.hpp"
#include "tools/lab/picture.hpp"

namespace stet::tool {
namespace {

struct PatchCommand {
  LabOptions lab;  // without its prompt
  std::string clean, corrupt, clean_ids, corrupt_ids, answer, wrong, point = "hook_resid_pre";
  std::string positions;
  PictureOptions pictures;
  bool chat = false, json = false;
};

struct Sweep {
  std::vector<int32_t> clean, corrupt;
  int32_t answer = 0, wrong = 0;
  Point point = Point::resid_pre;
  std::vector<int64_t> positions;
};

std::vector<int32_t> ids_of(const std::string& text, const std::string& ids, const char* name,
                            const LabWork& work, const PatchCommand& o) {
  if (!ids.empty()) return parse_ids(ids, name);
  if (work.tokenizer == nullptr) no_tokenizer(o.lab.model.checkpoint.directory);
  if (!o.chat)
    return work.tokenizer->encode(
        text, work.session.size() == 0 ? Tokenizer::Bos::automatic : Tokenizer::Bos::off);
  Session session = work.session.fork();
  return begin_message(session, work.tokenizer, "", text);
}

// The one token that a text is, or a number.
int32_t token_of(const std::string& text, const char* option, const Tokenizer* tokenizer,
                 int64_t vocab) {
  const std::vector<int32_t> ids =
      tokenizer == nullptr ? parse_ids(text, option) : tokenizer->encode(text, Tokenizer::Bos::off);
  if (ids.size() != 1)
    usage_error(option, "a text of one token", fmt::format("{} tokens", ids.size()));
  if (ids[0] < 0 || ids[0] >= vocab)
    usage_error(option, fmt::format("a token id in 0..{}", vocab - 1), std::to_string(ids[0]));
  return ids[0];
}

double score(std::span<const float> logits, const Sweep& s) {
  return double{logits[static_cast<size_t>(s.answer)]} - logits[static_cast<size_t>(s.wrong)];
}

// The clean run's rows of the point, [layers][tokens][width].
using Captured = std::vector<std::vector<float>>;
Captured capture_clean(Session& session, const Sweep& s) {
  const ModelConfig& c = session.model().config();
  const int64_t layers = point_info(s.point).of_layer ? c.layers : 1;
  Captured rows(static_cast<size_t>(layers));
  Watch watch;
  for (int64_t l = 0; l < layers; ++l) watch.points.push_back({s.point, l});
  watch.sink = [&](const PointAt& at, int64_t, Rows r) {
    for (size_t i = 0; i < r.count; ++i) {
      std::vector<float>& to = rows[static_cast<size_t>(at.layer)];
      to.insert(to.end(), r.row(i), r.row(i) + r.width);
    }
  };
  session.append(s.clean, nullptr, nullptr, nullptr, &watch);
  return rows;
}

// [layers][positions]: the score of each patched run, which begins at the layer and the position of
// its patch. `first`: the position where the prompts begin.
std::vector<std::vector<double>> sweep(Trace& corrupt, const Sweep& s, const Captured& clean,
                                       int64_t first) {
  const ModelConfig& c = corrupt.session().model().config();
  const auto width = static_cast<size_t>(point_width(c, s.point, 0));
  const size_t columns = s.positions.size();
  std::vector<std::vector<double>> scores(clean.size(), std::vector<double>(columns));
  std::vector<Intervention> patches;
  for (size_t l = 0; l < clean.size(); ++l) {
    for (const int64_t p : s.positions) {
      Intervention w;
      w.point = s.point;
      if (point_info(s.point).of_layer) w.layers = {static_cast<int64_t>(l)};
      w.begin = first + p, w.end = first + p + 1;
      w.op = Intervention::Op::set;
      const float* const row = clean[l].data() + static_cast<size_t>(p) * width;
      w.values = std::make_shared<const std::vector<float>>(row, row + width);
      patches.push_back(std::move(w));
    }
  }
  corrupt.run(patches, [&](size_t i, std::span<const float> logits) {
    scores[i / columns][i % columns] = score(logits, s);
  });
  return scores;
}

// Everything that can be refused is, before anything runs.
Sweep sweep_of(const PatchCommand& o, const LabWork& work) {
  const ModelConfig& config = work.session.model().config();
  const Tokenizer* const tokenizer = work.tokenizer.get();
  Sweep s;
  s.clean = ids_of(o.clean, o.clean_ids, "--clean-ids", work, o);
  s.corrupt = ids_of(o.corrupt, o.corrupt_ids, "--corrupt-ids", work, o);
  if (s.clean.size() != s.corrupt.size() || s.clean.empty())
    usage_error("--corrupt", fmt::format("as many tokens as --clean has, {}", s.clean.size()),
                std::to_string(s.corrupt.size()));
  s.answer = token_of(o.answer, "--answer", tokenizer, config.vocab_size);
  s.wrong = token_of(o.wrong, "--wrong", tokenizer, config.vocab_size);
  const auto point = parse_point(o.point);
  if (!point || !has_point(config, *point) || !point_info(*point).changes)
    usage_error("--point", "a point that can be changed, without its layer", o.point);
  s.point = *point;
  s.positions =
      parse_positions(o.positions, "--positions", 0, static_cast<int64_t>(s.clean.size()));
  return s;
}

// How the two prompts answer, and each patched run: logit of the answer less that of the wrong one.
struct Scores {
  double clean, corrupt;
  std::vector<std::vector<double>> patched;  // [layers][positions]

  double restored(double x) const {
    return clean == corrupt ? 0 : (x - corrupt) / (clean - corrupt);
  }
};

HeatMap picture_of(const Scores& scores, const Sweep& s, const Tokenizer* tokenizer) {
  HeatMap map{fmt::format("How much of the difference between \"{}\" and \"{}\" comes back",
                          token_text(tokenizer, s.answer), token_text(tokenizer, s.wrong)),
              "layer",
              "position",
              {},
              {},
              {},
              {},
              -1,
              1,
              "restored"};
  for (const int64_t p : s.positions)
    map.columns.push_back(token_text(tokenizer, s.corrupt[static_cast<size_t>(p)]));
  for (size_t l = 0; l < scores.patched.size(); ++l) {
    map.rows.push_back(std::to_string(l));
    map.values.emplace_back();
    for (const double x : scores.patched[l]) map.values.back().push_back(scores.restored(x));
  }
  return map;
}

void print(const HeatMap& map) {
  out("layer");
  for (const std::string& token : map.columns) out(fmt::format(" {:>6.6}", token));
  out("\n");
  for (size_t l = map.rows.size(); l-- > 0;) {
    out(fmt::format("{:>5}", map.rows[l]));
    for (const double x : map.values[l]) out(fmt::format(" {:6.2f}", x));
    out("\n");
  }
}

void run(PatchCommand& o) {
  if (o.chat && !o.lab.from.empty()) usage_error("--chat", "no --from beside it", o.lab.from);
  const LabWork work = begin(o.lab);
  const Sweep s = sweep_of(o, work);
  Session clean = work.session.fork();
  const Captured rows = capture_clean(clean, s);
  const double start = seconds();
  Trace corrupt(work.session, s.corrupt);
  const Scores scores{score(clean.logits(), s), score(corrupt.session().logits(), s),
                      sweep(corrupt, s, rows, work.session.size())};
  say("{} runs in {:.2f} s; logit difference {:.3f} clean, {:.3f} corrupt\n",
      rows.size() * s.positions.size(), seconds() - start, scores.clean, scores.corrupt);
  const HeatMap map = picture_of(scores, s, work.tokenizer.get());
  o.pictures.write("stet patch: " + o.point, {map});
  if (!o.json) return print(map);
  out(dump(Json{{"point", o.point},
                {"clean", scores.clean},
                {"corrupt", scores.corrupt},
                {"positions", s.positions},
                {"tokens", map.columns},
                {"scores", scores.patched},
                {"restored", map.values}}) +
      "\n");
}

}  // namespace

void add_patch(Command& app) {
  const auto o = std::make_shared<PatchCommand>();
  Command* sub = app.add_subcommand(
      "patch", "Where a model keeps what makes a difference: activation patching, as a table.");
  const auto text = [&](const char* name, std::string& to, const char* help, const char* type) {
    return sub->add_option(name, to, help)->type_name(type)->group("Prompts");
  };
  text("--clean", o->clean, "the prompt whose activations are put in", "TEXT");
  text("--corrupt", o->corrupt, "the prompt that they are put into, of as many tokens", "TEXT");
  text("--clean-ids", o->clean_ids, "the same as token ids", "IDS");
  text("--corrupt-ids", o->corrupt_ids, "the same as token ids", "IDS");
  text("--answer", o->answer, "the token that is right after the clean prompt", "TEXT")->required();
  text("--wrong", o->wrong, "the one after the corrupt prompt", "TEXT")->required();
  sub->add_flag("--chat", o->chat, "prompts are messages of the user")->group("Prompts");
  text("--point", o->point, "what is put in (default: hook_resid_pre)", "NAME");
  text("--positions", o->positions, "where: 3..9,12 (default: all)", "LIST");
  o->pictures.add_to(*sub);
  sub->add_flag("--json", o->json, "JSON for programs")->group("Output");
  o->lab.add_without_prompt_to(*sub);
  sub->callback([o] {
    if ((o->clean.empty() && o->clean_ids.empty()) ||
        (o->corrupt.empty() && o->corrupt_ids.empty()))
      required_error("--clean and --corrupt");
    run(*o);
  });
}

}  // namespace stet::tool

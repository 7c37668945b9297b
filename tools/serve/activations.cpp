// Activations at a state's tokens. The tokens go through the engine's passes again, with a watch.
// (`stet measure` and `stet patch` show the same.)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stet/base/error.hpp"
#include "stet/sampling/sampler.hpp"
#include "stet/session/lens.hpp"
#include "stet/text/utf8.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

// Rows of the head per step, which reads its matrix once. More would delay replies.
constexpr size_t kHeadRowsAtOnce = 8;
// Tokens of a prompt per step if their logits are wanted, which bounds the memory for them.
constexpr size_t kTokensAtOnce = 256;
// Maximum numbers in one answer.
constexpr int64_t kMostCells = int64_t{1} << 20;

// Rows captured at some points, by position. A repeated pass overwrites its rows.
class CapturedRows {
 public:
  CapturedRows(const ModelConfig& config, std::vector<PointAt> points, int64_t first, size_t count)
      : first_(first), count_(count) {
    const auto width = static_cast<size_t>(point_width(config, points.at(0), 0));
    const size_t stride = detail::round_up(width, kLanes);
    memory_ = Memory(points.size() * count * stride * sizeof(float));
    rows_ = {memory_.as<float>(), stride, width, points.size() * count};
    watch_.points = std::move(points);
    watch_.sink = [this](const PointAt& at, int64_t from, Rows r) {
      const auto point = static_cast<size_t>(
          std::find(watch_.points.begin(), watch_.points.end(), at) - watch_.points.begin());
      for (size_t i = 0; i < r.count; ++i)
        std::copy_n(r.row(i), r.width, row(point, from + static_cast<int64_t>(i)));
    };
  }
  CapturedRows(const CapturedRows&) = delete;
  CapturedRows& operator=(const CapturedRows&) = delete;

  const Watch* watch() const { return &watch_; }
  float* row(size_t point, int64_t position) const {
    return rows_.row(point * count_ + static_cast<size_t>(position - first_));
  }
  Rows all() const { return rows_; }  // point after point

 private:
  int64_t first_;
  size_t count_;
  Watch watch_;
  Memory memory_;
  Rows rows_;
};

std::vector<PointAt> of_all_layers(const ModelConfig& c, Point point) {
  std::vector<PointAt> all;
  for (int64_t l = 0; l < c.layers; ++l) all.push_back({point, l});
  return all;
}

using LogitsOf = std::function<void(size_t row, std::span<const float> logits)>;

// Applies logits_of (lens_logits or head_logits) to rows, in steps between the engine's passes.
void head_over(Service& service, const Caller& caller, const Session& session, Rows rows,
               std::vector<float> (*logits_of)(const Session&, Rows), const LogitsOf& take) {
  size_t at = 0;
  const auto step = [&] {
    const size_t n = std::min(kHeadRowsAtOnce, rows.count - at);
    const std::vector<float> logits = logits_of(session, rows.rows(at, n));
    const size_t width = logits.size() / n;
    for (size_t i = 0; i < n; ++i) take(at + i, std::span(logits).subspan(i * width, width));
    at += n;
    return at < rows.count;
  };
  if (rows.count > 0) service.engine.work(step, caller.cancelled);
}

std::string text_of(const Service& service, int32_t id) {
  if (service.tokenizer == nullptr) return std::to_string(id);
  return utf8_lossy(token_bytes(service.tokenizer.get(), id));
}

Json texts_of(const Service& service, std::span<const int32_t> ids) {
  Json texts = Json::array();
  for (const int32_t id : ids) texts.push_back(text_of(service, id));
  return texts;
}

// The last tokens of a state, and a session with the tokens before them.
struct Watched {
  Session session;
  std::vector<int32_t> ids;
  int64_t first() const { return session.size(); }
  std::span<const int32_t> last() const {
    return std::span(ids).subspan(static_cast<size_t>(session.size()));
  }
};

// Returns up to `last` tokens. Only tokens after prunes, edits and interventions can be processed
// again with the same result.
Watched last_tokens(Session session, int64_t last) {
  const State& state = session.state();
  int64_t from = std::max<int64_t>(0, state.size() - last);
  if (!state.prunes.empty()) from = std::max(from, state.floor() + 1);
  for (const KvEdit& e : state.edits) from = std::max(from, e.at);
  for (const Intervention& w : state.interventions) from = std::max(from, w.at);
  if (from >= state.size())
    throw RequestError(400, "nothing_to_look_at",
                       "this state has no tokens after its last prune or edit to look at");
  std::vector<int32_t> ids = state.tokens;
  session.rewind(from);
  return {std::move(session), std::move(ids)};
}

void process(Service& service, const Caller& caller, Watched& w, const Watch* watch) {
  const std::vector<int32_t> ids(w.last().begin(), w.last().end());
  service.engine.process(std::vector<BatchEntry>{{&w.session, ids, watch}}, caller.cancelled);
}

void check_cells(const char* field, int64_t last, int64_t each) {
  if (last * each <= kMostCells) return;
  refuse(field, fmt::format("at most {} tokens of {} numbers each", kMostCells / each, each),
         std::to_string(last));
}

}  // namespace

Response state_attention(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const ModelConfig& c = service.model->config();
  const KvShape shape = detail::kv_shape(c, service.session.kv_type);
  const int64_t layer = query_attention_layer(request, shape),
                head = query_integer(request, "head", 0, 0, c.heads - 1),
                last = query_integer(request, "last", 64, 1, kMaxPositions);
  const int64_t positions = node->positions;
  check_cells("?last", std::min(last, positions), positions);
  return answer_at_once(service, request, [&](const Caller& caller) {
    Watched w = last_tokens(service.open(caller, node), last);
    const int64_t first = w.first();
    std::vector<std::vector<float>> values(w.last().size());
    const Watch watch{{{Point::pattern, layer}}, [&](const PointAt&, int64_t from, Rows r) {
                        const size_t each = r.width / static_cast<size_t>(c.heads);
                        for (size_t i = 0; i < r.count; ++i) {
                          const int64_t at = from + static_cast<int64_t>(i);
                          const float* const row = r.row(i) + static_cast<size_t>(head) * each;
                          values[static_cast<size_t>(at - first)].assign(row, row + at + 1);
                        }
                      }};
    process(service, caller, w, &watch);
    return Json{{"layers", c.layers}, {"attention_layers", attention_layers(shape)},
                {"heads", c.heads},   {"layer", layer},
                {"head", head},       {"first", first},
                {"values", values},   {"tokens", texts_of(service, w.ids)}};
  });
}

Response state_lens(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const ModelConfig& c = service.model->config();
  if (c.streams > 0)
    throw RequestError(400, "several_streams",
                       "this model's head joins several residual streams, of which points show "
                       "one: it has no logit lens");
  const int64_t last = query_integer(request, "last", 16, 1, kMaxPositions);
  check_cells("?last", std::min(last, node->positions), c.layers * c.hidden_size);
  return answer_at_once(service, request, [&](const Caller& caller) {
    Watched w = last_tokens(service.open(caller, node), last);
    const int64_t first = w.first();
    const size_t count = w.last().size();
    const CapturedRows seen(c, of_all_layers(c, Point::resid_post), first, count);
    process(service, caller, w, seen.watch());
    Json rows = Json::array();
    head_over(
        service, caller, w.session, seen.all(), lens_logits,
        [&](size_t row, std::span<const float> logits) {
          if (row % count == 0) rows.push_back(Json::array());
          const auto best =
              static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
          const size_t next = static_cast<size_t>(first) + row % count + 1;
          rows.back().push_back(
              {{"id", best},
               {"text", text_of(service, best)},
               {"logprob", log_probability(logits, best)},
               {"next_logprob",
                next < w.ids.size() ? Json(log_probability(logits, w.ids[next])) : Json(nullptr)}});
        });
    return Json{{"layers", c.layers},
                {"first", first},
                {"tokens", texts_of(service, std::span(w.ids).last(count))},
                {"values", rows}};
  });
}

namespace {

Json norms_json(const Service& service, const State& state) {
  constexpr int64_t kMostColumns = 512;
  const KvShape& shape = state.kv.shape();
  const int64_t step = std::max<int64_t>(1, (state.size() + kMostColumns - 1) / kMostColumns);
  const auto norms = [&](bool keys) {
    Json rows = Json::array();
    for (int64_t l = 0; l < shape.layers; ++l) {
      const int64_t owner = shape.owner(l);
      rows.push_back(owner < 0 ? Json(nullptr) : Json::array());
      if (owner < 0) continue;  // a recurrent layer has none
      for (int64_t p = 0; p < state.size(); p += step) {
        double sum = 0;
        for (int64_t h = 0; h < shape.layer(owner).kv_heads; ++h) {
          for (const float x : keys ? read_key(state, owner, h, p) : read_value(state, owner, h, p))
            sum += double{x} * x;
        }
        rows.back().push_back(std::sqrt(sum));
      }
    }
    return rows;
  };
  std::vector<int32_t> shown;
  for (int64_t p = 0; p < state.size(); p += step)
    shown.push_back(state.tokens[static_cast<size_t>(p)]);
  return {{"layers", shape.layers}, {"positions", state.size()},
          {"step", step},           {"tokens", texts_of(service, shown)},
          {"keys", norms(true)},    {"values", norms(false)}};
}

}  // namespace

Response state_norms(Service& service, const Request& request, const Parts& parts) {
  return respond_from(service, request, {node_of(service, request, parts)},
                      [&](std::vector<Session>& sessions) {
                        return json_response(norms_json(service, sessions[0].state()));
                      });
}

std::vector<std::optional<TokenLogprob>> process_scored(Service& service, const Caller& caller,
                                                        Session& session,
                                                        std::span<const int32_t> ids, size_t top) {
  const ModelConfig& c = service.model->config();
  std::vector<std::optional<TokenLogprob>> scores;
  const auto add = [&](std::span<const float> logits) {
    const int32_t id = ids[scores.size()];
    scores.push_back(TokenLogprob{id, log_probability(logits, id), top_candidates(logits, top)});
  };
  if (ids.empty()) return scores;
  if (session.size() == 0)
    scores.emplace_back();
  else
    add(session.logits());
  for (size_t at = 0; at < ids.size(); at += kTokensAtOnce) {
    const std::span<const int32_t> part = ids.subspan(at, std::min(kTokensAtOnce, ids.size() - at));
    const CapturedRows seen(c, {{Point::ln_final, 0}}, session.size(), part.size());
    service.engine.process(std::vector<BatchEntry>{{&session, part, seen.watch()}},
                           caller.cancelled);
    head_over(service, caller, session, seen.all(), head_logits,
              [&](size_t, std::span<const float> logits) {
                if (scores.size() < ids.size()) add(logits);
              });
  }
  return scores;
}

std::vector<double> token_logprobs(Service& service, const Caller& caller,
                                   std::span<const int32_t> ids) {
  Session session(service.model, service.session);
  std::vector<double> logprobs;
  for (const auto& score : process_scored(service, caller, session, ids, 0)) {
    if (score) logprobs.push_back(score->logprob);
  }
  return logprobs;
}

// ---------------------------------------------------------------- activation patching

namespace {

int32_t likeliest(Session& session) {
  const std::span<const float> logits = session.logits();
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Patches one state's residual stream before each layer into another's tokens.
struct Patching {
  Session corrupt;  // whole
  const CapturedRows& clean;
  int32_t answer, wrong;

  double score(Session& session) const {
    const std::span<const float> logits = session.logits();
    return double{logits[static_cast<size_t>(answer)]} - logits[static_cast<size_t>(wrong)];
  }
  // Returns the scores after a patch at this position in each layer. They share passes.
  std::vector<double> at(Service& service, const Caller& caller, int64_t position, int64_t layers) {
    Session prefix = corrupt.fork();
    prefix.rewind(position);
    std::vector<Session> runs;
    std::vector<BatchEntry> batch;
    for (int64_t l = 0; l < layers; ++l) {
      Intervention w;
      w.point = Point::resid_pre;
      w.layers = {l};
      w.begin = position, w.end = position + 1;
      w.op = Intervention::Op::set;
      const float* const row = clean.row(static_cast<size_t>(l), position);
      w.values = std::make_shared<const std::vector<float>>(row, row + clean.all().width);
      runs.push_back(prefix.fork());
      runs.back().attach(std::move(w));
    }
    const std::span<const int32_t> rest =
        std::span(corrupt.tokens()).subspan(static_cast<size_t>(position));
    for (Session& run : runs) batch.push_back({&run, rest});
    service.engine.process(batch, caller.cancelled);
    std::vector<double> scores;
    for (Session& run : runs) scores.push_back(score(run));
    return scores;
  }
};

Json patched(Service& service, const Caller& caller, const NodePtr& from, const NodePtr& into,
             int64_t last) {
  const ModelConfig& c = service.model->config();
  Session clean = service.open(caller, from), corrupt = service.open(caller, into);
  const int32_t answer = likeliest(clean), wrong = likeliest(corrupt);
  if (answer == wrong)
    throw RequestError(400, "nothing_to_find",
                       fmt::format("both states have the same likeliest next token, {}: choose "
                                   "states whose next tokens differ",
                                   printable(text_of(service, answer), 60)));
  Watched w = last_tokens(clean.fork(), last);
  const int64_t first = w.first(), size = clean.size();
  const CapturedRows seen(c, of_all_layers(c, Point::resid_pre), first, w.last().size());
  process(service, caller, w, seen.watch());
  Patching patching{std::move(corrupt), seen, answer, wrong};
  const double best = patching.score(clean), worst = patching.score(patching.corrupt);
  std::vector<std::vector<double>> restored(static_cast<size_t>(c.layers));
  for (int64_t p = first; p < size; ++p) {
    const std::vector<double> scores = patching.at(service, caller, p, c.layers);
    for (size_t l = 0; l < scores.size(); ++l)
      restored[l].push_back(best == worst ? 0 : (scores[l] - worst) / (best - worst));
  }
  const auto token = [&](int32_t id) { return Json{{"id", id}, {"text", text_of(service, id)}}; };
  return {{"layers", c.layers},
          {"first", first},
          {"tokens",
           texts_of(service,
                    std::span(patching.corrupt.tokens()).last(static_cast<size_t>(size - first)))},
          {"answer", token(answer)},
          {"wrong", token(wrong)},
          {"clean", best},
          {"corrupt", worst},
          {"values", restored}};
}

}  // namespace

Response patch_states(Service& service, const Request& request, const Parts& parts) {
  const NodePtr from = node_of(service, request, parts),
                into = service.states.find(request.client, parts[1], "/other");
  const int64_t last = query_integer(request, "last", 32, 1, 64);
  if (!from->plain || !into->plain || from->positions == 0)
    throw RequestError(400, "not_plain",
                       "patching needs states that were neither pruned nor edited, with at least "
                       "one token");
  if (from->positions != into->positions)
    throw RequestError(
        400, "different_lengths",
        fmt::format("the states have {} and {} tokens: choose two of the same length",
                    from->positions, into->positions),
        "/other");
  return answer_at_once(service, request, [&](const Caller& caller) {
    return patched(service, caller, from, into, last);
  });
}

}  // namespace stet::serve

// Views of a state, which do not change it.
#include <fmt/format.h>

#include <cstdlib>

#include "stet/base/error.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/snapshot/compare.hpp"
#include "stet/text/utf8.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

Json messages_json(const State& state) {
  Json list = Json::array();
  for (const Message& m : state.chat.messages)
    list.push_back({{"index", list.size()},
                    {"role", m.role},
                    {"content", m.content},
                    {"begin", m.begin},
                    {"end", m.end},
                    {"generated", m.generated}});
  return list;
}

Json elements_json(const Service& service, const State& state, const StateDigests& d) {
  const GenerationState& g = state.generation;
  const KvShape& kv = state.kv.shape();
  Json rows = Json::array();
  const auto add = [&](const char* name, const std::string& value) {
    rows.push_back({{"name", name}, {"value", value}});
  };
  add("keys and values",
      fmt::format("{} blocks of {} positions, {}, {} bytes; {}", state.kv.blocks(), kBlockPositions,
                  kv_type_name(kv.type),
                  static_cast<uint64_t>(state.kv.blocks()) * kv.block_bytes(), digest_text(d.kv)));
  add("token ids", fmt::format("{}; {}", state.tokens.size(), digest_text(d.tokens)));
  add("positions", state.size() == 0
                       ? "none"
                       : fmt::format("0 .. {} of {}", state.size() - 1, state.kv.capacity()));
  add("visibility mask",
      fmt::format("{} of {} positions", visible_positions(state.kv), state.size()));
  add("logits of the last token",
      fmt::format("{}; {}", state.logits == nullptr ? 0 : state.logits->size(),
                  digest_text(d.logits)));
  add("model", state.origin.model);
  add("tokenizer and template",
      service.tokenizer == nullptr ? "none" : service.tokenizer->fingerprint());
  add("numeric contract",
      fmt::format("{} version {}", state.origin.contract, state.origin.version));
  add("sampler", g.sampling.greedy
                     ? "greedy"
                     : fmt::format("temperature {}, top-k {}, top-p {}, min-p {}, typical {}",
                                   g.sampling.temperature, g.sampling.top_k, g.sampling.top_p,
                                   g.sampling.min_p, g.sampling.typical_p));
  add("randomness", fmt::format("seed {}, position {}", g.sampling.seed, state.transcript_size()));
  add("turns and stops",
      fmt::format("{} turns{}, {} stop tokens, {} stop strings, {} bytes held back", g.turns.size(),
                  !g.turns.empty() && g.turns.back().open ? " (the last is open)" : "",
                  g.stop_ids.size(), g.stop_strings.size(), g.held.size() + g.stream.size()));
  add("messages, prunes, edits", fmt::format("{}, {}, {}", state.chat.messages.size(),
                                             state.prunes.size(), state.edits.size()));
  return rows;
}

}  // namespace

int64_t query_integer(const Request& request, const std::string& name, int64_t fallback,
                      int64_t min, int64_t max) {
  const std::string text = request.query_or(name, std::to_string(fallback));
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || errno != 0 || value < min || value > max)
    refuse("?" + name, fmt::format("an integer in {}..{}", min, max), printable(text, 40));
  return value;
}

int64_t query_attention_layer(const Request& request, const KvShape& shape) {
  const int64_t layer = query_integer(request, "layer", 0, 0, shape.layers - 1);
  if (shape.owner(layer) < 0)
    refuse("?layer", "a layer with attention", fmt::format("{}, which has no attention", layer));
  return layer;
}

Response get_state(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  Session session = service.open(service.caller(request), node);
  const State& state = session.state();
  const SamplingSettings& s = state.generation.sampling;
  Json j = service.states.json(node);
  j["digests"] = tool::digests_json(node->digests);
  j["elements"] = elements_json(service, state, node->digests);
  j["message_list"] = messages_json(state);
  j["messages"] = j["message_list"];
  j.erase("message_list");
  j["now"] = state.chat.now;
  j["sampling"] = {{"greedy", s.greedy},
                   {"temperature", s.greedy ? 0 : s.temperature},
                   {"top_k", s.top_k},
                   {"top_p", s.top_p},
                   {"min_p", s.min_p},
                   {"typical_p", s.typical_p},
                   {"repetition_penalty", s.repetition_penalty},
                   {"frequency_penalty", s.frequency_penalty},
                   {"presence_penalty", s.presence_penalty},
                   {"logit_bias", tool::logit_bias_json(s.logit_bias)},
                   {"seed", s.seed}};
  j["ids"] = state.tokens;
  return json_response(j);
}

Response state_tokens(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  Session session = service.open(service.caller(request), node);
  const State& state = session.state();
  std::vector<double> logprobs;
  const std::string asked = request.query_or("logprobs", "false");
  if (asked != "true" && asked != "false")
    refuse("?logprobs", "true or false", printable(asked, 40));
  if (asked == "true" && node->plain) {
    const Caller caller = service.caller(request);
    const Engine::Lease lease = service.engine.enter(caller.client, caller.cancelled);
    logprobs = token_logprobs(service, caller, state.tokens);
  }
  Json data = Json::array();
  const bool shifted = shifted_out(state.prunes) > 0;
  for (size_t i = 0; i < state.tokens.size(); ++i) {
    Json message = nullptr;
    bool generated = false;
    for (size_t k = 0; !shifted && k < state.chat.messages.size(); ++k) {
      const Message& m = state.chat.messages[k];
      if (static_cast<int64_t>(i) < m.begin || static_cast<int64_t>(i) >= m.end) continue;
      message = k;
      generated = m.generated;
    }
    const std::string bytes = token_bytes(service.tokenizer.get(), state.tokens[i]);
    data.push_back(
        {{"position", i},
         {"id", state.tokens[i]},
         {"text", utf8_lossy(bytes)},
         {"bytes", bytes_json(bytes)},
         {"message", message},
         {"generated", generated},
         {"visible",
          (state.kv.visible(static_cast<int64_t>(i) / kBlockPositions) >> (i % kBlockPositions) &
           1) != 0},
         {"logprob", i > 0 && i <= logprobs.size() ? Json(logprobs[i - 1]) : Json(nullptr)}});
  }
  return json_response({{"object", "list"}, {"data", data}});
}

Response state_top(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const int64_t n = query_integer(request, "n", 20, 1, 200);
  Session session = service.open(service.caller(request), node);
  const State& state = session.state();
  if (state.logits == nullptr)
    throw RequestError(400, "empty_state", "this state has no tokens yet");
  std::vector<float> p(state.logits->size());
  Sampler(static_cast<int>(p.size()))
      .probabilities(state.generation.sampling, *state.logits, state.tokens, p,
                     state.generation.reply_of(state.tokens));
  Json data = Json::array();
  for (const auto& [id, logprob] : top_candidates(*state.logits, static_cast<size_t>(n))) {
    const std::string bytes = token_bytes(service.tokenizer.get(), id);
    data.push_back({{"id", id},
                    {"text", utf8_lossy(bytes)},
                    {"bytes", bytes_json(bytes)},
                    {"logprob", logprob},
                    {"probability", p[static_cast<size_t>(id)]}});
  }
  return json_response({{"object", "list"}, {"data", data}});
}

Response state_kv(Service& service, const Request& request, const Parts& parts) {
  constexpr int64_t kMostRows = 512;
  const NodePtr node = node_of(service, request, parts);
  Session session = service.open(service.caller(request), node);
  const KvCache& kv = session.state().kv;
  const KvShape& shape = kv.shape();
  const int64_t layer = query_attention_layer(request, shape),
                head = query_integer(request, "head", 0, 0, shape.layer(layer).kv_heads - 1);
  const std::string what = request.query_or("what", "k");
  if (what != "k" && what != "v") refuse("?what", "k or v", printable(what, 40));
  const bool keys = what == "k";
  if (!shape.owns(layer))
    refuse("?layer", "a layer with keys and values of its own",
           fmt::format("{}, which reads those of layer {}", layer, shape.owner(layer)));
  const int64_t step = std::max<int64_t>(1, (kv.size() + kMostRows - 1) / kMostRows);
  Json values = Json::array(), shared = Json::array();
  std::vector<float> row(detail::row_dim(shape, keys, layer));
  for (int64_t at = 0; at < kv.size(); at += step) {
    read_row(shape, keys, kv.block(at / kBlockPositions) + shape.offset(keys, layer, head),
             at % kBlockPositions, row);
    values.push_back(row);
  }
  const NodePtr parent = service.states.parent_of(node);
  const std::optional<Session> before =
      parent ? std::optional(service.open(service.caller(request), parent)) : std::nullopt;
  for (int64_t b = 0; b < kv.blocks(); ++b)
    shared.push_back(before && b < before->kv().blocks() &&
                     before->kv().block_info(b).data() == kv.block_info(b).data());
  return json_response({{"layers", shape.layers},
                        {"heads", shape.layer(layer).kv_heads},
                        {"positions", kv.size()},
                        {"head_dim", row.size()},
                        {"step", step},
                        {"values", values},
                        {"shared", shared}});
}

Response diff_states(Service& service, const Request& request, const Parts& parts) {
  const NodePtr a = node_of(service, request, parts),
                b = service.states.find(request.client, parts[1], "/other");
  const Caller caller = service.caller(request);
  Session x = service.open(caller, a), y = service.open(caller, b);
  const Comparison c = compare(x.state(), y.state());
  const Comparison::Part* first = c.first_difference();
  Json layers = Json::array(), kinds = Json::array();
  for (const Comparison::Layer& l : c.layers)
    layers.push_back({{"layer", layers.size()},
                      {"equal", l.keys.largest == 0 && l.values.largest == 0},
                      {"max_abs", std::max(l.keys.largest, l.values.largest)}});
  for (const Comparison::Part& part : c.parts)
    kinds.push_back({{"part", part.name},
                     {"equal", part.difference ? Json(false)
                               : part.compared ? Json(true)
                                               : Json(nullptr)}});
  const auto text = [&](const Session& s) {
    return service.tokenizer == nullptr ? "" : service.tokenizer->decode(s.tokens());
  };
  return json_response(
      {{"equal", c.equal()},
       {"first_difference",
        first == nullptr ? Json(nullptr) : Json(first->name + ": " + first->difference->text())},
       {"tokens", {{"common", c.common_tokens}, {"a", x.size()}, {"b", y.size()}}},
       {"equal_positions", c.equal_positions},
       {"parts", kinds},
       {"layers", layers},
       {"kl_nats",
        {{"a_from_b", c.a_from_b ? Json(*c.a_from_b) : Json(nullptr)},
         {"b_from_a", c.b_from_a ? Json(*c.b_from_a) : Json(nullptr)}}},
       {"text_a", text(x)},
       {"text_b", text(y)}});
}

}  // namespace stet::serve

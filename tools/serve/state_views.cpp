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

std::vector<int64_t> attention_layers(const KvShape& shape) {
  std::vector<int64_t> all;
  for (int64_t l = 0; l < shape.layers; ++l) {
    if (shape.owner(l) >= 0) all.push_back(l);
  }
  return all;
}

int64_t query_attention_layer(const Request& request, const KvShape& shape) {
  const std::vector<int64_t> all = attention_layers(shape);
  const int64_t layer =
      query_integer(request, "layer", all.empty() ? 0 : all.front(), 0, shape.layers - 1);
  if (shape.owner(layer) < 0)
    refuse("?layer", "a layer with attention", fmt::format("{}, which has no attention", layer));
  return layer;
}

namespace {

Json state_json(const Service& service, const NodePtr& node, Session& session) {
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
  return j;
}

Json tokens_json(const Service& service, const State& state, const std::vector<double>& logprobs) {
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
  return {{"object", "list"}, {"data", data}};
}

}  // namespace

Response get_state(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  return respond_from(service, request, {node}, [&](std::vector<Session>& sessions) {
    return json_response(state_json(service, node, sessions[0]));
  });
}

Response state_tokens(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const std::string asked = request.query_or("logprobs", "false");
  if (asked != "true" && asked != "false")
    refuse("?logprobs", "true or false", printable(asked, 40));
  if (asked == "true" && node->plain)
    return answer_at_once(service, request, [&](const Caller& caller) {
      Session session = service.open(caller, node);
      const State& state = session.state();
      return tokens_json(service, state, token_logprobs(service, caller, state.tokens));
    });
  return respond_from(service, request, {node}, [&](std::vector<Session>& sessions) {
    return json_response(tokens_json(service, sessions[0].state(), {}));
  });
}

namespace {

Json top_json(const Service& service, const State& state, int64_t n) {
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
  return {{"object", "list"}, {"data", data}};
}

// The keys or values of one head of a layer.
struct HeadOf {
  int64_t layer, head;
  bool keys;
};

HeadOf query_head(const Request& request, const KvShape& shape) {
  const int64_t layer = query_attention_layer(request, shape),
                head = query_integer(request, "head", 0, 0, shape.layer(layer).kv_heads - 1);
  const std::string what = request.query_or("what", "k");
  if (what != "k" && what != "v") refuse("?what", "k or v", printable(what, 40));
  const bool keys = what == "k";
  if (!shape.owns(layer))
    refuse("?layer", "a layer with keys and values of its own",
           fmt::format("{}, which reads those of layer {}", layer, shape.owner(layer)));
  return {layer, head, keys};
}

// `before` is a session of the parent. It is null if the parent is not in memory: then no block is
// shared with it.
Json kv_json(const KvCache& kv, const HeadOf& asked, const Session* before) {
  constexpr int64_t kMostRows = 512;
  const KvShape& shape = kv.shape();
  const auto [layer, head, keys] = asked;
  const int64_t step = std::max<int64_t>(1, (kv.size() + kMostRows - 1) / kMostRows);
  Json values = Json::array(), shared = Json::array();
  std::vector<float> row(detail::row_dim(shape, keys, layer));
  for (int64_t at = 0; at < kv.size(); at += step) {
    read_row(shape, keys, kv.block(at / kBlockPositions) + shape.offset(keys, layer, head),
             at % kBlockPositions, row);
    values.push_back(row);
  }
  for (int64_t b = 0; b < kv.blocks(); ++b)
    shared.push_back(before != nullptr && b < before->kv().blocks() &&
                     before->kv().block_info(b).data() == kv.block_info(b).data());
  std::vector<int64_t> own = attention_layers(shape);
  std::erase_if(own, [&](int64_t l) { return !shape.owns(l); });
  return {{"layers", shape.layers}, {"heads", shape.layer(layer).kv_heads},
          {"layer", layer},         {"own_layers", own},
          {"positions", kv.size()}, {"head_dim", row.size()},
          {"step", step},           {"values", values},
          {"shared", shared}};
}

Json diff_json(const Service& service, Session& x, Session& y) {
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
  return {{"equal", c.equal()},
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
          {"text_b", text(y)}};
}

}  // namespace

Response state_top(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const int64_t n = query_integer(request, "n", 20, 1, 200);
  return respond_from(service, request, {node}, [&](std::vector<Session>& sessions) {
    return json_response(top_json(service, sessions[0].state(), n));
  });
}

Response state_kv(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const HeadOf asked =
      query_head(request, detail::kv_shape(service.model->config(), node->kv_type));
  return respond_from(service, request, {node}, [&](std::vector<Session>& sessions) {
    const NodePtr parent = service.states.parent_of(node);
    const auto before = parent == nullptr ? std::nullopt : service.states.in_memory(*parent);
    return json_response(kv_json(sessions[0].kv(), asked, before ? &*before : nullptr));
  });
}

Response diff_states(Service& service, const Request& request, const Parts& parts) {
  const NodePtr a = node_of(service, request, parts),
                b = service.states.find(request.client, parts[1], "/other");
  return respond_from(service, request, {a, b}, [&](std::vector<Session>& sessions) {
    return json_response(diff_json(service, sessions[0], sessions[1]));
  });
}

}  // namespace stet::serve

// Reads config.json and generation_config.json: the fields that all families share.
#include "stet/model/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/json_value.hpp"
#include "src/checkpoint/settings_in_config.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/family.hpp"

namespace stet {
std::vector<int64_t> read_windows(const JsonReader& json, int64_t layers, int64_t window,
                                  const std::function<bool(int64_t)>& slides) {
  std::vector<int64_t> result;
  const std::vector<std::string> types = json.strings("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != layers) {
    json.fail("layer_types", "one entry for each of " + std::to_string(layers) + " layers");
  }
  for (int64_t i = 0; i < layers; ++i) {
    if (types.empty()) {
      result.push_back(slides(i) ? window : 0);
      continue;
    }
    const std::string& type = types[static_cast<size_t>(i)];
    if (type != "sliding_attention" && type != "full_attention") {
      throw Error(ErrorKind::unsupported, json.file(), json.path_of("layer_types"),
                  "sliding_attention or full_attention", type);
    }
    result.push_back(type == "full_attention" ? 0 : window);
  }
  return result;
}

std::vector<int64_t> read_recurrent(const JsonReader& json, int64_t layers,
                                    const std::vector<std::string>& recurrent,
                                    const std::vector<std::string>& attention,
                                    const std::function<bool(int64_t)>& otherwise,
                                    const char* field) {
  std::vector<int64_t> of;
  const std::vector<std::string> types = json.strings(field);
  if (!types.empty() && static_cast<int64_t>(types.size()) != layers)
    json.fail(field, "one entry for each of " + std::to_string(layers) + " layers");
  for (int64_t i = 0; i < layers; ++i) {
    if (types.empty()) {
      of.push_back(otherwise(i) ? 1 : 0);
      continue;
    }
    const std::string& type = types[static_cast<size_t>(i)];
    const bool is = std::ranges::find(recurrent, type) != recurrent.end();
    if (!is && std::ranges::find(attention, type) == attention.end())
      throw Error(ErrorKind::unsupported, json.file(), json.path_of(field),
                  recurrent[0] + " or " + attention[0], type);
    of.push_back(is ? 1 : 0);
  }
  if (std::ranges::count(of, 1) == 0) of.clear();
  return of;
}

int64_t read_integer_or_word(const JsonReader& json, const char* name, const char* word,
                             int64_t otherwise, int64_t max) {
  if (!json.has(name) || json_of(json).at(name) == word) return otherwise;
  return json.integer(name, 1, max);
}

void read_step_limits(const JsonReader& json, const char* name, Recurrence* r) {
  if (!json.has(name)) return;
  const auto& limits = json_of(json).at(name);
  // transformers 5 writes infinity as an object.
  const bool open = limits.is_array() && limits.size() == 2 &&
                    limits[1] == nlohmann::json({{"__float__", "Infinity"}});
  const std::vector<double> both = open ? std::vector<double>{} : json.numbers(name);
  const double least = open && limits[0].is_number() ? limits[0].get<double>()
                       : both.size() == 2            ? both[0]
                                                     : -1;
  const double most = open || both.size() != 2 || both[1] > 1e30 ? 0 : both[1];
  if (!(least >= 0) || (most != 0 && most < least))
    json.fail(name, "two limits, the lower one first");
  r->least_step = least;
  r->most_step = most;
}

std::vector<int32_t> read_ids(const JsonReader& json, const std::string& name, int64_t vocab_size) {
  constexpr int64_t kLeast = INT32_MIN, kMost = UINT32_MAX;
  std::vector<int32_t> ids;
  for (const int64_t id : json.integer_or_integers(name, kLeast, kMost))
    if (id >= 0 && id < vocab_size) ids.push_back(static_cast<int32_t>(id));
  return ids;
}

double read_optional(const JsonReader& json, const char* field, double absent, double min,
                     double max) {
  if (json.has(field)) return json.number(field, min, max);
  return json.names(field) ? 0 : absent;
}

ExpertShape read_experts(const JsonReader& json, const ExpertFields& fields) {
  ExpertShape e;
  const char* const count = json.has("num_experts") ? "num_experts" : "num_local_experts";
  const auto read = [&](const char* name, int64_t otherwise, int64_t most) {
    return json.has(name) || otherwise == 0 || otherwise > most ? json.integer(name, 1, most)
                                                                : otherwise;
  };
  e.count = read(count, fields.count, static_cast<int64_t>(kMostExperts));
  e.chosen = read("num_experts_per_tok", fields.chosen, e.count);
  e.width = json.integer(fields.width, 1, kMaxSize);
  const bool divided = !fields.rule && json.boolean_or("norm_topk_prob", fields.divided);
  e.rule = fields.rule      ? *fields.rule
           : fields.sigmoid ? divided ? RouterRule::sigmoid_divided : RouterRule::sigmoid
           : divided        ? RouterRule::softmax_divided
                            : RouterRule::softmax;
  if (fields.sigmoid) e.factor = json.number_or("routed_scaling_factor", 1, 1e-6, 1e6);
  return e;
}

int64_t read_sliding_window(const JsonReader& json) {
  if (json.has("sliding_window")) return json.integer("sliding_window", 1, int64_t{1} << 32);
  return json.names("sliding_window") ? 0 : 4096;
}

void require_activation(const JsonReader& json, const char* field,
                        const std::vector<std::string>& supported) {
  const std::string found = json.string_or(field, supported[0]);
  std::string expected;
  for (const std::string& name : supported) {
    if (found == name) return;
    expected += (expected.empty() ? "" : " or ") + name;
  }
  throw Error(ErrorKind::unsupported, json.file(), json.path_of(field), expected, found);
}

void require_one_of(const JsonReader& json, const char* field,
                    std::initializer_list<const char*> values) {
  if (!json.has(field)) return;
  const nlohmann::json& found = json_of(json).at(field);
  std::string expected;
  for (const char* value : values) {
    if (found == nlohmann::json::parse(value)) return;
    expected += (expected.empty() ? "" : " or ") + std::string(value);
  }
  const auto replace = nlohmann::json::error_handler_t::replace;
  throw Error(ErrorKind::unsupported, json.file(), json.path_of(field), expected,
              printable(found.dump(-1, ' ', false, replace), 60));
}

void require_false(const JsonReader& json, std::initializer_list<const char*> fields) {
  for (const char* field : fields) {
    if (json.boolean_or(field, false))
      throw Error(ErrorKind::unsupported, json.file(), json.path_of(field), "false", "true");
  }
}

void require_uniform_layers(const JsonReader& json) {
  const auto exceptions = json.object("per_layer_config");
  if (exceptions && !exceptions->keys().empty())
    throw Error(ErrorKind::unsupported, json.file(), json.path_of("per_layer_config"),
                "nothing: layers of this family have one shape", printable(exceptions->text(), 60));
}

ModelConfig read_common(const JsonReader& json, const char* family, const Defaults& defaults) {
  if (!defaults.own_layers) require_uniform_layers(json);
  const auto size = [&](const char* name, int64_t fallback, int64_t max) {
    return fallback > 0 ? json.integer_or(name, fallback, 1, max) : json.integer(name, 1, max);
  };
  ModelConfig c;
  c.family = family;
  c.vocab_size = size("vocab_size", defaults.vocab_size, kMaxSize);
  c.hidden_size = size("hidden_size", defaults.hidden_size, kMaxSize);
  c.intermediate_size = defaults.widths
                            ? defaults.intermediate_size
                            : size("intermediate_size", defaults.intermediate_size, kMaxSize);
  c.layers = size("num_hidden_layers", defaults.layers, kMaxLayers);
  c.heads = size("num_attention_heads", defaults.heads, kMaxHeads);
  // Null means as many as there are heads in families that have another default.
  const bool own = defaults.kv_heads > 0 && !json.names("num_key_value_heads");
  c.kv_heads =
      json.integer_or("num_key_value_heads", own ? defaults.kv_heads : c.heads, 1, c.heads);
  if (c.heads % c.kv_heads != 0)
    json.fail("num_key_value_heads", "a divisor of num_attention_heads " + std::to_string(c.heads));
  const bool divided = defaults.head_dim == 0 && !json.has("head_dim");
  if (divided && c.hidden_size % c.heads != 0) {
    json.fail("hidden_size", "a multiple of num_attention_heads " + std::to_string(c.heads));
  }
  c.head_dim = json.integer_or("head_dim", divided ? c.hidden_size / c.heads : defaults.head_dim, 2,
                               kMaxHeadDim);
  if (c.head_dim % 2 != 0) json.fail("head_dim", "an even number");
  c.max_positions =
      json.integer_or("max_position_embeddings", defaults.max_positions, 1, kMaxPositions);
  c.norm_eps = json.number_or("rms_norm_eps", 1e-6, 0, 1);
  c.attention_scale = inverse_square_root(static_cast<double>(c.head_dim));
  c.attention_bias = json.boolean_or("attention_bias", false);
  c.mlp_bias = json.boolean_or("mlp_bias", false);
  c.tied_head = json.boolean_or("tie_word_embeddings", defaults.tied_head);
  c.window.assign(static_cast<size_t>(c.layers), 0);
  c.rope_of.assign(static_cast<size_t>(c.layers), 0);
  c.eos_ids = read_ids(json, "eos_token_id", c.vocab_size);
  return c;
}

namespace {

Recurrence recurrence_from(const JsonReader& json) {
  Recurrence r;
  r.kind = static_cast<Recurrence::Kind>(
      json.integer("kind", 1, static_cast<int>(Recurrence::Kind::mamba2)));
  const int64_t least = r.kind == Recurrence::Kind::short_conv ? 0 : 1;
  r.heads = json.integer("heads", least, kMaxHeads);
  r.groups = json.integer("groups", least, kMaxHeads);
  r.key_dim = json.integer("key_dim", least, kMaxHeadDim);
  r.value_dim = json.integer("value_dim", least, kMaxHeadDim);
  r.taps = json.integer("taps", 1, kMaxTaps);
  r.channels = json.integer("channels", 1, kMaxSize);
  r.conv_bias = json.boolean_or("conv_bias", false);
  r.projection_bias = json.boolean_or("projection_bias", false);
  r.least_step = json.number_or("least_step", 0, 0, 1e30);
  r.most_step = json.number_or("most_step", 0, 0, 1e30);
  return r;
}

// Reads the members of a config whose layers differ. Layers that others read keys and values from
// must have their own, of the same shape.
void read_layers(const JsonReader& json, ModelConfig& c) {
  const auto read = [&](const char* name, int64_t min, int64_t max, std::vector<int64_t>& to) {
    to = json.integers(name, min, max);
    if (!to.empty() && static_cast<int64_t>(to.size()) != c.layers)
      json.fail(name, "one entry per layer");
  };
  read("kv_heads_of", 1, c.heads, c.kv_heads_of);
  read("head_dim_of", 2, kMaxHeadDim, c.head_dim_of);
  read("owner_of", 0, c.layers - 1, c.owner_of);
  read("intermediate_of", 1, kMaxSize, c.intermediate_of);
  read("values_are_keys", 0, 1, c.values_are_keys);
  read("recurrent_of", 0, 1, c.recurrent_of);
  if (json.has_object("recurrence"))
    c.recurrence = recurrence_from(json.required_object("recurrence"));
  if (c.recurrent_of.empty() != (c.recurrence.kind == Recurrence::Kind::none))
    json.fail("recurrence", "an object, if recurrent_of says which layers are recurrent");
  c.layer_inputs = json.integer_or("layer_inputs", 0, 0, kMaxSize);
  c.layer_input_tokens = json.integer_or("layer_input_tokens", 0, 0, kMaxSize);
  c.streams = json.integer_or("streams", 0, 0, kMaxSize);
  c.active_stream = json.integer_or("active_stream", 0, 0, kMaxSize);
  c.laurel_rank = json.integer_or("laurel_rank", 0, 0, kMaxSize);
  c.scaled_streams = json.boolean_or("scaled_streams", false);
  c.gate_floor = json.numbers("gate_floor");
  for (int64_t i = 0; i < c.layers && !c.owner_of.empty(); ++i) {
    const LayerShape l = c.layer(i), own = c.layer(std::max<int64_t>(0, l.owner));
    if (l.recurrent) continue;
    if (l.owner > i || own.owner != l.owner || own.kv_heads != l.kv_heads ||
        own.key_dim != l.key_dim)
      json.fail("owner_of", "earlier layers with keys and values of the same shape");
  }
}

}  // namespace

std::string ModelConfig::canonical() const {
  nlohmann::json ropes_json = nlohmann::json::array();
  for (const Rope& r : ropes) {
    ropes_json.push_back({{"theta", r.theta},
                          {"scaling", static_cast<int>(r.scaling)},
                          {"factor", r.factor},
                          {"low_freq_factor", r.low_freq_factor},
                          {"high_freq_factor", r.high_freq_factor},
                          {"original_positions", r.original_positions}});
    if (r.dim != 0) ropes_json.back()["dim"] = r.dim;
    if (r.scaling == Rope::Scaling::proportional) ropes_json.back()["part"] = r.part;
    if (r.scaling == Rope::Scaling::longrope)
      ropes_json.back().update({{"attention_factor", r.attention_factor},
                                {"short_factors", r.short_factors},
                                {"long_factors", r.long_factors},
                                {"is_long", r.is_long}});
    if (r.scaling != Rope::Scaling::yarn) continue;
    ropes_json.back().update({{"beta_fast", r.beta_fast},
                              {"beta_slow", r.beta_slow},
                              {"truncate", r.truncate},
                              {"attention_factor", r.attention_factor}});
  }
  nlohmann::json j = {{"family", family},
                      {"vocab_size", vocab_size},
                      {"hidden_size", hidden_size},
                      {"intermediate_size", intermediate_size},
                      {"layers", layers},
                      {"heads", heads},
                      {"kv_heads", kv_heads},
                      {"head_dim", head_dim},
                      {"max_positions", max_positions},
                      {"norm_eps", norm_eps},
                      {"attention_scale", attention_scale},
                      {"attention_softcap", attention_softcap},
                      {"logit_softcap", logit_softcap},
                      {"embedding_scale", embedding_scale},
                      {"tied_head", tied_head},
                      {"attention_bias", attention_bias},
                      {"mlp_bias", mlp_bias},
                      {"window", window},
                      {"rope_of", rope_of},
                      {"ropes", ropes_json}};
  // Fields that older families lack are left out, so that the fingerprints of their models stay the
  // same.
  if (residual_scale != 1) j["residual_scale"] = residual_scale;
  if (logit_divisor != 1) j["logit_divisor"] = logit_divisor;
  if (rotary_dim != 0) j["rotary_dim"] = rotary_dim;
  if (parallel_residual) j["parallel_residual"] = true;
  if (qkv_clip != 0) j["qkv_clip"] = qkv_clip;
  if (gate_limit != 0) j["gate_limit"] = gate_limit;
  if (experts.count > 0)
    j["experts"] = {{"count", experts.count},
                    {"chosen", experts.chosen},
                    {"width", experts.width},
                    {"rule", static_cast<int>(experts.rule)},
                    {"dense", experts.dense}};
  if (experts.count > 0 && experts.factor != 1) j["experts"]["factor"] = experts.factor;
  if (experts.count > 0 && experts.biased) j["experts"]["biased"] = true;
  if (experts.count > 0 && experts.shared != 0) j["experts"]["shared"] = experts.shared;
  for (const auto& [name, each] : {std::pair("kv_heads_of", &kv_heads_of),
                                   {"head_dim_of", &head_dim_of},
                                   {"owner_of", &owner_of},
                                   {"intermediate_of", &intermediate_of},
                                   {"values_are_keys", &values_are_keys},
                                   {"recurrent_of", &recurrent_of}}) {
    if (!each->empty()) j[name] = *each;
  }
  for (const auto& [name, value] : {std::pair("layer_inputs", layer_inputs),
                                    {"layer_input_tokens", layer_input_tokens},
                                    {"streams", streams},
                                    {"active_stream", active_stream},
                                    {"laurel_rank", laurel_rank}}) {
    if (value != 0) j[name] = value;
  }
  if (recurrence.kind != Recurrence::Kind::none)
    j["recurrence"] = {{"kind", static_cast<int>(recurrence.kind)},
                       {"heads", recurrence.heads},
                       {"groups", recurrence.groups},
                       {"key_dim", recurrence.key_dim},
                       {"value_dim", recurrence.value_dim},
                       {"taps", recurrence.taps},
                       {"channels", recurrence.channels}};
  if (recurrence.conv_bias) j["recurrence"]["conv_bias"] = true;
  if (recurrence.projection_bias) j["recurrence"]["projection_bias"] = true;
  if (recurrence.least_step != 0) j["recurrence"]["least_step"] = recurrence.least_step;
  if (recurrence.most_step != 0) j["recurrence"]["most_step"] = recurrence.most_step;
  if (scaled_streams) j["scaled_streams"] = true;
  if (!gate_floor.empty()) j["gate_floor"] = gate_floor;
  return j.dump();
}

RecurrentShape recurrent_shape(const ModelConfig& config) {
  const Recurrence& r = config.recurrence;
  std::vector<std::vector<RecurrentArray>> layers(static_cast<size_t>(config.layers));
  for (int64_t i = 0; i < config.layers; ++i) {
    std::vector<RecurrentArray>& arrays = layers[static_cast<size_t>(i)];
    if (!config.layer(i).recurrent) continue;
    if (r.kind != Recurrence::Kind::short_conv)
      arrays.push_back({"state", {r.heads, r.key_dim, r.value_dim}});
    arrays.push_back({"conv", {r.taps - 1, r.channels}});
  }
  return RecurrentShape::of(std::move(layers));
}

namespace {

ExpertShape experts_from(const JsonReader& json, const ModelConfig& config) {
  ExpertShape e;
  e.count = json.integer("count", 1, kMostExperts);
  e.chosen = json.integer("chosen", 1, e.count);
  e.width = json.integer("width", 1, kMaxSize);
  e.rule = static_cast<RouterRule>(
      json.integer("rule", 0, static_cast<int>(RouterRule::sigmoid_divided)));
  e.dense = json.integers("dense", 0, config.layers - 1);
  if (!std::ranges::is_sorted(e.dense)) json.fail("dense", "ascending layers");
  e.factor = json.number_or("factor", 1, 1e-6, 1e6);
  e.biased = json.boolean_or("biased", false);
  e.shared = json.integer_or("shared", 0, 0, kMaxSize);
  return e;
}

}  // namespace

ModelConfig ModelConfig::from_canonical(const std::string& text, const std::string& file) {
  const JsonReader json = parse_json(text, file);
  constexpr int64_t kMany = int64_t{1} << 40;
  ModelConfig c;
  c.family = json.string("family");
  c.vocab_size = json.integer("vocab_size", 1, kMaxSize);
  c.hidden_size = json.integer("hidden_size", 1, kMaxSize);
  c.intermediate_size = json.integer("intermediate_size", 1, kMaxSize);
  c.layers = json.integer("layers", 1, kMaxLayers);
  c.heads = json.integer("heads", 1, kMaxHeads);
  c.kv_heads = json.integer("kv_heads", 1, c.heads);
  c.head_dim = json.integer("head_dim", 2, kMaxHeadDim);
  c.max_positions = json.integer("max_positions", 1, kMaxPositions);
  const std::pair<const char*, double*> numbers[] = {{"norm_eps", &c.norm_eps},
                                                     {"attention_scale", &c.attention_scale},
                                                     {"attention_softcap", &c.attention_softcap},
                                                     {"logit_softcap", &c.logit_softcap},
                                                     {"embedding_scale", &c.embedding_scale}};
  for (const auto& [name, value] : numbers) *value = json.number(name);
  c.residual_scale = json.number_or("residual_scale", 1, -1e6, 1e6);
  c.logit_divisor = json.number_or("logit_divisor", 1, 1e-6, 1e6);
  c.rotary_dim = json.integer_or("rotary_dim", 0, 0, c.head_dim);
  c.parallel_residual = json.boolean_or("parallel_residual", false);
  c.qkv_clip = json.number_or("qkv_clip", 0, 0, 1e9);
  c.gate_limit = json.number_or("gate_limit", 0, 0, 1e6);
  if (json.has_object("experts")) c.experts = experts_from(json.required_object("experts"), c);
  c.tied_head = json.boolean("tied_head");
  c.attention_bias = json.boolean("attention_bias");
  c.mlp_bias = json.boolean("mlp_bias");
  c.window = json.integers("window", 0, kMany);
  if (static_cast<int64_t>(c.window.size()) != c.layers) json.fail("window", "one entry per layer");
  for (const JsonReader& r : json.objects("ropes")) {
    c.ropes.push_back({r.number("theta"), static_cast<Rope::Scaling>(r.integer("scaling", 0, 5)),
                       r.number("factor"), r.number("low_freq_factor"),
                       r.number("high_freq_factor"), r.number("original_positions"),
                       r.number_or("beta_fast", 32, 1e-3, 1e6),
                       r.number_or("beta_slow", 1, 1e-3, 1e6), r.boolean_or("truncate", true),
                       r.number_or("attention_factor", 0, 0, 1e3), r.numbers("short_factors"),
                       r.numbers("long_factors"), r.boolean_or("is_long", false),
                       r.integer_or("dim", 0, 2, kMaxHeadDim), r.number_or("part", 1, 0, 1)});
    const Rope& rope = c.ropes.back();
    for (const auto* factors : {&rope.short_factors, &rope.long_factors}) {
      if (rope.scaling == Rope::Scaling::longrope &&
          static_cast<int64_t>(factors->size()) != c.rotated(rope) / 2)
        json.fail("ropes", "a factor for each pair of dimensions");
    }
  }
  const int64_t last_rope = static_cast<int64_t>(c.ropes.size()) - 1;
  for (const int64_t i : json.integers("rope_of", -1, last_rope))
    c.rope_of.push_back(static_cast<int>(i));
  if (!(c.ropes.empty() && c.rope_of.empty()) && static_cast<int64_t>(c.rope_of.size()) != c.layers)
    json.fail("rope_of", "one entry per layer");
  read_layers(json, c);
  return c;
}

int64_t checked_capacity(const ModelConfig& c, int64_t capacity) {
  if (capacity == 0) return c.max_positions;
  if (capacity < 1 || capacity > c.max_positions) {
    const char* field = c.ropes.empty() ? "n_positions" : "max_position_embeddings";
    throw Error(ErrorKind::argument, "", "ctx",
                "1 .. " + std::to_string(c.max_positions) + " (" + field + ")",
                std::to_string(capacity));
  }
  return capacity;
}

namespace {

// Returns true for gpt-oss in its own MXFP4.
bool is_of_mxfp4(const JsonReader& json, const JsonReader& how) {
  return json.string_or("model_type", "") == "gpt_oss" &&
         how.string_or("quant_method", "") == "mxfp4";
}

// Throws an unsupported Error for weights that only another program's kernels can read. `place` is
// the config or its text_config.
void refuse_other_weights(const JsonReader& json, const JsonReader& place) {
  const std::string advice =
      " are not supported; take the checkpoint that they were made from, with --compute q8 or q4, "
      "or the model as a GGUF file";
  for (const char* const name :
       {"quantization_config", "compression_config", "quantization"}) {  // "quantization" is MLX's
    if (!place.has(name)) continue;
    const JsonReader how = place.required_object(name);
    if (how.keys().empty() || is_of_mxfp4(json, how)) continue;
    for (const char* const method : {"quant_method", "quant_algo", "mode"}) {
      if (how.has(method))
        throw Error(ErrorKind::unsupported, json.file(), how.path_of(method), "",
                    "weights quantized by " + how.string(method) + advice);
    }
    throw Error(ErrorKind::unsupported, json.file(), place.path_of(name), "",
                (name == std::string("quantization")
                     ? "weights quantized by MLX"
                     : "weights quantized as " + printable(how.text(), 100)) +
                    advice);
  }
}

void refuse_answer_of_server(const JsonReader& json) {
  if (json.has("error") && !json.has("architectures") && !json.has("model_type"))
    throw Error(ErrorKind::format, json.file(), "error", "",
                "this is a server's answer, not the config of a model; download the file again");
}

// Throws a format Error for a value that a family has set and no snapshot could hold, since a
// program's own family may set any.
void check_members(const ModelConfig& c, const std::string& file) {
  for (const auto& [name, value] : {std::pair("norm_eps", c.norm_eps),
                                    {"attention_scale", c.attention_scale},
                                    {"attention_softcap", c.attention_softcap},
                                    {"logit_softcap", c.logit_softcap},
                                    {"embedding_scale", c.embedding_scale},
                                    {"residual_scale", c.residual_scale},
                                    {"logit_divisor", c.logit_divisor}}) {
    if (!std::isfinite(value))
      throw Error(ErrorKind::format, file, name, "a finite number", fmt::format("{}", value));
  }
  ModelConfig::from_canonical(c.canonical(), file);
}

// Throws an unsupported Error for a model whose tokens attend to later ones. Null says so, too, in
// transformers.
void require_causal(const JsonReader& json) {
  const char* const field = "is_causal";
  if (json.names(field) && !json.boolean_or(field, false))
    throw Error(ErrorKind::unsupported, json.file(), json.path_of(field),
                "true: stet runs decoders, whose tokens attend to earlier ones alone",
                json.has(field) ? "false" : "null");
}

}  // namespace

ModelConfig parse_model_config(const std::string& text, const std::string& file) {
  return read_model_config(parse_python_json(text, file));
}

ModelConfig read_model_config(const JsonReader& json) {
  const auto nested = json.has_object("text_config") ? json.object("text_config") : std::nullopt;
  for (const JsonReader* const place : {nested ? &*nested : &json, &json}) {
    refuse_other_weights(json, *place);
    require_causal(*place);
  }
  refuse_answer_of_server(json);
  const Family& family = family_of(json);
  ModelConfig config = family.read_config(json);
  for (const Rope& rope : config.ropes) {
    const auto pairs = static_cast<size_t>(config.rotated(rope) / 2);
    if (rope.scaling != Rope::Scaling::longrope) continue;
    for (const auto& [name, factors] : {std::pair("short_factor", &rope.short_factors),
                                        std::pair("long_factor", &rope.long_factors)}) {
      if (factors->size() != pairs)
        throw Error(ErrorKind::format, json.file(), name,
                    std::to_string(pairs) + " numbers, one for each pair of rotated dimensions",
                    std::to_string(factors->size()));
    }
  }
  const std::vector<std::string> names = json.strings("architectures");
  config.architecture = names.empty() ? family.architectures[0] : names[0];
  check_members(config, json.file());
  return config;
}

// Lists the settings that stet ignores, although transformers' generate() would give other or fewer
// tokens with them. Adds the ignored keys that the reader of a GGUF file listed.
static std::vector<std::string> ignored_settings(const JsonReader& json) {
  constexpr std::pair<const char*, double> kNumbers[] = {
      {"num_beams", 1},      {"no_repeat_ngram_size", 0},
      {"penalty_alpha", 0},  {"encoder_repetition_penalty", 1},
      {"epsilon_cutoff", 0}, {"eta_cutoff", 0},
      {"guidance_scale", 1}, {"diversity_penalty", 0},
      {"min_length", 0},     {"min_new_tokens", 0},
      {"max_length", 20},    {"num_return_sequences", 1}};  // 20: old configs state the default
  std::vector<std::string> ignored;
  for (const auto& [name, neutral] : kNumbers) {
    if (json.number_or(name, neutral) != neutral) ignored.push_back(name);
  }
  for (const char* const name :
       {"bad_words_ids", "begin_suppress_tokens", "dola_layers", "exponential_decay_length_penalty",
        "force_words_ids", "forced_bos_token_id", "forced_decoder_ids", "forced_eos_token_id",
        "max_new_tokens", "max_time", "renormalize_logits", "sequence_bias", "stop_strings",
        "suppress_tokens", "token_healing", "top_h", "watermarking_config"}) {
    if (json.has(name) && !json_of(json).at(name).empty() && json_of(json).at(name) != false)
      ignored.push_back(name);
  }
  if (const auto notes = json.object("stet"))
    for (const std::string& key : notes->strings("ignored")) ignored.push_back(key);
  return ignored;
}

std::vector<std::string> settings_in_config(const JsonReader& json) {
  constexpr std::pair<const char*, double> kNumbers[] = {
      {"temperature", 1}, {"top_k", 50},      {"top_p", 1},
      {"typical_p", 1},   {"num_beams", 1},   {"no_repeat_ngram_size", 0},
      {"min_length", 0},  {"max_length", 20}, {"repetition_penalty", 1}};
  std::vector<std::string> names;
  if (json.has("do_sample") && json_of(json).at("do_sample") == true) names.push_back("do_sample");
  for (const auto& [name, neutral] : kNumbers) {
    if (json.has(name) && json_of(json).at(name) != neutral) names.push_back(name);
  }
  for (const char* const name : {"bad_words_ids", "max_new_tokens", "suppress_tokens"}) {
    if (json.has(name) && !json_of(json).at(name).empty()) names.push_back(name);
  }
  return names;
}

GenerationConfig parse_generation_config(const std::string& text, const std::string& file,
                                         int64_t vocab_size) {
  const JsonReader json = parse_python_json(text, file);
  GenerationConfig g;
  g.source = file;
  g.eos_ids = read_ids(json, "eos_token_id", vocab_size);
  g.sample = json.boolean_or("do_sample", false);
  // A temperature of 0 takes the best token, as --temperature 0 does.
  const bool cold = json.number_or("temperature", 1, 0, 1e6) == 0;
  g.sample = g.sample && !cold;
  g.temperature = cold ? 1 : json.number_or("temperature", 1, 1e-30, 1e6);
  g.top_k = json.integer_or("top_k", 0, 0, int64_t{1} << 31);
  g.top_p = json.number_or("top_p", 1, 0, 1);
  g.min_p = json.number_or("min_p", 0, 0, 1);
  g.typical_p = json.number_or("typical_p", 1, 1e-30, 1);
  g.repetition_penalty = json.number_or("repetition_penalty", 1, 1e-6, 1e6);
  g.ignored = ignored_settings(json);
  return g;
}

}  // namespace stet

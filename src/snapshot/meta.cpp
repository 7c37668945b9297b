#include "src/snapshot/meta.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/json_value.hpp"
#include "src/snapshot/logs.hpp"
#include "stet/base/digest.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/chat/conversation.hpp"
#include "stet/generate/generate.hpp"
#include "stet/model/contract.hpp"
#include "stet/text/utf8.hpp"

namespace stet {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxTime = int64_t{1} << 40;  // of a chat, in seconds since 1970

std::string hex(std::string_view bytes) { return hex_text(std::as_bytes(std::span(bytes))); }

std::string unhex(const JsonReader& json, const std::string& name) {
  const std::string text = json.string(name);
  if (text.size() % 2 != 0) json.fail(name, "an even number of hex digits");
  std::string bytes(text.size() / 2, '\0');
  if (!parse_hex(text, std::as_writable_bytes(std::span(bytes)))) json.fail(name, "hex digits");
  return bytes;
}

uint64_t read_seed(const JsonReader& json) {
  const std::string bytes = unhex(json, "seed");
  if (bytes.size() != 8) json.fail("seed", "16 hex digits");
  uint64_t seed = 0;
  for (const char c : bytes) seed = seed << 8 | static_cast<unsigned char>(c);
  return seed;
}

Json generation_json(const GenerationState& g) {
  Json turns = Json::array();
  for (const Turn& t : g.turns) {
    turns.push_back({{"prompt", t.prompt}, {"reply", t.reply}, {"end", t.end}, {"open", t.open}});
  }
  const SamplingSettings& s = g.sampling;
  Json json = {{"greedy", s.greedy},
               {"temperature", s.temperature},
               {"top_k", s.top_k},
               {"top_p", s.top_p},
               {"min_p", s.min_p},
               {"typical_p", s.typical_p},
               {"repetition_penalty", s.repetition_penalty},
               {"seed", fmt::format("{:016x}", s.seed)},
               {"stop_ids", g.stop_ids},
               {"stop_strings", g.stop_strings},
               {"turns", turns},
               {"stream", hex(g.stream)},
               {"held", hex(g.held)}};
  // These fields appear only if they are set, so that the id and the bytes of states from before
  // they existed stay the same.
  if (s.frequency_penalty != 0) json["frequency_penalty"] = s.frequency_penalty;
  if (s.presence_penalty != 0) json["presence_penalty"] = s.presence_penalty;
  for (const TokenBias& b : s.logit_bias) json["logit_bias"][std::to_string(b.id)] = b.bias;
  return json;
}

std::vector<TokenBias> read_logit_bias(const JsonReader& json, int64_t vocab) {
  std::vector<TokenBias> biases;
  const std::optional<JsonReader> object = json.object("logit_bias");
  if (!object) return biases;
  for (const std::string& key : object->keys()) {
    int32_t id = -1;
    const char* const end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, id);
    if (error != std::errc() || stop != end || std::to_string(id) != key || id < 0 || id >= vocab)
      object->fail(key, fmt::format("as name a token id in 0..{}", vocab - 1));
    biases.push_back({id, object->number(key)});
  }
  std::ranges::sort(biases, {}, &TokenBias::id);
  return biases;
}

GenerationState read_generation(const JsonReader& json, int64_t vocab, int64_t positions) {
  GenerationState g;
  SamplingSettings& s = g.sampling;
  s.greedy = json.boolean("greedy");
  s.temperature = json.number("temperature");
  s.top_k = static_cast<int>(json.integer("top_k", 0, std::numeric_limits<int>::max()));
  s.top_p = json.number("top_p");
  s.min_p = json.number("min_p");
  s.typical_p = json.number("typical_p");
  s.repetition_penalty = json.number("repetition_penalty");
  s.frequency_penalty = json.number_or("frequency_penalty", 0);
  s.presence_penalty = json.number_or("presence_penalty", 0);
  s.logit_bias = read_logit_bias(json, vocab);
  s.seed = read_seed(json);
  for (int64_t id : json.integers("stop_ids", 0, vocab - 1))
    g.stop_ids.push_back(static_cast<int32_t>(id));
  g.stop_strings = json.strings("stop_strings");
  int64_t at = 0;
  for (const JsonReader& t : json.objects("turns")) {
    Turn turn;
    turn.prompt = t.integer("prompt", at, positions);
    turn.reply = t.integer("reply", turn.prompt, positions);
    turn.end = t.integer("end", turn.reply, positions);
    turn.open = t.boolean("open");
    at = turn.end;
    g.turns.push_back(turn);
  }
  g.stream = unhex(json, "stream");
  g.held = unhex(json, "held");
  check_generation(g, vocab, positions, json.file());
  return g;
}

// Adds an object for the chat template, unless its text is "". Json sorts keys, and templates see
// their order: keys in another order are kept as text, too.
void put_object(const std::string& name, const std::string& text, Json& json) {
  if (text.empty()) return;
  json[name] = Json::parse(text);
  const std::string as_given = parse_ordered_json(text, "").dump();
  if (as_given != json[name].dump()) json[name + "_text"] = as_given;
}

Json chat_json(const ChatState& d) {
  Json messages = Json::array();
  for (const Message& m : d.messages) {
    Json message = {{"role", m.role},
                    {"content", m.content},
                    {"begin", m.begin},
                    {"end", m.end},
                    {"drawn", m.generated}};
    put_object("fields", m.fields, message);
    messages.push_back(std::move(message));
  }
  Json j = {{"messages", messages}, {"now", d.now}, {"special_in_text", d.special_in_text}};
  put_object("variables", d.variables, j);
  if (!d.chat_template.empty()) j["chat_template"] = d.chat_template;
  return j;
}

// Returns the text of an object that put_object() added, or "".
std::string object_text(const JsonReader& json, const std::string& name) {
  const std::optional<JsonReader> object = json.object(name);
  const std::string text = json.string_or(name + "_text", "");
  if (text.empty()) return object ? object->text() : "";
  if (!object || parse_json_value(text, json.file() + ": " + json.path_of(name + "_text")).dump() !=
                     object->text())
    json.fail(name + "_text", "the text of " + name);
  return text;
}

ChatState read_chat(const JsonReader& json, int64_t positions) {
  ChatState d;
  for (const JsonReader& entry : json.objects("messages")) {
    d.messages.push_back({entry.string("role"), entry.string("content"),
                          object_text(entry, "fields"), entry.integer("begin", 0, positions),
                          entry.integer("end", 0, positions), entry.boolean("drawn")});
  }
  d.variables = object_text(json, "variables");
  d.chat_template = json.string_or("chat_template", "");
  d.now = json.integer("now", 0, kMaxTime);
  d.special_in_text = json.boolean("special_in_text");
  check_chat(d, positions, json.file());
  return d;
}

// Encodes the table of layers that differ.
Json table_json(const KvShape& shape, const RecurrentShape& recurrent) {
  Json table = Json::array();
  for (const KvLayer& l : shape.table) {
    const std::vector<RecurrentArray>& arrays = recurrent.layers[table.size()];
    table.push_back({{"heads", l.kv_heads},
                     {"key_dim", l.key_dim},
                     {"owner", l.owner},
                     {"value_dim", l.value_dim},
                     {"window", l.window}});
    for (const RecurrentArray& a : arrays)
      table.back()["state"].push_back({{"name", a.name}, {"shape", a.dims}});
  }
  return table;
}

Json kv_json(const KvShape& shape, const RecurrentShape& recurrent) {
  Json j = {{"type", kv_type_name(shape.type)}, {"version", kKvVersion}, {"layers", shape.layers}};
  if (shape.is_uniform())
    j.update({{"heads", shape.kv_heads}, {"head_dim", shape.head_dim}});
  else
    j["table"] = table_json(shape, recurrent);
  return j;
}

// Sets the fields that are values of the config.
void set_config_values(SnapshotMeta& meta, const ModelConfig& config) {
  meta.family = config.family;
  meta.vocab_size = config.vocab_size, meta.hidden_size = config.hidden_size;
  meta.recurrent = recurrent_shape(config);
}

// Reads the shape of keys and values, which must be the model's.
KvShape read_kv(const JsonReader& kv, const ModelConfig& config) {
  const std::optional<KvType> type = parse_kv_type(kv.string("type"));
  if (!type) kv.fail("type", "f32, bf16, f16 or q8");
  KvShape shape = detail::kv_shape(config, *type);
  const auto check = [&](const char* name, int64_t expected) {
    if (kv.integer(name, 1, kMaxSize) != expected)
      kv.fail(name, std::to_string(expected) + ", as in config");
  };
  check("layers", config.layers);
  if (shape.is_uniform()) {
    check("heads", shape.kv_heads);
    check("head_dim", shape.head_dim);
  } else if (Json::parse(kv.text()).value("table", Json()) !=
             table_json(shape, recurrent_shape(config))) {
    kv.fail("table", "the layers of config");
  }
  if (shape.block_bytes() > kMaxBlockBytes) {
    throw Error(ErrorKind::unsupported, kv.file(), kv.path_of("layers"),
                "blocks of at most " + std::to_string(kMaxBlockBytes) + " bytes",
                std::to_string(shape.block_bytes()));
  }
  // Another version rounds or arranges keys and values differently.
  const int64_t version = kv.integer("version", 1, 1 << 20);
  if (version != kKvVersion) {
    throw Error(ErrorKind::unsupported, kv.file(), kv.path_of("version"),
                std::to_string(kKvVersion), std::to_string(version));
  }
  return shape;
}

// Returns the last part of the checkpoint's path: enough to ask for it by name, without writing
// paths of this machine to the file.
std::string name_of(const std::string& directory) {
  std::error_code ignored;
  std::filesystem::path path = std::filesystem::absolute(directory, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return printable(path.filename().string());
}

}  // namespace

const char* snapshot_form_name(SnapshotForm form) {
  return form == SnapshotForm::full ? "full" : form == SnapshotForm::delta ? "delta" : "recipe";
}

std::optional<SnapshotForm> parse_snapshot_form(const std::string& name) {
  for (SnapshotForm form : {SnapshotForm::full, SnapshotForm::delta, SnapshotForm::recipe}) {
    if (name == snapshot_form_name(form)) return form;
  }
  return std::nullopt;
}

SnapshotMeta meta_of(const State& state, SnapshotMeta like) {
  like.kv = state.kv.shape();
  like.capacity = state.kv.capacity();
  like.positions = state.size();
  like.generation = state.generation;
  like.prunes = state.prunes;
  like.edits = state.edits;
  like.interventions = state.interventions;
  like.chat = state.chat;
  return like;
}

SnapshotMeta meta_of(const State& state, const Session& session, const Tokenizer* tokenizer) {
  SnapshotMeta m;
  m.contract = contract_name(session.model(), session.compute().contract);
  m.contract_version = kContractVersion;
  m.checkpoint = name_of(session.model().directory());
  m.architecture = session.model().config().architecture;
  m.config = session.model().config().canonical();
  set_config_values(m, session.model().config());
  m.fingerprints = session.model().fingerprints();
  if (tokenizer != nullptr) m.tokenizer = tokenizer->fingerprint();
  return meta_of(state, std::move(m));
}

std::string encode_generation(const GenerationState& generation) {
  return generation_json(generation).dump();
}

std::string encode_chat(const ChatState& chat) { return chat_json(chat).dump(); }

void check_chat(const ChatState& chat, int64_t positions, const std::string& source) {
  const auto check_text = [&](const std::string& field, const std::string& text) {
    if (!utf8_valid(text))
      throw Error(ErrorKind::argument, source, field, "UTF-8", printable(text, 60));
  };
  const auto check_object = [&](const std::string& field, const std::string& text) {
    check_text(field, text);
    if (text.empty()) return;
    if (!parse_json_value(text, source.empty() ? field : source + ": " + field).is_object())
      throw Error(ErrorKind::argument, source, field, "a JSON object", printable(text, 60));
  };
  size_t bytes = chat.variables.size() + chat.chat_template.size();
  for (const Message& m : chat.messages)
    bytes += m.role.size() + m.content.size() + m.fields.size();
  if (bytes > kMaxMetaBytes)
    throw Error(ErrorKind::capacity, source, "messages",
                fmt::format("at most {} bytes, with the template and its variables", kMaxMetaBytes),
                std::to_string(bytes));
  if (chat.now < 0 || chat.now > kMaxTime)
    throw Error(ErrorKind::argument, source, "now", fmt::format("seconds in 0..{}", kMaxTime),
                std::to_string(chat.now));
  check_object("variables", chat.variables);
  check_text("chat_template", chat.chat_template);
  int64_t at = 0;  // messages that were not generated may share a range
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const Message& m = chat.messages[i];
    const std::string field = "messages[" + std::to_string(i) + "]";
    check_text(field + ".role", m.role);
    check_text(field + ".content", m.content);
    check_object(field + ".fields", m.fields);
    if (m.begin < at || m.end < m.begin || m.end > positions) {
      throw Error(ErrorKind::argument, source, field,
                  "positions in order, up to " + std::to_string(positions),
                  std::to_string(m.begin) + ", " + std::to_string(m.end));
    }
    at = m.generated ? m.end : m.begin;
  }
}

std::string encode_meta(const SnapshotMeta& m) {
  Json fingerprints = Json::array();
  for (const auto& [name, digest] : m.fingerprints)
    fingerprints.push_back({{"name", name}, {"digest", digest}});
  Json meta = {{"form", snapshot_form_name(m.form)},
               {"parent", m.parent},
               {"parent_state", m.parent_state},
               {"parent_file", m.parent_file},
               {"logits", m.logits},
               {"contract", m.contract},
               {"contract_version", m.contract_version},
               {"checkpoint", m.checkpoint},
               {"architecture", m.architecture},
               {"config", Json::parse(m.config)},
               {"fingerprints", fingerprints},
               {"tokenizer", m.tokenizer},
               {"capacity", m.capacity},
               {"positions", m.positions},
               {"kv", kv_json(m.kv, m.recurrent)},
               {"generation", generation_json(m.generation)}};
  if (!m.edits.empty()) meta["edits"] = edits_json(m.edits);
  if (!m.interventions.empty()) meta["interventions"] = interventions_json(m.interventions);
  if (!m.chat.empty()) meta["dialogue"] = chat_json(m.chat);
  return meta.dump();
}

SnapshotMeta decode_meta(const MetaSections& sections, const std::string& file) {
  const JsonReader json = parse_json(sections.json, file);
  SnapshotMeta m;
  const std::optional<SnapshotForm> form = parse_snapshot_form(json.string("form"));
  if (!form) json.fail("form", "full, delta or recipe");
  m.form = *form;
  m.parent = json.string("parent");
  m.parent_state = json.string("parent_state");
  m.parent_file = json.string("parent_file");
  m.logits = json.string("logits");
  m.contract = json.string("contract");
  if (!parse_contract_name(m.contract)) json.fail("contract", "the name of a contract");
  m.contract_version = static_cast<int>(json.integer("contract_version", 1, 1 << 20));
  m.checkpoint = json.string("checkpoint");
  m.architecture = json.string("architecture");
  m.config = json.required_object("config").text();
  const ModelConfig config = ModelConfig::from_canonical(m.config, file + ": config");
  set_config_values(m, config);
  for (const JsonReader& entry : json.objects("fingerprints")) {
    m.fingerprints.emplace_back(entry.string("name"), entry.string("digest"));
  }
  if (m.fingerprints.empty() || m.fingerprints.back().first != "model") {
    json.fail("fingerprints", "an array that ends with \"model\"");
  }
  m.tokenizer = json.string("tokenizer");
  m.kv = read_kv(json.required_object("kv"), config);
  m.capacity = json.integer("capacity", 1, kMaxPositions);
  m.positions = json.integer("positions", 0, m.capacity);
  const int64_t vocab = config.vocab_size;
  m.generation = read_generation(json.required_object("generation"), vocab, m.positions);
  m.prunes = decode_prunes(sections.prunes, sections.removed, m, vocab, file);
  m.edits = decode_edits(json, m);
  m.interventions = decode_interventions(json, m, config);
  const auto chat = json.object("dialogue");
  if (chat) m.chat = read_chat(*chat, m.positions + shifted_out(m.prunes));
  return m;
}

namespace {

void check_edit_sources(const std::vector<KvEdit>& edits) {
  for (size_t i = 0; i < edits.size(); ++i) {
    const size_t size = edits[i].source.size();
    if (size > kMaxEditSource)
      throw Error(ErrorKind::capacity, "", fmt::format("edits[{}].source", i),
                  fmt::format("at most {} bytes", kMaxEditSource),
                  fmt::format("{}; splice the parts in several steps", size));
  }
}

// Advises to have less of the things that fill META. Returns "" if no kind of them is numerous.
std::string advice(const SnapshotMeta& m) {
  const GenerationState& g = m.generation;
  const std::pair<size_t, const char*> most = std::max(
      {std::pair(m.edits.size(), "edits; one of a range of positions counts once"),
       std::pair(m.interventions.size(), "interventions"), std::pair(g.turns.size(), "turns"),
       std::pair(m.chat.messages.size(), "messages"), std::pair(g.stop_ids.size(), "stop ids"),
       std::pair(g.stop_strings.size(), "stop strings"),
       std::pair(g.sampling.logit_bias.size(), "biases")});
  if (most.first < 1000) return "";
  return fmt::format("; use fewer than {} {}", most.first, most.second);
}

// Returns the part of META that grows with use and takes the most bytes, and their number.
std::pair<size_t, const char*> largest_part(const SnapshotMeta& m) {
  return std::max({std::pair(encode_chat(m.chat).size(), "messages"),
                   std::pair(encode_generation(m.generation).size(), "turns and stops"),
                   std::pair(encode_edits(m.edits).size(), "edits"),
                   std::pair(encode_interventions(m.interventions).size(), "interventions")});
}

}  // namespace

void check_meta(const SnapshotMeta& m, const MetaSections& sections) {
  if (sections.json.size() > kMaxMetaBytes) {
    const auto [bytes, part] = largest_part(m);
    throw Error(
        ErrorKind::capacity, "", "META",
        fmt::format("messages, turns, edits and interventions of at most {} bytes", kMaxMetaBytes),
        fmt::format("{}; the {} take {}", sections.json.size(), part, bytes));
  }
  check_edit_sources(m.edits);
  try {
    decode_meta(sections, "");
  } catch (const Error& e) {
    if (!e.field.empty()) throw Error(ErrorKind::argument, "", e.field, e.expected, e.found);
    throw Error(ErrorKind::capacity, "", "META", e.expected, e.found + advice(m));
  }
}

}  // namespace stet

// stet inspect: shows the contents of a snapshot or a checkpoint.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "src/checkpoint/checkpoint_source.hpp"
#include "stet/base/error.hpp"
#include "stet/base/sha256.hpp"
#include "stet/checkpoint/checkpoint.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/model/weight_loader.hpp"
#include "tools/command/command.hpp"
#include "tools/prompt/tokenizer_choice.hpp"
#include "tools/store/store.hpp"

namespace stet::tool {
namespace {

constexpr size_t kNotesLimit = size_t{64} << 20;  // limit in bytes of a JSON file with notes

struct InspectCommand {
  std::string path, model;
  CheckpointOption checkpoint;  // `path`, if it is a checkpoint
  bool json = false, check = false;
  int64_t memory = 0;  // number of positions given by --kv-memory
};

// Returns a value as text. Escapes control characters, since names come from the file.
std::string cell(const Json& value) {
  if (value.is_string())
    return value.get<std::string>().empty() ? "none"
                                            : printable(value.get<std::string>(), SIZE_MAX);
  return printable(dump(value), SIZE_MAX);
}

// Returns "name value" for every field of one row.
std::vector<std::string> columns(const Json& row) {
  std::vector<std::string> out;
  for (const auto& [name, value] : row.items()) out.push_back(name + " " + cell(value));
  return out;
}

void print_elements(const Json& rows) {
  out(fmt::format("{:<28} {:<46} {:>12}  {:<71}  {}\n", "element", "stored", "bytes", "fingerprint",
                  "matches -m"));
  for (const Json& r : rows) {
    const uint64_t bytes = r["bytes"].get<uint64_t>();
    const std::string fingerprint = r["fingerprint"].get<std::string>(),
                      matches = r["matches"].get<std::string>();
    std::string line =
        fmt::format("{:<28} {:<46} {:>12}  {:<71}  {}", r["element"].get<std::string>(),
                    printable(r["stored"].get<std::string>(), 100),
                    bytes == 0 ? "" : std::to_string(bytes), printable(fingerprint), matches);
    line.erase(line.find_last_not_of(' ') + 1);
    out(line + "\n");
  }
}

void print_table(const Json& j) {
  for (const auto& [key, value] : j.items()) {
    const bool list = value.is_array() && !value.empty() && value[0].is_object();
    if (key == "blocks") continue;  // thousands of names; only --json prints them
    if (key == "elements") {
      print_elements(value);
      continue;
    }
    if (!value.is_object() && !list) {
      out(fmt::format("{:<22}{}\n", key, cell(value)));
      continue;
    }
    out(key + "\n");
    for (const auto& [name, inner] : value.items()) {
      if (!list)
        out(fmt::format("  {:<20}{}\n", printable(name), cell(inner)));
      else
        out(fmt::format("  {}\n", fmt::join(columns(inner), "  ")));
    }
  }
}

Json turns_json(const GenerationState& g) {
  Json turns = Json::array();
  for (const Turn& t : g.turns) {
    turns.push_back({{"prompt", t.prompt}, {"reply", t.reply}, {"end", t.end}, {"open", t.open}});
  }
  return turns;
}

// Returns the ranges in which keys or values were changed; null stands for all. Ranges and copies
// also give the extent, the kind and the source.
Json edits_json(const std::vector<KvEdit>& edits) {
  static constexpr const char* kHows[] = {"set", "scale", "copy"};
  const auto index = [](int64_t i) { return i < 0 ? Json(nullptr) : Json(i); };
  Json list = Json::array();
  for (const KvEdit& e : edits) {
    list.push_back({{"what", kv_edit_name(e.what)},
                    {"at", e.at},
                    {"position", index(e.position)},
                    {"layer", index(e.layer)},
                    {"head", index(e.head)}});
    Json& edit = list.back();
    if (e.end >= 0) edit["end"] = e.end;
    if (e.how != KvEdit::How::set) edit["how"] = kHows[static_cast<int>(e.how)];
    if (!e.source.empty()) edit["source"] = e.source;
  }
  return list;
}

// Returns numbers for JSON, which has no infinity: the score of a position that is hidden.
Json numbers_json(std::span<const float> numbers) {
  Json list = Json::array();
  for (const float x : numbers) list.push_back(std::isfinite(x) ? Json(x) : Json("-inf"));
  return list;
}

Json interventions_json(const std::vector<Intervention>& all) {
  const auto end = [](int64_t position) { return position < 0 ? Json(nullptr) : Json(position); };
  Json list = Json::array();
  for (const Intervention& w : all) {
    const std::span<const float> values =
        w.values ? std::span<const float>(*w.values) : std::span<const float>();
    list.push_back({{"point", point_info(w.point).name},
                    {"layers", w.layers},
                    {"heads", w.heads},
                    {"at", w.at},
                    {"begin", w.begin},
                    {"end", end(w.end)},
                    {"op", intervention_op_name(w.op)},
                    {"amount", w.amount},
                    {"values", values.size()}});
    Json& entry = list.back();
    if (is_attention(w.point)) entry["keys"] = {w.key_begin, end(w.key_end)};
    if (w.op == Intervention::Op::clamp)
      entry.update(Json{{"bias", w.bias}, {"threshold", w.threshold}});
    if (values.empty()) continue;
    entry["numbers"] = numbers_json(values);
    entry["values_sha256"] = sha256_text(sha256_of(std::as_bytes(values)));
  }
  return list;
}

// Keeps the first numbers of interventions, for a table. Their digest stands for all.
void shorten_numbers(Json& j) {
  constexpr size_t kShown = 4;
  if (!j.contains("interventions")) return;
  for (Json& entry : j["interventions"]) {
    if (!entry.contains("numbers") || entry["numbers"].size() <= kShown) continue;
    const Json first(entry["numbers"].begin(), entry["numbers"].begin() + kShown);
    entry["numbers"] = first;
    entry["numbers"].push_back("…");
  }
}

// Prints the object. The long lists of a snapshot come last and are streamed, which takes no
// memory.
void print_json(Json j, const Snapshot* s) {
  if (s != nullptr) j.erase("prunes");
  std::string text = dump(j, 2);
  if (s != nullptr) {
    text.resize(text.size() - 2);  // "\n}"
    out(text + ",\n  \"prunes\": ");
    encode_prunes(s->meta().prunes, [](std::string_view piece) { out(piece); });
    text = ",\n  \"tokens\": [";
    for (size_t i = 0; i < s->tokens().size(); ++i) {
      text += (i == 0 ? "" : ",") + std::to_string(s->tokens()[i]);
      if (text.size() > 4096) out(std::exchange(text, ""));
    }
    text += "]\n}";
  }
  out(text + "\n");
}

// Fingerprints of the model given by -m, by element; empty without one.
using Present = std::map<std::string, std::string>;

// Returns where and why the tokens stop reproducing the state, or nothing if they reproduce all of
// it. Copies nothing in that case.
std::optional<ReplayLimit> limit_of(const Snapshot& s) {
  if (s.meta().edits.empty() && is_replayable(s.meta().contract)) return std::nullopt;
  return replay_limit(s.recipe());
}

// Returns the positions of a snapshot's anchors as text.
std::string anchors_text(const Snapshot& s) {
  std::string text;
  for (const AnchorEntry& a : s.file()->anchors)
    text += (text.empty() ? "at " : ", ") + std::to_string(a.position);
  return text.empty() ? "none" : printable(text, 120);
}

// Returns the recurrent arrays of each layer: their names and shapes.
Json arrays_json(const RecurrentShape& shape) {
  Json list = Json::array();
  for (size_t l = 0; l < shape.layers.size(); ++l) {
    for (const RecurrentArray& a : shape.layers[l])
      list.push_back({{"name", fmt::format("layers.{}.{}", l, a.name)}, {"shape", a.dims}});
  }
  return list;
}

// Returns the elements of a state: the snapshot's content of each, and whether the given model
// matches.
Json elements_json(const Snapshot& s, const Present& present) {
  const SnapshotMeta& m = s.meta();
  Json rows = Json::array();
  const auto add = [&](const std::string& element, const std::string& stored, uint64_t bytes,
                       const std::string& fingerprint, const std::string& matches = "") {
    rows.push_back({{"element", element},
                    {"stored", stored},
                    {"bytes", bytes},
                    {"fingerprint", fingerprint},
                    {"matches", matches}});
  };
  const auto size = [&](const std::string& name) {
    for (const Snapshot::Section& section : s.sections()) {
      if (section.name == name) return section.size;
    }
    return uint64_t{0};
  };
  const auto verdict = [&](const std::string& name, const std::string& digest) -> std::string {
    if (present.empty()) return "";
    const auto found = present.find(name);
    return found == present.end() ? "missing" : found->second == digest ? "yes" : "NO";
  };
  const auto by = [&](const char* section) {
    return size(section) > 0 ? "by value" : "by fingerprint";
  };
  const GenerationState& g = s.generation();
  const int64_t blocks = blocks_of(m.positions);
  add("keys and values",
      m.kv.block_bytes() == 0          ? "none: no layer has attention"
      : m.form == SnapshotForm::recipe ? "digests: computed again from the tokens"
      : m.form == SnapshotForm::delta
          ? fmt::format("{} blocks of {}, the rest in {}", kv_type_name(m.kv.type), blocks,
                        printable(m.parent_file))
          : fmt::format("{} blocks, {}", blocks, kv_type_name(m.kv.type)),
      s.stored_kv_bytes(), digest_text(s.digests().kv));
  if (const size_t layers = s.file()->arrays.size(); layers > 0) {
    add("recurrent arrays",
        fmt::format(
            "{} layers{}", layers,
            m.form == SnapshotForm::recipe ? ": digests, computed again from the tokens" : ""),
        size("STATE"), digest_text(s.digests().recurrent));
    add("anchors", anchors_text(s), size("ANCHORS"), "");
  }
  for (const auto& [name, digest] : m.fingerprints) {
    if (name == "config" || name == "model") continue;
    add(name == "embeddings" ? "token embeddings"
        : name == "norms"    ? "norm weights"
                             : name + " weights",
        by("WEIGHTS"), 0, digest, verdict(name, digest));
  }
  const std::string where = m.positions == 0 ? "none" : fmt::format("0 .. {}", m.positions - 1);
  add("positions", fmt::format("{} of {}", where, m.capacity), 0, "");
  add("token ids", fmt::format("{}", m.positions), size("TOKENS"), digest_text(s.digests().tokens));
  int64_t visible = 0;
  for (int64_t p = 0; p < m.positions; ++p)
    visible += static_cast<int64_t>(s.visible(p / 64) >> (p % 64) & 1);
  add("visibility mask", fmt::format("{} of {} positions", visible, m.positions), size("VISIBLE"),
      "");
  for (const auto& [name, digest] : m.fingerprints) {
    if (name == "config")
      add("model config", "by value", m.config.size(), digest, verdict(name, digest));
  }
  add("logits of the last position",
      m.form == SnapshotForm::recipe ? "digest" : fmt::format("{}", s.logits().size()),
      size("LOGITS"), digest_text(s.digests().logits));
  add("tokenizer", m.tokenizer.empty() ? "none in use" : by("TOKENIZR"), size("TOKENIZR"),
      m.tokenizer, m.tokenizer.empty() ? "" : verdict("tokenizer", m.tokenizer));
  add("format and contract",
      fmt::format("version {}, {} version {}, {} version {}", s.version(), m.contract,
                  m.contract_version, kv_type_name(m.kv.type), kKvVersion),
      0, "");
  add("turns",
      fmt::format("{}{}", g.turns.size(),
                  !g.turns.empty() && g.turns.back().open ? ", the last reply is open" : ""),
      0, "");
  add("sampler and seed",
      g.sampling.greedy
          ? "greedy"
          : fmt::format("temperature {}, seed {}", g.sampling.temperature, g.sampling.seed),
      0, "");
  if (g.sampling.weighs_tokens())
    add("penalties and biases",
        fmt::format("frequency {}, presence {}, {} biased tokens", g.sampling.frequency_penalty,
                    g.sampling.presence_penalty, g.sampling.logit_bias.size()),
        0, "");
  add("stop tokens and strings", fmt::format("{} and {}", g.stop_ids.size(), g.stop_strings.size()),
      0, "");
  add("text held back",
      fmt::format("{} bytes, decoder state {} bytes", g.held.size(), g.stream.size()),
      g.held.size() + g.stream.size(), "");
  if (s.count_window_only_blocks() > 0)
    add("window only",
        fmt::format("{} blocks without windowed layers", s.count_window_only_blocks()), 0, "");
  add("prunes", fmt::format("{}", m.prunes.size()), 0, "");
  const auto limit = limit_of(s);
  add("edits",
      fmt::format("{}{}", m.edits.size(),
                  limit ? fmt::format(": cannot be recomputed from the tokens, from position {} on",
                                      limit->position)
                        : ""),
      0, "");
  if (!m.interventions.empty()) {
    std::string points;
    for (const Intervention& w : m.interventions)
      points += fmt::format("{}{} {}", points.empty() ? "" : ", ", intervention_op_name(w.op),
                            point_info(w.point).name);
    add("interventions", printable(points, 120), 0, "");
  }
  if (size("WEIGHTS") > 0) add("checkpoint files", "by value", size("WEIGHTS"), "");
  return rows;
}

// Returns the first prunes, as many as fit a table, and the number of removed tokens.
Json first_prunes_json(const std::vector<Prune>& prunes) {
  constexpr size_t kShown = 100;
  Json list = Json::array();
  for (const Prune& p : std::span(prunes).first(std::min(prunes.size(), kShown))) {
    list.push_back({{"at", p.at},
                    {"begin", p.begin},
                    {"end", p.end},
                    {"positions", p.shift ? "shift" : "keep"},
                    {"removed", p.removed.size()}});
  }
  return list;
}

Json describe(const Snapshot& s, const Present& present) {
  Json j;
  j["snapshot"] = s.path();
  j["format_version"] = s.version();
  j["id"] = s.state_name();
  j["form"] = snapshot_form_name(s.meta().form);
  if (s.meta().form == SnapshotForm::delta)
    j["parent"] = {
        {"id", s.meta().parent}, {"state", s.meta().parent_state}, {"file", s.meta().parent_file}};
  j["file_bytes"] = s.file_size();
  j["contract"] = s.meta().contract + " version " + std::to_string(s.meta().contract_version);
  j["checkpoint"] = s.meta().checkpoint;
  j["architecture"] = s.meta().architecture;
  j["config"] = Json::parse(s.meta().config);
  j["positions"] = s.tokens().size();
  j["capacity"] = s.meta().capacity;
  const KvShape& kv = s.meta().kv;
  j["kv"] = {{"type", kv_type_name(kv.type)}, {"version", kKvVersion}, {"layers", kv.layers}};
  if (kv.is_uniform()) {
    j["kv"]["heads"] = kv.kv_heads;
    j["kv"]["head_dim"] = kv.head_dim;
  }
  j["kv"]["block_bytes"] = kv.block_bytes();
  for (const KvLayer& l : kv.table)
    j["kv"]["table"].push_back({{"owner", l.owner},
                                {"heads", l.kv_heads},
                                {"key_dim", l.key_dim},
                                {"value_dim", l.value_dim},
                                {"window", l.window}});
  if (!s.file()->arrays.empty()) {
    j["recurrent"] =
        arrays_json(recurrent_shape(ModelConfig::from_canonical(s.meta().config, s.path())));
    j["anchors"] = Json::array();
    for (const AnchorEntry& a : s.file()->anchors)
      j["anchors"].push_back({{"position", a.position},
                              {"name", sha256_text(a.name)},
                              {"by_content", a.by_content},
                              {"in_parent", a.in_parent}});
  }
  const SamplingSettings& p = s.generation().sampling;
  j["sampling"] = {{"greedy", p.greedy},
                   {"temperature", p.temperature},
                   {"top_k", p.top_k},
                   {"top_p", p.top_p},
                   {"min_p", p.min_p},
                   {"typical_p", p.typical_p},
                   {"repetition_penalty", p.repetition_penalty},
                   {"frequency_penalty", p.frequency_penalty},
                   {"presence_penalty", p.presence_penalty},
                   {"logit_bias", logit_bias_json(p.logit_bias)},
                   {"seed", p.seed}};
  j["stop_ids"] = s.generation().stop_ids;
  j["stop_strings"] = s.generation().stop_strings;
  j["turns"] = turns_json(s.generation());
  j["messages"] = Json::array();
  for (const Message& m : s.meta().chat.messages) {
    j["messages"].push_back({{"role", m.role},
                             {"content", m.content},
                             {"begin", m.begin},
                             {"end", m.end},
                             {"drawn", m.generated}});
  }
  j["prunes"] = first_prunes_json(s.meta().prunes);
  j["edits"] = edits_json(s.meta().edits);
  j["interventions"] = interventions_json(s.meta().interventions);
  const auto limit = limit_of(s);
  j["replayable"] = !limit;
  j["replay_limit"] =
      limit ? Json{{"position", limit->position}, {"reason", limit->reason}} : Json(nullptr);
  j["blocks"] = Json::array();
  for (const BlockIdentity& block : s.block_identities())
    j["blocks"].push_back({{"id", sha256_text(block.id)}, {"replayable", block.replayable}});
  j["fingerprints"] = Json::object();
  for (const auto& [name, digest] : s.meta().fingerprints) j["fingerprints"][name] = digest;
  j["fingerprints"]["tokenizer"] = s.meta().tokenizer;
  j["digests"] = digests_json(s.digests());
  for (const Snapshot::Section& section : s.sections()) {
    j["sections"].push_back({{"name", section.name},
                             {"offset", section.offset},
                             {"bytes", section.size},
                             {"digest", digest_text(section.digest)}});
  }
  j["elements"] = elements_json(s, present);
  return j;
}

// Loads the model under the contract of its weights.
std::shared_ptr<const Model> load_own(const CheckpointOption& checkpoint) {
  const auto source = checkpoint.source();
  return Model::load(source, 0, contract_of_weights(*source));
}

// Returns the member "stet" of a file made from a GGUF file, or {}.
Json notes_of(const FileSource& source, const char* file) {
  if (!source.has(file)) return Json::object();
  const Json text = Json::parse(source.read(file, kNotesLimit), nullptr, false);
  return text.is_object() ? text.value("stet", Json::object()) : Json::object();
}

// Returns the stop tokens, each with its text and its source.
Json stops_json(const Model& model, const Tokenizer* tokenizer, const FileSource& source) {
  const Json from = notes_of(source, "generation_config.json").value("eos_token_id", Json::array());
  const std::vector<int32_t>& ids = model.generation().eos_ids;
  Json list = Json::array();
  for (size_t i = 0; i < ids.size(); ++i) {
    Json stop = {{"id", ids[i]}};
    if (tokenizer != nullptr && ids[i] < tokenizer->size())
      stop["token"] = tokenizer->piece(ids[i]);
    if (from.is_array() && from.size() == ids.size())
      stop["from"] = from[i];
    else
      stop["from"] =
          source.has("generation_config.json") ? "generation_config.json" : "config.json";
    list.push_back(stop);
  }
  return list;
}

Json tokenizer_json(const Tokenizer& tokenizer, const FileSource& source) {
  const auto id = [](std::optional<int32_t> v) { return v ? Json(*v) : Json(nullptr); };
  const std::vector<int32_t> around = tokenizer.encode("a");
  Json j = {{"size", tokenizer.size()},
            {"bos", id(tokenizer.bos())},
            {"eos", id(tokenizer.eos())},
            {"bos_is_added", !around.empty() && around[0] == tokenizer.bos().value_or(-1)}};
  const Json notes = notes_of(source, "tokenizer_config.json");
  if (notes.contains("add_bos_token")) j["bos_is_added_by"] = notes["add_bos_token"];
  j["template_bytes"] = tokenizer.chat_template().size();
  if (!tokenizer.chat_template("tool_use").empty())
    j["tool_use_template_bytes"] = tokenizer.chat_template("tool_use").size();
  return j;
}

Json describe(const Model& model, const std::shared_ptr<const Tokenizer>& tokenizer,
              const FileSource& source) {
  Json j;
  j["checkpoint"] = model.directory();
  j["architecture"] = model.config().architecture;
  j["config"] = Json::parse(model.config().canonical());
  j["contract"] = contract_name(model, model.contract());
  j["weights"] = model.source().has(kPackedName) ? "packed in the file, used in place"
                                                 : "packed while loading";
  j["packed_weight_bytes"] = model.weight_bytes();
  if (const auto names = unused_tensors(source); !names.empty()) j["passed_over"] = names;
  j["stop_ids"] = model.generation().eos_ids;
  const GenerationConfig& g = model.generation();
  j["generation"] = {{"do_sample", g.sample},
                     {"temperature", g.temperature},
                     {"top_k", g.top_k},
                     {"top_p", g.top_p},
                     {"min_p", g.min_p},
                     {"typical_p", g.typical_p},
                     {"repetition_penalty", g.repetition_penalty}};
  if (!g.ignored.empty()) j["generation"]["ignored"] = g.ignored;
  j["stop_tokens"] = stops_json(model, tokenizer.get(), source);
  if (tokenizer != nullptr)
    j["tokenizer"] = tokenizer_json(*tokenizer, source);
  else if (const auto fault = tokenizer_fault(source))
    j["tokenizer"] = {{"refused", fault->what()}};
  j["fingerprints"] = Json::object();
  for (const auto& [name, digest] : model.fingerprints()) j["fingerprints"][name] = digest;
  if (tokenizer != nullptr) j["fingerprints"]["tokenizer"] = tokenizer->fingerprint();
  return j;
}

// Returns the memory of keys and values of `positions` positions, from config.json only.
Json memory_json(const ModelConfig& c, int64_t positions) {
  Json j{{"family", c.family}, {"positions", positions}};
  const int64_t every = WindowOptions().checkpoint_every;
  const bool windows = detail::widest_window(c) > 0;
  for (const KvType type : kKvTypes) {
    const KvShape shape = detail::kv_shape(c, type);
    Json& of = j[std::string("kv_") + kv_type_name(type)];
    of["bytes"] = static_cast<size_t>(blocks_of(positions)) * shape.block_bytes();
    if (windows) of["window_only_bytes"] = window_only_bytes(c, shape, every, positions);
  }
  if (windows) j["checkpoint_every"] = every;
  // the live arrays, and those of each anchor
  if (const size_t bytes = recurrent_shape(c).bytes(); bytes > 0) j["recurrent_bytes"] = bytes;
  return j;
}

void run_memory(const InspectCommand& o) {
  const bool directory = std::filesystem::is_directory(o.path);
  if (!directory && std::filesystem::is_regular_file(o.path) && !o.path.ends_with(".json"))
    usage_error("--kv-memory", "a checkpoint's directory or its config.json", o.path);
  const std::string file = directory ? o.path + "/config.json" : o.path;
  const Json j =
      memory_json(parse_model_config(read_text_file(file, size_t{1} << 20), file), o.memory);
  if (o.json)
    print_json(j, nullptr);
  else
    print_table(j);
}

// Returns true for a directory, a GGUF file, a name on the Hub, or one file of a checkpoint.
bool is_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored) || path.ends_with(".gguf")) return true;
  if (is_in_store(path)) return false;
  if (!std::filesystem::exists(path, ignored)) return !hub_name(path).empty();
  return path.ends_with(".safetensors") || path.ends_with(".json") || path.ends_with(".model");
}

void run(InspectCommand& o) {
  if (o.memory > 0 && o.check) usage_error("--kv-memory excludes --check");
  if (o.memory > 0) return run_memory(o);
  const bool checkpoint = is_checkpoint(o.path);
  Json j;
  std::optional<Snapshot> snapshot;
  if (!checkpoint && (o.checkpoint.overrides.any() || !chosen_pre().empty()))
    usage_error("--chat-template, --eos and --pre are for checkpoints, and " + o.path +
                " is a snapshot");
  if (checkpoint) {
    if (!o.model.empty())
      usage_error("--model is for snapshots, and " + o.path + " is a checkpoint itself");
    o.checkpoint.directory = o.path;
    const auto source = o.checkpoint.source();
    const size_t checked = o.check ? check_packed(*source) : 0;
    j = describe(*load_own(o.checkpoint), load_tokenizer(o.checkpoint), *source);
    if (o.check) j["checked_file_bytes"] = checked;
  } else if (o.check) {
    throw Error(ErrorKind::argument, o.path, "--check",
                "a directory with packed weights (for a snapshot: stet check)", "another file");
  } else {
    snapshot.emplace(open_state(o.path));
    Present present;
    if (!o.model.empty()) {
      const auto model = load_own(CheckpointOption{.directory = o.model});
      for (const auto& [name, digest] : model->fingerprints()) present[name] = digest;
      if (const auto tokenizer = load_tokenizer(CheckpointOption{.directory = o.model}))
        present["tokenizer"] = tokenizer->fingerprint();
    }
    j = describe(*snapshot, present);
  }
  if (o.json) return print_json(j, snapshot ? &*snapshot : nullptr);
  shorten_numbers(j);
  print_table(j);
}

}  // namespace

void add_inspect(Command& app) {
  const auto o = std::make_shared<InspectCommand>();
  Command* sub = app.add_subcommand("inspect", "Show the contents of a snapshot or a checkpoint.");
  sub->add_option("path", o->path, "a snapshot, a directory of a checkpoint, or a .gguf file")
      ->required()
      ->type_name("FILE|DIR");
  sub->add_option("-m,--model", o->model, "compare the snapshot with this checkpoint")
      ->type_name("DIR");
  o->checkpoint.add_overrides_to(*sub);
  sub->add_flag("--check", o->check, "compare packed weights with their digests");
  sub->add_option("--kv-memory", o->memory,
                  "print the bytes of keys and values of N positions, from config.json only")
      ->type_name("N")
      ->check(integer(1, 1 << 24));
  sub->add_flag("--json", o->json, "print JSON");
  sub->callback([o] { run(*o); });
}

}  // namespace stet::tool

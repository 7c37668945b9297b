// stet inspect: what is in a snapshot or a checkpoint.
#include <fmt/format.h>

#include <filesystem>

#include "stet/error.hpp"
#include "tools/command.hpp"

namespace stet::tool {
namespace {

struct Options {
  std::string path;
  bool json = false;
};

// Nothing in it may drive a terminal: names come from the file.
std::string cell(const Json& value) {
  if (value.is_string()) return value.get<std::string>().empty() ? "none" : printable(value.get<std::string>(), 400);
  return printable(dump(value), 400);
}

// "name value" of every field of one row.
std::vector<std::string> columns(const Json& row) {
  std::vector<std::string> out;
  for (const auto& [name, value] : row.items()) out.push_back(name + " " + cell(value));
  return out;
}

void print_table(const Json& j) {
  for (const auto& [key, value] : j.items()) {
    const bool list = value.is_array() && !value.empty() && value[0].is_object();
    if (key == "tokens") continue;  // thousands of numbers: in the JSON form
    if (!value.is_object() && !list) {
      out(fmt::format("{:<22}{}\n", key, cell(value)));
      continue;
    }
    out(key + "\n");
    for (const auto& [name, inner] : value.items()) {
      if (!list) out(fmt::format("  {:<20}{}\n", printable(name), cell(inner)));
      else out(fmt::format("  {}\n", fmt::join(columns(inner), "  ")));
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

Json describe(const Snapshot& s) {
  Json j;
  j["snapshot"] = s.path();
  j["format_version"] = kSnapshotVersion;
  j["file_bytes"] = s.file_size();
  j["contract"] = s.meta().contract + " version " + std::to_string(s.meta().contract_version);
  j["checkpoint"] = s.meta().checkpoint;
  j["architecture"] = s.meta().architecture;
  j["config"] = Json::parse(s.meta().config);
  j["positions"] = s.tokens().size();
  j["capacity"] = s.meta().capacity;
  const KvShape& kv = s.meta().kv;
  j["kv"] = {{"type", kv_type_name(kv.type)}, {"layers", kv.layers}, {"heads", kv.kv_heads}, {"head_dim", kv.head_dim},
             {"block_bytes", kv.block_bytes()}};
  const SamplingSettings& p = s.generation().sampling;
  j["sampling"] = {{"greedy", p.greedy}, {"temperature", p.temperature}, {"top_k", p.top_k}, {"top_p", p.top_p},
                   {"min_p", p.min_p}, {"typical_p", p.typical_p}, {"repetition_penalty", p.repetition_penalty},
                   {"seed", p.seed}};
  j["stop_ids"] = s.generation().stop_ids;
  j["stop_strings"] = s.generation().stop_strings;
  j["turns"] = turns_json(s.generation());
  j["fingerprints"] = Json::object();
  for (const auto& [name, digest] : s.meta().fingerprints) j["fingerprints"][name] = digest;
  j["fingerprints"]["tokenizer"] = s.meta().tokenizer;
  j["digests"] = digests_json(s.digests());
  for (const Snapshot::Section& section : s.sections()) {
    j["sections"].push_back({{"name", section.name}, {"offset", section.offset}, {"bytes", section.size},
                             {"digest", digest_text(section.digest)}});
  }
  j["tokens"] = s.tokens();
  return j;
}

Json describe(const Model& model, const std::shared_ptr<const Tokenizer>& tokenizer) {
  Json j;
  j["checkpoint"] = model.directory();
  j["architecture"] = model.config().architecture;
  j["config"] = Json::parse(model.config().canonical());
  j["packed_weight_bytes"] = model.weight_bytes();
  j["stop_ids"] = model.generation().eos_ids;
  if (tokenizer != nullptr) {
    const auto id = [](std::optional<int32_t> v) { return v ? Json(*v) : Json(nullptr); };
    j["tokenizer"] = {{"size", tokenizer->size()}, {"bos", id(tokenizer->bos())}, {"eos", id(tokenizer->eos())},
                      {"bos_is_added", !tokenizer->encode("a").empty() && tokenizer->encode("a")[0] == tokenizer->bos().value_or(-1)},
                      {"template_bytes", tokenizer->chat_template().size()}};
  }
  j["fingerprints"] = Json::object();
  for (const auto& [name, digest] : model.fingerprints()) j["fingerprints"][name] = digest_text(digest);
  if (tokenizer != nullptr) j["fingerprints"]["tokenizer"] = tokenizer->fingerprint();
  return j;
}

void run(const Options& o) {
  std::error_code ignored;
  const bool directory = std::filesystem::is_directory(o.path, ignored);
  const Json j = directory ? describe(*Model::load(o.path), load_tokenizer(o.path)) : describe(Snapshot::open(o.path));
  if (o.json) out(dump(j, 2) + "\n");
  else print_table(j);
}

}  // namespace

void add_inspect(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("inspect", "What is in a snapshot or a checkpoint directory.");
  sub->add_option("path", o->path, "a snapshot, or a checkpoint directory")->required()->type_name("FILE|DIR");
  sub->add_flag("--json", o->json, "print JSON");
  sub->callback([o] { run(*o); });
}

}  // namespace stet::tool

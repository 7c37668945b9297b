// Loads models from checkpoints.
#include "stet/model/model.hpp"
#include "stet/checkpoint/gguf.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <unordered_set>

#include "src/base/json_value.hpp"
#include "src/checkpoint/checkpoint_source.hpp"
#include "src/checkpoint/expert_slices.hpp"
#include "src/checkpoint/model_weights.hpp"
#include "src/checkpoint/packed.hpp"
#include "src/checkpoint/settings_in_config.hpp"
#include "src/checkpoint/weight_guard.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/float_environment.hpp"
#include "stet/model/family.hpp"

namespace stet {
namespace {

constexpr size_t kConfigLimit = size_t{16} << 20;
const std::string kConfigName = "config.json", kGenerationName = "generation_config.json";

// Returns what precedes the family's names in a checkpoint. Those saved from a model without its head,
// as published for embeddings, have no prefix.
std::string find_prefix(const Checkpoint& checkpoint, const Family& family) {
  for (const std::string& prefix : family.prefixes) {
    if (checkpoint.find(prefix + family.embedding) != nullptr) return prefix;
  }
  if (checkpoint.find(family.embedding) != nullptr) return "";
  std::string fault = "the tensor is missing";
  const std::string usual = family.prefixes[0] + family.embedding;
  for (const std::string& name : checkpoint.names()) {
    if (!name.ends_with("." + family.embedding)) continue;
    const std::string& kept = name.ends_with("." + usual) ? usual : family.embedding;
    fault += "; the file has " + printable(name, 80) + ": take \"" +
             printable(name.substr(0, name.size() - kept.size()), 60) + "\" off all names";
    break;
  }
  throw Error(ErrorKind::format, checkpoint.source(), usual, "", fault);
}

GenerationConfig read_generation(const FileSource& source, const ModelConfig& config) {
  GenerationConfig g;
  if (source.has(kGenerationName)) {
    g = parse_generation_config(source.read(kGenerationName, kConfigLimit),
                                source.path_of(kGenerationName), config.vocab_size);
  } else {
    g.ignored = settings_in_config(source.json(kConfigName, kConfigLimit));
  }
  if (g.eos_ids.empty()) g.eos_ids = config.eos_ids;
  return g;
}

}  // namespace

Model::~Model() = default;

uint64_t Model::weights_version() const { return guard_ != nullptr ? guard_->version() : 0; }
bool Model::weights_intact_since(uint64_t version) const {
  return guard_ == nullptr || guard_->intact_since(version);
}

std::shared_ptr<const Model> Model::load(const std::string& directory, int threads) {
  return load(checkpoint_source(directory), threads);
}

namespace {

// The parsed config.json and the family that it selects.
struct Plan {
  ModelConfig config;
  const Family* family;
};

Plan read_plan(const FileSource& source) {
  require_model(source);
  const JsonReader json = source.json(kConfigName, kConfigLimit);
  return {read_model_config(json), &family_of(json)};
}

std::unique_ptr<Model> build(Plan plan, WeightLoader& weights) {
  std::unique_ptr<Model> model = plan.family->load(std::move(plan.config), weights);
  weights.finish(*model);
  return model;
}

// Returns whether a tensor belongs to the keys or values of a layer that reads another's. llama.cpp's
// files have such tensors.
bool has_no_reader(const std::string& name, const ModelConfig& config) {
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.self_attn.", i);
    if (config.layer(i).own || config.layer(i).recurrent || !name.starts_with(at)) continue;
    const std::string_view rest = std::string_view(name).substr(at.size());
    return rest.starts_with("k_proj.") || rest.starts_with("v_proj.") ||
           rest.starts_with("k_norm.");
  }
  return false;
}

// Throws for a tensor of a GGUF file that the model does not need. The keys of such a file make its
// config, so that the file describes another model than the one that would run.
void require_all_needed(const Checkpoint& checkpoint, const ModelConfig& config,
                        const std::vector<WeightSpec>& needs) {
  std::unordered_set<std::string> needed;
  for (const WeightSpec& need : needs) needed.insert(need.name);
  for (const std::string& name : checkpoint.names()) {
    if (needed.contains(name) || has_no_reader(name, config)) continue;
    const std::string& stored = checkpoint.find(name)->stack;
    throw Error(ErrorKind::unsupported, checkpoint.file_of(name),
                printable(stored.empty() ? name : stored, 80), "",
                "no part of a " + config.family + " model with these keys uses the tensor");
  }
}

int some_threads(int threads) { return threads > 0 ? threads : default_threads(); }

}  // namespace

std::shared_ptr<const Model> Model::load(std::shared_ptr<const FileSource> source, int threads,
                                         Contract contract) {
  if (source == nullptr)
    throw Error(ErrorKind::argument, "", "source", "a source of files", "null");
  // Loading computes, too: numbers of the config, rotary frequencies and norm weights.
  const FloatEnvironment standard;
  Plan plan = read_plan(*source);
  Checkpoint checkpoint = Checkpoint::open(*source);
  if (checkpoint.is_gguf()) weights_of(*source, checkpoint);  // refuses tensors that are not needed
  ModelWeights weights(checkpoint, find_prefix(checkpoint, *plan.family), contract,
                       some_threads(threads));
  std::unique_ptr<Model> model = build(std::move(plan), weights);
  for (const auto& file : checkpoint.files()) file->check_unchanged();
  const bool in_place = checkpoint.packed() && checkpoint.files().front()->mapping() != nullptr;
  if (in_place) {
    const auto packed = std::make_shared<const Checkpoint>(std::move(checkpoint));
    model->guard_ = std::make_shared<const WeightGuard>(packed->files().front()->mapping(),
                                                        [packed] { check_packed(*packed, 0); });
  } else if (const auto table = weights.take_mapped_table()) {
    model->guard_ = std::make_shared<const WeightGuard>(*table);
  }
  model->generation_ = read_generation(*source, model->config_);
  model->source_ = std::move(source);
  return model;
}

void Model::pack(const FileSource& source, Contract contract, const std::string& path, int threads,
                 std::atomic<uint64_t>* written, std::optional<BlockRounding> blocks) {
  const FloatEnvironment standard;
  Plan plan = read_plan(source);
  const Checkpoint checkpoint = Checkpoint::open(source);
  if (checkpoint.packed())
    throw Error(ErrorKind::unsupported, checkpoint.source(), "", "",
                "the weights are packed already; take the checkpoint that they were packed from");
  if (blocks && blocks->type == DType::mxfp4)
    require_experts(plan.config, source.path_of(kConfigName));
  if (checkpoint.is_gguf()) weights_of(source, checkpoint);
  PackedWriter writer(path, checkpoint, written);
  WrittenWeights weights(checkpoint, find_prefix(checkpoint, *plan.family), contract,
                         some_threads(threads), blocks, writer);
  build(std::move(plan), weights);
  writer.commit();
}

std::vector<WeightSpec> Model::weights_of(const FileSource& source, const Checkpoint& checkpoint) {
  Plan plan = read_plan(source);
  WeightNeeds weights(checkpoint, find_prefix(checkpoint, *plan.family));
  const std::unique_ptr<const Model> model = build(std::move(plan), weights);
  std::vector<WeightSpec> needs = weights.take();
  if (checkpoint.is_gguf()) require_all_needed(checkpoint, model->config_, needs);
  return needs;
}

std::vector<std::string> Model::files_of(const FileSource& source) {
  std::vector<std::string> names = {kConfigName};
  if (source.has(kGenerationName)) names.push_back(kGenerationName);
  const std::vector<std::string> weights = Checkpoint::files_of(source);
  names.insert(names.end(), weights.begin(), weights.end());
  return names;
}

}  // namespace stet

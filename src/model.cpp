#include "stet/model/model.hpp"

#include <algorithm>
#include <new>

#include "models/family.hpp"
#include "src/checkpoint/packed.hpp"
#include "src/checkpoint/weight_guard.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/float_environment.hpp"

namespace stet {
namespace {

constexpr size_t kConfigLimit = size_t{16} << 20;
const std::string kConfigName = "config.json", kGenerationName = "generation_config.json";
constexpr size_t kHeadRows = 24;  // rows of logits computed at a time: a vocabulary is wide

std::string find_prefix(const Checkpoint& checkpoint, const Family& family) {
  for (const std::string& prefix : family.prefixes) {
    if (checkpoint.find(prefix + family.embedding) != nullptr) return prefix;
  }
  throw Error(ErrorKind::format, checkpoint.source(), family.prefixes[0] + family.embedding,
              "a tensor of that name", "none");
}

GenerationConfig read_generation(const FileSource& source, const ModelConfig& config) {
  GenerationConfig g;
  if (source.has(kGenerationName)) {
    g = parse_generation_config(source.read(kGenerationName, kConfigLimit),
                                source.path_of(kGenerationName), config.vocab_size);
  }
  if (g.eos_ids.empty()) g.eos_ids = config.eos_ids;
  return g;
}

Rows make_rows(Workspace& w, size_t rows, int64_t width) {
  const size_t n = static_cast<size_t>(width),
               stride = (n + kQuantStrip - 1) / kQuantStrip * kQuantStrip;
  w.memory.emplace_back(rows * stride * sizeof(float));
  return {w.memory.back().as<float>(), stride, n, rows};
}

}  // namespace

Model::Model(ModelConfig config) : config_(std::move(config)) {}
Model::~Model() = default;

const Fingerprints& Model::fingerprints_like(const std::string& fingerprint) const {
  return fingerprint.starts_with("xxh3:") ? stored_fingerprints_ : fingerprints_;
}

uint64_t Model::weights_version() const { return guard_ != nullptr ? guard_->version() : 0; }
bool Model::weights_held_since(uint64_t version) const {
  return guard_ == nullptr || guard_->held_since(version);
}

std::shared_ptr<const Model> Model::load(const std::string& directory, int threads) {
  return load(directory_source(directory), threads);
}

namespace {

// What config.json says.
struct Plan {
  ModelConfig config;
  const Family* family;
};

Plan read_plan(const FileSource& source) {
  const std::string file = source.path_of(kConfigName);
  const std::string text = source.read(kConfigName, kConfigLimit);
  return {parse_model_config(text, file), &family_of(parse_json(text, file))};
}

std::unique_ptr<Model> build(Plan plan, const Checkpoint& checkpoint, Contract contract,
                             int threads, PackedWriter* writer) {
  WeightLoader weights(checkpoint, find_prefix(checkpoint, *plan.family), contract,
                       threads > 0 ? threads : default_threads(), writer);
  std::unique_ptr<Model> model = plan.family->load(std::move(plan.config), weights);
  weights.finish(*model);
  return model;
}

}  // namespace

std::shared_ptr<const Model> Model::load(std::shared_ptr<const FileSource> source, int threads,
                                         Contract contract) {
  const FloatEnvironment
      standard;  // numbers of the config, rotary frequencies and norm weights are computed here
  Plan plan = read_plan(*source);
  Checkpoint checkpoint = Checkpoint::open(*source);
  std::unique_ptr<Model> model = build(std::move(plan), checkpoint, contract, threads, nullptr);
  for (const auto& file : checkpoint.files()) file->check_unchanged();
  const bool in_place = checkpoint.packed() && checkpoint.files().front()->mapping() != nullptr;
  if (in_place) model->guard_ = std::make_unique<const WeightGuard>(std::move(checkpoint));
  model->generation_ = read_generation(*source, model->config_);
  model->source_ = std::move(source);
  return model;
}

void Model::pack(const FileSource& source, Contract contract, const std::string& path,
                 int threads) {
  const FloatEnvironment standard;
  Plan plan = read_plan(source);
  const Checkpoint checkpoint = Checkpoint::open(source);
  if (checkpoint.packed())
    throw Error(ErrorKind::unsupported, checkpoint.source(), "", "weights that are not packed",
                "packed ones");
  PackedWriter writer(path, checkpoint);
  build(std::move(plan), checkpoint, contract, threads, &writer);
  writer.commit();
}

std::vector<std::string> Model::files_of(const FileSource& source) {
  std::vector<std::string> names = {kConfigName};
  if (source.has(kGenerationName)) names.push_back(kGenerationName);
  const std::vector<std::string> weights = Checkpoint::files_of(source);
  names.insert(names.end(), weights.begin(), weights.end());
  return names;
}

void Model::check_contract(Contract contract) const {
  const bool rounded = contract_ == Contract::q8 || contract_ == Contract::q4;
  const bool float32 = contract == Contract::f32 || contract == Contract::f32_blas;
  if (rounded ? contract == contract_
              : float32 || (contract == Contract::bf16 && not_bf16_.name.empty()))
    return;
  if (contract == Contract::bf16) {
    throw Error(ErrorKind::unsupported, not_bf16_.file, not_bf16_.name,
                "dtype BF16 for the contract bf16", not_bf16_.dtype);
  }
  throw Error(ErrorKind::unsupported, source_->path(), "weights",
              std::string("some for the contract ") + contract_name(contract),
              std::string("some for ") + contract_name(contract_));
}

void Model::head(Team t, const Pass& p, Rows hidden, Rows logits) const {
  linear(t, p, config_.tied_head ? embedding_ : head_, hidden, logits);
  softcap(t, p, config_.logit_softcap, logits);
}

std::unique_ptr<Workspace> Model::take_workspace(size_t rows, int threads) const {
  {
    const std::lock_guard lock(workspaces_mutex_);
    for (auto it = workspaces_.begin(); it != workspaces_.end(); ++it) {
      if ((*it)->rows < rows || (*it)->threads < threads) continue;
      std::unique_ptr<Workspace> found = std::move(*it);
      workspaces_.erase(it);
      return found;
    }
    if (!workspaces_.empty()) {  // one that does for both replaces one that is too small
      rows = std::max(rows, workspaces_.back()->rows);
      threads = std::max(threads, workspaces_.back()->threads);
      workspaces_.pop_back();
    }
  }
  auto w = std::make_unique<Workspace>();
  const ModelConfig& c = config_;
  w->rows = rows;
  w->threads = threads;
  w->ids.reserve(rows);
  w->spans.reserve(rows);
  w->scratch = make_scratch(c, rows, threads, c.max_positions);
  w->x = make_rows(*w, rows, c.hidden_size);
  w->normed = make_rows(*w, rows, c.hidden_size);
  w->qkv = make_rows(*w, rows, (c.heads + 2 * c.kv_heads) * c.head_dim);
  w->attention = make_rows(*w, rows, c.heads * c.head_dim);
  w->gate_up = make_rows(*w, rows, 2 * c.intermediate_size);
  w->mlp = make_rows(*w, rows, c.intermediate_size);
  w->out = make_rows(*w, rows, c.hidden_size);
  w->last = make_rows(*w, rows, c.hidden_size);
  w->logits = make_rows(*w, std::min(rows, kHeadRows), c.vocab_size);
  return w;
}

void Model::give_workspace(std::unique_ptr<Workspace> workspace) const noexcept {
  const std::lock_guard lock(workspaces_mutex_);
  try {
    workspaces_.push_back(std::move(workspace));
  } catch (const std::bad_alloc&) {
    // The next pass makes its own.
  }
}

}  // namespace stet

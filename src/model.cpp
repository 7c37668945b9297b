#include "stet/model.hpp"

#include <algorithm>
#include <new>

#include "models/family.hpp"
#include "src/float_environment.hpp"
#include "stet/error.hpp"

namespace stet {
namespace {

constexpr size_t kConfigLimit = size_t{16} << 20;
const std::string kConfigName = "config.json", kGenerationName = "generation_config.json";
constexpr size_t kHeadRows = 24;  // rows of logits computed at a time: a vocabulary is wide

std::string find_prefix(const Checkpoint& checkpoint, const Family& family) {
  for (const std::string& prefix : family.prefixes) {
    if (checkpoint.find(prefix + family.embedding) != nullptr) return prefix;
  }
  throw Error(ErrorKind::format, checkpoint.source(), family.prefixes[0] + family.embedding, "a tensor of that name",
              "none");
}

GenerationConfig read_generation(const FileSource& source, const ModelConfig& config) {
  GenerationConfig g;
  if (source.has(kGenerationName)) {
    g = parse_generation_config(source.read(kGenerationName, kConfigLimit), source.path_of(kGenerationName),
                                config.vocab_size);
  }
  if (g.eos_ids.empty()) g.eos_ids = config.eos_ids;
  return g;
}

Rows make_rows(Workspace& w, size_t rows, int64_t width) {
  const size_t n = static_cast<size_t>(width), stride = (n + kLanes - 1) / kLanes * kLanes;
  w.memory.emplace_back(rows * stride * sizeof(float));
  return {w.memory.back().as<float>(), stride, n, rows};
}

}  // namespace

std::shared_ptr<const Model> Model::load(const std::string& directory, int threads) {
  return load(directory_source(directory), threads);
}

std::shared_ptr<const Model> Model::load(std::shared_ptr<const FileSource> source, int threads) {
  const FloatEnvironment contract;  // numbers of the config, rotary frequencies and norm weights are computed here
  const std::string file = source->path_of(kConfigName);
  const std::string text = source->read(kConfigName, kConfigLimit);
  ModelConfig config = parse_model_config(text, file);
  GenerationConfig generation = read_generation(*source, config);
  const Family& family = family_of(parse_json(text, file));
  const Checkpoint checkpoint = Checkpoint::open(*source);
  WeightLoader weights(checkpoint, find_prefix(checkpoint, family), threads > 0 ? threads : default_threads());
  std::unique_ptr<Model> model = family.load(std::move(config), weights);
  weights.finish(*model);
  model->source_ = std::move(source);
  model->generation_ = std::move(generation);
  return model;
}

std::vector<std::string> Model::files_of(const FileSource& source) {
  std::vector<std::string> names = {kConfigName};
  if (source.has(kGenerationName)) names.push_back(kGenerationName);
  const std::vector<std::string> weights = Checkpoint::files_of(source);
  names.insert(names.end(), weights.begin(), weights.end());
  return names;
}

void Model::check_contract(Contract contract) const {
  if (contract != Contract::bf16 || not_bf16_.name.empty()) return;
  throw Error(ErrorKind::unsupported, not_bf16_.file, not_bf16_.name, "dtype BF16 for the contract bf16", not_bf16_.dtype);
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

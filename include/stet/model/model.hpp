// A model: immutable weights and the forward pass over them. Shared by any number of sessions and
// threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "stet/files/file_source.hpp"
#include "stet/model/config.hpp"
#include "stet/model/importance.hpp"
#include "stet/model/ops.hpp"

namespace stet {

// What the weights are, without keeping them twice: the text of a hash for each group of tensors,
// in this order: "embeddings", "norms", "attention", "mlp", "head" (absent when the head is tied),
// then "config" and, over all of these, "model". A group's covers names, shapes and exact values of
// its tensors, not the type or the file that they are stored in (src/checkpoint/fingerprint.hpp).
using Fingerprints = std::vector<std::pair<std::string, std::string>>;

struct Workspace {
  Scratch scratch;
  std::vector<Memory> memory;
  std::vector<int32_t> ids;  // of the present pass
  std::vector<Span> spans;
  Rows x, normed, qkv, attention, gate_up, mlp, out, logits;  // `rows` rows each; logits fewer
  Rows last;  // of each session of a batch the last row of `out`
  size_t rows = 0;
  int threads = 0;
};

class Checkpoint;
// The name of a contract in full: that of ggml lists the types of the model's tensors.
class Model;
const char* contract_name(const Model& model, Contract contract);

class WeightGuard;
struct WeightNeed;

// Packed weights (packed.hpp) are used where they stand in the mapped file. After every pass the
// file's stamp is looked at; when it has changed, all weights are compared with their digests: the
// pass is done again where they are what they were, and is a format Error where not, which leaves
// sessions as they were. A model out of directory_source(directory, false) is in memory, beyond the
// reach of whatever happens to its file.
class STET_API Model {
 public:
  // Reads a checkpoint directory in the published Hugging Face layout. `threads` (0: all
  // processors) pack the weights. Throws Error, naming file and field, for anything missing,
  // malformed or unsupported.
  static std::shared_ptr<const Model> load(const std::string& directory, int threads = 0);
  // The same from wherever the files are; the model keeps the source. For `contract` q8 or q4,
  // weights that are not packed already (packed.hpp) are rounded; for others they stay what they
  // are, but blocks of a GGUF file are widened to float32 for all but ggml.
  static std::shared_ptr<const Model> load(std::shared_ptr<const FileSource> source,
                                           int threads = 0, Contract contract = Contract::f32);
  // Writes the weights, packed and rounded as load() would, to a file (packed.hpp:
  // pack_checkpoint). `blocks`: for the contract ggml, what matrices are rounded to; embeddings
  // and head to q6_k, those whose columns are no multiple of 256 to q8_0.
  static void pack(const FileSource& source, Contract contract, const std::string& path,
                   int threads = 0, std::atomic<uint64_t>* written = nullptr,
                   std::optional<BlockRounding> blocks = std::nullopt);
  // The tensors that the weights of a checkpoint are, in the order in which they are loaded. Loads
  // none of them.
  static std::vector<WeightNeed> weights_of(const FileSource& source, const Checkpoint& checkpoint);
  // Names of the files that load() reads: config.json, generation_config.json where there is one,
  // and the weights.
  static std::vector<std::string> files_of(const FileSource& source);
  virtual ~Model();

  const ModelConfig& config() const { return config_; }
  const GenerationConfig& generation() const { return generation_; }
  const Fingerprints& fingerprints() const { return fingerprints_; }
  // The last of them: what the model is called.
  const std::string& fingerprint() const { return fingerprints_.back().second; }
  // Where it was loaded from; as text: the directory, or what errors call the archive ("s.stet:
  // WEIGHTS").
  const FileSource& source() const { return *source_; }
  const std::string& directory() const { return source_->path(); }
  size_t weight_bytes() const { return weight_bytes_; }
  // Where the packed matrices lie that every token multiplies with: all but the embeddings, where
  // the head has its own; of experts the first ones, as many as a token is given to. They live as
  // long as the model.
  const std::vector<std::span<const std::byte>>& matrices() const { return matrices_; }
  // The tensors that it was made of, in the order in which they were loaded (matrix.hpp). They
  // show what lives as long as the model.
  const std::vector<LoadedWeight>& loaded() const { return loaded_; }
  // The contract that the weights are for: q8 or q4 when they are rounded, ggml when they are in
  // types of its own, otherwise f32 (or bf16, where they are bfloat16).
  Contract contract() const { return contract_; }
  // The full name of the contract ggml with these weights; empty for other contracts.
  const std::string& types() const { return types_; }
  // Throws an unsupported Error, naming a tensor, when the weights cannot be multiplied under this
  // contract: bf16 takes bfloat16 alone, q8 and q4 take weights that were rounded for them.
  void check_contract(Contract contract) const;

  // p.ids -> p.out, the hidden states after the final norm; keys and values go to the caches of
  // p.spans. Begins at p.first_layer.
  virtual void forward(Team t, const Pass& p) const = 0;
  // Hidden states after the final norm [rows] -> logits [rows][vocab_size].
  void head(Team t, const Pass& p, Rows hidden, Rows logits) const;

  // What stands between the residual stream and the head.
  const Norm& final_norm() const { return final_norm_; }
  // The head's weights for one token as float32, [hidden_size].
  void head_row(int32_t token, float* to) const {
    (config_.tied_head ? embedding_ : head_).gather(static_cast<size_t>(token), to);
  }

  // What a pass asks before it reads weights and after it, to know whether they were the model's
  // all the while. Throws what check_packed() does.
  uint64_t weights_version() const;
  bool weights_held_since(uint64_t version) const;

  // Scratch memory for a pass of up to `rows` tokens on `threads` threads; give it back when done,
  // so that the next pass need not allocate. Nothing in it outlives a pass.
  std::unique_ptr<Workspace> take_workspace(size_t rows, int threads) const;
  void give_workspace(std::unique_ptr<Workspace> workspace) const noexcept;

 protected:
  explicit Model(ModelConfig config) : config_(std::move(config)) {}

  ModelConfig config_;
  Matrix embedding_;
  Norm final_norm_;
  Matrix head_;  // empty when tied

 private:
  friend class ModelWeights;
  GenerationConfig generation_;
  Fingerprints fingerprints_;
  std::shared_ptr<const FileSource> source_;
  std::shared_ptr<const WeightGuard> guard_;  // of packed weights in a mapped file
  size_t weight_bytes_ = 0;
  std::vector<std::span<const std::byte>> matrices_;
  std::vector<LoadedWeight> loaded_;
  Contract contract_ = Contract::f32;
  std::string types_;
  struct {
    std::string file, name, dtype;
  } not_bf16_;  // the first matrix of another type; no name when there is none
  mutable std::mutex workspaces_mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> workspaces_;
};

namespace detail {

constexpr size_t kHeadRows = 24;  // rows of logits computed at a time: a vocabulary is wide

inline Rows make_rows(Workspace& w, size_t rows, int64_t width) {
  const size_t n = static_cast<size_t>(width),
               stride = (n + kQuantStrip - 1) / kQuantStrip * kQuantStrip;
  w.memory.emplace_back(rows * stride * sizeof(float));
  return {w.memory.back().as<float>(), stride, n, rows};
}

}  // namespace detail

inline const char* contract_name(const Model& model, Contract contract) {
  return contract == Contract::ggml ? model.types().c_str() : contract_name(contract);
}

inline void Model::check_contract(Contract contract) const {
  const bool rounded = contract_ != Contract::f32;
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

inline void Model::head(Team t, const Pass& p, Rows hidden, Rows logits) const {
  linear(t, p, config_.tied_head ? embedding_ : head_, hidden, logits);
  divide(t, p, config_.logit_divisor, logits);
  softcap(t, p, config_.logit_softcap, logits);
}

inline std::unique_ptr<Workspace> Model::take_workspace(size_t rows, int threads) const {
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
  w->x = detail::make_rows(*w, rows, c.hidden_size);
  w->normed = detail::make_rows(*w, rows, c.hidden_size);
  w->qkv = detail::make_rows(*w, rows, (c.heads + 2 * c.kv_heads) * c.head_dim);
  w->attention = detail::make_rows(*w, rows, c.heads * c.head_dim);
  w->gate_up = detail::make_rows(*w, rows, 2 * c.intermediate_size);
  w->mlp = detail::make_rows(*w, rows, c.intermediate_size);
  w->out = detail::make_rows(*w, rows, c.hidden_size);
  w->last = detail::make_rows(*w, rows, c.hidden_size);
  w->logits = detail::make_rows(*w, std::min(rows, detail::kHeadRows), c.vocab_size);
  return w;
}

inline void Model::give_workspace(std::unique_ptr<Workspace> workspace) const noexcept {
  const std::lock_guard lock(workspaces_mutex_);
  try {
    workspaces_.push_back(std::move(workspace));
  } catch (const std::bad_alloc&) {
    // The next pass makes its own.
  }
}

}  // namespace stet

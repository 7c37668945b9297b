// A model: immutable weights and the forward pass over them. Any number of sessions and threads
// share one.
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

// (group, hash) pairs that identify the weights. The groups are, in this order: "embeddings",
// "norms", "attention", "mlp", "head" (absent if the head is tied), "config", and "model", which
// covers all the others. A group's hash covers names, shapes and exact values of its tensors. It
// does not depend on how or in which file they are stored (src/checkpoint/fingerprint.hpp).
using Fingerprints = std::vector<std::pair<std::string, std::string>>;

// The memory of one pass, reused by later passes: scratch memory and activations.
struct Workspace {
  Scratch scratch;
  std::vector<Memory> memory;
  std::vector<int32_t> ids;  // token ids of the current pass
  std::vector<Span> spans;
  Rows x, normed, qkv, attention, gate_up, mlp, out, logits;  // `rows` rows each, logits fewer
  std::vector<Rows> own;                                      // the family's (Model::own_widths)
  Rows last;  // for each session of a batch, its last row of `out`
  size_t rows = 0;
  int threads = 0;
};

class Checkpoint;
// Returns the full name of a contract. For ggml, it lists the types of the model's tensors.
class Model;
const char* contract_name(const Model& model, Contract contract);

class WeightGuard;
struct WeightSpec;

// Immutable weights with a forward pass. Any thread may use a model.
//
// Packed weights (packed.hpp) are used in place, in the mapped file. After every pass the file's
// stamp is compared. If it has changed, all weights are compared with their digests. If they are
// intact, the pass is repeated; otherwise it throws a format Error and leaves sessions unchanged. A
// model from directory_source(directory, false) is in memory and does not depend on its file.
class STET_API Model {
 public:
  // Loads a checkpoint directory in the published Hugging Face layout. `threads` threads pack the
  // weights (0: all processors). Throws Error, naming file and field, if something is missing,
  // malformed or unsupported.
  static std::shared_ptr<const Model> load(const std::string& directory, int threads = 0);
  // Loads from any source of files, which the model keeps. For the contracts q8 and q4, weights
  // that are not packed already (packed.hpp) are rounded. For others they keep their values, except
  // that GGUF blocks are widened to float32 for all contracts but ggml.
  static std::shared_ptr<const Model> load(std::shared_ptr<const FileSource> source,
                                           int threads = 0, Contract contract = Contract::f32);
  // Writes the weights, packed and rounded as load() would, to a file (packed.hpp:
  // pack_checkpoint). For the contract ggml, `blocks` gives the type of the matrices. With K types,
  // embeddings and head become q6_k, and matrices whose columns are not a multiple of 256 become
  // q8_0. With mxfp4, only the matrices of experts are rounded. Throws an unsupported Error for
  // mxfp4 and a model without experts.
  static void pack(const FileSource& source, Contract contract, const std::string& path,
                   int threads = 0, std::atomic<uint64_t>* written = nullptr,
                   std::optional<BlockRounding> blocks = std::nullopt);
  // Returns the tensors of a checkpoint's weights in loading order, without loading them. Throws an
  // unsupported Error, as load() does, for a GGUF file with a tensor that is not among them. Only
  // layers that read another's keys and values may have their own.
  static std::vector<WeightSpec> weights_of(const FileSource& source, const Checkpoint& checkpoint);
  // Returns the names of the files that load() reads: config.json, the weights and, if there is
  // one, generation_config.json.
  static std::vector<std::string> files_of(const FileSource& source);
  virtual ~Model();

  const ModelConfig& config() const { return config_; }
  const GenerationConfig& generation() const { return generation_; }
  const Fingerprints& fingerprints() const { return fingerprints_; }
  // Returns the hash "model" of fingerprints(), which identifies the model.
  const std::string& fingerprint() const { return fingerprints_.back().second; }
  // Returns the source of the files. directory() is its path in text form: a directory, or the name
  // of an archive in errors ("s.stet: WEIGHTS").
  const FileSource& source() const { return *source_; }
  const std::string& directory() const { return source_->path(); }
  size_t weight_bytes() const { return weight_bytes_; }
  // Returns the bytes of the packed matrices that one token is multiplied with. Embeddings are left
  // out unless they are also the head. Of a layer's experts, the list has as many as a token uses,
  // and always the first ones. The bytes live as long as the model.
  const std::vector<std::span<const std::byte>>& matrices() const { return matrices_; }
  size_t bytes_per_token() const { return bytes_per_token_; }  // the size of all of matrices()
  // Returns the tensors of the model in loading order (matrix.hpp). They are views that live as
  // long as the model.
  const std::vector<LoadedWeight>& loaded() const { return loaded_; }
  // Returns the contract of the weights: q8 or q4 if rounded, ggml if they have ggml types,
  // otherwise f32 (or bf16 if they are bfloat16).
  Contract contract() const { return contract_; }
  // Returns the full name of the contract ggml with these weights; empty for other contracts.
  const std::string& types() const { return types_; }
  // Throws an unsupported Error, naming a tensor, if this contract cannot use the weights. bf16
  // requires bfloat16; q8 and q4 require weights that were rounded for them.
  void check_contract(Contract contract) const;

  // Computes p.out, the hidden states after the final norm, from p.ids. Stores keys and values in
  // the caches of p.spans. Begins at p.first_layer.
  virtual void forward(Team t, const Pass& p) const = 0;
  // Returns whether layers depend on p.x alone, so that a pass can begin at any layer.
  virtual bool begins_at_layers() const { return true; }
  // Computes logits [rows][vocab_size] from hidden states after the final norm, [rows].
  void head(Team t, const Pass& p, Rows hidden, Rows logits) const;

  // Returns the norm before the head.
  const Norm& final_norm() const { return final_norm_; }
  // Writes the head's weights for one token as float32, [hidden_size].
  void head_row(int32_t token, float* to) const {
    (config_.tied_head ? embedding_ : head_).gather(static_cast<size_t>(token), to);
  }

  // Call weights_version() before a pass. After the pass, weights_intact_since() returns true if
  // the mapped files of the weights were not modified since then. Otherwise it checks them, and
  // throws DamagedWeights (damaged_weights.hpp) if they are not intact.
  uint64_t weights_version() const;
  bool weights_intact_since(uint64_t version) const;

  // acquire_workspace() returns scratch memory for a pass of up to `rows` tokens on `threads` threads.
  // release_workspace() returns it for reuse by the next pass. Nothing in it outlives a pass.
  std::unique_ptr<Workspace> acquire_workspace(size_t rows, int threads) const;
  void release_workspace(std::unique_ptr<Workspace> workspace) const noexcept;

 protected:
  explicit Model(ModelConfig config) : config_(std::move(config)) {}

  // Returns the widths of the activations that only this family has (Pass::own).
  virtual std::vector<int64_t> own_widths() const { return {}; }

  ModelConfig config_;
  Matrix embedding_;
  Norm final_norm_;
  Matrix head_;  // empty when tied

 private:
  friend class ModelWeights;
  GenerationConfig generation_;
  Fingerprints fingerprints_;
  std::shared_ptr<const FileSource> source_;
  std::shared_ptr<const WeightGuard> guard_;  // for packed weights in a mapped file
  size_t weight_bytes_ = 0, bytes_per_token_ = 0;
  std::vector<std::span<const std::byte>> matrices_;
  std::vector<LoadedWeight> loaded_;
  Contract contract_ = Contract::f32;
  std::string types_;
  struct {
    std::string file, name, dtype;
  } not_bf16_;  // the first matrix that is not bf16; an empty name if there is none
  mutable std::mutex workspaces_mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> workspaces_;
};

namespace detail {

constexpr size_t kHeadRows = 24;  // rows of logits computed at a time, because a vocabulary is wide

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
              std::string("weights for the contract ") + contract_name(contract),
              std::string("weights for ") + contract_name(contract_));
}

inline void Model::head(Team t, const Pass& p, Rows hidden, Rows logits) const {
  linear(t, p, config_.tied_head ? embedding_ : head_, hidden, logits);
  divide(t, p, config_.logit_divisor, logits);
  softcap(t, p, config_.logit_softcap, logits);
}

inline std::unique_ptr<Workspace> Model::acquire_workspace(size_t rows, int threads) const {
  {
    const std::lock_guard lock(workspaces_mutex_);
    for (auto it = workspaces_.begin(); it != workspaces_.end(); ++it) {
      if ((*it)->rows < rows || (*it)->threads < threads) continue;
      std::unique_ptr<Workspace> found = std::move(*it);
      workspaces_.erase(it);
      return found;
    }
    if (!workspaces_.empty()) {  // replaced below by a larger one
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
  const int64_t mlp = c.widest([](const LayerShape& l) { return l.intermediate; });
  w->qkv = detail::make_rows(
      *w, rows, c.widest([](const LayerShape& l) { return l.queries() + l.keys() + l.values(); }));
  w->attention =
      detail::make_rows(*w, rows, c.widest([](const LayerShape& l) { return l.output(); }));
  w->gate_up = detail::make_rows(*w, rows, 2 * mlp);
  w->mlp = detail::make_rows(*w, rows, mlp);
  w->out = detail::make_rows(*w, rows, c.hidden_size);
  for (const int64_t width : own_widths()) w->own.push_back(detail::make_rows(*w, rows, width));
  w->last = detail::make_rows(*w, rows, c.hidden_size);
  w->logits = detail::make_rows(*w, std::min(rows, detail::kHeadRows), c.vocab_size);
  return w;
}

inline void Model::release_workspace(std::unique_ptr<Workspace> workspace) const noexcept {
  const std::lock_guard lock(workspaces_mutex_);
  try {
    workspaces_.push_back(std::move(workspace));
  } catch (const std::bad_alloc&) {
    // If keeping the workspace fails, the next pass allocates its own.
  }
}

}  // namespace stet

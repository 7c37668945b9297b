// A conversation with a model: everything that changes while it runs, and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stet/kv_cache.hpp"
#include "stet/model.hpp"

namespace stet {

// How to compute. No choice here changes a bit of the result, but for `blas`.
struct ComputeOptions {
  int threads = 0;        // 0: all processors this process may run on
  std::string isa;        // "portable", "avx2", "avx512"; empty: the best this CPU has
  int64_t chunk = 512;    // tokens of a prompt processed at once
  bool blas = false;      // matrix-matrix products through OpenBLAS: the contract becomes f32-blas
};

struct SessionOptions {
  int64_t capacity = 0;   // positions; 0: the model's max_position_embeddings, which it may not exceed
  KvType kv_type = KvType::f32;
  ComputeOptions compute;
};

// "f32" or "f32-blas", and the version of that contract: together they name the bits.
std::string contract_name(const ComputeOptions& compute);
constexpr int kContractVersion = 1;

// Called for consecutive rows: `logits` are those of positions first .. first + logits.count - 1.
using LogitSink = std::function<void(int64_t first, Rows logits)>;
// Called for consecutive rows of hidden state `index` (0: embedding; i: after layer i; the last: after the norm).
using HiddenSink = std::function<void(size_t index, int64_t first, Rows hidden)>;

class Session {
 public:
  // Throws an argument Error for options out of range, or an isa that this CPU lacks.
  explicit Session(std::shared_ptr<const Model> model, const SessionOptions& options = {});

  // Tokens go through the model after those already there. Throws an argument Error for an id outside the
  // vocabulary and a capacity Error when they do not fit; either leaves the session as it was. With sinks, every
  // row is handed out; an exception that a sink throws leaves the session as it was, too. A sink may read tokens()
  // and kv() (the chunks before its own); changing, copying or asking logits of the session is an argument Error.
  void append(std::span<const int32_t> ids, const LogitSink& logits = nullptr, const HiddenSink& hidden = nullptr);
  // Drops all tokens from position `size` on. Exact: what follows is as if they had never been.
  void rewind(int64_t size);
  // A second session that shares every full block with this one and goes its own way.
  Session fork() const;
  Session(Session&&) noexcept = default;
  Session& operator=(Session&&) noexcept = default;

  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t capacity() const { return kv_.capacity(); }
  // Logits that follow the last token, [vocab_size]; empty when there are no tokens. After a rewind they are
  // computed here, by processing the last token again; keys and values stay as they are.
  std::span<const float> logits();

  const Model& model() const { return *model_; }
  const std::shared_ptr<const Model>& shared_model() const { return model_; }
  const KvCache& kv() const { return kv_; }
  const ComputeOptions& compute() const { return compute_; }
  void set_compute(const ComputeOptions& compute);

 private:
  friend class SnapshotReader;
  Session(const Session&) = default;
  void run_chunk(std::span<const int32_t> ids, Workspace& w, const LogitSink& logits, const HiddenSink& hidden,
                 bool want_last);
  void refuse_in_sink(const char* call) const;

  std::shared_ptr<const Model> model_;
  ComputeOptions compute_;        // how, not what

  // ---- the state: all that influences the next token ----
  std::vector<int32_t> tokens_;   // position i holds tokens_[i]
  KvCache kv_;                    // keys, values and visibility of positions 0 .. tokens_.size()-1
  std::vector<float> logits_;     // after the last token; empty: not known (no tokens, or rewound)
  // Sampling settings and seed are state of the caller (Generator): randomness is a function of seed and position.
};

}  // namespace stet

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
#include "stet/sampler.hpp"

namespace stet {

// One exchange: a prompt and the reply to it, as positions. A turn whose reply has not begun, or that had no
// prompt, has an empty part.
struct Turn {
  int64_t prompt = 0;  // first token of the prompt
  int64_t reply = 0;   // first token of the reply
  int64_t end = 0;     // one past the last token of the reply so far
  bool open = false;   // the reply was cut by a limit and may go on

  bool operator==(const Turn&) const = default;
};

// How the next tokens are drawn, where the reply stops, and what a reply in progress holds back.
struct GenerationState {
  SamplingSettings sampling;              // with the seed; randomness is a function of seed and position
  std::vector<int32_t> stop_ids;
  std::vector<std::string> stop_strings;
  std::vector<Turn> turns;
  std::string stream;                     // TextStream::state of an open reply
  std::string held;                       // StopMatcher::pending of an open reply

  // Forgets what lies at or after a position: later turns, the end of a turn that is cut, which may then go on,
  // and text held back by a reply.
  void rewind(int64_t size);
  bool operator==(const GenerationState&) const = default;
};

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
// Called after every chunk with the number of tokens of this call processed so far.
using Progress = std::function<void(int64_t done)>;

class Session {
 public:
  // Throws an argument Error for options out of range, or an isa that this CPU lacks.
  explicit Session(std::shared_ptr<const Model> model, const SessionOptions& options = {});

  // Tokens go through the model after those already there. Throws an argument Error for an id outside the
  // vocabulary and a capacity Error when they do not fit; either leaves the session as it was. With sinks, every
  // row is handed out; an exception that a sink throws leaves the session as it was, too. A sink may read tokens()
  // and kv() (the chunks before its own); changing, copying or asking logits of the session is an argument Error.
  void append(std::span<const int32_t> ids, const LogitSink& logits = nullptr, const HiddenSink& hidden = nullptr,
              const Progress& progress = nullptr);
  // Drops all tokens from position `size` on. Exact: what follows is as if they had never been. A turn that is cut
  // is open again; text of its reply then begins at the next token.
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

  GenerationState& generation() { return generation_; }
  const GenerationState& generation() const { return generation_; }

  const Model& model() const { return *model_; }
  const std::shared_ptr<const Model>& shared_model() const { return model_; }
  const KvCache& kv() const { return kv_; }
  const ComputeOptions& compute() const { return compute_; }
  void set_compute(const ComputeOptions& compute);

 private:
  friend class Snapshot;
  Session(const Session&) = default;  // fork() is the only copy
  void run_chunk(std::span<const int32_t> ids, Workspace& w, const LogitSink& logits, const HiddenSink& hidden,
                 bool want_last);
  void refuse_in_sink(const char* call) const;

  std::shared_ptr<const Model> model_;
  ComputeOptions compute_;        // how, not what

  // ---- the state: all that influences the next token ----
  std::vector<int32_t> tokens_;   // position i holds tokens_[i]
  KvCache kv_;                    // keys, values and visibility of positions 0 .. tokens_.size()-1
  std::vector<float> logits_;     // after the last token; empty: not known (no tokens, or rewound)
  GenerationState generation_;
};

}  // namespace stet

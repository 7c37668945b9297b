// Traces for activation patching sweeps: keeps what tokens produced, so that many changed versions
// need recomputing only from the first changed layer and position on.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "stet/session/session.hpp"

namespace stet {

// One run over a prompt of a trace, with several changes at once.
struct TraceRun {
  std::vector<Intervention> changes;
  size_t prompt = 0;                    // index of the prompt
  std::vector<int64_t> positions = {};  // positions whose logits are wanted; empty: the last
};

// Holds a session of each prompt, and the residual stream after each layer:
// [layers][tokens][hidden_size] float32.
class Trace {
 public:
  // Processes `ids` after the tokens of `before`, which does not change. Throws what
  // Session::append throws, and an argument Error for a session with callbacks and for no tokens.
  Trace(const Session& before, std::span<const int32_t> ids);
  // Processes several prompts, each after the tokens of `before`.
  Trace(const Session& before, std::span<const std::vector<int32_t>> prompts);

  // Returns the session after a prompt's tokens.
  Session& session(size_t prompt = 0) { return prompts_[prompt].session; }
  size_t prompts() const { return prompts_.size(); }
  // Called once for each change with the logits after the last token, [vocab_size].
  using Sink = std::function<void(size_t index, std::span<const float> logits)>;
  // Runs the first prompt once for each change, with that change alone. The results are bit for bit
  // those of a session to which the change was attached before the tokens. Changes in the same
  // layer share passes from that layer on (from the first, if the model cannot begin later).
  //
  // Throws what attach() throws, before anything is computed; the error's field names the change
  // ("changes[3]: ...").
  void run(std::span<const Intervention> changes, const Sink& sink);
  // Called once for each wanted position, in ascending order within a run.
  using RunSink =
      std::function<void(size_t index, int64_t position, std::span<const float> logits)>;
  // Runs prompts with any number of changes, attached in order. Throws what attach() throws
  // ("runs[2]: changes[0]: ..."), before anything is computed. Throws an argument Error for a
  // prompt or a position that does not exist.
  void run(std::span<const TraceRun> runs, const RunSink& sink);

 private:
  struct Prompt {
    Session session;
    RecurrentState before;                     // recurrent arrays before the prompt
    std::vector<std::vector<float>> residual;  // per layer, [tokens][hidden_size]: after that layer
  };
  // A run after validation.
  struct Job {
    Prompt* prompt;
    std::vector<Intervention> changes;
    std::vector<int64_t> positions;  // ascending
    size_t layer = 0;                // first layer to compute
    int64_t first = 0;               // first position to compute
  };
  // A job in progress.
  struct Run {
    size_t index;
    const Job* job;
    int64_t next;  // position where its next pass begins
    KvCache kv;
    RecurrentState recurrent;

    int64_t size() const { return job->prompt->session.size(); }
  };
  // A row of the pass whose logits are wanted.
  struct Wanted {
    size_t index, row;
    int64_t position;
  };

  void process(const Session& before, std::span<const std::span<const int32_t>> prompts);
  size_t layer_of(const Intervention& w) const;
  Job job_of(const TraceRun& run, const std::string& name);
  void run_jobs(const std::vector<Job>& jobs, const RunSink& sink);
  Run begin(size_t index, const Job& job);
  void run_layer(size_t layer, std::span<const size_t> order, const std::vector<Job>& jobs,
                 const RunSink& sink);
  void run_pass(size_t layer, std::vector<Run>& runs, Workspace& w, const RunSink& sink);
  void hand_out(std::span<const Wanted> wanted, const Pass& pass, Workspace& w,
                const RunSink& sink) const;
  void forward(size_t layer, std::span<Run* const> runs, const Workspace& w,
               const Pass& pass) const;
  Hooks hooks_of(std::span<Run* const> runs, const Workspace& w) const;
  const Model& model() const { return prompts_[0].session.model(); }
  const ComputeOptions& compute() const { return prompts_[0].session.compute(); }
  size_t layers() const { return static_cast<size_t>(model().config().layers); }

  std::vector<Prompt> prompts_;
  int64_t first_;  // position of each prompt's first token
};

inline Trace::Trace(const Session& before, std::span<const int32_t> ids) : first_(before.size()) {
  process(before, {&ids, 1});
}

inline Trace::Trace(const Session& before, std::span<const std::vector<int32_t>> prompts)
    : first_(before.size()) {
  process(before, std::vector<std::span<const int32_t>>(prompts.begin(), prompts.end()));
}

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/session/trace-inl.hpp"
#endif

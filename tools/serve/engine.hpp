// Continuous batching: all that runs advances in shared passes over the weights (append(batch)),
// prompts in chunks between the tokens of the replies. No reply depends on what else is running.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "stet/generate/generate.hpp"
#include "stet/session/session.hpp"
#include "tools/serve/histogram.hpp"
#include "tools/serve/http.hpp"

namespace stet::serve {

// Returns whether the work is cancelled: its client has disconnected, or its time is over. It is
// called in any thread, and often.
using CancelCheck = std::function<bool()>;

struct EngineOptions {
  int64_t streams = 16;   // at once
  int64_t queue = 64;     // that wait; more are refused
  int64_t chunk = 512;    // most tokens of prompts in one pass
  double slowdown = 2.3;  // of a pass of replies that a prompt's tokens may cause
  // Told of each pass of one prompt alone: the position of its first token, their number, the time.
  std::function<void(int64_t first, int64_t tokens, double seconds)> prompt_took = nullptr;
};

// One small part of some work; false when that was the last one.
using Step = std::function<bool()>;

// A piece of work: tokens that a session is to process, a reply that it draws, or steps of
// something else that computes. The session is the job's until it is over. The engine and whoever
// waits own a job together.
class Job {
 public:
  explicit Job(const BatchEntry& tokens) : tokens_(tokens) {}
  // `first`: taken in place of the first token that would be drawn.
  Job(Session& session, Generator& reply, std::optional<int32_t> first)
      : tokens_{&session, {}}, reply_(&reply), next_(first) {}
  explicit Job(Step step) : step_(std::move(step)) {}

  struct Piece {
    int32_t id;
    std::string text;
  };
  // Waits for what is new. Returns false when all is over and told. Throws what the work threw,
  // Cancelled, and what `cancelled` threw: none of these before the engine has let go of the job.
  bool wait(std::vector<Piece>& pieces, const CancelCheck& cancelled);
  // Ends it before its next pass. Nobody needs to wait for that.
  void cancel();
  // Whether the engine has let go of it.
  bool over();
  int64_t processed() const { return done_.load(); }

 private:
  friend class Engine;
  void finish(std::exception_ptr error);

  BatchEntry tokens_{nullptr, {}};
  std::atomic<int64_t> done_{0};
  Generator* reply_ = nullptr;
  std::optional<int32_t> next_;
  Step step_;
  double last_token_ = 0;  // when the last token was

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Piece> pieces_;
  bool over_ = false, cancelled_ = false;
  std::exception_ptr error_;
};

struct EngineCounters {
  int64_t running = 0, queued = 0;
  uint64_t passes = 0, prompt_tokens = 0, drawn_tokens = 0, refused = 0, cancelled = 0;
  double busy_seconds = 0;
  size_t batch = 0;  // of the last pass
};

using JobPtr = std::shared_ptr<Job>;

class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();  // waits until all jobs are over
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // A place among the streams. Whoever runs fewest gets the next one.
  class Lease {
   public:
    explicit Lease(Engine* engine, std::string client)
        : engine_(engine), client_(std::move(client)) {}
    Lease(Lease&& other) noexcept
        : engine_(std::exchange(other.engine_, nullptr)), client_(std::move(other.client_)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (engine_ != nullptr) engine_->leave(client_);
    }

   private:
    Engine* engine_;
    std::string client_;
  };
  // Waits for one. Throws a RequestError (429) where too many wait already, (503) once the server
  // ends; Cancelled.
  Lease enter(const std::string& client, const CancelCheck& cancelled);

  // Has the jobs done, all or (where it throws) none.
  void start(std::span<const JobPtr> jobs);
  // The tokens go through the sessions; returns when all have. A sink of theirs is called in the
  // engine's thread, more than once for the same rows where a pass has to be repeated.
  void process(std::span<const BatchEntry> tokens, const CancelCheck& cancelled,
               const Progress& progress = nullptr);
  void process(Session& session, std::span<const int32_t> ids, const CancelCheck& cancelled) {
    if (!ids.empty()) process(std::vector<BatchEntry>{{&session, ids}}, cancelled);
  }
  // Work that is no pass, one step after each pass, so that replies keep their pace beside it.
  void work(Step step, const CancelCheck& cancelled);

  void close();  // no more leases
  bool closing() const;
  EngineCounters counters() const;
  // Seconds since the engine's thread last gave a sign, as it does before each pass and step and
  // after each layer; 0 while it has nothing to do. Waits for nothing.
  double heartbeat_age() const;
  const Histogram& token_seconds() const { return token_seconds_; }  // from token to token

 private:
  struct Ticket {
    std::string client;
    bool granted = false;
  };
  void leave(const std::string& client);
  void grant();
  void give_up(const Ticket& ticket, const std::string& client);
  int64_t running_of(const std::string& client) const;
  void run();
  bool wait_for_jobs();
  void pass();
  void sort_jobs();
  void run_step(const JobPtr& job);
  int64_t prompt_budget(size_t replies) const;
  void learn(size_t replies, int64_t prompt_tokens, double seconds);
  bool append_together();
  void advance_all(bool together);
  void advance(Job& job, size_t tokens);
  void end(const JobPtr& job, std::exception_ptr error);
  void end_all(const std::exception_ptr& error);
  void beat();

  const EngineOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable work_, places_;
  std::vector<JobPtr> jobs_;  // that are not over
  std::vector<Ticket*> waiting_;
  std::vector<std::string> running_;  // clients of leases
  bool closing_ = false, stopping_ = false;
  EngineCounters counters_;
  Histogram token_seconds_;
  double reply_seconds_ = 0;     // of a pass of replies alone
  double budget_ = 16;           // tokens of prompts beside replies
  size_t turn_ = 0;              // whose prompt, or step, comes first
  std::atomic<double> beat_{0};  // when the thread last gave a sign; 0: it has nothing to do
  // Of the present pass. Only the thread touches them.
  std::vector<JobPtr> present_, ready_, prompts_, steps_;
  std::vector<BatchEntry> batch_;
  const BatchOptions pass_options_{[this] { beat(); }};
  std::thread thread_;
};

}  // namespace stet::serve

// Continuous batching: all sessions advance in shared passes over the weights (append(batch)), with
// chunks of prompts between the tokens of replies. No reply depends on the other sessions.
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

#include "stet/generate/batch.hpp"
#include "stet/session/session.hpp"
#include "tools/serve/histogram.hpp"
#include "tools/serve/http.hpp"

namespace stet::serve {

// Returns true if the work is cancelled: its client has disconnected or its deadline has passed.
// Any thread may call it, and calls are frequent.
using CancelCheck = std::function<bool()>;

struct EngineOptions {
  int64_t streams = 16;   // running requests
  int64_t queue = 64;     // waiting requests; more are refused
  int64_t chunk = 512;    // maximum prompt tokens in one pass
  double slowdown = 2.3;  // factor by which a prompt's tokens may prolong a pass of replies
  // Called after each pass of a single prompt with its first position, its tokens and the time.
  std::function<void(int64_t first, int64_t tokens, double seconds)> prompt_took = nullptr;
  // Makes a drafter for a reply; null: no speculation.
  std::function<std::shared_ptr<Drafter>()> drafter = nullptr;
  // Limit on the slowdown of a pass of several replies by drafted tokens.
  double draft_slowdown = 1.25;
  bool always_draft = false;  // even if it does not pay off, so that tests do not depend on clocks
};

// A small part of some work. Returns false when the work is done.
using Step = std::function<bool()>;

// A unit of work: tokens to process, a reply to draw, or steps of other computation. The job has
// exclusive use of the session until it is over. The engine and the waiting thread share the job.
class Job {
 public:
  explicit Job(const BatchEntry& tokens) : tokens_(tokens) {}
  // `first` is the id to take instead of drawing the first token.
  Job(Session& session, Generator& reply, std::optional<int32_t> first)
      : tokens_{&session, {}}, reply_(&reply), next_(first) {}
  explicit Job(Step step) : step_(std::move(step)) {}

  struct Piece {
    int32_t id;
    std::string text;
  };
  // Waits for new pieces. Returns false when the job is over and all pieces were returned. Throws
  // the exceptions of the work and of `cancelled`, or Cancelled. Before it throws, the engine has
  // released the job.
  bool wait(std::vector<Piece>& pieces, const CancelCheck& cancelled);
  // Ends the job before its next pass, and returns at once.
  void cancel();
  // Returns true once the engine has released the job.
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
  double last_token_ = 0;  // time of the last token

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Piece> pieces_;
  bool over_ = false, cancelled_ = false;
  std::exception_ptr error_;
};

struct EngineCounters {
  int64_t running = 0, queued = 0;
  uint64_t passes = 0, prompt_tokens = 0, drawn_tokens = 0, refused = 0, cancelled = 0;
  uint64_t drafted_tokens = 0, accepted_tokens = 0;
  double busy_seconds = 0;
  size_t batch = 0;  // sessions in the last pass
};

using JobPtr = std::shared_ptr<Job>;

class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();  // waits until all jobs are over
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The right to run one request. The client with the fewest leases gets the next one.
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
  // Waits for a lease. Throws a RequestError: 429 if too many requests wait, 503 once the server
  // shuts down. Throws Cancelled.
  Lease enter(const std::string& client, const CancelCheck& cancelled);

  // Returns a speculator for a reply that is drawn by the engine; null without speculation.
  std::unique_ptr<Speculator> speculator() const {
    if (!options_.drafter) return nullptr;
    return std::make_unique<Speculator>(options_.drafter(), costs_, options_.always_draft);
  }
  // Starts all jobs, or throws and starts none.
  void start(std::span<const JobPtr> jobs);
  // Processes the tokens, and returns when all are done. The engine's thread calls the sinks of
  // the entries, more than once for the same rows if a pass has to be repeated.
  void process(std::span<const BatchEntry> tokens, const CancelCheck& cancelled,
               const Progress& progress = nullptr);
  void process(Session& session, std::span<const int32_t> ids, const CancelCheck& cancelled) {
    if (!ids.empty()) process(std::vector<BatchEntry>{{&session, ids}}, cancelled);
  }
  // Runs work other than passes, one step after each pass, so that replies keep their pace.
  void work(Step step, const CancelCheck& cancelled);

  void close();  // grants no more leases
  bool closing() const;
  EngineCounters counters() const;
  // Returns the seconds since the engine's thread last reported, which it does before each pass and
  // step and after each layer. Returns 0 while it is idle. Never blocks.
  double heartbeat_age() const;
  const Histogram& token_seconds() const { return token_seconds_; }  // time between tokens

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
  bool draw(Job& job);
  PassCosts* draft();
  void run_step(const JobPtr& job);
  int64_t prompt_budget(size_t replies) const;
  void learn(size_t replies, int64_t prompt_tokens, double seconds, PassCosts* costs);
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
  std::vector<std::string> running_;  // the client of each lease
  bool closing_ = false, stopping_ = false;
  EngineCounters counters_;
  Histogram token_seconds_;
  double reply_seconds_ = 0;     // time of a pass with replies only
  double budget_ = 16;           // prompt tokens per pass with replies
  size_t turn_ = 0;              // index of the prompt or step that comes first
  std::atomic<double> beat_{0};  // time of the thread's last report, or 0 while it is idle
  // The current pass, used only by the thread.
  std::vector<JobPtr> present_, ready_, prompts_, steps_;
  std::vector<BatchEntry> batch_;
  std::vector<Generator*> drawing_;
  const std::shared_ptr<PassCosts> costs_ = std::make_shared<PassCosts>();
  const BatchOptions pass_options_{[this] { beat(); }};
  std::thread thread_;
};

}  // namespace stet::serve

// Continuous batching: all that runs advances in shared passes over the weights (append(batch)),
// prompts in chunks between the tokens of the replies. No reply depends on what else is running.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
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
#include "tools/serve/http.hpp"

namespace stet::serve {

// Says, in any thread and often, whether whoever waits for the work has gone.
using Gone = std::function<bool()>;

struct EngineOptions {
  int64_t streams = 16;    // at once
  int64_t queue = 64;      // that wait; more are refused
  int64_t chunk = 512;     // most tokens of prompts in one pass
  double slowdown = 2.35;  // of a pass of replies that a prompt's tokens may cause
  // Told of each pass of one prompt alone: the position of its first token, their number, the time.
  std::function<void(int64_t first, int64_t tokens, double seconds)> prompt_took = nullptr;
};

// A piece of work: tokens that a session is to process, or a reply that it draws. The session is
// the job's until it is over.
class Job {
 public:
  Job(Session& session, std::span<const int32_t> ids) : session_(session), ids_(ids) {}
  // `first`: taken in place of the first token that would be drawn.
  Job(Session& session, Generator& reply, std::optional<int32_t> first)
      : session_(session), reply_(&reply), next_(first) {}

  // For what is new. Returns false when all is over and told; throws what the work threw, and
  // Cancelled.
  struct Piece {
    int32_t id;
    std::string text;
  };
  bool wait(std::vector<Piece>& pieces, const Gone& gone);
  int64_t processed() const { return done_.load(); }

 private:
  friend class Engine;
  void finish(std::exception_ptr error);

  Session& session_;
  std::span<const int32_t> ids_;
  std::atomic<int64_t> done_{0};
  Generator* reply_ = nullptr;
  std::optional<int32_t> next_;

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

class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();  // jobs must be over
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
  Lease enter(const std::string& client, const Gone& gone);

  // Has the job done; it must outlive that, as wait() says.
  void start(Job& job);
  // The tokens go through the session; returns when they have.
  void process(Session& session, std::span<const int32_t> ids, const Gone& gone);

  void close();  // no more leases
  EngineCounters counters() const;

 private:
  struct Ticket {
    std::string client;
    bool granted = false;
  };
  void leave(const std::string& client);
  void grant();
  int64_t running_of(const std::string& client) const;
  void run();
  void pass(std::vector<Job*>& jobs);
  int64_t prompt_budget(size_t replies) const;
  void learn(size_t replies, int64_t prompt_tokens, double seconds);
  void append_all(std::vector<Job*>& jobs, std::vector<BatchEntry>& batch);
  void advance(Job& job, size_t tokens);
  void drop(Job* job);

  const EngineOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable work_, places_;
  std::deque<Job*> jobs_;  // that are not over
  std::deque<Ticket*> waiting_;
  std::vector<std::string> running_;  // clients of leases
  bool closing_ = false, stopping_ = false;
  EngineCounters counters_;
  double reply_seconds_ = 0;  // of a pass of replies alone
  double budget_ = 16;        // tokens of prompts beside replies
  size_t turn_ = 0;           // whose prompt comes first
  std::thread thread_;
};

}  // namespace stet::serve

#include "tools/serve/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "tools/command.hpp"
#include "tools/serve/http.hpp"

namespace stet::serve {
namespace {

// How often whoever waits looks whether its client is still there.
constexpr auto kLook = std::chrono::milliseconds(50);
// No pass has fewer tokens of a waiting prompt, so that prompts end.
constexpr int64_t kLeastPromptTokens = static_cast<int64_t>(kTileRows);

}  // namespace

void Histogram::add(double seconds) {
  const std::lock_guard lock(mutex_);
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts_[static_cast<size_t>(bound - kBounds.begin())];
  sum_ += seconds;
}

std::string Histogram::text(const char* name, const char* help) const {
  const std::lock_guard lock(mutex_);
  std::string text = fmt::format("# HELP stet_{0} {1}\n# TYPE stet_{0} histogram\n", name, help);
  uint64_t count = 0;
  for (size_t i = 0; i < kBounds.size(); ++i)
    text += fmt::format("stet_{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], count += counts_[i]);
  count += counts_.back();
  return text +
         fmt::format("stet_{0}_bucket{{le=\"+Inf\"}} {1}\nstet_{0}_sum {2}\nstet_{0}_count {1}\n",
                     name, count, sum_);
}

bool Job::wait(std::vector<Piece>& pieces, const Gone& gone) {
  pieces.clear();
  std::unique_lock lock(mutex_);
  while (!over_ && pieces_.empty()) {
    changed_.wait_for(lock, kLook);
    if (over_ || cancelled_) continue;
    lock.unlock();
    const bool leave = gone();
    lock.lock();
    if (leave) cancelled_ = true;  // the engine ends it before its next pass
  }
  std::swap(pieces, pieces_);
  if (!pieces.empty() && !cancelled_) return true;
  if (!over_) return true;
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (cancelled_) throw Cancelled();
  return false;
}

void Job::finish(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  over_ = true;
  error_ = std::move(error);
  changed_.notify_all();  // under the lock: the job may be gone once it is free
}

Engine::Engine(const EngineOptions& options) : options_(options), thread_([this] { run(); }) {}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  thread_.join();
}

// ---------------------------------------------------------------- who may run

int64_t Engine::running_of(const std::string& client) const {
  return std::count(running_.begin(), running_.end(), client);
}

// Gives free places to those who wait: to the client that runs fewest, of equals to who came first.
void Engine::grant() {
  while (static_cast<int64_t>(running_.size()) < options_.streams && !waiting_.empty()) {
    const auto next =
        std::min_element(waiting_.begin(), waiting_.end(), [&](const Ticket* a, const Ticket* b) {
          return running_of(a->client) < running_of(b->client);
        });
    (*next)->granted = true;
    running_.push_back((*next)->client);
    waiting_.erase(next);
  }
  counters_.running = static_cast<int64_t>(running_.size());
  counters_.queued = static_cast<int64_t>(waiting_.size());
  places_.notify_all();
}

Engine::Lease Engine::enter(const std::string& client, const Gone& gone) {
  std::unique_lock lock(mutex_);
  if (closing_) throw RequestError(503, "shutting_down", "the server is ending");
  if (static_cast<int64_t>(running_.size()) >= options_.streams &&
      static_cast<int64_t>(waiting_.size()) >= options_.queue) {
    ++counters_.refused;
    throw RequestError(
        429, "queue_full",
        fmt::format("expected at most {} requests that wait, found more: try again later",
                    options_.queue));
  }
  Ticket ticket{client};
  waiting_.push_back(&ticket);
  grant();
  const auto give_up = [&] {
    std::erase(waiting_, &ticket);
    grant();
    ++counters_.cancelled;
  };
  while (!ticket.granted) {
    places_.wait_for(lock, kLook);
    if (ticket.granted) break;
    if (closing_) {
      give_up();
      throw RequestError(503, "shutting_down", "the server is ending");
    }
    lock.unlock();
    const bool leave = gone();
    lock.lock();
    if (leave && !ticket.granted) {
      give_up();
      throw Cancelled();
    }
  }
  return Lease(this, client);
}

void Engine::leave(const std::string& client) {
  const std::lock_guard lock(mutex_);
  running_.erase(std::find(running_.begin(), running_.end(), client));
  grant();
}

void Engine::close() {
  const std::lock_guard lock(mutex_);
  closing_ = true;
  places_.notify_all();
}

bool Engine::closing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

EngineCounters Engine::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

// ---------------------------------------------------------------- what runs

void Engine::start(Job& job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(&job);
  work_.notify_all();
}

void Engine::process(std::span<const BatchEntry> tokens, const Gone& gone,
                     const Progress& progress) {
  std::deque<Job> jobs;
  for (const BatchEntry& entry : tokens) start(jobs.emplace_back(entry));
  const Gone look = [&] {
    if (progress) progress(jobs.front().processed());
    return gone();
  };
  std::vector<Job::Piece> none;
  std::exception_ptr error;
  for (Job& job : jobs) {  // each has its session until it is over
    try {
      while (job.wait(
          none, error == nullptr ? look : [] { return true; })) {
      }
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
    }
  }
  if (error != nullptr) std::rethrow_exception(error);
}

void Engine::work(Step step, const Gone& gone) {
  Job job(std::move(step));
  start(job);
  std::vector<Job::Piece> none;
  while (job.wait(none, gone)) {
  }
}

void Engine::run() {
  for (;;) {
    std::vector<Job*> jobs;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      jobs.assign(jobs_.begin(), jobs_.end());
    }
    pass(jobs);
  }
}

void Engine::drop(Job* job) {
  const std::lock_guard lock(mutex_);
  std::erase(jobs_, job);
}

// So many tokens of prompts that running replies keep their pace; clocks decide how fast, never
// what is said. Many rows fill whole tiles of the products.
int64_t Engine::prompt_budget(size_t replies) const {
  if (replies == 0) return options_.chunk;
  const auto beside = static_cast<int64_t>(replies), tile = static_cast<int64_t>(kTileRows);
  int64_t rows = static_cast<int64_t>(budget_) + beside;
  if (rows > static_cast<int64_t>(kGemvRows)) rows = (rows + tile / 2) / tile * tile;
  return std::clamp(rows - beside, kLeastPromptTokens, options_.chunk);
}

// After a pass that took so long: what passes of replies alone take, and how many tokens of prompts
// beside them make a pass `slowdown` times as long.
void Engine::learn(size_t replies, int64_t prompt_tokens, double seconds) {
  if (prompt_tokens == 0)
    reply_seconds_ = reply_seconds_ == 0 ? seconds : 0.95 * reply_seconds_ + 0.05 * seconds;
  if (replies == 0 || prompt_tokens < kLeastPromptTokens || reply_seconds_ == 0) return;
  const double more = std::max(seconds - reply_seconds_, 0.1 * seconds),
               room = options_.slowdown * reply_seconds_ - seconds;
  budget_ += 0.3 * std::min(room / more, 1.0) * static_cast<double>(prompt_tokens);
  budget_ = std::clamp(budget_, static_cast<double>(kLeastPromptTokens),
                       static_cast<double>(options_.chunk));
}

// One pass: the next token of every reply, and a part of one or more prompts, taken in turn; then a
// step of something else.
void Engine::pass(std::vector<Job*>& jobs) {
  std::vector<Job*> ready, prompts, steps;
  for (Job* job : jobs) {
    std::exception_ptr error;
    bool over = false;
    {
      const std::lock_guard lock(job->mutex_);
      over = job->cancelled_;
    }
    if (!over && job->reply_ != nullptr && !job->next_) {
      try {
        job->next_ = job->reply_->draw();
        over = !job->next_;
      } catch (...) {
        error = std::current_exception();
        over = true;
      }
    }
    if (over) {
      drop(job);
      job->finish(error);
    } else {
      (job->reply_ != nullptr ? ready : job->step_ ? steps : prompts).push_back(job);
    }
  }
  const size_t replies = ready.size();
  std::vector<BatchEntry> batch;
  for (Job* job : ready) batch.push_back({job->tokens_.session, {&*job->next_, 1}});
  int64_t budget = prompt_budget(replies), prompt_tokens = 0;
  for (size_t i = 0; i < prompts.size() && budget > 0; ++i) {
    Job* job = prompts[(turn_ + i) % prompts.size()];
    const std::span<const int32_t> rest = job->tokens_.ids.subspan(static_cast<size_t>(job->done_));
    const std::span<const int32_t> part =
        rest.first(std::min(rest.size(), static_cast<size_t>(budget)));
    batch.push_back({job->tokens_.session, part, job->tokens_.watch});
    ready.push_back(job);
    budget -= static_cast<int64_t>(part.size());
    prompt_tokens += static_cast<int64_t>(part.size());
  }
  if (!steps.empty()) run_step(*steps[turn_ % steps.size()]);
  ++turn_;
  if (batch.empty()) return;
  const int64_t first = batch[0].session->size();
  const double start = tool::seconds();
  const bool together = append_together(batch);
  const double took = tool::seconds() - start;
  learn(replies, prompt_tokens, took);
  if (options_.prompt_took && replies == 0 && batch.size() == 1 &&
      prompt_tokens >= kLeastPromptTokens)
    options_.prompt_took(first, prompt_tokens, took);
  {  // before anybody is told, so that who asks afterwards finds it counted
    const std::lock_guard lock(mutex_);
    ++counters_.passes;
    counters_.batch = batch.size();
    counters_.prompt_tokens += static_cast<uint64_t>(prompt_tokens);
    counters_.drawn_tokens += replies;
    counters_.busy_seconds += took;
  }
  advance_all(ready, batch, together);
}

void Engine::run_step(Job& job) {
  std::exception_ptr error;
  try {
    if (job.step_()) return;
  } catch (...) {
    error = std::current_exception();
  }
  drop(&job);
  job.finish(error);
}

bool Engine::append_together(std::vector<BatchEntry>& batch) {
  try {
    append(batch);
    return true;
  } catch (...) {
    return false;
  }
}

// Where they failed together they are appended one by one, so that only those fail which are at
// fault.
void Engine::advance_all(std::vector<Job*>& jobs, std::vector<BatchEntry>& batch, bool together) {
  for (size_t i = 0; i < batch.size(); ++i) {
    std::exception_ptr error;
    try {
      if (!together) append({&batch[i], 1});
      advance(*jobs[i], batch[i].ids.size());
    } catch (...) {
      error = std::current_exception();
    }
    const bool done = jobs[i]->reply_ == nullptr &&
                      static_cast<size_t>(jobs[i]->done_) == jobs[i]->tokens_.ids.size();
    if (error == nullptr && !done) continue;
    drop(jobs[i]);
    jobs[i]->finish(error);
  }
}

void Engine::advance(Job& job, size_t tokens) {
  if (job.reply_ == nullptr) {
    job.done_ += static_cast<int64_t>(tokens);
    return;
  }
  const int32_t id = *job.next_;
  job.next_.reset();
  job.reply_->processed(id);
  const double now = tool::seconds();
  if (job.told_ > 0) token_seconds_.add(now - job.told_);
  job.told_ = now;
  const std::lock_guard lock(job.mutex_);
  job.pieces_.push_back({id, job.reply_->certain()});
  job.changed_.notify_all();
}

}  // namespace stet::serve

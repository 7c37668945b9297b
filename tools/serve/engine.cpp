#include "tools/serve/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "tools/command/command.hpp"
#include "tools/serve/http.hpp"

namespace stet::serve {
namespace {

// Interval at which waiting threads check whether their client is still connected.
constexpr auto kLook = std::chrono::milliseconds(50);
// Minimum tokens of a waiting prompt per pass, so that prompts make progress.
constexpr int64_t kLeastPromptTokens = static_cast<int64_t>(kTileRows);

}  // namespace

bool Job::wait(std::vector<Piece>& pieces, const CancelCheck& cancelled) {
  pieces.clear();
  std::exception_ptr failure;
  std::unique_lock lock(mutex_);
  while (!over_ && (failure != nullptr || pieces_.empty())) {
    changed_.wait_for(lock, kLook);
    if (over_ || cancelled_) continue;
    lock.unlock();
    bool leave = true;
    try {
      leave = cancelled();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (leave) cancelled_ = true;  // the engine ends it before the next pass
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  std::swap(pieces, pieces_);
  if (!pieces.empty() && !cancelled_) return true;
  if (!over_) return true;
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (cancelled_) throw Cancelled();
  return false;
}

void Job::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

bool Job::over() {
  const std::lock_guard lock(mutex_);
  return over_;
}

void Job::finish(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  over_ = true;
  error_ = std::move(error);
  changed_.notify_all();
}

Engine::Engine(const EngineOptions& options) : options_(options) {
  running_.reserve(static_cast<size_t>(options.streams));
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  thread_.join();
}

// ---------------------------------------------------------------- leases

int64_t Engine::running_of(const std::string& client) const {
  return std::count(running_.begin(), running_.end(), client);
}

// Gives free leases to waiting clients: first to the client with the fewest, then by arrival. Must
// not fail, since it also runs when a lease ends.
void Engine::grant() {
  while (static_cast<int64_t>(running_.size()) < options_.streams && !waiting_.empty()) {
    const auto next =
        std::min_element(waiting_.begin(), waiting_.end(), [&](const Ticket* a, const Ticket* b) {
          return running_of(a->client) < running_of(b->client);
        });
    (*next)->granted = true;
    running_.push_back(std::move((*next)->client));
    waiting_.erase(next);
  }
  counters_.running = static_cast<int64_t>(running_.size());
  counters_.queued = static_cast<int64_t>(waiting_.size());
  places_.notify_all();
}

Engine::Lease Engine::enter(const std::string& client, const CancelCheck& cancelled) {
  std::string name = client;  // allocated first: nothing may fail after the lease is granted
  Ticket ticket{client};
  std::unique_lock lock(mutex_);
  if (closing_) throw RequestError(503, "shutting_down", "the server is shutting down");
  if (static_cast<int64_t>(running_.size()) >= options_.streams &&
      static_cast<int64_t>(waiting_.size()) >= options_.queue) {
    ++counters_.refused;
    throw RequestError(
        429, "queue_full",
        options_.queue == 0
            ? fmt::format("{} requests run already (--streams), and none may wait (--queue): "
                          "try again later",
                          options_.streams)
            : fmt::format("{} requests are waiting already (--queue): try again later",
                          options_.queue));
  }
  waiting_.push_back(&ticket);
  grant();
  try {
    while (!ticket.granted) {
      places_.wait_for(lock, kLook);
      if (ticket.granted) break;
      if (closing_) throw RequestError(503, "shutting_down", "the server is shutting down");
      lock.unlock();
      const bool leave = cancelled();
      lock.lock();
      if (leave && !ticket.granted) throw Cancelled();
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    give_up(ticket, client);
    throw;
  }
  return Lease(this, std::move(name));
}

void Engine::give_up(const Ticket& ticket, const std::string& client) {
  if (ticket.granted)
    running_.erase(std::find(running_.begin(), running_.end(), client));
  else
    std::erase(waiting_, &ticket);
  ++counters_.cancelled;
  grant();
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

// ---------------------------------------------------------------- jobs

void Engine::start(std::span<const JobPtr> jobs) {
  const std::lock_guard lock(mutex_);
  jobs_.reserve(jobs_.size() + jobs.size());
  jobs_.insert(jobs_.end(), jobs.begin(), jobs.end());
  if (beat_ == 0) beat();
  work_.notify_all();
}

void Engine::process(std::span<const BatchEntry> tokens, const CancelCheck& cancelled,
                     const Progress& progress) {
  std::vector<JobPtr> jobs;
  for (const BatchEntry& entry : tokens) jobs.push_back(std::make_shared<Job>(entry));
  const CancelCheck look = [&] {
    if (progress) progress(jobs.front()->processed());
    return cancelled();
  };
  const CancelCheck leave = [] { return true; };
  std::vector<Job::Piece> none;
  std::exception_ptr error;
  start(jobs);
  for (const JobPtr& job : jobs) {  // the engine owns the sessions until each job is over
    try {
      while (job->wait(none, error == nullptr ? look : leave)) {
      }
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
    }
  }
  if (error != nullptr) std::rethrow_exception(error);
}

void Engine::work(Step step, const CancelCheck& cancelled) {
  const JobPtr job = std::make_shared<Job>(std::move(step));
  start({&job, 1});
  std::vector<Job::Piece> none;
  while (job->wait(none, cancelled)) {
  }
}

void Engine::beat() { beat_ = tool::seconds(); }

double Engine::heartbeat_age() const {
  const double beat = beat_;
  return beat == 0 ? 0 : std::max(0.0, tool::seconds() - beat);
}

// Returns false once the engine is closing and has no jobs left.
bool Engine::wait_for_jobs() {
  std::unique_lock lock(mutex_);
  if (jobs_.empty()) beat_ = 0;
  work_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
  return !jobs_.empty();
}

// Runs in the engine's thread. An error that no single job has caused ends all of them, but not the
// thread.
void Engine::run() {
  while (wait_for_jobs()) {
    beat();
    try {
      pass();
    } catch (...) {
      end_all(std::current_exception());
    }
    for (std::vector<JobPtr>* jobs : {&present_, &ready_, &prompts_, &steps_}) jobs->clear();
  }
}

void Engine::end(const JobPtr& job, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    std::erase(jobs_, job);
  }
  job->finish(std::move(error));
}

void Engine::end_all(const std::exception_ptr& error) {
  std::vector<JobPtr> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs.swap(jobs_);
  }
  for (const JobPtr& job : jobs) job->finish(error);
}

// Returns the number of prompt tokens per pass with which replies keep their pace. Clocks affect
// only the speed, never the result. Many rows fill whole tiles of the products.
int64_t Engine::prompt_budget(size_t replies) const {
  if (replies == 0) return options_.chunk;
  const auto beside = static_cast<int64_t>(replies), tile = static_cast<int64_t>(kTileRows);
  int64_t rows = static_cast<int64_t>(budget_) + beside;
  if (rows > static_cast<int64_t>(kGemvRows)) rows = (rows + tile / 2) / tile * tile;
  return std::clamp(rows - beside, kLeastPromptTokens, options_.chunk);
}

// Learns from the time of a pass. Estimates the time of passes with replies only, and the number of
// prompt tokens that make a pass `slowdown` times as long.
// Passes with drafted tokens count among the costs of these alone.
void Engine::learn(size_t replies, int64_t prompt_tokens, double seconds, PassCosts* costs) {
  const size_t rows = detail::rows_of(batch_);
  if (costs != nullptr) costs->add(rows, seconds);
  if (rows > replies + static_cast<size_t>(prompt_tokens)) return;
  if (prompt_tokens == 0)
    reply_seconds_ = reply_seconds_ == 0 ? seconds : 0.95 * reply_seconds_ + 0.05 * seconds;
  if (replies == 0 || prompt_tokens < kLeastPromptTokens || reply_seconds_ == 0) return;
  const double more = std::max(seconds - reply_seconds_, 0.1 * seconds),
               room = options_.slowdown * reply_seconds_ - seconds;
  budget_ += 0.3 * std::min(room / more, 1.0) * static_cast<double>(prompt_tokens);
  budget_ = std::clamp(budget_, static_cast<double>(kLeastPromptTokens),
                       static_cast<double>(options_.chunk));
}

// Draws the next token of every reply, and sorts the jobs by kind. Finished jobs end here.
void Engine::sort_jobs() {
  {
    const std::lock_guard lock(mutex_);
    present_ = jobs_;
  }
  for (const JobPtr& job : present_) {
    std::exception_ptr error;
    bool over = false;
    {
      const std::lock_guard lock(job->mutex_);
      over = job->cancelled_;
    }
    if (!over && job->reply_ != nullptr && !job->next_) {
      try {
        over = !draw(*job);
      } catch (...) {
        error = std::current_exception();
        over = true;
      }
    }
    if (over)
      end(job, error);
    else
      (job->reply_ != nullptr ? ready_ : job->step_ ? steps_ : prompts_).push_back(job);
  }
}

// Draws tokens up to one that needs a pass. Returns false if the reply has ended.
bool Engine::draw(Job& job) {
  for (;;) {
    const std::optional<int32_t> id = job.reply_->draw();
    if (!id) return false;
    job.next_ = id;
    if (!job.reply_->accept(*id)) return true;
    {  // before it is published, so that the counters include it
      const std::lock_guard lock(mutex_);
      ++counters_.accepted_tokens;
      ++counters_.drawn_tokens;
    }
    advance(job, 1);
  }
}

// Adds drafts to a pass of replies alone: beside prompts, rows are not free. Returns the costs to
// which its time can be added, or null.
PassCosts* Engine::draft() {
  if (!options_.drafter || !prompts_.empty() || batch_.empty()) return nullptr;
  drawing_.clear();
  for (const JobPtr& job : ready_) drawing_.push_back(job->reply_);
  return detail::add_drafts(
      drawing_, batch_,
      batch_.size() > 1 ? options_.draft_slowdown : std::numeric_limits<double>::infinity());
}

// Runs one pass: the next token of every reply and a part of one or more prompts, which take turns.
// Then runs one step of other work.
void Engine::pass() {
  sort_jobs();
  const size_t replies = ready_.size();
  batch_.clear();
  for (const JobPtr& job : ready_) batch_.push_back({job->tokens_.session, {&*job->next_, 1}});
  const double before = tool::seconds();
  PassCosts* const costs = draft();
  const double drafting = tool::seconds() - before;
  int64_t budget = prompt_budget(replies), prompt_tokens = 0;
  for (size_t i = 0; i < prompts_.size() && budget > 0; ++i) {
    const JobPtr& job = prompts_[(turn_ + i) % prompts_.size()];
    const std::span<const int32_t> rest = job->tokens_.ids.subspan(static_cast<size_t>(job->done_));
    const std::span<const int32_t> part =
        rest.first(std::min(rest.size(), static_cast<size_t>(budget)));
    batch_.push_back({job->tokens_.session, part, job->tokens_.watch});
    ready_.push_back(job);
    budget -= static_cast<int64_t>(part.size());
    prompt_tokens += static_cast<int64_t>(part.size());
  }
  if (!steps_.empty()) run_step(steps_[turn_ % steps_.size()]);
  ++turn_;
  if (batch_.empty()) return;
  const int64_t first = batch_[0].session->size();
  const double start = tool::seconds();
  const bool together = append_together();
  const double took = tool::seconds() - start;
  learn(replies, prompt_tokens, took, costs);
  if (options_.prompt_took && replies == 0 && batch_.size() == 1 &&
      prompt_tokens >= kLeastPromptTokens)
    options_.prompt_took(first, prompt_tokens, took);
  {  // before the results are published, so that the counters include them
    const std::lock_guard lock(mutex_);
    ++counters_.passes;
    counters_.batch = batch_.size();
    counters_.prompt_tokens += static_cast<uint64_t>(prompt_tokens);
    counters_.drawn_tokens += replies;
    for (const BatchEntry& entry : batch_) counters_.drafted_tokens += entry.draft.size();
    counters_.busy_seconds += drafting + took;
  }
  advance_all(together);
}

void Engine::run_step(const JobPtr& job) {
  std::exception_ptr error;
  beat();
  try {
    if (job->step_()) return;
  } catch (...) {
    error = std::current_exception();
  }
  end(job, error);
}

bool Engine::append_together() {
  try {
    append(batch_, pass_options_);
    return true;
  } catch (...) {
    return false;
  }
}

// Appends to the sessions. If they fail together, appends one by one, so that only the faulty ones
// fail.
void Engine::advance_all(bool together) {
  for (size_t i = 0; i < batch_.size(); ++i) {
    const JobPtr& job = ready_[i];
    std::exception_ptr error;
    try {
      if (!together) append({&batch_[i], 1}, pass_options_);
      advance(*job, batch_[i].ids.size());
    } catch (...) {
      error = std::current_exception();
    }
    const bool done =
        job->reply_ == nullptr && static_cast<size_t>(job->done_) == job->tokens_.ids.size();
    if (error != nullptr || done) end(job, error);
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
  if (job.last_token_ > 0) token_seconds_.add(now - job.last_token_);
  job.last_token_ = now;
  const std::lock_guard lock(job.mutex_);
  job.pieces_.push_back({id, job.reply_->certain()});
  job.changed_.notify_all();
}

}  // namespace stet::serve

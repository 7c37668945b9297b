#include "src/store/fetch.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "src/store/clock.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

constexpr size_t kThreads = 2;      // concurrent requests
constexpr int64_t kMostAtOnce = 8;  // blocks in one request
constexpr double kLeastWait = 5;    // seconds, for callers that wait

}  // namespace

std::vector<Sha256> places_of(const Store& store, std::span<const Sha256> identities,
                              const StateRecord* record) {
  if (record != nullptr && record->blocks.size() == identities.size()) return record->blocks;
  std::vector<Sha256> places;
  for (const Sha256& identity : identities) places.push_back(store.place(identity));
  return places;
}

BlockFetch::BlockFetch(Store& store, std::vector<Wanted> wanted, uint64_t bytes,
                       MissingBlocks meanwhile)
    : store_(store),
      bytes_(bytes),
      meanwhile_(meanwhile),
      until_(seconds_now() + std::max(kLeastWait, store.meter().policy().compute_seconds(
                                                      0, static_cast<int64_t>(wanted.size())))) {
  for (Wanted& w : wanted) items_.push_back({w});
  try {
    while (threads_.size() < std::min(kThreads, items_.size()))
      threads_.emplace_back([this] { run(); });
  } catch (const std::system_error& e) {
    const std::lock_guard lock(mutex_);
    if (threads_.empty()) fault_ = std::string("no thread to fetch with: ") + e.what();
  }
}

BlockFetch::~BlockFetch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void BlockFetch::run() {
  for (std::vector<size_t> some; !(some = choose()).empty();) {
    std::vector<Sha256> places;
    for (const size_t i : some) places.push_back(items_[i].wanted.place);
    const double asked = seconds_now();
    try {
      settle(some, store_.request(places, stop_), asked);
    } catch (const Error& e) {
      return fail(e.what(), e.kind == ErrorKind::io, some.size() * bytes_, seconds_now() - asked);
    } catch (const std::exception& e) {
      return fail(e.what(), false, 0, 0);
    }
  }
}

std::vector<size_t> BlockFetch::waiting() const {
  std::vector<size_t> found;
  for (size_t i = front_; i < items_.size(); ++i) {
    if (items_[i].stage == Stage::waiting) found.push_back(i);
  }
  return found;
}

// Returns how many of the first waiting blocks the caller should compute.
int64_t BlockFetch::to_compute(const std::vector<size_t>& waiting) const {
  if (meanwhile_ == MissingBlocks::wait || store_.fetch_choice() == FetchChoice::always) return 0;
  const FetchPolicy policy = store_.meter().policy();
  return policy.plan(items_[waiting[0]].wanted.index, static_cast<int64_t>(waiting.size()), bytes_)
      .computed;
}

// Returns the blocks that a thread requests next, in order; nothing once none is left. If all
// blocks should be computed, requests the last one once. Only such a probe reveals that a slow
// store has become fast.
std::vector<size_t> BlockFetch::choose() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::vector<size_t> some = waiting();
    if (stop_ || !fault_.empty() || some.empty()) return {};
    const auto left = static_cast<size_t>(to_compute(some));
    const bool probe = left == some.size() && left > 1 && !probed_;
    some.erase(some.begin(), some.begin() + static_cast<std::ptrdiff_t>(probe ? left - 1 : left));
    if (!some.empty()) {
      probed_ = probed_ || probe;
      items_[some[0]].probe = probe;
      const FetchPolicy policy = store_.meter().policy();
      const int64_t most = policy.has_fetch_cost()
                               ? policy.batch(items_[some[0]].wanted.index, kMostAtOnce, bytes_)
                               : 1;
      some.resize(std::min(some.size(), static_cast<size_t>(most)));
      for (const size_t i : some) items_[i].stage = Stage::coming;
      return some;
    }
    changed_.wait(lock);  // woken when computing has changed the plan
  }
}

void BlockFetch::settle(const std::vector<size_t>& some, std::vector<StoredBlock> found,
                        double asked) {
  const std::lock_guard lock(mutex_);
  const double now = seconds_now(), took = now - std::max(asked, settled_);
  uint64_t bytes = 0;
  for (size_t k = 0; k < some.size(); ++k) {
    Item& item = items_[some[k]];
    bytes += found[k].carried;
    if (item.stage != Stage::coming) continue;  // computed in the meantime
    item.stage = found[k].found() ? Stage::here : Stage::missing;
    item.block = std::move(found[k]);
  }
  settled_ = now;
  stalled_ = false;
  store_.meter().learn([&](FetchPolicy& p) {
    if (stop_) return;  // no caller waited for it
    bytes > 0 ? p.fetched(bytes, took) : p.answered(took);
  });
  changed_.notify_all();
}

// Records a failed request. Its bytes did not arrive within `took`, so fetching costs at least
// that.
void BlockFetch::fail(const std::string& fault, bool io, uint64_t bytes, double took) {
  const std::lock_guard lock(mutex_);
  store_.meter().learn([&](FetchPolicy& p) {
    if (!stop_ && took > p.fetch_seconds(bytes)) p.fetched(bytes, took);
  });
  fault_ = fault;
  error_ = std::current_exception();
  fatal_ = !io;
  changed_.notify_all();
}

BlockFetch::Found BlockFetch::next(size_t i) {
  std::unique_lock lock(mutex_);
  front_ = i;
  changed_.notify_all();
  Item& item = items_[i];
  const bool always = store_.fetch_choice() == FetchChoice::always,
             chooses = !always && meanwhile_ == MissingBlocks::compute;
  const double patience = store_.meter().policy().max_wait_seconds(item.wanted.index),
               until = chooses ? seconds_now() + patience : until_;
  const auto give_up = [&](Found why) {
    item.stage = Stage::abandoned;
    changed_.notify_all();
    return why;
  };
  for (;;) {
    if (fatal_) std::rethrow_exception(error_);
    if (item.stage == Stage::here) return Found::here;
    if (item.stage == Stage::missing) return Found::missing;
    if (!fault_.empty()) return give_up(Found::failed);
    if (chooses && (item.probe || (item.stage == Stage::waiting && to_compute(waiting()) > 0)))
      return give_up(Found::faster);
    if (always) {  // limited only by the store's timeouts
      changed_.wait(lock);
      continue;
    }
    if ((chooses && stalled_) || seconds_now() >= until) {
      stalled_ = true;
      return give_up(Found::late);
    }
    changed_.wait_for(lock, std::chrono::duration<double>(until - seconds_now()));
  }
}

void BlockFetch::throw_fault() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

std::string BlockFetch::fault() {
  const std::lock_guard lock(mutex_);
  return fault_;
}

}  // namespace stet

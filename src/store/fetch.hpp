// Fetches blocks of a state from a store on threads of its own, while the blocks before them are
// computed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "stet/store/store.hpp"

namespace stet {

// Options for a missing block: compute it at once from those before it, or wait and compute all
// missing ones later.
enum class MissingBlocks { compute, wait };

// Returns the places of blocks and anchors that restoring a state can fetch, in the order in which
// put_session() stores them. They are those of `record` if it lists as many: the salt of its writer
// may be another one. `record` may be null.
std::vector<Sha256> places_of(const Store& store, std::span<const Sha256> identities,
                              const StateRecord* record);

class BlockFetch {
 public:
  struct Wanted {
    Sha256 place;
    int64_t index;  // index of the block in its state
  };
  // Fetches `wanted` in order. A block has `bytes` bytes.
  BlockFetch(Store& store, std::vector<Wanted> wanted, uint64_t bytes, MissingBlocks meanwhile);
  ~BlockFetch();
  BlockFetch(const BlockFetch&) = delete;
  BlockFetch& operator=(const BlockFetch&) = delete;

  enum class Found {
    here,     // fetched: take() returns it
    missing,  // the store does not have it, or it is damaged
    faster,   // computing is faster than fetching
    late,     // did not arrive within the time of computing it
    failed    // the store could not be reached; see fault()
  };
  // Waits for the outcome of block `i`. Call it once for each block, in order: blocks before `i`
  // must be present then. If the outcome is not `here`, the block is no longer fetched. Rethrows
  // what a request threw, except io Errors.
  Found next(size_t i);
  StoredBlock take(size_t i) { return std::move(items_[i].block); }
  std::string fault();
  void throw_fault();  // does nothing if there was no fault

 private:
  enum class Stage { waiting, coming, here, missing, abandoned };
  struct Item {
    Wanted wanted;
    Stage stage = Stage::waiting;
    bool probe = false;  // fetched only to measure the cost: not waited for
    StoredBlock block{};
  };

  void run();
  std::vector<size_t> choose();
  std::vector<size_t> waiting() const;
  int64_t to_compute(const std::vector<size_t>& waiting) const;
  void settle(const std::vector<size_t>& some, std::vector<StoredBlock> found, double asked);
  void fail(const std::string& fault, bool io, uint64_t bytes, double took);

  Store& store_;
  const uint64_t bytes_;
  const MissingBlocks meanwhile_;
  const double until_;  // deadline for callers that wait
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Item> items_;
  size_t front_ = 0;      // blocks before this one are present
  double settled_ = 0;    // time of the last answer
  bool stalled_ = false;  // nothing has arrived since a block was late
  bool probed_ = false;
  std::string fault_;
  std::exception_ptr error_;
  bool fatal_ = false;  // the error is not the store's
  std::vector<std::thread> threads_;
};

}  // namespace stet

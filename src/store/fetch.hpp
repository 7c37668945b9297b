// Blocks of a state on their way out of a store, by threads of their own, while those before them
// are computed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "stet/store/store.hpp"

namespace stet {

// What a block that is missing can be had by besides: by computing it from those before it, while
// others come; or later, with whatever else is missing then.
enum class Meanwhile { compute, wait };

class BlockFetch {
 public:
  struct Wanted {
    Sha256 identity;
    int64_t index;  // of the block in its state
  };
  // In order. `bytes`: of a block.
  BlockFetch(Store& store, std::vector<Wanted> wanted, uint64_t bytes, Meanwhile meanwhile);
  ~BlockFetch();
  BlockFetch(const BlockFetch&) = delete;
  BlockFetch& operator=(const BlockFetch&) = delete;

  enum class Found {
    here,    // take() it
    gone,    // the store does not have it, or only damaged
    faster,  // to compute than to fetch
    late,    // it has not come in the time that computing it takes
    failed   // the store could not be asked: fault()
  };
  // Waits until one of these is so. To be asked once of each, in order: those before `i` are there
  // then. Where it is not here, nobody fetches it any more. Throws what a request threw, but for io
  // Errors.
  Found next(size_t i);
  StoredBlock take(size_t i) { return std::move(items_[i].block); }
  std::string fault();
  void throw_fault();  // where there is one

 private:
  enum class Stage { waiting, coming, here, gone, given_up };
  struct Item {
    Wanted wanted;
    Stage stage = Stage::waiting;
    bool probe = false;  // fetched to see what that costs now: not waited for
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
  const Meanwhile meanwhile_;
  const double until_;  // for those who cannot compute meanwhile
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Item> items_;
  size_t front_ = 0;      // those before it are there
  double settled_ = 0;    // when the last answer came
  bool doubted_ = false;  // nothing has come since one was late
  bool probed_ = false;
  std::string fault_;
  std::exception_ptr error_;
  bool fatal_ = false;  // it is not about the store
  std::vector<std::thread> threads_;
};

}  // namespace stet

// Where the records of a store are kept: a directory, or a server of the Redis protocol. A backend
// keeps bytes by name and vouches for nothing; Store (store.hpp) checks what it gives.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/sha256.hpp"
#include "stet/files/mapped_file.hpp"
#include "stet/store/policy.hpp"

namespace stet {

enum class Shelf { blocks, states };  // may be computed again; are what blocks are computed from

struct StoredBytes {
  std::span<const std::byte> bytes;             // a block's at a multiple of 64 in memory
  std::shared_ptr<const void> owner;            // keeps them
  std::shared_ptr<const MappedFile> mapping{};  // where they are those of a file
};
struct ShelfEntry {
  Sha256 name;
  uint64_t bytes = 0;
  int64_t used = 0;  // when it was last written, read or touched, in seconds; 0: not known
};
struct NewRecord {
  Sha256 name;
  std::span<const std::byte> front, payload;
  std::shared_ptr<const MappedFile> file{};  // that holds both, and nothing else; null: none does
};
// Seconds since 1970.
using StoreClock = std::function<int64_t()>;

// How many seconds an answer of a server may take: of what is computed when it does not come, and
// of what is not, which a failover must not lose.
struct StorePatience {
  double read = 5, write = 20;
};

// A policy that threads share: what they have measured, and what follows from it.
class FetchMeter {
 public:
  explicit FetchMeter(const FetchCosts& assumed) : policy_(assumed) {}

  FetchPolicy policy() const {
    const std::lock_guard lock(mutex_);
    return policy_;
  }
  // tell(FetchPolicy&)
  template <class Tell>
  void learn(Tell tell) {
    const std::lock_guard lock(mutex_);
    tell(policy_);
  }

 private:
  mutable std::mutex mutex_;
  FetchPolicy policy_;
};

// Every call may be made by any number of threads and processes at once, and throws an io Error
// when the store cannot be reached.
class STET_API StoreBackend {
 public:
  explicit StoreBackend(const FetchCosts& assumed = {}) : meter_(assumed) {}
  virtual ~StoreBackend();

  // Of the wire to it, and of this process.
  FetchMeter& meter() { return meter_; }

  virtual const std::string& url() const = 0;
  // Seconds since 1970 by the clock of what keeps the store (a file system's, a server's): those of
  // machines may be wrong, and what was used is compared between them.
  virtual int64_t now() = 0;
  // One for each name; nothing for what is not there.
  virtual std::vector<std::optional<StoredBytes>> read(Shelf shelf,
                                                       std::span<const Sha256> names) = 0;
  // Of blocks: take(i, what was found) once for each, on this thread, while others are on their
  // way. Once `stop` is set nobody waits for them any more: it may throw an io Error then.
  using TakeBlock = std::function<void(size_t i, std::optional<StoredBytes> found)>;
  virtual void read_blocks(std::span<const Sha256> names, const std::atomic<bool>& stop,
                           const TakeBlock& take);
  // How many threads had best read blocks at once, where `threads` are there to do so.
  virtual int readers(int threads) const { return threads; }
  // Which of them are there; those count as used now.
  virtual std::vector<bool> touch(Shelf shelf, std::span<const Sha256> names) = 0;
  // In this order, durably. Blocks for which there is no room are left out; returns how many were
  // kept.
  virtual size_t write(Shelf shelf, std::span<const NewRecord> records) = 0;
  virtual void list(Shelf shelf, const std::function<void(const ShelfEntry&)>& each) = 0;
  // Unless it was used since.
  virtual bool remove(Shelf shelf, const Sha256& name, int64_t unused_since) = 0;

  virtual std::vector<std::string> names() = 0;
  virtual std::optional<std::vector<std::byte>> read_name(const std::string& name) = 0;
  // Where the name holds `expected` (nothing: is not there), it holds `next` from then on (nothing:
  // is gone). False, and nothing has changed, where it holds something else.
  virtual bool replace_name(const std::string& name,
                            const std::optional<std::vector<std::byte>>& expected,
                            const std::optional<std::vector<std::byte>>& next) = 0;

  // States that somebody uses until then, under a name of that somebody's own.
  virtual void lease(const std::string& holder, std::span<const Sha256> states, int64_t until) = 0;
  virtual void release(const std::string& holder) = 0;
  virtual std::vector<Sha256> leased() = 0;  // by leases that have not ended

  // Takes away what a killed process has left half-written before then.
  virtual void tidy(int64_t before) = 0;
  // Lines of "name value" that describe it.
  virtual std::vector<std::pair<std::string, std::string>> about() = 0;

 private:
  FetchMeter meter_;
};

// "dir:PATH" or a path: a directory; "redis://[USER:PASSWORD@]HOST[:PORT][/PREFIX]": a server.
struct StoreUrl {
  enum class Kind { directory, redis } kind = Kind::directory;
  std::string path;  // of a directory
  std::string user, password, host, prefix;
  int port = 6379;
};
STET_API StoreUrl parse_store_url(const std::string& url);

// Makes a new store; throws an argument Error where there is one. `budget`: bytes that the blocks
// of a directory may take, 0 for no limit.
STET_API void create_store(const std::string& url, uint64_t budget);
// `clock`: null for that of what keeps the store.
STET_API std::unique_ptr<StoreBackend> open_store_backend(const std::string& url,
                                                          StoreClock clock = nullptr,
                                                          StorePatience patience = {});

}  // namespace stet

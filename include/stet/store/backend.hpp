// Storage of a store's records: a directory or a Redis-protocol server. A backend keeps bytes by
// name and guarantees nothing; Store (store.hpp) checks what it returns.
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

// The two classes of records. Blocks can be recomputed from states; states cannot.
enum class RecordClass { blocks, states };

// The bytes of a stored record.
struct StoredBytes {
  std::span<const std::byte> bytes;             // blocks are 64-byte aligned in memory
  std::shared_ptr<const void> owner;            // keeps the bytes alive
  std::shared_ptr<const MappedFile> mapping{};  // set if the bytes are mapped from a file
};
// A record in a listing.
struct RecordInfo {
  Sha256 name;
  uint64_t bytes = 0;
  int64_t used = 0;  // time of the last write, read or touch, in seconds; 0: unknown
};
// A record to be written.
struct NewRecord {
  Sha256 name;
  std::span<const std::byte> front, payload;
  std::shared_ptr<const MappedFile> file{};  // contains exactly front and payload; may be null
};
// A clock in seconds since 1970.
using StoreClock = std::function<int64_t()>;

// Timeouts of a server in seconds. A failed read is replaced by recomputing. A failed write is not,
// so its timeout outlasts a failover of the server.
struct StoreTimeouts {
  double read = 5, write = 20;
};

// A FetchPolicy that several threads read and add their measurements to.
class SharedFetchPolicy {
 public:
  explicit SharedFetchPolicy(const FetchCosts& assumed) : policy_(assumed) {}

  FetchPolicy policy() const {
    const std::lock_guard lock(mutex_);
    return policy_;
  }
  // Calls tell(FetchPolicy&) under the lock.
  template <class Tell>
  void learn(Tell tell) {
    const std::lock_guard lock(mutex_);
    tell(policy_);
  }

 private:
  mutable std::mutex mutex_;
  FetchPolicy policy_;
};

// The interface of a backend. Any number of threads and processes may call it at once. Every call
// throws an io Error if the store cannot be reached.
class STET_API StoreBackend {
 public:
  explicit StoreBackend(const FetchCosts& assumed = {}) : meter_(assumed) {}
  virtual ~StoreBackend();

  // Returns the measurements of this process and its connection.
  SharedFetchPolicy& meter() { return meter_; }

  // Makes later calls of read() leave the times of use as they are. An inspection of the whole store
  // would otherwise change what is evicted next.
  void inspect() { inspects_ = true; }

  virtual const std::string& url() const = 0;
  // Returns seconds since 1970 by the clock of the storage (file system or server). Clocks of
  // machines may be wrong, and times of use are compared between machines.
  virtual int64_t now() = 0;
  // Returns one entry per name, empty if it is missing. Marks these as used now, unless inspect()
  // was called.
  virtual std::vector<std::optional<StoredBytes>> read(RecordClass record_class,
                                                       std::span<const Sha256> names) = 0;
  // Reads blocks and calls take(i, found) once for each, on this thread, while others are still
  // being transferred. Once `stop` is set, the result is no longer needed, and an io Error may be
  // thrown.
  using TakeBlock = std::function<void(size_t i, std::optional<StoredBytes> found)>;
  virtual void read_blocks(std::span<const Sha256> names, const std::atomic<bool>& stop,
                           const TakeBlock& take);
  // Returns the best number of concurrent readers, given `threads` threads.
  virtual int readers(int threads) const { return threads; }
  // Returns which names exist, and marks these as used now.
  virtual std::vector<bool> touch(RecordClass record_class, std::span<const Sha256> names) = 0;
  // Writes records durably, in this order. Omits blocks for which there is no room, or whose place
  // something else takes. Returns the number kept.
  virtual size_t write(RecordClass record_class, std::span<const NewRecord> records) = 0;
  virtual void list(RecordClass record_class,
                    const std::function<void(const RecordInfo&)>& each) = 0;
  // Removes a record unless it was used after `unused_since`.
  virtual bool remove(RecordClass record_class, const Sha256& name, int64_t unused_since) = 0;

  virtual std::vector<std::string> names() = 0;
  virtual std::optional<std::vector<std::byte>> read_name(const std::string& name) = 0;
  // Compare-and-set: replaces the value of a name by `next` (empty: removes it) if it is `expected`
  // (empty: does not exist). Otherwise returns false and changes nothing.
  virtual bool replace_name(const std::string& name,
                            const std::optional<std::vector<std::byte>>& expected,
                            const std::optional<std::vector<std::byte>>& next) = 0;

  // Protects states until a time, under a holder's name.
  virtual void lease(const std::string& holder, std::span<const Sha256> states, int64_t until) = 0;
  virtual void release(const std::string& holder) = 0;
  virtual std::vector<Sha256> leased() = 0;  // states with a lease in force

  // Removes unfinished files that killed processes left before that time.
  virtual void tidy(int64_t before) = 0;
  // Returns (name, value) pairs that describe the storage.
  virtual std::vector<std::pair<std::string, std::string>> about() = 0;

 protected:
  bool inspects() const { return inspects_; }

 private:
  SharedFetchPolicy meter_;
  std::atomic<bool> inspects_{false};
};

// A parsed URL. "dir:PATH" or a path: a directory; "redis://[USER:PASSWORD@]HOST[:PORT][/PREFIX]":
// a server.
struct StoreUrl {
  enum class Kind { directory, redis } kind = Kind::directory;
  std::string path;  // for a directory
  std::string user, password, host, prefix;
  int port = 6379;
};
STET_API StoreUrl parse_store_url(const std::string& url);

// Creates a store. Throws an argument Error if one exists. `budget` limits the bytes of a
// directory's blocks; 0: no limit.
STET_API void create_store(const std::string& url, uint64_t budget);
// Opens a store. `clock` null: the clock of the storage.
STET_API std::unique_ptr<StoreBackend> open_store_backend(const std::string& url,
                                                          StoreClock clock = nullptr,
                                                          StoreTimeouts patience = {});

}  // namespace stet

// A store of states and blocks of keys and values, shared by processes and machines.
//
// A state is a recipe: tokens and settings, and the identities of its blocks. It is kept while a
// name, a name's history, a lease or a descendant refers to it. Blocks may be evicted at any time,
// because they can be recomputed exactly. If a store loses, delays or forges data, this costs time
// but changes no byte.
//
// A record is stored at its place: its identity, or an HMAC of it (StoreKey::salt).
//
//   payload of a state = place of its parent (zeros: none), u64 seconds since 1970, u32 bytes and
//                        text of a note, u32 count and places of blocks, u64 bytes and snapshot
//                        (docs/formats.md)
//   payload of a name  = u32 bytes and text, u32 count and { place of a state, u64 seconds }, the
//                        latest last
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "stet/base/sha256.hpp"
#include "stet/store/backend.hpp"
#include "stet/store/record.hpp"

namespace stet {

// A state's record: the snapshot that restores it, and its relations. A place is the name of a
// record (StoreKey::place).
struct StateRecord {
  Sha256 parent;               // place of the state it was made from; zeros: none
  int64_t created = 0;         // seconds since 1970
  std::string note;            // one line of text for users
  std::vector<Sha256> blocks;  // places of the blocks that restoring can fetch
  std::vector<std::byte> snapshot;
};

// An entry in a name's history.
struct NameEntry {
  Sha256 state;     // place of the state
  int64_t set = 0;  // seconds since 1970
  bool operator==(const NameEntry&) const = default;
};

// A block or anchor from a store, after checking. `bytes` is empty if it is missing or was refused,
// and for a block of a model without attention.
struct StoredBlock {
  RecordKind kind = RecordKind::block;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
  std::shared_ptr<const MappedFile> mapping;
  std::string refused;   // why an existing record was refused
  uint64_t carried = 0;  // size of the record as transferred

  bool found() const { return carried > 0 && refused.empty(); }
};

// Fetching of available blocks: as FetchPolicy decides, or always. Affects only time; `always` is
// for tests and for busy processors.
enum class FetchChoice { by_costs, always };
// Compression of blocks: if the connection is slower than the codec (FetchPolicy), never, or
// always.
enum class StoreEncoding { by_costs, never, always };

// Options of a store.
struct StoreOptions {
  StoreClock clock = nullptr;  // null: the system's
  int threads = 0;             // for sealing and compressing; 0: all processors
  FetchChoice fetch = FetchChoice::by_costs;
  StoreEncoding encoding = StoreEncoding::by_costs;
};

// Options of Store::gc().
struct GcOptions {
  int64_t grace = 14 * 24 * 3600;  // seconds without use before removal
  bool dry_run = false;
  std::function<void()> between;  // called between mark and sweep
};
// The result of Store::gc().
struct GcReport {
  uint64_t states = 0, blocks = 0, bytes = 0;  // removed, or to be removed (dry_run)
  uint64_t kept_states = 0, kept_blocks = 0;
  // Unreadable records of states, each with the name that leads to it. If there are any, nothing is
  // removed, because their parents and blocks are unknown.
  std::vector<std::string> refused;
};

struct StoreTraffic {  // counts since the store was opened
  uint64_t hits = 0, misses = 0, refused = 0, read_bytes = 0, written_bytes = 0;
  uint64_t reads = 0, writes = 0;  // number of requests
  double read_seconds = 0, write_seconds = 0;
};

// A store as seen by one process.
class STET_API Store {
 public:
  Store(std::shared_ptr<StoreBackend> backend, const StoreKey& key,
        const StoreOptions& options = {});
  Store(Store&&) = delete;
  ~Store();

  const std::string& url() const { return backend_->url(); }
  StoreBackend& backend() { return *backend_; }
  Sha256 place(const Sha256& identity) const { return key_.place(identity); }
  // Returns the measured costs of fetching and computing, shared by all stores of one backend.
  SharedFetchPolicy& meter() { return backend_->meter(); }
  FetchChoice fetch_choice() const { return fetch_; }

  struct NewBlock {
    Sha256 identity;
    std::function<std::span<const std::byte>()> bytes;  // called when the bytes are needed
    std::shared_ptr<const MappedFile> mapping{};        // the block's file in a store, if any
    RecordKind kind = RecordKind::block;                // or an anchor
  };
  struct PutReport {
    size_t written = 0, present = 0;
  };
  // Stores blocks that are missing or that this Store has refused. Marks all as used now. A block
  // that is counted as neither was not stored for lack of room.
  PutReport put_blocks(std::span<const NewBlock> blocks);
  // Returns blocks, after checking name, bytes and writers' key.
  std::vector<StoredBlock> blocks(std::span<const Sha256> identities);
  // Returns the blocks or anchors at these places, after the same checks.
  std::vector<StoredBlock> blocks_at(std::span<const Sha256> places);
  // Returns which of these blocks or anchors the store has. They may be damaged.
  std::vector<bool> has_blocks(std::span<const Sha256> identities);
  // The records that a request accepts.
  enum class Accept { blocks, blocks_and_anchors };
  // Returns blocks by one request on this thread. May throw an io Error once `stop` is set.
  std::vector<StoredBlock> request(std::span<const Sha256> places, const std::atomic<bool>& stop,
                                   Accept accept = Accept::blocks);

  // Stores a state and returns its place. Call it after its blocks were stored. An existing
  // undamaged record is kept. Throws the mismatch Error of open_record if it has another key.
  Sha256 put_state(const Sha256& id, const StateRecord& state);
  // Returns a state. Throws an io Error if it does not exist, and what open_record throws.
  StateRecord state(const Sha256& place);
  std::optional<StateRecord> find_state(const Sha256& place);  // empty if it does not exist
  bool has_state(const Sha256& place);
  // Returns the place for a name, or for the first 6 or more digits of a place.
  Sha256 resolve(const std::string& reference);
  std::vector<RecordInfo> states();

  // Returns a name's history, latest last; empty if the name does not exist. Throws what
  // open_record() throws; the text says how to remove such a name.
  std::vector<NameEntry> history(const std::string& name);
  std::vector<std::string> names() { return backend_->names(); }
  // Compare-and-set of a name: sets it to `next` (empty: removes it with its history) if it is
  // `expected` (empty: does not exist). Throws a mismatch Error if it was changed meanwhile, and an
  // io Error if `next` is not in the store.
  void set_name(const std::string& name, const std::optional<Sha256>& expected,
                const std::optional<Sha256>& next);

  // Removes a name with its history, also if it cannot be read. Throws an io Error if it does not
  // exist, and if other writers keep setting it.
  void remove_name(const std::string& name);

  // Protects these states, and what they depend on, until the lease is destroyed or the seconds
  // have passed. Throws an io Error if one of them is not in the store.
  class Lease;
  Lease lease(std::span<const Sha256> states, int64_t seconds);

  GcReport gc(const GcOptions& options);
  int64_t now() const { return clock_(); }
  StoreTraffic traffic() const;

 private:
  struct Marks;
  std::vector<std::byte> sealed_name(const std::string& name,
                                     std::span<const NameEntry> entries) const;
  std::vector<NameEntry> opened_name(const std::string& name,
                                     std::span<const std::byte> bytes) const;
  StoredBlock checked(RecordKind kind, const Sha256& place, const StoredBytes& found);
  std::vector<std::vector<std::byte>> encoded(std::span<const std::span<const std::byte>> blocks);
  std::vector<StoredBlock> read_blocks(std::span<const Sha256> places, Accept accept);
  size_t write_blocks(std::span<const NewBlock* const> blocks);
  void refresh(Sha256 state, const std::optional<Sha256>& known);
  Marks mark(std::vector<std::string>& refused);
  void count(const StoreTraffic& more);
  bool is_undamaged_state(const Sha256& place);

  std::shared_ptr<StoreBackend> backend_;
  const StoreKey key_;
  const int threads_;
  const FetchChoice fetch_;
  const StoreEncoding encoding_;
  StoreClock clock_;
  mutable std::mutex mutex_;
  StoreTraffic traffic_;
  std::set<Sha256> refused_;  // places of blocks to write again
};

// A lease on states; ends when destroyed.
class STET_API Store::Lease {
 public:
  Lease() = default;
  Lease(std::shared_ptr<StoreBackend> backend, std::string holder)
      : backend_(std::move(backend)), holder_(std::move(holder)) {}
  Lease(Lease&&) noexcept = default;
  Lease& operator=(Lease&&) = delete;
  ~Lease();

 private:
  std::shared_ptr<StoreBackend> backend_;
  std::string holder_;
};

}  // namespace stet

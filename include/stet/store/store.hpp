// A store of states and of blocks of keys and values, shared by processes and machines.
//
// A state is a recipe: the tokens and settings that give it, and the identities of its blocks. It
// stays while a name, a name's history, a lease or a descendant leads to it. Blocks may go at any
// time, since they can be computed again, exactly. So whatever a store loses, answers late or
// forges costs time and changes no byte.
//
// Records are called by their places: identities, or (StoreKey::salt) HMACs of them.
//
//   payload of a state = place of its parent (zeros: none), u64 seconds since 1970, u32 bytes and
//                        text of a note, u32 count and places of blocks, u64 bytes and snapshot
//                        (docs/snapshot-format.md)
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

// Of a state, beside the snapshot that restores it.
struct StateRecord {
  Sha256 parent;               // place of the state that it was made from; zeros: none
  int64_t created = 0;         // seconds since 1970
  std::string note;            // a line for people
  std::vector<Sha256> blocks;  // places of what it is computed from, where that is not computed
  std::vector<std::byte> snapshot;
};

struct NameEntry {
  Sha256 state;     // its place
  int64_t set = 0;  // seconds since 1970
  bool operator==(const NameEntry&) const = default;
};

// The bytes of one block and what keeps them. Checked; empty where it is not there.
struct StoredBlock {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
  std::shared_ptr<const MappedFile> mapping;
  std::string refused;   // why a record that is there is not used
  uint64_t carried = 0;  // bytes of its record, as it came
};

// Whether blocks that a store has are fetched: as FetchPolicy decides, or always. Without a choice
// between both, time alone changes; for tests of what is stored, and where processors are busy.
enum class FetchChoice { by_costs, always };
// Whether blocks are compressed: where the wire is slower than the codec (FetchPolicy), or not.
enum class StoreEncoding { by_costs, never, always };

struct StoreOptions {
  StoreClock clock = nullptr;  // null: the system's
  int threads = 0;             // to seal and compress with; 0: all processors
  FetchChoice fetch = FetchChoice::by_costs;
  StoreEncoding encoding = StoreEncoding::by_costs;
};

struct GcOptions {
  int64_t grace = 14 * 24 * 3600;  // seconds since the last use before anything goes
  bool dry_run = false;
  std::function<void()> between;  // called between marking and sweeping
};
struct GcReport {
  uint64_t states = 0, blocks = 0, bytes = 0;  // removed, or (dry_run) to be removed
  uint64_t kept_states = 0, kept_blocks = 0;
  std::vector<std::string> refused;  // records of states that could not be read
};

struct StoreTraffic {  // since the store was opened
  uint64_t hits = 0, misses = 0, refused = 0, read_bytes = 0, written_bytes = 0;
  uint64_t reads = 0, writes = 0;  // requests
  double read_seconds = 0, write_seconds = 0;
};

class STET_API Store {
 public:
  Store(std::shared_ptr<StoreBackend> backend, const StoreKey& key,
        const StoreOptions& options = {});
  Store(Store&&) = delete;
  ~Store();

  const std::string& url() const { return backend_->url(); }
  StoreBackend& backend() { return *backend_; }
  Sha256 place(const Sha256& identity) const { return key_.place(identity); }
  // What fetching and computing cost here. All stores of one backend share it.
  FetchMeter& meter() { return backend_->meter(); }
  FetchChoice fetch_choice() const { return fetch_; }

  struct NewBlock {
    Sha256 identity;
    std::function<std::span<const std::byte>()> bytes;  // asked for where they are to be written
    std::shared_ptr<const MappedFile> mapping{};        // a store's file of this block, if any
  };
  struct PutReport {
    size_t written = 0, present = 0;
  };
  // Those that are not there yet, or that this Store has refused; all count as used now. What is in
  // neither number had no room.
  PutReport put_blocks(std::span<const NewBlock> blocks);
  // Each checked: its name, its bytes and the writers' key.
  std::vector<StoredBlock> blocks(std::span<const Sha256> identities);
  std::vector<StoredBlock> blocks_at(std::span<const Sha256> places);
  // The same by one request on this thread; once `stop` is set, it may throw an io Error.
  std::vector<StoredBlock> request(std::span<const Sha256> places, const std::atomic<bool>& stop);

  // After its blocks. One that is there already stays as it is, unless it is damaged; throws
  // the mismatch Error of open_record where it is not of this key. Returns its place.
  Sha256 put_state(const Sha256& id, const StateRecord& state);
  // Throws an io Error where it is not there, and what open_record throws.
  StateRecord state(const Sha256& place);
  std::optional<StateRecord> find_state(const Sha256& place);  // nothing: it is not there
  bool has_state(const Sha256& place);
  // The place that a name stands for, or whose first digits (6 or more) these are.
  Sha256 resolve(const std::string& reference);
  std::vector<ShelfEntry> states();

  // The latest last; empty where there is no such name.
  std::vector<NameEntry> history(const std::string& name);
  std::vector<std::string> names() { return backend_->names(); }
  // The name stands for `next` from now on (nothing: is removed, with its history) if it stood for
  // `expected` (nothing: for none). Throws a mismatch Error where somebody else was faster, an io
  // Error where `next` is not in the store.
  void set_name(const std::string& name, const std::optional<Sha256>& expected,
                const std::optional<Sha256>& next);

  // What leads from these states stays until the lease is gone, or for that many seconds. Throws an
  // io Error where one of them is not in the store.
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
  StoredBlock checked(const Sha256& place, const StoredBytes& found);
  std::vector<std::vector<std::byte>> encoded(std::span<const std::span<const std::byte>> blocks);
  size_t write_blocks(std::span<const NewBlock* const> blocks);
  void refresh(Sha256 state, const std::optional<Sha256>& known);
  Marks mark(std::vector<std::string>& refused);
  void count(const StoreTraffic& more);
  bool is_sound_state(const Sha256& place);

  std::shared_ptr<StoreBackend> backend_;
  const StoreKey key_;
  const int threads_;
  const FetchChoice fetch_;
  const StoreEncoding encoding_;
  StoreClock clock_;
  mutable std::mutex mutex_;
  StoreTraffic traffic_;
  std::set<Sha256> refused_;  // places of blocks that are to be written again
};

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

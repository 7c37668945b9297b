// States that servers share through a store (docs/store.md), so that any of them can continue any.
// The store never affects replies: blocks that it lacks are computed.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "stet/store/session.hpp"
#include "tools/serve/http.hpp"
#include "tools/serve/mutex.hpp"

namespace stet::serve {

// The information of a state that other servers need.
struct SharedNote {
  std::string parent;
  Json operation;
};

struct SharedState {
  SharedNote note;
  Session session;
  StoreRestoreReport restored;
};

// Says what a server knows about a state in the store.
enum class InStore : uint8_t {
  no,       // it was never put there
  perhaps,  // putting it failed, so that it may be there in part
  found,    // another server has put it there
  put       // this server has put it there
};

class SharedStates {
 public:
  // Clients share their blocks if `together` is true.
  SharedStates(std::shared_ptr<StoreBackend> backend, const StoreKey& key, bool together,
               const StoreOptions& options)
      : backend_(std::move(backend)), key_(key), together_(together), options_(options) {}

  // Returns the secret from which handles are made, so that all servers make the same ones.
  std::string secret() const;

  // Puts a state under its handle. If the store refuses it, which is logged, it stays on this
  // server.
  InStore put(const std::string& client, const std::string& handle, Session& session,
              const Tokenizer* tokenizer, const SharedNote& note);
  // Returns nothing if there is no state of this handle, or the store is unreachable.
  std::optional<SharedState> get(const std::string& client, const std::string& handle,
                                 const std::shared_ptr<const Model>& model,
                                 const RestoreOptions& how);
  // Returns true if the store has no state of this handle. False if it has one, or is unreachable.
  bool lacks(const std::string& client, const std::string& handle);
  // Removes a handle. Returns false if the store is unreachable or refuses that.
  bool remove(const std::string& client, const std::string& handle);
  // Returns a session of the beginning of these tokens, if it is longer than `more_than`.
  std::optional<Session> prefix(const std::string& client,
                                const std::shared_ptr<const Model>& model,
                                const SessionOptions& options, std::span<const int32_t> ids,
                                int64_t more_than);

  // Reports the cost of computing here (FetchPolicy::computed).
  void computed(int64_t first, int64_t tokens, double seconds) {
    backend_->meter().learn([&](FetchPolicy& p) { p.computed(first, tokens, seconds); });
  }

  StoreTraffic traffic() const;
  uint64_t failures() const { return failures_; }
  // Return the full blocks fetched from the store, and those of its states that were computed.
  uint64_t fetched_blocks() const { return fetched_; }
  uint64_t computed_blocks() const { return computed_; }
  FetchPolicy policy() const { return backend_->meter().policy(); }

 private:
  Store& store_of(const std::string& client);
  // Runs work that needs the store. Skips it for a while after the store was unreachable.
  template <class Work>
  bool attempt(Work work);

  const std::shared_ptr<StoreBackend> backend_;
  const StoreKey key_;
  const bool together_;
  const StoreOptions options_;
  mutable Mutex mutex_;
  std::map<std::string, std::unique_ptr<Store>> stores_ STET_GUARDED_BY(mutex_);  // by client
  std::atomic<double> not_before_{0};
  std::atomic<uint64_t> failures_{0}, fetched_{0}, computed_{0};
};

}  // namespace stet::serve

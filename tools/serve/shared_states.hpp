// States that servers share through a store (docs/store.md): what one has answered, another goes on
// with. Whatever the store does, replies are the same; what it does not give is computed.
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

// What a state carries for a server that did not make it.
struct SharedNote {
  std::string parent;
  Json operation;
};

struct SharedState {
  SharedNote note;
  Session session;
  StoreRestoreReport restored;
};

class SharedStates {
 public:
  // With `together`, clients find one another's blocks.
  SharedStates(std::shared_ptr<StoreBackend> backend, const StoreKey& key, bool together,
               const StoreOptions& options)
      : backend_(std::move(backend)), key_(key), together_(together), options_(options) {}

  // Handles are made with it, so that they are the same on every server.
  std::string secret() const;

  // Under its handle. Says on stderr where the store does not take it: then this server alone has
  // it. Returns false where the store did not take it, or has had it before.
  bool put(const std::string& client, const std::string& handle, Session& session,
           const Tokenizer* tokenizer, const SharedNote& note);
  // Nothing where there is none of this handle, or the store cannot be asked.
  std::optional<SharedState> get(const std::string& client, const std::string& handle,
                                 const std::shared_ptr<const Model>& model,
                                 const RestoreOptions& how);
  void remove(const std::string& client, const std::string& handle);
  // A session of the front of these tokens that is longer than `more_than`.
  std::optional<Session> prefix(const std::string& client,
                                const std::shared_ptr<const Model>& model,
                                const SessionOptions& options, std::span<const int32_t> ids,
                                int64_t more_than);

  // What computing costs here (FetchPolicy::computed).
  void computed(int64_t first, int64_t tokens, double seconds) {
    backend_->meter().learn([&](FetchPolicy& p) { p.computed(first, tokens, seconds); });
  }

  StoreTraffic traffic() const;
  uint64_t failures() const { return failures_; }
  // Full blocks of states and prompts that came from it, and of its states that were computed.
  uint64_t fetched_blocks() const { return fetched_; }
  uint64_t computed_blocks() const { return computed_; }
  FetchPolicy policy() const { return backend_->meter().policy(); }

 private:
  Store& store_of(const std::string& client);
  // Work that needs the store: left out for a while after it could not be reached.
  template <class Work>
  bool attempt(Work work);

  const std::shared_ptr<StoreBackend> backend_;
  const StoreKey key_;
  const bool together_;
  const StoreOptions options_;
  mutable Mutex mutex_;
  std::map<std::string, std::unique_ptr<Store>> stores_ STET_GUARDED_BY(mutex_);  // of each client
  std::atomic<double> not_before_{0};
  std::atomic<uint64_t> failures_{0}, fetched_{0}, computed_{0};
};

}  // namespace stet::serve

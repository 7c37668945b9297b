// Sessions into a store, and back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/session/session.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/store/store.hpp"

namespace stet {

struct StorePut {
  Sha256 parent;                         // place of the state that it was made from; zeros: none
  std::string note;                      // a line for people
  const Tokenizer* tokenizer = nullptr;  // in use with the session; null: none
};
struct StorePutReport {
  Sha256 place;  // of the state
  StateDigests digests;
  size_t blocks = 0, written = 0, present = 0;
};
// All full blocks that are not there yet, and the state. Keys and values that tokens do not give go
// into the state itself, which is then a full snapshot.
STET_API StorePutReport put_session(Store& store, Session& session, const StorePut& how);

// A state of a store, and the bytes that its snapshot lies in.
struct StoreSnapshot {
  StateRecord record;
  std::shared_ptr<const Snapshot> snapshot;
};
// Throws what Store::state and Snapshot::parse throw.
STET_API StoreSnapshot open_snapshot(Store& store, const Sha256& place);

struct StoreRestore {
  RestoreReport restored;
  size_t fetched = 0, computed = 0;  // full blocks
  // Why blocks were computed, each reason once: "3 were not in the store", "1 was refused: ...".
  std::vector<std::string> reasons;

  std::string text() const;  // "64 blocks fetched, 2 computed (2 were not in the store)"
};
// The session of that state: blocks of the store, in place where they can be mapped, and the rest
// computed; whatever the store does, the same bytes, proved by the digests that the state carries.
STET_API Session restore_session(Store& store, const Snapshot& snapshot,
                                 std::shared_ptr<const Model> model, const RestoreOptions& how,
                                 StoreRestore* report);

// A session of the longest front of `ids` whose full blocks a store has, where that is longer than
// `more_than` tokens, and fetched faster than computed; else nothing. Throws an io Error where
// nothing came because the store cannot be asked.
STET_API std::optional<Session> fetch_prefix(Store& store, std::shared_ptr<const Model> model,
                                             const SessionOptions& options,
                                             std::span<const int32_t> ids, int64_t more_than);

}  // namespace stet

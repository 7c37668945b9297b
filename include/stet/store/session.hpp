// Saves sessions to a store and restores them from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/session/session.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/store/store.hpp"

namespace stet {

// Options of put_session().
struct StorePutOptions {
  Sha256 parent;                         // place of the state it was made from; zeros: none
  std::string note;                      // one line of text for users
  const Tokenizer* tokenizer = nullptr;  // the session's tokenizer; may be null
};
// The result of put_session().
struct StorePutReport {
  Sha256 place;  // place of the state
  StateDigests digests;
  size_t blocks = 0, written = 0, present = 0;
};
// Stores the session's missing full blocks, then its state. Keys and values that tokens do not
// determine are stored in the state itself, which is then a full snapshot.
STET_API StorePutReport put_session(Store& store, Session& session, const StorePutOptions& how);

// A state from a store, and its snapshot, which owns its bytes.
struct StoreSnapshot {
  StateRecord record;
  std::shared_ptr<const Snapshot> snapshot;
};
// Opens a stored state. Throws what Store::state and Snapshot::parse throw.
STET_API StoreSnapshot open_snapshot(Store& store, const Sha256& place);

// A report of how a session was restored from a store.
struct StoreRestoreReport {
  RestoreReport restored;
  size_t fetched = 0, computed = 0;  // full blocks
  // The reasons why blocks were computed, each once: "3 were not in the store", "1 was refused:
  // ...".
  std::vector<std::string> reasons;

  // for example "64 blocks fetched, 2 computed (2 were not in the store)"
  std::string text() const;
};
// Restores a session. Uses blocks of the store, mapped where possible, and computes the rest. The
// result has the same bytes in any case, proved by the digests in the state. `record`, the state's
// own, finds its blocks also if a tenant has put them; it may be null.
STET_API Session restore_session(Store& store, const Snapshot& snapshot,
                                 std::shared_ptr<const Model> model, const RestoreOptions& how,
                                 StoreRestoreReport* report, const StateRecord* record = nullptr);

// Returns a session of the longest prefix of `ids` whose full blocks are in the store. Returns
// nothing unless it has more than `more_than` tokens and fetching is faster than computing. Throws
// an io Error if the store cannot be reached.
STET_API std::optional<Session> fetch_prefix(Store& store, std::shared_ptr<const Model> model,
                                             const SessionOptions& options,
                                             std::span<const int32_t> ids, int64_t more_than);

}  // namespace stet

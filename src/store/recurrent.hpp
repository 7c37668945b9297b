// Stores and fetches the states of models with recurrent layers. Blocks alone do not give such a
// state: they are fetched up to an anchor, together with it, or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "stet/store/session.hpp"

namespace stet {

// The anchor at the last block end of a state, and its name.
struct StoredAnchor {
  const Anchor* anchor;
  Sha256 name;
};
// Returns nothing if there is no such anchor.
std::optional<StoredAnchor> anchor_to_store(const State& state);

// Restores a recipe from the anchor at its last block end, and computes the tokens after it. Returns
// nothing if the store lacks a part. `record` may be null, as for restore_session().
std::optional<Session> restore_from_anchor(Store& store, const Snapshot& snapshot,
                                           const std::shared_ptr<const Model>& model,
                                           const RestoreOptions& how, const SessionOptions& options,
                                           const StateRecord* record, StoreRestoreReport& report);

// Returns a session of the longest prefix of `ids` that ends at an anchor in the store and has more
// than `more_than` tokens. Returns nothing if there is none, or if a part of it is missing.
std::optional<Session> fetch_to_anchor(Store& store, const std::shared_ptr<const Model>& model,
                                       const SessionOptions& options, std::span<const int32_t> ids,
                                       int64_t more_than);

}  // namespace stet

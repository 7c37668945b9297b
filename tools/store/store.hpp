// --store, and "store:REFERENCE" wherever a snapshot's file is accepted or written.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "stet/session/session.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/store/session.hpp"
#include "tools/options/options.hpp"

namespace stet::tool {

// --store, --store-key, --store-fetch and --store-compress, which stand for the whole process.
void add_store_options(Command& app);

// "" : none was named, neither by --store nor by STET_STORE.
std::string store_url();
// --store-key, STET_STORE_KEY, or stet/store.key of the user's configuration.
std::string store_key_path();
// Opened at the first call. Throws an argument Error where none is named.
Store& the_store();
std::unique_ptr<Store> open_store(const std::string& url);
// As --store-fetch and --store-compress say.
StoreOptions store_options();

bool is_in_store(const std::string& path);  // begins with "store:"
// The recipe of a state of the store, under the path as it was given.
Snapshot open_stored(const std::string& path);
// Its session; a line on stderr says how many blocks were fetched and computed, and why.
Session restore_stored(const Snapshot& snapshot, const std::shared_ptr<const Model>& model,
                       const RestoreOptions& how, RestoreReport* report);
// Before anything is computed: the store can be reached, and the name may be set.
void check_storable(const std::string& path);
// Puts a session into the store, with what this process has opened or put before as its parent, and
// sets the name behind "store:", if there is one. Throws a mismatch Error where somebody else has
// set the name meanwhile: the state is in the store then, too.
StateDigests store_session(Session& session, const Tokenizer* tokenizer, const std::string& path);

// A snapshot's file, or a state of the store; with the parents of a delta, where `with_parents`.
Snapshot open_state(const std::string& path);
Snapshot open_state_with_parents(const std::string& path, const std::optional<std::string>& parent);

}  // namespace stet::tool

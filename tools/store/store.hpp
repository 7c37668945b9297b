// --store, and "store:REFERENCE" in place of a snapshot's file.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "stet/session/session.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/store/session.hpp"
#include "tools/options/options.hpp"

namespace stet::tool {

// Adds --store, --store-key, --store-fetch and --store-compress, which hold for the whole process.
void add_store_options(Command& app);
// Refuses those that a command line gives and cannot use: without a URL, or if it names no state in
// the store. `always` is for a subcommand that uses the store all the same.
void refuse_idle_store_options(Command& app, bool always);

// Returns the URL of --store or STET_STORE, or "".
std::string store_url();
// Returns the path of --store-key, STET_STORE_KEY, or stet/store.key in the user's configuration.
std::string store_key_path();
// Returns the store, which the first call opens. Throws an argument Error without a URL.
Store& the_store();
std::unique_ptr<Store> open_store(const std::string& url);
// Returns the options of --store-fetch and --store-compress.
StoreOptions store_options();

bool is_in_store(const std::string& path);  // true for a path that begins with "store:"
// Opens the recipe of a stored state. Its path is the one given.
Snapshot open_stored(const std::string& path);
// Restores its session. Prints on stderr how many blocks were fetched and computed, and why.
Session restore_stored(const Snapshot& snapshot, const std::shared_ptr<const Model>& model,
                       const RestoreOptions& how, RestoreReport* report);
// Throws unless the store can be reached and the name may be set. Call it before computing.
void check_storable(const std::string& path);
// Puts a session into the store and sets the name after "store:", if given. Its parent is a state
// that this process has opened or put. Throws a mismatch Error if another process has set the name;
// the state is in the store even then.
StateDigests store_session(Session& session, const Tokenizer* tokenizer, const std::string& path);

// Open a snapshot's file or a stored state, the second one with the parents of a delta.
Snapshot open_state(const std::string& path);
Snapshot open_state_with_parents(const std::string& path, const std::optional<std::string>& parent);
// Throws a UsageError for a --parent of a snapshot that is no delta.
void require_delta(const Snapshot& snapshot, const std::optional<std::string>& parent);

}  // namespace stet::tool

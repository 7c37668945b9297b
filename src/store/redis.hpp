// A store on a server of the Redis protocol, or a cluster. P is the prefix of its URL (stet):
//
//   P:store              "stet store 1 ttl SECONDS"
//   P:b:{HASH}:N         chunk N of a block's record, 1 MB each; with a time to live
//   P:s:{HASH}:N         of a state's record; without one
//   P:s:{HASH}:used      when a state was last used, in seconds
//   P:n:NAME             a name's record
//   P:l:HOLDER           a lease: hashes of states; expires
//
// A record's first chunk says how many there are. All chunks of a record are in one slot.
#pragma once

#include <memory>

#include "stet/store/backend.hpp"

namespace stet {

void create_redis_store(const StoreUrl& url);
std::unique_ptr<StoreBackend> open_redis_store(const StoreUrl& url, StoreClock clock,
                                               StorePatience patience);

}  // namespace stet

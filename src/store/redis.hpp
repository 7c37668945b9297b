// A store on a server or a cluster of the Redis protocol. Its keys, with P the prefix of its URL:
//
//   P:store              "stet store 1 ttl SECONDS"
//   P:b:{HASH}:N         chunk N of a block's record, 1 MB each; expires
//   P:s:{HASH}:N         chunk N of a state's record; does not expire
//   P:s:{HASH}:used      when a state was last used, in seconds
//   P:n:NAME             a name's record
//   P:l:HOLDER           a lease: hashes of states; expires
//
// The first chunk holds the record's length. All chunks of a record are in one slot.
#pragma once

#include <memory>

#include "stet/store/backend.hpp"

namespace stet {

void create_redis_store(const StoreUrl& url);
std::unique_ptr<StoreBackend> open_redis_store(const StoreUrl& url, StoreClock clock,
                                               StoreTimeouts patience);

}  // namespace stet

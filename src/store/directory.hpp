// A store in a directory:
//
//   DIR/stet-store       "stet store 1\n", "budget BYTES\n"
//   DIR/blocks/HASH      records (record.hpp), each its own file, written aside, fsynced, renamed
//   DIR/states/HASH
//   DIR/names/NAME
//   DIR/leases/HOLDER    "UNTIL HASH HASH ...\n"
//   DIR/lock             whoever removes or replaces holds it (flock)
//
// The time at which a record was last used is that of its file (mtime). There is no index: what is
// there is what the directory lists. Files have the permissions that the directory has.
#pragma once

#include <memory>
#include <string>

#include "stet/store/backend.hpp"

namespace stet {

void create_directory_store(const std::string& path, uint64_t budget);
std::unique_ptr<StoreBackend> open_directory_store(const std::string& path, StoreClock clock);

}  // namespace stet

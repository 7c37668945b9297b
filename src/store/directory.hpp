// A store in a directory:
//
//   DIR/stet-store       "stet store 1\n", "budget BYTES\n"
//   DIR/blocks/HASH      records (record.hpp), each its own file, written aside, fsynced, renamed
//   DIR/states/HASH
//   DIR/names/NAME
//   DIR/leases/HOLDER    "UNTIL HASH HASH ...\n"
//   DIR/lock             held (flock) to remove or replace files
//
// A record's file time (mtime) is the time of its last use. There is no index: the directory's
// listing says what exists. Files have the permissions of the directory.
#pragma once

#include <memory>
#include <string>

#include "stet/store/backend.hpp"

namespace stet {

void create_directory_store(const std::string& path, uint64_t budget);
std::unique_ptr<StoreBackend> open_directory_store(const std::string& path, StoreClock clock);

}  // namespace stet

// Packed forms of checkpoints, kept in a directory by what they were made of, so that the next
// start maps them (packed.hpp) instead of reading and packing the weights again.
//
//   DIR/packed/NAME/        a packed checkpoint; NAME is the SHA-256 of what it was made of:
//                           content of the files (XXH3-128 of every 64 MiB), and the contract
//   DIR/packed/NAME/stamp   what the system said of its files when they were last known to be
//                           right: device, inode, size, mtime, ctime
//   DIR/files/STAMPS        NAME; called by the stamps of those files and the contract, so that
//                           files that nobody wrote to need not be read to be known
//   DIR/packed/NAME.lock    held by the process that makes the entry
//   DIR/packed/NAME.making  an entry that is being made
//
// All of it may be deleted at any time: what is mapped stays mapped. Nothing else deletes in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "stet/api.h"
#include "stet/files/file_source.hpp"
#include "stet/model/contract.hpp"

namespace stet {

struct CacheUse {
  Contract contract = Contract::f32;  // q8 and q4 round; others keep the weights
  int threads = 0;
  bool check = false;  // compare all digests, even of files that nobody wrote to since
  // Counts the bytes of packed weights that were written; null: nobody asks.
  std::atomic<uint64_t>* written = nullptr;
};

// The checkpoint out of the cache in `directory`, which is made where it is missing; made and put
// there first where it is not in it, or is not whole. Its path stays that of `source`. Weights that
// are packed already are given back as they are. Any number of processes may use one directory: of
// those that want the same entry one makes it, and the others wait. Throws Error: io, and what
// pack_checkpoint() does.
STET_API std::shared_ptr<const FileSource> cached(std::shared_ptr<const FileSource> source,
                                                  const std::string& directory,
                                                  const CacheUse& use = {});

}  // namespace stet

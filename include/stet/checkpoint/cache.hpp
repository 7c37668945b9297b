// A cache directory of packed checkpoints, so that the next start maps them (packed.hpp) instead of
// reading and packing the weights again.
//
//   DIR/packed/NAME/        a packed checkpoint; NAME is the SHA-256 of its sources: content of the
//                           files (XXH3-128 of every 64 MiB), and the contract
//   DIR/packed/NAME/stamp   metadata of its files when they were last verified: device, inode,
//                           size, mtime, ctime
//   DIR/files/STAMPS        contains NAME; named by the stamps of the source files and the
//                           contract, so that unmodified files need not be read
//   DIR/packed/NAME.lock    held by the process that creates the entry
//   DIR/packed/NAME.making  an entry in progress
//
// All of it may be deleted at any time: mapped files stay mapped. stet never deletes entries.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "stet/api.h"
#include "stet/files/file_source.hpp"
#include "stet/model/contract.hpp"

namespace stet {

// Options of cached().
struct CacheOptions {
  Contract contract = Contract::f32;  // q8 and q4 round the weights; others keep them
  int threads = 0;
  bool check = false;  // compare all digests, even of unmodified files
  // Counts the bytes of packed weights written; may be null.
  std::atomic<uint64_t>* written = nullptr;
};

// Returns the packed checkpoint from the cache in `directory`, creating directory and entry if they
// are missing or damaged. Its path is that of `source`. Weights that are already packed are
// returned as they are.
//
// Any number of processes may share one directory: one creates an entry while the others wait.
// Throws an io Error, and what pack_checkpoint() throws.
STET_API std::shared_ptr<const FileSource> cached(std::shared_ptr<const FileSource> source,
                                                  const std::string& directory,
                                                  const CacheOptions& use = {});

}  // namespace stet

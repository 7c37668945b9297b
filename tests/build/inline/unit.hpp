// The interface between prove's programs and their units, each of which is compiled with its own
// flags.
#pragma once

#include <string>

// Returns the digests of logits and cache after a prompt, then the digest of the state after
// sampling, rewinding, forking and pruning. `ids_file` holds a JSON array of token ids.
using Compute = std::string (*)(const std::string& directory, const std::string& contract,
                                const std::string& ids_file, const std::string& kv_type);

std::string compute_fast(const std::string& directory, const std::string& contract,
                         const std::string& ids_file, const std::string& kv_type);
std::string compute_plain(const std::string& directory, const std::string& contract,
                          const std::string& ids_file, const std::string& kv_type);

// Malicious snapshots: files that stet wrote, changed in parts, with correct digests. Including
// this header installs the libFuzzer mutator that makes them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "stet/model/model.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet::fuzz {

// Return the model and the tokenizer of the seeds.
std::string model_directory();
const std::shared_ptr<const Model>& model();
const Tokenizer& tokenizer();
// Returns the parent file of the delta snapshots among the seeds.
const std::string& parent_path();
// Returns a path at which a target may write files.
const std::string& scratch_path();

// A file in memory that has a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes);
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile();
  std::string path() const;
  std::string content() const;

  int descriptor() const { return fd_; }

 private:
  int fd_;
};

}  // namespace stet::fuzz

// Snapshots that mean harm: files that stet wrote, changed part by part, with digests that are
// right again. Whatever includes this gets the mutator that makes them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "stet/model/model.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet::fuzz {

// The model and the tokenizer of the seeds.
std::string model_directory();
const std::shared_ptr<const Model>& model();
const Tokenizer& tokenizer();
// The file that the deltas among them are made from.
const std::string& parent_path();
// Where what is made of an input may be written.
const std::string& scratch_path();

// A file in memory, with a path.
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

// The weights of a checkpoint: all tensors of its files by name.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "stet/api.h"
#include "stet/checkpoint/tensor_source.hpp"

namespace stet {

inline constexpr const char* kPackedName = "packed.safetensors";

// Reads packed.safetensors where there is one, else model.safetensors, the shards that
// model.safetensors.index.json lists in its weight_map, or the parts of a GGUF file (gguf.hpp).
// Files of a directory are mapped, so opening costs the headers alone. Views live as long as it
// does.
class STET_API Checkpoint {
 public:
  // Both throw Error: io, or format for what is not as its format says.
  static Checkpoint open(const std::string& directory);
  static Checkpoint open(const FileSource& source);

  // Returns the names of the files that open() reads, in a fixed order.
  static std::vector<std::string> files_of(const FileSource& source);

  // Returns nullptr when there is none. The view has no bytes where read() makes them.
  const TensorView* find(const std::string& name) const;

  // Returns the tensor, which must have this shape and be f32, bf16 or f16; with `blocks`, or of
  // ggml's. Throws an Error otherwise: format, unsupported or mismatch.
  const TensorView& require(const std::string& name, const std::vector<int64_t>& shape,
                            bool blocks = false) const;

  // Returns a tensor that find() or require() gave, with all its bytes (TensorSource::read).
  OwnedTensor read(const TensorView& tensor) const;
  // Says that bytes in a file were consumed, so that they need not stay in resident memory.
  void drop(const TensorView& tensor) const;

  std::vector<std::string> names() const;  // sorted

  // Returns whether the weights are packed already (packed.hpp), and what the file says of them.
  bool packed() const { return packed_; }
  const std::map<std::string, std::string>& metadata() const { return files_.front()->metadata(); }
  // Returns whether any tensor is in blocks of ggml.
  bool has_blocks() const;

  // Returns the owner of a tensor's bytes in a file, for views that outlive the checkpoint.
  std::shared_ptr<const void> owner_of(const std::string& name) const;

  // Returns the files that the tensors are in.
  std::vector<std::shared_ptr<const FileBytes>> files() const;

  // Returns the path of the one file of weights, of the first, or of the index.
  const std::string& source() const { return source_; }

  // Returns the path of the file that holds the tensor; source() when there is none.
  const std::string& file_of(const std::string& name) const;

 private:
  struct Location {
    const TensorSource* file;
    size_t index;

    const TensorView& view() const { return file->tensors()[index]; }
  };

  const TensorSource& add_file(std::unique_ptr<const TensorSource> file);
  void add_all_of(const TensorSource& file);
  void add_shards(const FileSource& source);
  void split_stacks_of_gpt_oss();

  std::string source_;
  bool packed_ = false;
  std::vector<std::unique_ptr<const TensorSource>> files_;
  std::unordered_map<std::string, Location> locations_;
};

}  // namespace stet

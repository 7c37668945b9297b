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

// The tensors of a checkpoint. Uses packed.safetensors if it exists, otherwise model.safetensors,
// the shards listed in model.safetensors.index.json, or the parts of a GGUF file (gguf.hpp). Files
// of a directory are mapped, so opening reads only headers. Views live as long as the checkpoint.
class STET_API Checkpoint {
 public:
  // Open a checkpoint. Throw an io Error, or a format Error for malformed files.
  static Checkpoint open(const std::string& directory);
  static Checkpoint open(const FileSource& source);

  // Returns the names of the files that open() reads, in a fixed order.
  static std::vector<std::string> files_of(const FileSource& source);

  // Returns null if there is no such tensor. The view has no bytes if read() must produce them.
  const TensorView* find(const std::string& name) const;

  // Returns a tensor, which must have this shape and type f32, bf16 or f16; with `blocks`, also a
  // ggml type. Throws a format, unsupported or mismatch Error otherwise.
  const TensorView& require(const std::string& name, const std::vector<int64_t>& shape,
                            bool blocks = false) const;

  // Returns a tensor from find() or require() with all its bytes (TensorSource::read).
  OwnedTensor read(const TensorView& tensor) const;
  // Reports that a tensor's bytes in a file were consumed and need not stay in resident memory.
  void drop(const TensorView& tensor) const;

  std::vector<std::string> names() const;  // sorted

  // packed() is true if the weights are already packed (packed.hpp), and is_gguf() if they are those
  // of a GGUF file. metadata() is the first file's.
  bool packed() const { return packed_; }
  bool is_gguf() const { return gguf_; }
  const std::map<std::string, std::string>& metadata() const { return files_.front()->metadata(); }
  // Returns true if any tensor has a ggml block type.
  bool has_blocks() const;

  // Returns the owner of a tensor's bytes in a file, for views that outlive the checkpoint.
  std::shared_ptr<const void> owner_of(const std::string& name) const;

  // Returns the files that contain the tensors.
  std::vector<std::shared_ptr<const FileBytes>> files() const;

  // Returns the path of the index, or of the only or first file of weights.
  const std::string& source() const { return source_; }

  // Returns the path of the file that contains the tensor, or source() if there is none.
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
  void derive_recurrent_tensors(const FileSource& source);

  std::string source_;
  bool packed_ = false, gguf_ = false;
  std::vector<std::unique_ptr<const TensorSource>> files_;
  std::unordered_map<std::string, Location> locations_;
};

}  // namespace stet

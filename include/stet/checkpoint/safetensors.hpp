// Checkpoint directories and the safetensors format
// (https://github.com/huggingface/safetensors, section "Format"):
//
//   u64 N, little-endian | N bytes of JSON | data
//   JSON: {"NAME": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//          "__metadata__": {"key": "text", ...}}
//
// Offsets count from the start of the data, which the tensors cover without overlap or hole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "stet/api.h"
#include "stet/checkpoint/tensor.hpp"
#include "stet/files/file.hpp"
#include "stet/files/file_source.hpp"

namespace stet {

// The tensors of one file. All of the header is checked; a format Error says what is wrong.
class STET_API SafeTensors {
 public:
  // The views point into `bytes`, which must outlive them. `file` names it in errors.
  static SafeTensors parse(std::span<const std::byte> bytes, const std::string& file);
  // The same of a file whose data lies elsewhere than behind its header.
  static SafeTensors parse(std::span<const std::byte> header, std::span<const std::byte> data,
                           const std::string& file);

  // nullptr when there is none.
  const TensorView* find(const std::string& name) const;

  const std::vector<TensorView>& tensors() const { return tensors_; }  // in the order of their data
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, size_t> index_;  // into tensors_
  std::map<std::string, std::string> metadata_;
};

inline constexpr const char* kPackedName = "packed.safetensors";

// The weights of a checkpoint: packed.safetensors where there is one, else model.safetensors, or
// the shards that model.safetensors.index.json lists in its weight_map. Files of a directory are
// mapped, so opening costs the headers alone. Views live as long as it does.
class STET_API Checkpoint {
 public:
  static Checkpoint open(const std::string& directory);
  static Checkpoint open(const FileSource& source);

  // Names of the files that open() reads, in a fixed order.
  static std::vector<std::string> files_of(const FileSource& source);

  // nullptr when there is none.
  const TensorView* find(const std::string& name) const;

  // The tensor, which must have this shape and be f32, bf16 or f16; with `blocks`, or of ggml's.
  const TensorView& require(const std::string& name, const std::vector<int64_t>& shape,
                            bool blocks = false) const;

  // Has a tensor's bytes made, where its file makes them when they are asked for (GGUF): to be
  // called before they are read.
  void fill(const TensorView& tensor) const;
  // A tensor of this checkpoint for who reads it by row_of(): where its file has the same rows in
  // another order, those, so that nothing is made.
  TensorView read(const TensorView& tensor) const;
  // Says that a tensor's bytes were consumed, so that they need not stay in resident memory.
  void drop(const TensorView& tensor) const;

  std::vector<std::string> names() const;  // sorted

  // Whether the weights are packed already (packed.hpp), and what the file says of them.
  bool packed() const { return packed_; }
  const std::map<std::string, std::string>& metadata() const {
    return shards_.front()->tensors.metadata();
  }
  // The owner of a tensor's bytes, for views that outlive the checkpoint.
  std::shared_ptr<const void> owner_of(const std::string& name) const;

  // The files that the tensors are in.
  std::vector<std::shared_ptr<const FileBytes>> files() const;

  // Path of model.safetensors or of the index.
  const std::string& source() const { return source_; }

  // Path of the file that holds the tensor; source() when there is none.
  const std::string& file_of(const std::string& name) const;

 private:
  struct Shard {
    std::shared_ptr<const FileBytes> file;
    FilePart data;  // no file: behind the header
    SafeTensors tensors;

    bool in_order() const { return data.file != nullptr && data.paired_heads == 0; }
    std::span<const std::byte> bytes_in_file() const {
      return data.file == nullptr ? std::span<const std::byte>()
                                  : data.file->bytes().subspan(data.offset, data.size);
    }
  };
  struct TensorLocation {
    const Shard* shard;
    const TensorView* view;
  };

  const Shard* shard_with(const TensorView& tensor) const;  // null: a view of another's
  const Shard& add_shard(const FileSource& source, const std::string& name);
  void add_shards(const FileSource& source);

  std::string source_;
  bool packed_ = false;
  std::vector<std::unique_ptr<const Shard>> shards_;
  std::unordered_map<std::string, TensorLocation> locations_;
};

struct TensorSpec {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
};

// Streams one file, in constant memory: all tensors are declared, then their data follows in order.
class STET_API SafeTensorsWriter {
 public:
  // Starts a temporary beside `path` (see AtomicFile). Names must be unique UTF-8, dtypes known,
  // sizes within 2^63 - 1 bytes; otherwise an argument Error.
  SafeTensorsWriter(const std::string& path, const std::vector<TensorSpec>& tensors,
                    const std::map<std::string, std::string>& metadata = {});

  // The next bytes of the data; pieces need not end where tensors do. More than was declared is an
  // argument Error.
  void write(std::span<const std::byte> bytes);

  // Makes the file appear. An argument Error if less was written than declared.
  void commit();

 private:
  AtomicFile file_;
  uint64_t expected_ = 0;  // data bytes still to come
};

}  // namespace stet

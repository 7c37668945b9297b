// The safetensors format
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
#include "stet/checkpoint/tensor_source.hpp"
#include "stet/files/file.hpp"

namespace stet {

// The tensors of bytes in this format. All of the header is checked; a format Error says what is
// wrong.
class STET_API SafeTensors {
 public:
  // The views point into `bytes`, which must outlive them. `file` names it in errors.
  static SafeTensors parse(std::span<const std::byte> bytes, const std::string& file);

  // nullptr when there is none.
  const TensorView* find(const std::string& name) const;

  const std::vector<TensorView>& tensors() const { return tensors_; }  // in the order of their data
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, size_t> index_;  // into tensors_
  std::map<std::string, std::string> metadata_;
};

// Opens the tensors of a file. Throws what SafeTensors::parse() does, and a format Error that says
// so for a file that is something else, or that a download left cut off. With `whole_stacks` a
// tensor that has all experts of a layer is one tensor, as the file has it.
STET_API std::unique_ptr<const TensorSource> safetensors_source(
    std::shared_ptr<const FileBytes> file, bool whole_stacks = false);

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

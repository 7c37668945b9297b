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

// The tensors of a safetensors file in memory. The header is fully checked; a format Error names
// the fault.
class STET_API SafeTensors {
 public:
  // Parses `bytes`, which must outlive the views. `file` names them in errors.
  static SafeTensors parse(std::span<const std::byte> bytes, const std::string& file);

  // Returns null if there is no such tensor.
  const TensorView* find(const std::string& name) const;

  const std::vector<TensorView>& tensors() const { return tensors_; }  // in order of their data
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, size_t> index_;  // indices into tensors_
  std::map<std::string, std::string> metadata_;
};

// Opens the tensors of a file. Throws what SafeTensors::parse() throws, and a format Error that
// says so if the file has another format or a truncated download. With `whole_stacks`, a tensor that
// holds all experts of a layer stays one tensor, as in the file.
STET_API std::unique_ptr<const TensorSource> safetensors_source(
    std::shared_ptr<const FileBytes> file, bool whole_stacks = false);

// A tensor to be written: name, type and shape.
struct TensorSpec {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
};

// Writes one file in constant memory: all tensors are declared first, then their data follows in
// order.
class STET_API SafeTensorsWriter {
 public:
  // Creates a temporary file beside `path` (see AtomicFile). Throws an argument Error unless names
  // are unique UTF-8, dtypes are known and sizes are within 2^63 - 1 bytes.
  SafeTensorsWriter(const std::string& path, const std::vector<TensorSpec>& tensors,
                    const std::map<std::string, std::string>& metadata = {});

  // Writes the next bytes of the data; pieces need not end where tensors do. Throws an argument
  // Error for more than was declared.
  void write(std::span<const std::byte> bytes);

  // Completes the file. Throws an argument Error if less was written than declared.
  void commit();

 private:
  AtomicFile file_;
  uint64_t expected_ = 0;  // data bytes not yet written
};

}  // namespace stet

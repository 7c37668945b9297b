// Reading and writing packed.safetensors (include/stet/checkpoint/packed.hpp).
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stet/checkpoint/checkpoint.hpp"
#include "stet/files/file.hpp"
#include "stet/model/matrix.hpp"
#include "stet/model/ops.hpp"

namespace stet {

inline constexpr const char* kPackedFormat = "stet packed weights";

// The contract that the weights are for: f32, q8, q4 or ggml. Throws Error unless the file says
// that it is of the format and version that are read.
Contract packed_contract(const Checkpoint& checkpoint);
// Whether the file has a matrix of that name.
bool has_packed_matrix(const Checkpoint& checkpoint, const std::string& name);
// The matrix of that name, in place. `type`: what it must be; null: not quantized, but for `any`.
// Throws Error: format or mismatch.
Matrix packed_matrix(const Checkpoint& checkpoint, const std::string& name,
                     std::optional<WeightType> type, bool any, size_t rows, size_t columns);
// The same of any type; and that type.
Matrix packed_matrix(const Checkpoint& checkpoint, const std::string& name, size_t rows,
                     size_t columns);
WeightType packed_type(const Checkpoint& checkpoint, const std::string& name);
// Returns what stands in the metadata under "fingerprint:GROUP". Throws a format Error for what is
// no SHA-256.
std::string packed_fingerprint(const Checkpoint& checkpoint, const std::string& group);

// Compares all matrices and vectors with their digests; see packed.hpp.
size_t check_packed(const Checkpoint& checkpoint, int threads);

// Streams the file: tensors in the order in which they come, the header, for which room is left, at
// the end.
class PackedWriter {
 public:
  // Room for a header that names every tensor of `checkpoint`. `written` counts bytes, if not null.
  PackedWriter(const std::string& path, const Checkpoint& checkpoint,
               std::atomic<uint64_t>* written = nullptr);
  void add(const std::string& name, const Matrix& matrix);
  void add(const TensorView& tensor);  // a vector, whose bytes are copied
  void note_fingerprint(const std::string& group, const std::string& name);
  void note_contract(Contract contract);
  void commit();

 private:
  void pad();

  AtomicFile file_;
  size_t header_bytes_;
  std::atomic<uint64_t>* written_;
  std::string entries_;
  struct Written {
    TensorView tensor;
    std::vector<std::byte> bytes;
  };
  std::vector<Written> vectors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace stet

// Reads and writes packed.safetensors (include/stet/checkpoint/packed.hpp).
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

// Returns the contract that the weights were packed for: f32, q8, q4 or ggml. Throws Error unless
// the file's format and version are known.
Contract packed_contract(const Checkpoint& checkpoint);
// Returns whether the file has a matrix of that name.
bool has_packed_matrix(const Checkpoint& checkpoint, const std::string& name);
// Returns the matrix of that name, in place. Its type must be `type`. Without a `type`, the matrix
// must not be quantized unless `any` is set. Throws a format or mismatch Error.
Matrix packed_matrix(const Checkpoint& checkpoint, const std::string& name,
                     std::optional<WeightType> type, bool any, size_t rows, size_t columns);
// Return the matrix of that name, whatever its type, and its type.
Matrix packed_matrix(const Checkpoint& checkpoint, const std::string& name, size_t rows,
                     size_t columns);
WeightType packed_type(const Checkpoint& checkpoint, const std::string& name);
// Returns the metadata field "fingerprint:GROUP". Throws a format Error unless it is a SHA-256.
std::string packed_fingerprint(const Checkpoint& checkpoint, const std::string& group);

// Compares all matrices and vectors with their digests (see include/stet/checkpoint/packed.hpp).
size_t check_packed(const Checkpoint& checkpoint, int threads);

// Streams a packed file. Writes each matrix when it is added. commit() then writes the vectors, and
// the header into the space that was left for it at the front.
class PackedWriter {
 public:
  // Leaves space for a header that names every tensor of `checkpoint`. Keeps the number of bytes
  // written so far in `written`, unless that is null.
  PackedWriter(const std::string& path, const Checkpoint& checkpoint,
               std::atomic<uint64_t>* written = nullptr);
  void add(const std::string& name, const Matrix& matrix);
  void add(const TensorView& tensor);  // adds a vector by copying its bytes
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

// Reading and writing packed.safetensors (include/stet/packed.hpp).
#pragma once

#include <map>
#include <string>

#include "stet/file.hpp"
#include "stet/matrix.hpp"
#include "stet/ops.hpp"
#include "stet/safetensors.hpp"

namespace stet {

inline constexpr const char* kPackedFormat = "stet packed weights";

// Throws Error unless the file says that it is of the format and version that are read.
void check_packed_version(const Checkpoint& checkpoint);
// The matrix of that name, in place. Throws Error: format or mismatch.
Matrix packed_matrix(const Checkpoint& checkpoint, const std::string& name, size_t rows, size_t columns);
// The digest that stands in the metadata under "weights:GROUP"; false when there is none.
bool packed_fingerprint(const Checkpoint& checkpoint, const std::string& group, Digest* digest);

// Streams the file: tensors in the order in which they come, the header, for which room is left, at the end.
class PackedWriter {
 public:
  // Room for a header that names every tensor of `checkpoint`.
  PackedWriter(const std::string& path, const Checkpoint& checkpoint);
  void add(const std::string& name, const Matrix& matrix);
  void add(const TensorView& tensor);  // of the checkpoint
  void note_group(const std::string& group, const Digest& digest);
  void note_contract(Contract contract);
  void commit();

 private:
  void pad();

  AtomicFile file_;
  size_t header_bytes_;
  std::string entries_;
  std::vector<const TensorView*> vectors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace stet

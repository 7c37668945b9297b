// Writes float32 tensors part by part, as one safetensors file or a directory of .npy files.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stet/checkpoint/safetensors.hpp"
#include "stet/files/file.hpp"

namespace stet::tool {

struct NamedShape {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;
  // Writes elements of tensor `index` from `offset` on.
  virtual void write(size_t index, size_t offset, std::span<const std::byte> elements) = 0;
  virtual void commit() = 0;
};

// Makes a file, or for a path that ends with "/" a directory of .npy files.
std::unique_ptr<TensorFile> make_tensor_file(const std::string& path,
                                             const std::vector<NamedShape>& tensors,
                                             const std::map<std::string, std::string>& metadata);

// One tensor of a safetensors file, converted to float32.
struct LoadedTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
class TensorSource {
 public:
  explicit TensorSource(const std::string& path);
  // Throws a format Error if the tensor is missing or is no f32, bf16 or f16.
  LoadedTensor load(const std::string& name) const;
  const SafeTensors& tensors() const { return *tensors_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  FileContent content_;
  std::unique_ptr<SafeTensors> tensors_;
};

}  // namespace stet::tool

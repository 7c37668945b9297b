// The tensors of one file of any format. Each format has a function that opens it:
// safetensors_source() (also for packed files), and gguf_tensors() in src/gguf.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/files/file_source.hpp"
#include "stet/files/tensor.hpp"

namespace stet {

// The tensors of one file. Immutable: any number of threads may use one at once.
class STET_API TensorSource {
 public:
  TensorSource(std::shared_ptr<const FileBytes> file, std::vector<TensorView> tensors,
               std::map<std::string, std::string> metadata = {})
      : file_(std::move(file)), tensors_(std::move(tensors)), metadata_(std::move(metadata)) {}
  virtual ~TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;

  // Returns names, types and shapes as published. A view has no bytes if the file stores them in
  // another form.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // Returns the file's metadata, by key.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::shared_ptr<const FileBytes>& file() const { return file_; }

  // Returns the tensor at `index` of tensors() with all its bytes. They are the file's, whose rows
  // may be in another order (TensorView::paired_heads), or newly filled memory.
  virtual OwnedTensor read(size_t index) const {
    OwnedTensor tensor;
    tensor.view = tensors_[index];
    return tensor;
  }

 private:
  std::shared_ptr<const FileBytes> file_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace stet

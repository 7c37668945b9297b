// A checkpoint taken apart, to be put together in another way.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "stet/checkpoint/safetensors.hpp"

namespace stet::test {

class CheckpointParts {
 public:
  // Reads config.json and model.safetensors of tests/data/models/NAME.
  explicit CheckpointParts(const std::string& name);

  // Replaces the first `from` in the names of all tensors.
  void rename(const std::string& from, const std::string& to);
  // Replaces "AT.N.NAME.weight" of all experts N and each of `names` in turn by one tensor.
  void stack(const std::string& at, int64_t experts, const std::vector<std::string>& names,
             const std::string& to);
  // Adds a float32 tensor of reproducible numbers, uniform in -size .. size.
  void add(const std::string& name, const std::vector<int64_t>& shape, float size);
  void remove(const std::string& name) { take(name); }
  // Keeps the first `count` layers.
  void keep_layers(int64_t count);
  // Cuts all float32 tensors to bfloat16.
  void cut_to_bf16();

  struct Tensor {
    TensorSpec spec;
    std::vector<std::byte> bytes;
  };
  std::vector<Tensor>& tensors() { return tensors_; }
  // Returns the bytes of a tensor.
  std::vector<std::byte>& bytes(const std::string& name);

  // Writes the files of a checkpoint. Returns the directory.
  std::string write(const std::string& directory) const;

  nlohmann::json config;

 private:
  Tensor take(const std::string& name);

  std::vector<Tensor> tensors_;
};

}  // namespace stet::test

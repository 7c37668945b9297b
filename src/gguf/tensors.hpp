// Presents the tensors of a GGUF file with their published names, types and order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stet/checkpoint/tensor_source.hpp"

namespace stet {

// The name by which a FileSource offers a GGUF file, or the first part of a split one.
inline constexpr const char* kGgufName = "model.gguf";

// Returns the FileSource's name of part `part`, counted from 0.
std::string gguf_part_name(size_t part);
// Returns the names of all parts that the source has.
std::vector<std::string> gguf_part_names(const FileSource& source);

// Opens the tensors of each part. Weights of float types are passed on. So are blocks along the
// inputs, if need be as blocks of another type with the same numbers. Other types are widened
// exactly to float32. Throws a format Error, or an unsupported Error for an unknown architecture or
// tensor.
std::vector<std::unique_ptr<const TensorSource>> gguf_tensors(const FileSource& source);

}  // namespace stet

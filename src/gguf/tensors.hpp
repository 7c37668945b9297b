// The tensors of a GGUF file under the names, in the types and in the order in which they were
// published.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stet/checkpoint/tensor_source.hpp"

namespace stet {

// What a FileSource calls a GGUF file, or the first part of one that is split.
inline constexpr const char* kGgufName = "model.gguf";

// Returns what it calls part `part`, counted from 0.
std::string gguf_part_name(size_t part);
// Returns the names of all parts that it has.
std::vector<std::string> gguf_part_names(const FileSource& source);

// Opens the tensors of each part. Weights of float types and blocks whose inputs stand side by side
// are passed on, or their numbers in blocks of another type; others are widened to float32,
// exactly.
// Throws an Error: format, or unsupported for an architecture or a tensor that stet does not know.
std::vector<std::unique_ptr<const TensorSource>> gguf_tensors(const FileSource& source);

}  // namespace stet

// Writes a GGUF file of a few kilobytes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace stet::test {

// Writes a Llama of two layers in blocks of two types, with a vocabulary of 64 tokens. Its queries
// and keys are stored with neighbours as rotary pairs. Returns the file's bytes.
std::vector<std::byte> write_small_gguf(const std::string& path);

}  // namespace stet::test

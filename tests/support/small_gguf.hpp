// A GGUF file of a few kilobytes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace stet::test {

// Writes a Llama of two layers in blocks of two types, whose queries and keys have neighbours as
// pairs, with a vocabulary of 64 tokens. Returns the file's bytes.
std::vector<std::byte> write_small_gguf(const std::string& path);

}  // namespace stet::test

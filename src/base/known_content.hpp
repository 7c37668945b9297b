// What a file is that is not what it should be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stet {

// Returns what a file is by its first bytes: what a download left in its place, or another format.
// "" where they are of no kind that is known.
std::string known_content(std::span<const std::byte> begin);

// Throws a format Error for a file of so many bytes that only points to another: Git LFS and Xet
// leave such files where the content was not downloaded.
void refuse_pointer(std::span<const std::byte> begin, uint64_t size, const std::string& path);

// Throws the format Error for a file whose header promises more bytes than it has.
[[noreturn]] void fail_cut_off(const std::string& path, uint64_t promised, uint64_t found);

// "4.9 GB", in powers of ten.
std::string size_text(uint64_t bytes);

}  // namespace stet

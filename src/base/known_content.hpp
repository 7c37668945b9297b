// Recognizes files that are not what they should be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stet {

// Returns a description of a file by its first bytes: another format, or what a failed download
// left. Returns "" for an unknown kind.
std::string known_content(std::span<const std::byte> begin);

// Throws a format Error if a file of `size` bytes only points to its content. Git LFS and Xet leave
// such files where the content was not downloaded.
void check_not_pointer(std::span<const std::byte> begin, uint64_t size, const std::string& path);

// Throws a format Error for a file that is shorter than its header promises.
[[noreturn]] void fail_cut_off(const std::string& path, uint64_t promised, uint64_t found);

// Returns a text such as "4.9 GB", in powers of ten.
std::string size_text(uint64_t bytes);

}  // namespace stet

#include "src/base/known_content.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "stet/base/error.hpp"

namespace stet {
namespace {

constexpr size_t kExamined = 1024;  // a pointer has about 130 bytes

std::string_view text_of(std::span<const std::byte> begin) {
  return {reinterpret_cast<const char*>(begin.data()), std::min(begin.size(), kExamined)};
}

// Returns whether the text begins with `with`, ignoring case.
bool begins(std::string_view text, std::string_view with) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return text.size() >= with.size() &&
         std::equal(with.begin(), with.end(), text.begin(),
                    [&](char a, char b) { return lower(a) == lower(b); });
}

// Returns the number after `field` as " of SIZE", or "" if there is none.
std::string size_in(std::string_view text, std::string_view field) {
  const size_t at = text.find(field);
  uint64_t size = 0;
  if (at == std::string_view::npos) return "";
  const std::string_view digits = text.substr(at + field.size());
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  return read.ec == std::errc() ? " of " + size_text(size) : "";
}

std::string pointer(std::string_view text) {
  if (text.starts_with("version https://git-lfs.github.com/spec/"))
    return "a Git LFS pointer to a file" + size_in(text, "\nsize ");
  if (text.starts_with("# xet version "))
    return "a Xet pointer to a file" + size_in(text, "filesize = ");
  return "";
}

struct Magic {
  std::string_view bytes, name;
};
using namespace std::string_view_literals;
constexpr Magic kMagics[] = {{"GGUF", "a GGUF file"},
                             {"lmgg", "a GGML file of llama.cpp from before August 2023"},
                             {"fmgg", "a GGML file of llama.cpp from before August 2023"},
                             {"tjgg", "a GGML file of llama.cpp from before August 2023"},
                             {"algg", "a LoRA adapter of llama.cpp from before August 2024"},
                             {"PK\x03\x04", "a ZIP archive, as PyTorch pickles weights"},
                             {"\x80\x02", "a Python pickle"},
                             {"\x80\x03", "a Python pickle"},
                             {"\x80\x04", "a Python pickle"},
                             {"\x89HDF\r\n", "an HDF5 file"},
                             {"\x93NUMPY", "a NumPy file"},
                             {"\x1f\x8b", "a gzip archive"},
                             {"\x28\xb5\x2f\xfd", "a zstd archive"},
                             {"\xff\xfe", "UTF-16 text"},
                             {"\xfe\xff", "UTF-16 text"}};
constexpr std::string_view kServerTexts[] = {"Entry not found",
                                             "Repository not found",
                                             "Invalid username or password",
                                             "Invalid credentials",
                                             "Access to model",
                                             "404: Not Found",
                                             "Not Found",
                                             "Forbidden",
                                             "Unauthorized",
                                             "Internal Server Error"};

// Returns whether a file begins with the length of a header and its "{". A length of at most 100 MB
// is no magic of four letters, but may begin with a magic of two bytes.
bool is_safetensors(std::string_view text) {
  constexpr uint64_t kMostHeader = 100'000'000;
  if (text.size() <= 10 || text[8] != '{') return false;
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(text[i]);
  return length <= kMostHeader;
}

}  // namespace

std::string size_text(uint64_t bytes) {
  const char* const units[] = {"KB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return fmt::format("{} byte{}", bytes, bytes == 1 ? "" : "s");
  double size = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  for (; size >= 999.95 && unit + 1 < std::size(units); ++unit) size /= 1000;
  return fmt::format("{:.1f} {}", size, units[unit]);
}

std::string known_content(std::span<const std::byte> begin) {
  const std::string_view text = text_of(begin);
  if (const std::string found = pointer(text); !found.empty()) return found;
  if (is_safetensors(text)) return "a safetensors file";
  for (const Magic& m : kMagics) {
    if (text.starts_with(m.bytes)) return std::string(m.name);
  }
  for (const std::string_view page : {"<!doctype html"sv, "<html"sv})
    if (begins(text, page)) return "a web page in place of a download";
  if (begins(text, "<?xml")) return "an XML text, such as a server's error";
  for (const std::string_view answer : kServerTexts) {
    if (begins(text, answer))
      return fmt::format("a server's answer, \"{}\"",
                         printable(std::string(text.substr(0, text.find('\n'))), 80));
  }
  if (text.size() >= 64 && text.find_first_not_of('\0') == std::string_view::npos)
    return "zeros, as a download leaves that never began";
  return "";
}

void check_not_pointer(std::span<const std::byte> begin, uint64_t size, const std::string& path) {
  if (size > kExamined) return;
  const std::string found = pointer(text_of(begin));
  if (!found.empty())
    throw Error(ErrorKind::format, path, "", "",
                found + "; git lfs pull or hf download fetches the file itself");
}

void fail_cut_off(const std::string& path, uint64_t promised, uint64_t found) {
  const bool alike = size_text(promised) == size_text(found);
  const auto shown = [&](uint64_t n) { return alike ? fmt::format("{} bytes", n) : size_text(n); };
  throw Error(ErrorKind::format, path, "", "",
              "the file is truncated: it has " + shown(found) + " of the " + shown(promised) +
                  " that its header promises; download it again");
}

}  // namespace stet

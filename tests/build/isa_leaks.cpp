// Tests that the code of each instruction set stays in its own files. A kernel file defines only
// its table, or the function that derives it from another table, and runs nothing at start-up. No
// other object uses a vector register that a baseline CPU lacks. (The linker keeps one copy of an
// inline function that two files compile with different flags. Its choice would decide bits, or
// crash.)
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace stet::test::isa_leaks_tests {
namespace {

// Splits a list of the build at ':'.
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, ':');) parts.push_back(part);
  return parts;
}
std::vector<std::string> kernel_objects() { return split(STET_KERNEL_OBJECTS); }

// Returns "avx2" for ".../kernels_avx2.cpp.o", and "" for any other file.
std::string isa_of(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  const std::string prefix = "kernels_";
  return name.starts_with(prefix) ? name.substr(prefix.size(), name.find('.') - prefix.size()) : "";
}

// Calls `line` for every line that a command prints. Returns false if the command cannot be run.
template <class F>
bool each_line(const std::string& command, F line) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((command + " 2>/dev/null").c_str(), "r"),
                                                   pclose);
  if (pipe == nullptr) return false;
  char buffer[4096];
  bool any = false;
  while (fgets(buffer, sizeof buffer, pipe.get()) != nullptr) {
    any = true;
    line(std::string(buffer));
  }
  return any;
}

class IsaLeaks : public testing::Test {
 protected:
  void SetUp() override {
#if defined(STET_SANITIZED)
    GTEST_SKIP() << "sanitizers add symbols and initialisers of their own to every file";
#endif
    if (!each_line("nm --version", [](const std::string&) {}) ||
        !each_line("objdump --version", [](const std::string&) {})) {
      GTEST_SKIP() << "no nm or objdump on this machine";
    }
  }
};

TEST_F(IsaLeaks, KernelFilesDefineTheirTableAlone) {
  std::set<std::string> seen;
  for (const std::string& object : kernel_objects()) {
    const std::string isa = isa_of(object);
    if (isa.empty()) continue;
    std::vector<std::string> defined;
    ASSERT_TRUE(each_line(
        "nm -C --defined-only --extern-only '" + object + "'", [&](const std::string& line) {
          const size_t name = line.find("stet::kernels_");
          defined.push_back(name == std::string::npos
                                ? line
                                : line.substr(name, line.find_first_of("(\n", name) - name));
        }));
    EXPECT_EQ(defined, std::vector<std::string>{"stet::kernels_" + isa}) << object;
    seen.insert(isa);
  }
  std::set<std::string> compiled = {"portable"};
  for (const std::string& isa : split(STET_COMPILED_KERNELS)) compiled.insert(isa);
  EXPECT_EQ(seen, compiled);
}

// Kernel files must not run code before the CPU's features are known.
TEST_F(IsaLeaks, KernelFilesRunNothingAtStartUp) {
  for (const std::string& object : kernel_objects()) {
    ASSERT_TRUE(each_line("objdump -h '" + object + "'", [&](const std::string& line) {
      EXPECT_EQ(line.find(".init_array"), std::string::npos) << object;
      EXPECT_EQ(line.find(".ctors"), std::string::npos) << object;
    }));
  }
}

#if defined(__x86_64__)

// Counts, per object, the disassembled instructions that name a 256- or 512-bit register or a mask
// register, or that carry the AVX prefix.
void count_wide(const std::string& file, std::map<std::string, size_t>& wide) {
  std::string member = std::filesystem::path(file).filename().string();
  const bool ran =
      each_line("objdump -d --no-show-raw-insn '" + file + "'", [&](const std::string& line) {
        const size_t format = line.find(":     file format");
        if (format != std::string::npos) {
          member = std::filesystem::path(line.substr(0, format)).filename().string();
          wide[member];
          return;
        }
        const size_t tab = line.rfind('\t');  // "address:\tmnemonic operands"
        if (tab == std::string::npos || line.find(':') > tab) return;
        const std::string instruction = line.substr(tab + 1);
        const bool avx = instruction[0] == 'v' && !instruction.starts_with("ver") &&
                         instruction.find("%xmm") != std::string::npos;
        if (avx || instruction.find("%ymm") != std::string::npos ||
            instruction.find("%zmm") != std::string::npos)
          ++wide[member];
      });
  ASSERT_TRUE(ran) << file;
}

TEST_F(IsaLeaks, WideRegistersAreInTheirKernelFilesAlone) {
  std::map<std::string, size_t> wide;
  count_wide(STET_LIBRARY, wide);
  for (const std::string& object : kernel_objects()) count_wide(object, wide);
  ASSERT_GE(wide.size(), 10u) << "the library's objects were not found";
  for (const auto& [object, count] : wide) {
    if (object.starts_with("kernels_avx") || object.starts_with("xxh3_avx")) {
      EXPECT_GT(count, 100u) << object << ": its flags are lost";
    } else {
      EXPECT_EQ(count, 0u) << object;
    }
  }
}

// The AVX2 file runs on CPUs without AVX-512.
TEST_F(IsaLeaks, Avx2FileHoldsNoAvx512) {
  for (const std::string& object : kernel_objects()) {
    if (isa_of(object) != "avx2") continue;
    ASSERT_TRUE(
        each_line("objdump -d --no-show-raw-insn '" + object + "'", [&](const std::string& line) {
          EXPECT_EQ(line.find("%zmm"), std::string::npos) << line;
          EXPECT_EQ(line.find("%k"), std::string::npos) << line;
        }));
  }
}

// VNNI and BF16 instructions occur only in their own files. The BF16 table takes its integer
// products from the VNNI table.
TEST_F(IsaLeaks, DotProductsAreInTheirFilesAlone) {
  for (const std::string& object : kernel_objects()) {
    size_t pairs = 0, bytes = 0;
    ASSERT_TRUE(
        each_line("objdump -d --no-show-raw-insn '" + object + "'", [&](const std::string& line) {
          pairs += line.find("vdpbf16ps") != std::string::npos;
          bytes += line.find("vpdpbusd") != std::string::npos;
        }));
    const std::string isa = isa_of(object);
    EXPECT_EQ(pairs > 0, isa == "avx512bf16") << object;
    EXPECT_EQ(bytes > 0, isa == "avx512vnni") << object;
  }
}

#endif

}  // namespace
}  // namespace stet::test::isa_leaks_tests

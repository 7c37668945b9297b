// Measures how fast a store takes and returns blocks, compared with its medium at the same sizes.
// The medium's figures are write() and fsync of whole files, and reading the mapped files. Prints a
// table line by line.
//   bench_store URL KEY [BLOCKS] [BYTES]
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>

#include "stet/base/poly1305.hpp"
#include "stet/files/file.hpp"
#include "stet/store/store.hpp"
#include "stet/threads/team.hpp"

namespace {

using namespace stet;

constexpr int kRounds = 5;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void line(const char* what, std::vector<double> seconds, double bytes) {
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  fmt::print("{:<28} {:8.1f} ms {:8.2f} GB/s\n", what, median * 1e3, bytes / median / 1e9);
}

// Stores the same bytes as whole files: written aside, fsynced and renamed; then mapped and read.
struct Files {
  std::string directory;
  void write(const std::vector<std::vector<std::byte>>& blocks) const {
    for (size_t i = 0; i < blocks.size(); ++i) {
      AtomicFile file(directory + "/" + std::to_string(i), 0600);
      file.write(blocks[i]);
      file.commit();
    }
  }
  uint64_t read(size_t count) const {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto file = MappedFile::open(directory + "/" + std::to_string(i));
      for (size_t at = 0; at < file->bytes().size(); at += 64)
        sum += static_cast<uint64_t>(file->bytes()[at]);
    }
    return sum;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "bench_store URL KEY [BLOCKS] [BYTES]\n");
    return 2;
  }
  const size_t count = argc > 3 ? std::stoul(argv[3]) : 64,
               size = argc > 4 ? std::stoul(argv[4]) : size_t{4} << 20;
  Store store(open_store_backend(argv[1]), StoreKey::load(argv[2]));
  const double bytes = static_cast<double>(count) * static_cast<double>(size);
  std::mt19937_64 random(1);
  std::vector<double> put, get, check, together, written, mapped;
  uint64_t sum = 0;
  std::vector<Poly1305Tag> tags(count);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::vector<std::byte>> blocks(count, std::vector<std::byte>(size));
    std::vector<Store::NewBlock> news;
    std::vector<Sha256> ids;
    for (std::vector<std::byte>& b : blocks) {
      for (size_t i = 0; i < size; i += 8) {
        const uint64_t x = random();
        std::copy_n(reinterpret_cast<const std::byte*>(&x), 8, b.begin() + static_cast<long>(i));
      }
      ids.push_back(sha256_of(std::span(b).first(64)));
      news.push_back({ids.back(), [&b] { return std::span<const std::byte>(b); }});
    }
    const Files files{std::filesystem::temp_directory_path().string() + "/bench-store-" +
                      std::to_string(::getpid())};
    std::filesystem::create_directories(files.directory);
    put.push_back(seconds_of([&] { store.put_blocks(news); }));
    written.push_back(seconds_of([&] { files.write(blocks); }));
    get.push_back(seconds_of([&] {
      for (const StoredBlock& b : store.blocks(ids)) sum += b.bytes.size();
    }));
    mapped.push_back(seconds_of([&] { sum += files.read(count); }));
    const auto tag = [&](size_t i) { tags[i] = poly1305_of(ids[i].bytes, blocks[i]); };
    check.push_back(seconds_of([&] {
      for (size_t i = 0; i < count; ++i) tag(i);
    }));
    together.push_back(seconds_of([&] { run_each(default_threads(), count, tag); }));
    sum += static_cast<uint64_t>(tags[0][0]);
    std::filesystem::remove_all(files.directory);
  }
  fmt::print("{} blocks of {} bytes, medians of {} rounds ({})\n", count, size, kRounds, sum % 10);
  line("put", put, bytes);
  line("files written, fsynced", written, bytes);
  line("get, checked", get, bytes);
  line("files mapped, read", mapped, bytes);
  line("Poly1305 alone, one thread", check, bytes);
  line("Poly1305 alone, all threads", together, bytes);
}

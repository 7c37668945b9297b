#include "tools/bench/figures.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "stet/files/file.hpp"

namespace stet::tool {

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

std::vector<int32_t> some_tokens(const Model& model, int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i)
    ids.push_back(static_cast<int32_t>((i * 7919 + 13) % model.config().vocab_size));
  return ids;
}

size_t peak_bytes() {
  if (!std::filesystem::exists("/proc/self/status")) return 0;
  const std::string status = read_text_file("/proc/self/status", 1 << 20), field = "VmHWM:";
  const size_t at = status.find(field);
  return at == std::string::npos
             ? 0
             : std::strtoull(status.c_str() + at + field.size(), nullptr, 10) * 1024;
}

Json state_figures(Session& session, const SessionOptions& options, int repeat) {
  struct Scratch {
    const std::string path =
        (std::filesystem::temp_directory_path() / fmt::format("stet-bench-{}.stet", getpid()))
            .string();
    ~Scratch() { std::remove(path.c_str()); }
  } file;
  const std::vector<int32_t> next = some_tokens(session.model(), 1);
  std::vector<double> save, restore, token, fork;
  for (int i = 0; i < repeat; ++i)
    save.push_back(time_of([&] { Snapshot::save(session, file.path); }));
  for (int i = 0; i < repeat; ++i) {
    const double start = seconds();
    Session back = Snapshot::open(file.path).restore(session.shared_model(), {.session = options});
    restore.push_back(seconds() - start);
    token.push_back(time_of([&] { back.append(next); }));  // verifies the blocks that it uses
  }
  for (int i = 0; i < 101; ++i) fork.push_back(time_of([&] { session.fork(); }));
  return {{"positions", session.size()},
          {"bytes", static_cast<double>(std::filesystem::file_size(file.path))},
          {"save_s", median(save)},
          {"restore_s", median(restore)},
          {"restored_token_s", median(token)},
          {"fork_s", median(fork)}};
}

}  // namespace stet::tool

// stet bench --snapshot: measures saving, restoring and forking, each next to its limit in the same
// run.
#include "tools/bench/snapshot.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "stet/base/error.hpp"
#include "stet/base/memory.hpp"
#include "stet/kv/kv_writer.hpp"
#include "tools/bench/figures.hpp"

namespace stet::tool {
namespace {

// Returns a session of `n` tokens with random keys and values. Their content does not affect the
// times.
Session made_up(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                int64_t n) {
  const ModelConfig& c = model->config();
  const KvShape shape = detail::kv_shape(c, options.kv_type);
  State state;
  state.origin = origin_of(*model, options.compute.contract);
  state.kv = KvCache(shape, n + 64);
  KvWriter writer(state.kv);
  writer.prepare(n);
  const int threads = options.compute.threads > 0 ? options.compute.threads : default_threads();
  run_team(threads, [&](Team t) {
    const Range mine = t.share(static_cast<size_t>(state.kv.blocks()));
    for (size_t b = mine.begin; b < mine.end; ++b) {
      uint64_t x = b * 0x9E3779B97F4A7C15u + 1;
      std::byte* block = writer.writable(static_cast<int64_t>(b));
      for (size_t i = 0; i < shape.content_bytes() / 2; ++i) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        // The upper half of a float32, or a 16-bit float: sign, an exponent near 0, a part of the
        // mantissa.
        const auto half = static_cast<uint16_t>(
            (x & 0x8000u) | (shape.type == KvType::f16 ? 0x3800u : 0x3F00u) | (x >> 20 & 0xFFu));
        std::memcpy(block + 2 * i, &half, 2);
      }
    }
  });
  writer.commit(n);
  state.tokens = some_tokens(*model, n);
  state.logits = std::make_shared<std::vector<float>>(static_cast<size_t>(c.vocab_size), 0.5f);
  return Session(model, std::move(state), options);
}

void plain_write(const std::string& path, std::span<const std::byte> bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0)
    throw Error(ErrorKind::io, path, "", "a writable file", std::generic_category().message(errno));
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), std::min<size_t>(bytes.size(), 8 << 20));
    if (n <= 0) {
      ::close(fd);
      throw Error(ErrorKind::io, path, "", "to write the file",
                  std::generic_category().message(errno));
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  const bool good = ::fsync(fd) == 0;
  if (::close(fd) != 0 || !good)
    throw Error(ErrorKind::io, path, "", "its bytes to reach the disk",
                std::generic_category().message(errno));
}

// Measures copying a mapped file into new memory of the kind that sessions use. A restore that does
// not use the file in place must do at least that.
double copy_time(const std::string& path, int threads) {
  return time_of([&] {
    const auto file = MappedFile::open(path);
    const std::span<const std::byte> bytes = file->bytes();
    const Memory to(bytes.size());
    run_team(threads, [&](Team t) {
      const Range mine = t.share(bytes.size() / 4096);
      std::memcpy(to.data() + mine.begin * 4096, bytes.data() + mine.begin * 4096,
                  mine.size() * 4096);
    });
  });
}

// Measures the page faults of a fresh mapping by reading one byte of every page.
double fault_time(const std::string& path) {
  const auto file = MappedFile::open(path);
  return time_of([&] {
    unsigned sum = 0;
    for (size_t at = 0; at < file->bytes().size(); at += 4096)
      sum += static_cast<unsigned>(file->bytes()[at]);
    volatile unsigned keep = sum;
    (void)keep;
  });
}

// Times of runs, each next to its limit, which is measured right before and after it. The speed of
// shared disks and memory varies. A run that takes much new memory is done twice, and the better
// one counts. A virtual machine's host may have to provide the memory first, which takes seconds.
struct Beside {
  std::vector<double> run, yardstick, share;  // share: yardstick / run
  void add(double r, double y) {
    run.push_back(r);
    yardstick.push_back(y);
    share.push_back(y / r);
  }
};

class Lengths {
 public:
  Lengths(std::shared_ptr<const Model> model, const SessionOptions& options,
          const std::string& directory)
      : model_(std::move(model)),
        options_(options),
        threads_(options.compute.threads > 0 ? options.compute.threads : default_threads()),
        path_(fmt::format("{}/stet-bench-{}.stet", directory, getpid())),
        plain_(fmt::format("{}/stet-bench-{}.plain", directory, getpid())) {}
  ~Lengths() { remove_files(); }

  Json measure(int64_t n, int repeat) {
    Beside save, first, read;
    std::vector<double> resume, fault, fork;
    {
      Session session = made_up(model_, options_, n);
      Snapshot::save(session, path_);
    }
    for (int i = 0; i < repeat; ++i) {
      measure_save(n, save);
      Session session = made_up(model_, options_, n);
      // Page faults are measured on a file written as recently as the snapshot. Nothing may touch
      // the snapshot before its restore.
      fault.push_back(fault_time(plain_));
      resume.push_back(measure_first(session, fault.back(), first));
      fork.push_back(median({time_of([&] { session.fork(); }), time_of([&] { session.fork(); }),
                             time_of([&] { session.fork(); })}));
      for (int k = 0; k < 3; ++k) measure_read(read);  // cheap and noisy, so three times
    }
    return {{"tokens", n},
            {"bytes", std::filesystem::file_size(path_)},
            {"save_s", median(save.run)},
            {"write_s", median(save.yardstick)},
            {"save_of_write", median(save.share)},
            {"resume_s", median(resume)},
            {"first_token_s", median(first.run)},
            {"decode_and_faults_s", median(first.yardstick)},
            {"page_faults_s", median(fault)},
            {"first_of_decode_and_faults", 1 / median(first.share)},
            {"fork_s", median(fork)},
            {"read_s", median(read.run)},
            {"memcpy_s", median(read.yardstick)},
            {"read_of_memcpy", median(read.share)}};
  }

 private:
  void remove_files() const {
    std::remove(path_.c_str());
    std::remove(plain_.c_str());
  }
  double decode(Session& session) const {
    return time_of([&] { session.append(std::vector<int32_t>{1}); });
  }

  // Saves fresh sessions, since a session keeps the digests of its full blocks. Leaves a snapshot,
  // and a plain file of the same size.
  void measure_save(int64_t n, Beside& to) const {
    const std::vector<std::byte> content = read_file(path_, SIZE_MAX);
    Session sessions[2] = {made_up(model_, options_, n), made_up(model_, options_, n)};
    const auto save = [&](Session& s) {
      remove_files();
      return time_of([&] { Snapshot::save(s, path_); });
    };
    const auto write = [&] {
      remove_files();
      return time_of([&] { plain_write(plain_, content); });
    };
    const double saved = save(sessions[0]), written = std::min(write(), write());
    to.add(std::min(saved, save(sessions[1])), written);
    plain_write(plain_, content);
  }

  // Measures the first token after a mapped restore, next to ordinary ones right before and after
  // it. Returns the time until the session is ready.
  double measure_first(Session& session, double faults, Beside& to) const {
    Session other = session.fork();
    decode(other);  // copies the last block, which forks share
    const double before = decode(other), start = seconds();
    Session back = Snapshot::open(path_).restore(model_, {.session = options_});
    const double ready = seconds() - start, first = decode(back);
    to.add(first, (before + decode(back)) / 2 + faults);
    return ready;
  }

  void measure_read(Beside& to) const {
    const auto copy = [&] { return copy_time(path_, threads_); };
    const auto read = [&] {
      return time_of(
          [&] { Snapshot::open(path_).restore(model_, {.session = options_, .map = false}); });
    };
    const double copied = copy(), back = std::min(read(), read());
    to.add(back, std::min(copied, copy()));
  }

  const std::shared_ptr<const Model> model_;
  const SessionOptions& options_;
  const int threads_;
  const std::string path_, plain_;
};

}  // namespace

Json snapshot_figures(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                      const std::vector<int64_t>& lengths, int repeat,
                      const std::string& directory) {
  Json rows = Json::array();
  Lengths measured(model, options, directory);
  for (const int64_t n : lengths) rows.push_back(measured.measure(n, repeat));
  // Processing a prompt of the shortest length is measured once, for comparison. Times for the
  // other lengths are in proportion to their tokens.
  Session session(model, options);
  const std::vector<int32_t> ids = some_tokens(*model, lengths[0]);
  const double prefill = time_of([&] { session.append(ids); });
  for (Json& row : rows)
    row["prefill_again_s"] =
        prefill * row["tokens"].get<double>() / static_cast<double>(lengths[0]);
  return rows;
}

void print_snapshot_figures(const Json& rows) {
  out("  tokens        size   save  of write   resume   1st token  of decode+faults    fork   read "
      " of memcpy  1st token sooner\n");
  for (const Json& r : rows) {
    const auto s = [&](const char* name) { return r[name].get<double>(); };
    out(fmt::format(
        "{:>8} {:>11} {:>5.0f} ms {:>6.0f} % {:>5.2f} ms {:>8.1f} ms {:>15.2f} {:>6.0f} us "
        "{:>4.0f} ms {:>7.0f} % {:>15.0f} x\n",
        r["tokens"].get<int64_t>(), bytes_text(s("bytes")), 1e3 * s("save_s"),
        100 * s("save_of_write"), 1e3 * s("resume_s"), 1e3 * s("first_token_s"),
        s("first_of_decode_and_faults"), 1e6 * s("fork_s"), 1e3 * s("read_s"),
        100 * s("read_of_memcpy"), s("prefill_again_s") / (s("resume_s") + s("first_token_s"))));
  }
}

}  // namespace stet::tool

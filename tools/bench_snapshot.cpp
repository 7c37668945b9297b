// stet bench --snapshot: what saving, restoring and forking cost, each beside its yardstick in the same run.
#include "tools/bench_snapshot.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "stet/error.hpp"
#include "stet/memory.hpp"

namespace stet::tool {
namespace {

template <class F>
double time_of(F f) {
  const double start = seconds();
  f();
  return seconds() - start;
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// A session of `n` tokens whose keys and values are noise: what is in them costs nothing to move.
Session made_up(const std::shared_ptr<const Model>& model, const SessionOptions& options, int64_t n) {
  const ModelConfig& c = model->config();
  const KvShape shape{c.layers, c.kv_heads, c.head_dim, options.kv_type};
  State state;
  state.kv = KvCache(shape, n + 64);
  state.kv.prepare(n);
  const int threads = options.compute.threads > 0 ? options.compute.threads : default_threads();
  run_team(threads, [&](Team t) {
    const Range mine = t.share(static_cast<size_t>(state.kv.blocks()));
    for (size_t b = mine.begin; b < mine.end; ++b) {
      uint64_t x = b * 0x9E3779B97F4A7C15u + 1;
      std::byte* block = state.kv.writable(static_cast<int64_t>(b));
      for (size_t i = 0; i < shape.content_bytes() / 2; ++i) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        // The upper half of a float32, or a 16-bit float: sign, an exponent near 0, some of the mantissa.
        const auto half = static_cast<uint16_t>((x & 0x8000u) | (shape.type == KvType::f16 ? 0x3800u : 0x3F00u) | (x >> 20 & 0xFFu));
        std::memcpy(block + 2 * i, &half, 2);
      }
    }
  });
  state.kv.commit(n);
  for (int64_t i = 0; i < n; ++i) state.tokens.push_back(static_cast<int32_t>((i * 7919 + 13) % c.vocab_size));
  state.logits = std::make_shared<std::vector<float>>(static_cast<size_t>(c.vocab_size), 0.5f);
  return Session(model, std::move(state), options);
}

void plain_write(const std::string& path, std::span<const std::byte> bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) throw Error(ErrorKind::io, path, "", "a writable file", "none");
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), std::min<size_t>(bytes.size(), 8 << 20));
    if (n <= 0) {
      ::close(fd);
      throw Error(ErrorKind::io, path, "", "to write the file", "a failure");
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  const bool good = ::fsync(fd) == 0;
  if (::close(fd) != 0 || !good) throw Error(ErrorKind::io, path, "", "its bytes to reach the disk", "a failure");
}

// Copies into fresh memory, as a restore does that does not map.
double copy_time(std::span<const std::byte> bytes, int threads) {
  return time_of([&] {
    const Memory to(bytes.size(), false);
    run_team(threads, [&](Team t) {
      const Range mine = t.share(bytes.size() / 4096);
      std::memcpy(to.data() + mine.begin * 4096, bytes.data() + mine.begin * 4096, (mine.end - mine.begin) * 4096);
    });
  });
}

// What the page faults of a fresh mapping cost: one byte of every page.
double fault_time(const std::string& path) {
  const auto file = MappedFile::open(path);
  return time_of([&] {
    unsigned sum = 0;
    for (size_t at = 0; at < file->bytes().size(); at += 4096) sum += static_cast<unsigned>(file->bytes()[at]);
    volatile unsigned keep = sum;
    (void)keep;
  });
}

Json at_length(const std::shared_ptr<const Model>& model, const SessionOptions& options, int64_t n, int repeat, const std::string& directory) {
  struct Scratch {
    std::string path, plain;
    ~Scratch() {
      std::remove(path.c_str());
      std::remove(plain.c_str());
    }
  } file{fmt::format("{}/stet-bench-{}.stet", directory, getpid()), fmt::format("{}/stet-bench-{}.plain", directory, getpid())};
  Session session = made_up(model, options, n);
  const int threads = options.compute.threads > 0 ? options.compute.threads : default_threads();
  const std::vector<int32_t> next = {1};
  const auto decode = [&](Session& s) { return time_of([&] { s.append(next); }); };
  std::vector<double> save, write, resume, first, step, fault, fork, read, copy;
  Snapshot::save(session, "", file.path);
  {
    Session warm = session.fork();
    decode(warm);
  }
  for (int i = 0; i < repeat; ++i) {
    Session fresh = made_up(model, options, n);  // digests of full blocks are kept: a first save computes them
    const std::vector<std::byte> content = read_file(file.path, SIZE_MAX);
    // Both make a new file, and take turns to be the first: whoever follows finds the memory of a file just deleted.
    std::remove(file.path.c_str());
    std::remove(file.plain.c_str());
    const auto measure_save = [&] { save.push_back(time_of([&] { Snapshot::save(fresh, "", file.path); })); };
    const auto measure_write = [&] { write.push_back(time_of([&] { plain_write(file.plain, content); })); };
    if (i % 2 == 0) measure_save();
    measure_write();
    if (i % 2 != 0) measure_save();
    const auto bytes = MappedFile::open(file.path);
    double ready = 0, token = 0;
    {
      const double start = seconds();
      Session back = Snapshot::open(file.path).restore(model, "", options);
      ready = seconds() - start;
      token = decode(back);
    }
    resume.push_back(ready);
    first.push_back(token);
    fault.push_back(fault_time(file.path));
    {
      Session back = fresh.fork();
      decode(back);  // takes the tail's copy
      step.push_back(decode(back));
    }
    fork.push_back(median({time_of([&] { fresh.fork(); }), time_of([&] { fresh.fork(); }), time_of([&] { fresh.fork(); })}));
    read.push_back(time_of([&] { Snapshot::open(file.path).restore(model, "", options, {.map = false}); }));
    copy.push_back(copy_time(bytes->bytes(), threads));
  }
  return {{"tokens", n}, {"bytes", std::filesystem::file_size(file.path)}, {"save_s", median(save)}, {"write_s", median(write)},
          {"resume_s", median(resume)}, {"first_token_s", median(first)}, {"decode_s", median(step)}, {"page_faults_s", median(fault)},
          {"fork_s", median(fork)}, {"read_s", median(read)}, {"memcpy_s", median(copy)}};
}

}  // namespace

Json snapshot_figures(const std::shared_ptr<const Model>& model, const SessionOptions& options, const std::vector<int64_t>& lengths,
                      int repeat, const std::string& directory) {
  Json rows = Json::array();
  for (const int64_t n : lengths) rows.push_back(at_length(model, options, n, repeat, directory));
  // Processing a prompt again, for scale: measured once, at the shortest length, and per token.
  Session session(model, options);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < lengths[0]; ++i) ids.push_back(static_cast<int32_t>((i * 7919 + 13) % model->config().vocab_size));
  const double prefill = time_of([&] { session.append(ids); });
  for (Json& row : rows) row["prefill_again_s"] = prefill * row["tokens"].get<double>() / static_cast<double>(lengths[0]);
  return rows;
}

void print_snapshot_figures(const Json& rows) {
  out("  tokens        size   save  of write   resume   1st token  of decode+faults    fork   read  of memcpy  1st token sooner\n");
  for (const Json& r : rows) {
    const auto s = [&](const char* name) { return r[name].get<double>(); };
    out(fmt::format("{:>8} {:>11} {:>5.0f} ms {:>6.0f} % {:>5.2f} ms {:>8.1f} ms {:>15.2f} {:>6.0f} us {:>4.0f} ms {:>7.0f} % {:>15.0f} x\n",
                    r["tokens"].get<int64_t>(), bytes_text(s("bytes")), 1e3 * s("save_s"), 100 * s("write_s") / s("save_s"),
                    1e3 * s("resume_s"), 1e3 * s("first_token_s"), s("first_token_s") / (s("decode_s") + s("page_faults_s")),
                    1e6 * s("fork_s"), 1e3 * s("read_s"), 100 * s("memcpy_s") / s("read_s"),
                    s("prefill_again_s") / (s("resume_s") + s("first_token_s"))));
  }
}

}  // namespace stet::tool

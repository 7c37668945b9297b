// Measures the time to the next token of a state with TOKENS tokens. The state comes from memory,
// from a directory or from a server of the Redis protocol, or is computed. Also uses a link of
// limited speed, below and above the speed at which the policy (stet/store/policy.hpp) stops
// fetching. Fails unless all give the same logits. Prints a table.
//   bench_first_token MODEL DIRECTORY REDIS_PORT [TOKENS]
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "stet/checkpoint/packed.hpp"
#include "stet/store/policy.hpp"
#include "stet/store/session.hpp"

namespace {

using namespace stet;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Forwards connections to a port, with a limit on the total bytes per second coming from there.
class SlowLink {
 public:
  explicit SlowLink(int to) : to_(to), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at = address(0);
    socklen_t size = sizeof at;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&at), size) != 0 ||
        ::listen(listener_, 16) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) != 0)
      throw std::runtime_error("no port for a slow link");
    port_ = ntohs(at.sin_port);
    std::thread([this] {
      for (int in; (in = ::accept(listener_, nullptr, nullptr)) >= 0;) {
        const int out = ::socket(AF_INET, SOCK_STREAM, 0);
        const sockaddr_in server = address(to_);
        if (::connect(out, reinterpret_cast<const sockaddr*>(&server), sizeof server) != 0) break;
        std::thread([this, in, out] { pass(in, out, false); }).detach();
        std::thread([this, in, out] { pass(out, in, true); }).detach();
      }
    }).detach();
  }
  int port() const { return port_; }
  std::atomic<double> bytes_a_second = 1e12;

 private:
  static sockaddr_in address(int port) {
    sockaddr_in a = {};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
  }
  void pass(int from, int to, bool limited) {
    std::vector<char> some(65536);
    for (ssize_t n; (n = ::recv(from, some.data(), some.size(), 0)) > 0;) {
      if (limited) std::this_thread::sleep_until(free_after(n));
      for (ssize_t sent = 0, m; sent < n; sent += m) {
        m = ::send(to, some.data() + sent, static_cast<size_t>(n - sent), MSG_NOSIGNAL);
        if (m <= 0) return;
      }
    }
    ::shutdown(to, SHUT_WR);
  }
  // Returns the time at which the link has carried `bytes` more, shared by all connections.
  std::chrono::steady_clock::time_point free_after(ssize_t bytes) {
    const std::lock_guard lock(mutex_);
    return free_ = std::max(free_, std::chrono::steady_clock::now()) +
                   std::chrono::nanoseconds(
                       static_cast<int64_t>(static_cast<double>(bytes) / bytes_a_second * 1e9));
  }

  int to_, listener_, port_ = 0;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point free_ = std::chrono::steady_clock::now();
};

struct Measured {
  double seconds;
  size_t fetched, computed;
};

class Bench {
 public:
  Bench(const std::string& directory, Contract contract, int64_t tokens)
      : model_(Model::load(directory_source(directory), 0, contract)) {
    options_.capacity = tokens + 64;
    options_.kv_type = KvType::bf16;
    options_.compute.contract = contract;
    for (int64_t i = 0; i < tokens; ++i)
      ids_.push_back(static_cast<int32_t>(3 + i * 7919 % (model_->config().vocab_size - 3)));
  }

  double compute() {
    return seconds_of([&] {
      session_ = std::make_unique<Session>(model_, options_);
      session_->append(ids_);
      finish(*session_);
    });
  }
  double from_memory() {
    return seconds_of([&] {
      Session fork = session_->fork();
      finish(fork);
    });
  }
  Sha256 put(Store& store) { return put_session(store, *session_, {}).place; }
  Measured from(Store& store, const Sha256& place) {
    StoreRestoreReport report;
    const double seconds = seconds_of([&] {
      const StoreSnapshot from = open_snapshot(store, place);
      RestoreOptions how;
      how.session = options_;
      Session session = restore_session(store, *from.snapshot, model_, how, &report);
      finish(session);
    });
    return {seconds, report.fetched, report.computed};
  }
  uint64_t block_bytes() const { return session_->kv().shape().block_bytes(); }

 private:
  // Appends one more token, as the beginning of a reply.
  void finish(Session& session) {
    Session next = session.fork();
    next.append(std::vector<int32_t>{17});
    const Digest found = digest_of(std::as_bytes(next.logits()));
    if (expected_ && found != *expected_) throw std::runtime_error("other logits");
    expected_ = found;
  }

  std::shared_ptr<const Model> model_;
  SessionOptions options_;
  std::vector<int32_t> ids_;
  std::unique_ptr<Session> session_;
  std::optional<Digest> expected_;
};

std::unique_ptr<Store> opened(const std::string& url) {
  StoreOptions options;
  options.fetch = FetchChoice::always;
  return std::make_unique<Store>(open_store_backend(url, nullptr, {300, 300}), StoreKey{}, options);
}

void line(const std::string& what, const Measured& m) {
  fmt::print("| {} | {:.0f} ms | {} | {} |\n", what, m.seconds * 1e3, m.fetched, m.computed);
  std::fflush(stdout);
}

void run(Bench& bench, const std::string& directory, int port, int64_t tokens) {
  const auto blocks = static_cast<size_t>(tokens / kBlockPositions);
  fmt::print("| | to the next token | blocks fetched | computed |\n|---|---|---|---|\n");
  const double computing = bench.compute();
  line("computed", {computing, 0, blocks});
  line("from memory", {bench.from_memory(), 0, 0});
  create_store(directory, 0);
  const auto in_directory = opened(directory);
  const Sha256 place = bench.put(*in_directory);
  line("dir:", bench.from(*in_directory, place));
  line("dir:, again", bench.from(*in_directory, place));
  const std::string redis = fmt::format("redis://127.0.0.1:{}/first", port);
  create_store(redis, 0);
  const auto on_server = opened(redis);
  bench.put(*on_server);
  line("redis:", bench.from(*on_server, place));
  line("redis:, again", bench.from(*on_server, place));
  const uint64_t carried = on_server->traffic().read_bytes / (2 * blocks);

  FetchCosts costs;
  costs.growth = 1e18;  // uses the mean of this prompt
  costs.token_seconds = computing / static_cast<double>(tokens);
  costs.latency_seconds = 0;
  const FetchPolicy policy(costs);
  const double break_even_rate = policy.break_even_rate(0, static_cast<int64_t>(blocks), carried);
  fmt::print(
      "\nforeseen: fetching {} blocks of {} bytes, as records of {}, loses below {:.1f} MB/s\n\n",
      blocks, bench.block_bytes(), carried, break_even_rate / 1e6);
  fmt::print("| link | to the next token | blocks fetched | computed |\n|---|---|---|---|\n");
  SlowLink link(port);
  const std::string slow = fmt::format("redis://127.0.0.1:{}/first", link.port());
  for (const double share : {4.0, 2.0, 1.41, 1.0, 0.71}) {
    link.bytes_a_second = break_even_rate * share;
    const auto store = opened(slow);
    line(fmt::format("{:.1f} MB/s ({} x)", break_even_rate * share / 1e6, share),
         bench.from(*store, place));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "bench_first_token MODEL DIRECTORY REDIS_PORT [TOKENS]\n");
    return 2;
  }
  const int64_t tokens = argc > 4 ? std::atol(argv[4]) : 4096;
  try {
    Bench bench(argv[1], contract_of_weights(*directory_source(argv[1])), tokens);
    run(bench, argv[2], std::atoi(argv[3]), tokens);
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_first_token: {}\n", e.what());
    return 1;
  }
}

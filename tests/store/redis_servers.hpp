// Real servers of the Redis protocol on loopback, single or as a cluster, for tests.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "src/store/redis_client.hpp"
#include "tests/support/files.hpp"

namespace stet::test {

inline bool have_redis_server() {
  return std::system(
             "redis-server --version >/dev/null 2>&1 && redis-cli --version >/dev/null 2>&1") == 0;
}

// Reserves a port among all tests of this machine, with the name of a local socket that disappears
// with the process. Returns false if another process holds it.
inline bool reserve_port(int port) {
  static std::vector<int> held;
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;  // sun_path begins with NUL, so there is no file
  const int length =
      std::snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "stet-test-%d", port);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&name),
             static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)) != 0) {
    ::close(fd);
    return false;
  }
  held.push_back(fd);
  return true;
}

// Returns a port reserved for this process; port + 10000, for the cluster bus, is reserved, too.
// Both are below Linux's ephemeral ports.
inline int free_port() {
  constexpr int kFirst = 20000, kCount = 2700;
  for (int i = 0;; ++i) {
    const int port = kFirst + (static_cast<int>(::getpid()) * 7 + i) % kCount;
    bool free = reserve_port(port);
    for (const int at : {port, port + 10000}) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(at));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      free = free && ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
      ::close(fd);
    }
    if (free) return port;
  }
}

// Waits until `holds` returns true, for at most a minute, because servers take varying time.
inline bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 1200; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

class RedisServer {
 public:
  explicit RedisServer(std::vector<std::string> options, int port = free_port()) : port_(port) {
    std::filesystem::create_directory(directory_);
    words_ = {"redis-server", "--port",  std::to_string(port_), "--bind", "127.0.0.1", "--save", "",
              "--dir",        directory_};
    words_.insert(words_.end(), options.begin(), options.end());
    start();
  }
  RedisServer(const RedisServer&) = delete;
  ~RedisServer() { kill(); }

  void start() {
    pid_ = ::fork();
    if (pid_ == 0) {
      const int log = ::open((scratch_ / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      ::dup2(log, 1);
      ::dup2(log, 2);
      std::vector<char*> argv;
      for (std::string& word : words_) argv.push_back(word.data());
      argv.push_back(nullptr);
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    eventually([&] { return ask({"PING"}) == "PONG"; });
  }
  void send(int signal) { ::kill(pid_, signal); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int port() const { return port_; }
  std::string url() const { return "redis://127.0.0.1:" + std::to_string(port_) + "/test"; }
  StoreUrl parsed() const { return parse_store_url(url()); }

  // Returns the answer as text, or "" if there is none.
  std::string ask(const std::vector<std::string>& words) const {
    redisContext* c = ::redisConnectWithTimeout("127.0.0.1", port_, {2, 0});
    std::string text;
    if (c != nullptr && c->err == 0) {
      std::vector<const char*> argv;
      std::vector<size_t> sizes;
      for (const std::string& w : words) {
        argv.push_back(w.data());
        sizes.push_back(w.size());
      }
      const RedisReply r(static_cast<redisReply*>(
          ::redisCommandArgv(c, static_cast<int>(argv.size()), argv.data(), sizes.data())));
      if (r != nullptr && r->type == REDIS_REPLY_INTEGER) text = std::to_string(r->integer);
      if (r != nullptr && r->str != nullptr) text.assign(r->str, static_cast<size_t>(r->len));
      for (size_t i = 0; r != nullptr && i < r->elements; ++i)
        text += (i > 0 ? "\n" : "") +
                std::string(r->element[i]->str == nullptr ? "" : r->element[i]->str);
    }
    if (c != nullptr) ::redisFree(c);
    return text;
  }

 private:
  TemporaryDirectory scratch_;
  std::string directory_ = scratch_ / "data";
  std::vector<std::string> words_;
  int port_;
  pid_t pid_ = 0;
};

// A cluster of three primaries with one replica each.
class RedisCluster {
 public:
  explicit RedisCluster(const std::vector<std::string>& more = {}) {
    std::string create = "redis-cli --cluster create";
    for (int i = 0; i < 6; ++i) {
      std::vector<std::string> options = {"--cluster-enabled",
                                          "yes",
                                          "--cluster-node-timeout",
                                          "1000",
                                          "--appendonly",
                                          "yes",
                                          "--appendfsync",
                                          "always",
                                          "--repl-diskless-sync-delay",
                                          "0"};
      options.insert(options.end(), more.begin(), more.end());
      servers.push_back(std::make_unique<RedisServer>(options));
      create += " 127.0.0.1:" + std::to_string(servers.back()->port());
    }
    create += " --cluster-replicas 1 --cluster-yes >/dev/null 2>&1";
    created = std::system(create.c_str()) == 0 && eventually([&] { return ready(); });
  }
  // Returns true if all servers that answer report that three primaries serve all slots.
  bool serves() const {
    int primaries = 0;
    for (const auto& s : servers) {
      const std::string info = s->ask({"CLUSTER", "INFO"});
      if (info.empty()) continue;
      if (info.find("cluster_state:ok") == std::string::npos) return false;
      primaries += s->ask({"ROLE"}).starts_with("master");
    }
    return primaries == 3;
  }
  // Returns true if, in addition, every primary has a replica that is up to date.
  bool ready() const {
    int replicas = 0;
    for (const auto& s : servers) {
      const std::string info = s->ask({"INFO", "replication"});
      replicas += info.find("connected_slaves:1") != std::string::npos &&
                  info.find("state=online") != std::string::npos;
    }
    return replicas == 3 && serves();
  }
  RedisServer& primary_of(const std::string& key) {
    const std::string slot = std::to_string(redis_slot(key));
    for (const auto& s : servers) {
      if (s->ask({"CLUSTER", "COUNTKEYSINSLOT", slot}).empty()) continue;
      if (s->ask({"ROLE"}).starts_with("master") && s->ask({"GET", key}).find("MOVED") != 0)
        return *s;
    }
    return *servers[0];
  }

  std::vector<std::unique_ptr<RedisServer>> servers;
  bool created = false;
};

}  // namespace stet::test

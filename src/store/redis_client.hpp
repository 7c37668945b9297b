// Commands to a server of the Redis protocol, or to a cluster of them: pipelined, routed by slot,
// and answered within a deadline, or not at all. What a server says is hostile until checked.
#pragma once

#include <hiredis/hiredis.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stet/store/backend.hpp"

namespace stet {

struct RedisFree {
  void operator()(redisReply* reply) const { ::freeReplyObject(reply); }
  void operator()(redisContext* context) const { ::redisFree(context); }
};
using RedisReply = std::unique_ptr<redisReply, RedisFree>;

class RedisValues;  // redis_values.hpp

struct RedisCommand {
  std::vector<std::string> words;
  std::span<const std::byte> last{};  // one word more, where `with_last`
  bool with_last = false;
  size_t key = 1;      // which word is the key
  std::string node{};  // "host:port", where it is for one node; else that of the key's slot
  // Of a GET: where a value of so many bytes that begins like this (kRedisHead of them, or all) is
  // received; empty: nowhere. The reply is its size then, an integer.
  std::function<std::span<std::byte>(size_t bytes, std::span<const std::byte> head)> place{};
  std::function<void()> placed{};  // is called when it is there, and others are asked for
};
constexpr size_t kRedisHead = 192;

class RedisClient {
 public:
  // Nothing is connected yet.
  explicit RedisClient(const StoreUrl& url) : url_(url) {}

  // The answers, in order; those that are errors as well, but for what routing needs (MOVED, ASK,
  // a failover in progress), which is followed until the deadline, or `stop` is set. Throws an io
  // Error then. The deadline is so many seconds from now, and from each value that has gone to its
  // place.
  std::vector<RedisReply> run(std::span<const RedisCommand> commands, double seconds,
                              const std::atomic<bool>* stop = nullptr);
  RedisReply run(const RedisCommand& command, double seconds);
  // "host:port" of the servers that keys are on.
  std::vector<std::string> masters(double seconds);
  // How many replicas of the key's node have what was written over the connection to it; nothing
  // where that connection is gone.
  std::optional<int64_t> wait(const std::string& key, double seconds);
  std::string node_of_key(const std::string& key) const { return node_of({{"GET", key}}); }
  // How often a connection failed: what was written before, over another one, is not waited for.
  uint64_t failures() const { return failures_; }

 private:
  struct Pending;
  using Connection = std::unique_ptr<redisContext, RedisFree>;

  Connection& connected(const std::string& node, double until);
  void learn_slots(double until);
  bool learn_from(const std::string& node, double until);
  bool read_slots(const redisReply& slots);
  std::string node_of(const RedisCommand& command) const;
  RedisReply answer(redisContext* c, RedisValues& values, const Pending& p, bool direct,
                    double until);
  size_t send(const std::string& node, std::span<Pending* const> pending, double until);
  size_t receive(const std::string& node, std::span<Pending* const> all, size_t sent,
                 double& until);
  void exchange(std::map<std::string, std::vector<Pending*>>& by_node, double& until);
  bool follow(Pending& p);
  bool is_stopped() const { return stop_ != nullptr && *stop_; }
  std::string seed() const { return url_.host + ":" + std::to_string(url_.port); }
  [[noreturn]] void unreachable(const std::string& why) const;

  const StoreUrl url_;
  std::map<std::string, Connection> connections_;
  std::vector<std::string> slots_;   // node of each; empty where there is no cluster
  std::vector<std::string> others_;  // nodes to ask about the slots
  bool known_ = false;
  uint64_t failures_ = 0;
  // Of the run that is going on.
  const std::atomic<bool>* stop_ = nullptr;
  double seconds_ = 0;
  std::string fault_;  // the last
};

// XMODEM's CRC-16 of what is between the first braces of a key, or of all of it, modulo 16384.
unsigned redis_slot(const std::string& key);

}  // namespace stet

// Sends commands to a server of the Redis protocol or to a cluster: pipelined, routed by slot, and
// with a deadline. Replies are untrusted until checked.
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
  std::span<const std::byte> last{};  // one more word, if `with_last`
  bool with_last = false;
  size_t key = 1;      // index of the word that is the key
  std::string node{};  // "host:port" for a particular node; else by slot
  // For a GET: returns memory for a value of this size, given its beginning (kRedisHead bytes or
  // all). Returns nothing to skip the value. The reply is then the size, an integer.
  std::function<std::span<std::byte>(size_t bytes, std::span<const std::byte> head)> place{};
  std::function<void()> placed{};  // called once the value has arrived
};
constexpr size_t kRedisHead = 192;

class RedisClient {
 public:
  // Does not connect yet.
  explicit RedisClient(const StoreUrl& url) : url_(url) {}

  // Returns the replies in order, server errors included. Follows redirections (MOVED, ASK, a
  // failover in progress). Throws an io Error at the deadline or when `stop` is set. The deadline
  // is `seconds` from now, renewed whenever a value has been placed.
  std::vector<RedisReply> run(std::span<const RedisCommand> commands, double seconds,
                              const std::atomic<bool>* stop = nullptr);
  RedisReply run(const RedisCommand& command, double seconds);
  // Returns "host:port" of the servers that hold keys.
  std::vector<std::string> masters(double seconds);
  // Returns how many replicas of the key's node have received the writes made over its connection.
  // Returns nothing if that connection is lost.
  std::optional<int64_t> wait(const std::string& key, double seconds);
  std::string node_of_key(const std::string& key) const { return node_of({{"GET", key}}); }
  // Returns how often a connection failed. wait() does not cover writes made over an earlier
  // connection.
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
  std::vector<std::string> slots_;   // node of each slot; empty without a cluster
  std::vector<std::string> others_;  // further nodes to ask about slots
  bool known_ = false;
  uint64_t failures_ = 0;
  // State of the current run.
  const std::atomic<bool>* stop_ = nullptr;
  double seconds_ = 0;
  std::string fault_;  // the latest fault
};

// Returns CRC-16 (XMODEM) modulo 16384 of the key, or of the part in its first braces.
unsigned redis_slot(const std::string& key);

}  // namespace stet

// The connections to the servers of a store, which threads share: what is asked over them, what
// errors mean, and when a write counts as done.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/store/redis_client.hpp"

namespace stet {

// Empty, and 0, where the reply is of another kind.
std::string_view string_of(const RedisReply& reply);
int64_t integer_of(const RedisReply& reply);
// Whether it says that the server's memory is full.
bool is_full(const RedisReply& reply);

// All throw an io Error where there is no answer in time, or an error that is not theirs to
// understand: they do so of a full memory, and of a key that holds something that no store has put
// there.
class RedisConnections {
 public:
  RedisConnections(const StoreUrl& url, StorePatience patience);

  const std::string& url() const { return text_; }  // without user and password
  // Throws an unsupported Error where a server is not one that a store can be on.
  void check();
  bool is_replicated() const { return replicated_; }  // as check() has found
  std::vector<std::string> masters(double seconds);

  std::vector<RedisReply> run(std::span<const RedisCommand> commands, double seconds,
                              const std::atomic<bool>* stop = nullptr);
  RedisReply one(const RedisCommand& command, double seconds);
  // Where there are replicas, one of them has what was written before this returns. All of it is on
  // the server of `key`, and may be written again after a connection failed.
  std::vector<RedisReply> run_acknowledged(const std::string& key,
                                           std::span<const RedisCommand> commands);
  // The keys of all servers, some at a time.
  void scan(const std::string& pattern,
            const std::function<void(const std::vector<std::string>&)>& each);

 private:
  void with_client(const std::function<void(RedisClient&)>& work);
  RedisReply checked(RedisReply reply) const;
  void check_policy(const std::string& node, std::string_view info) const;
  bool is_held(RedisClient& client, const std::string& key) const;

  const StoreUrl url_;
  const StorePatience patience_;
  const std::string text_;
  bool replicated_ = false;
  std::mutex mutex_;
  std::vector<std::unique_ptr<RedisClient>> idle_;
};

}  // namespace stet

// Shares connections to a store's servers among threads, interprets their errors, and decides when
// a write counts as done.
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

// Return an empty text or 0 if the reply is of another kind.
std::string_view string_of(const RedisReply& reply);
int64_t integer_of(const RedisReply& reply);
// Returns whether the server's memory is full.
bool is_full(const RedisReply& reply);

// Functions throw an io Error if there is no timely answer, or for an error that callers cannot
// handle. Callers handle two: full memory, and a key with a value that no store wrote.
class RedisConnections {
 public:
  RedisConnections(const StoreUrl& url, StoreTimeouts patience);

  const std::string& url() const { return text_; }  // without user name and password
  // Throws an unsupported Error if a server is not suitable for a store.
  void check();
  bool is_replicated() const { return replicated_; }  // as check() found
  std::vector<std::string> masters(double seconds);

  std::vector<RedisReply> run(std::span<const RedisCommand> commands, double seconds,
                              const std::atomic<bool>* stop = nullptr);
  RedisReply one(const RedisCommand& command, double seconds);
  // Runs writes and returns once a replica has them, if there are replicas. All must go to the
  // server of `key`, and may be repeated if a connection fails.
  std::vector<RedisReply> run_acknowledged(const std::string& key,
                                           std::span<const RedisCommand> commands);
  // Lists the keys of all servers that begin with `front` and end with `end`, in portions.
  void scan(const std::string& front, const std::string& end,
            const std::function<void(const std::vector<std::string>&)>& each);

 private:
  void with_client(const std::function<void(RedisClient&)>& work);
  RedisReply checked(RedisReply reply) const;
  void check_policy(const std::string& node, std::string_view info) const;
  bool is_held(RedisClient& client, const std::string& key) const;

  const StoreUrl url_;
  const StoreTimeouts patience_;
  const std::string text_;
  bool replicated_ = false;
  std::mutex mutex_;
  std::vector<std::unique_ptr<RedisClient>> idle_;
};

}  // namespace stet

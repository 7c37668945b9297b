// Receives values of a Redis server in place, which hiredis would copy twice.
//
//   answer = "$" size CR LF bytes CR LF | "$-1" CR LF | a line of another kind
#pragma once

#include <hiredis/hiredis.h>

#include <array>
#include <atomic>
#include <string_view>

#include "src/store/redis_client.hpp"

namespace stet {

// Waits for bytes on a connection. Returns false once the time is over or `stop` is set.
bool wait_for_bytes(int fd, double until, const std::atomic<bool>* stop);

// Reads the replies to GETs over a connection from which hiredis has read nothing beyond.
class RedisValues {
 public:
  // `until` is read again for each wait.
  RedisValues(redisContext* connection, const double& until, const std::atomic<bool>* stop)
      : connection_(connection), until_(until), stop_(stop) {}

  // Returns the next reply, which is an integer for a value that was placed. Returns null if the
  // connection failed, the time is over, or the reply is malformed.
  RedisReply next(const RedisCommand& get);
  // Returns whether nothing was received beyond the replies.
  bool is_done() const { return at_ == end_; }
  const char* fault() const { return closed_ ? "the connection was closed" : "no answer in time"; }

 private:
  bool more(ssize_t received);
  bool has(size_t bytes);  // in the buffer, at most kBuffer
  bool receive(std::span<std::byte> bytes);
  bool receive_value(const RedisCommand& get, size_t bytes);
  bool line(std::string_view& text);
  RedisReply parsed(std::string_view text);

  static constexpr size_t kBuffer = 4096;
  redisContext* connection_;
  const double& until_;
  const std::atomic<bool>* stop_;
  std::array<char, kBuffer> buffer_;
  size_t at_ = 0, end_ = 0;
  bool closed_ = false;
};

}  // namespace stet

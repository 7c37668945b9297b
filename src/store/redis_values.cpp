#ifdef STET_HAVE_HIREDIS
#include "src/store/redis_values.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "src/store/clock.hpp"

namespace stet {
namespace {

constexpr size_t kMostValue = size_t{512} << 20;  // limit of the servers
constexpr double kSlice = 0.05;                   // seconds until a stop is noticed

}  // namespace

bool wait_for_bytes(int fd, double until, const std::atomic<bool>* stop) {
  for (;;) {
    const double left = until - seconds_now();
    if (left <= 0 || (stop != nullptr && *stop)) return false;
    pollfd waited{fd, POLLIN, 0};
    const double slice = stop == nullptr ? left : std::min(left, kSlice);
    const int found = ::poll(&waited, 1, static_cast<int>(slice * 1000) + 1);
    if (found > 0) return true;
    if (found < 0 && errno != EINTR) return false;
  }
}

// Returns whether more bytes may come in time, after a call that received `received` bytes or
// failed.
bool RedisValues::more(ssize_t received) {
  if (received > 0) return seconds_now() <= until_ && (stop_ == nullptr || !*stop_);
  closed_ = received == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  return !closed_ && wait_for_bytes(connection_->fd, until_, stop_);
}

// Fills `bytes`, and reads what follows into the buffer, by a single call if possible.
bool RedisValues::receive(std::span<std::byte> bytes) {
  const size_t buffered = std::min(bytes.size(), end_ - at_);
  std::memcpy(bytes.data(), buffer_.data() + at_, buffered);
  at_ += buffered;
  bytes = bytes.subspan(buffered);
  while (!bytes.empty()) {
    iovec parts[] = {{bytes.data(), bytes.size()}, {buffer_.data(), buffer_.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t n = ::recvmsg(connection_->fd, &message, MSG_DONTWAIT);
    if (n > 0) {
      const size_t own = std::min(bytes.size(), static_cast<size_t>(n));
      bytes = bytes.subspan(own);
      at_ = 0, end_ = static_cast<size_t>(n) - own;
    }
    if (!bytes.empty() && !more(n)) return false;
  }
  return true;
}

bool RedisValues::has(size_t bytes) {
  while (end_ - at_ < bytes) {
    std::memmove(buffer_.data(), buffer_.data() + at_, end_ - at_);
    end_ -= at_, at_ = 0;
    const ssize_t n =
        ::recv(connection_->fd, buffer_.data() + end_, buffer_.size() - end_, MSG_DONTWAIT);
    if (n > 0) end_ += static_cast<size_t>(n);
    if (!more(n)) return false;
  }
  return true;
}

bool RedisValues::line(std::string_view& text) {
  for (size_t size = 2; size <= kBuffer / 2; ++size) {
    if (!has(size)) return false;
    if (buffer_[at_ + size - 2] != '\r' || buffer_[at_ + size - 1] != '\n') continue;
    text = std::string_view(buffer_.data() + at_, size - 2);
    at_ += size;
    return true;
  }
  return false;
}

// Lets hiredis parse a reply of a single line.
RedisReply RedisValues::parsed(std::string_view text) {
  const std::string whole = std::string(text) + "\r\n";
  void* reply = nullptr;
  if (::redisReaderFeed(connection_->reader, whole.data(), whole.size()) != REDIS_OK ||
      ::redisGetReplyFromReader(connection_, &reply) != REDIS_OK)
    return nullptr;
  return RedisReply(static_cast<redisReply*>(reply));
}

bool RedisValues::receive_value(const RedisCommand& get, size_t bytes) {
  const size_t head = std::min(bytes, kRedisHead);
  if (!has(head)) return false;
  const auto first = std::as_bytes(std::span(buffer_).subspan(at_, head));
  const std::span<std::byte> to = get.place(bytes, first);
  if (to.size() == bytes) return receive(to);
  std::array<std::byte, kBuffer> dropped;
  for (size_t left = bytes; left > 0;) {
    const size_t some = std::min(left, dropped.size());
    if (!receive(std::span(dropped).first(some))) return false;
    left -= some;
  }
  return true;
}

RedisReply RedisValues::next(const RedisCommand& get) {
  std::string_view text;
  if (!line(text) || text.empty()) return nullptr;
  if (text[0] == '-' || text == "$-1") return parsed(text);
  size_t bytes = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + 1, end, bytes);
  if (text[0] != '$' || error != std::errc() || at != end || bytes > kMostValue) return nullptr;
  if (!receive_value(get, bytes) || !has(2) || buffer_[at_] != '\r' || buffer_[at_ + 1] != '\n')
    return nullptr;
  at_ += 2;
  return parsed(":" + std::to_string(bytes));
}

}  // namespace stet
#endif

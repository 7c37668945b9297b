// One connection: requests are read one after the other and answered one after the other, all by
// the server's one thread; what computes an answer runs elsewhere and hands its bytes over.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "tools/serve/request_reader.hpp"

namespace stet::serve {

class Connection;
using ConnectionPtr = std::shared_ptr<Connection>;

// What the connections of a server have in common. The server's thread alone uses it, but `bodies`.
struct HttpContext {
  explicit HttpContext(const HttpLimits& limits_) : limits(limits_), work(limits_.threads) {}
  virtual void ended(Connection& connection) = 0;  // closed; it is not used any more

  const HttpLimits limits;
  HttpServer::Admit admit;
  boost::asio::io_context io{1};
  boost::asio::thread_pool work, beside{1};
  std::atomic<size_t> bodies{0};  // bytes of bodies in memory
  bool draining = false;

 protected:
  ~HttpContext() = default;
};

// Bytes on their way to a client. Whoever computes them hands them to the system at once, as far as
// it takes them; the rest is kept for the server's thread, so that a token waits for no other
// thread where its client reads.
class SendQueue {
 public:
  explicit SendQueue(int socket) : socket_(socket) {}
  // Waits while much is on its way. False once nobody takes it. `idle`: bytes are kept and nobody
  // was writing; whoever called is to have it begun.
  bool put(std::string bytes, bool* idle);
  std::string take();  // "" where there is none, and whoever writes has ended
  void fail();         // nothing is written to the socket from here on: it may be closed
  bool empty();

 private:
  const int socket_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> queue_;
  size_t bytes_ = 0;
  bool writing_ = false, failed_ = false;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, std::string remote, std::string group,
             HttpContext& context);

  void begin();
  void drain();  // closes: at once where nothing is being answered, else after that
  void cut();    // closes at once; whoever works for the client finds it closed
  const std::string& group() const { return group_; }  // of addresses that count as one
  bool waits() const { return phase_ == Phase::idle; }
  bool asks() const { return phase_ == Phase::head || phase_ == Phase::body; }

 private:
  enum class Phase : uint8_t { idle, head, body, answering, lingering, closed };

  // A handler of something that the system does: what it throws ends the connection.
  template <class Work>
  void guarded(Work work) {
    try {
      work();
    } catch (...) {  // no memory, say
      cut();
    }
  }
  void read();
  void took(const boost::system::error_code& error, size_t n);
  void advance();
  void begin_request();
  void admit();
  void account(size_t body_bytes);
  void dispatch();
  void refuse(const RequestError& error, bool body_is_left);
  void answer(Request request, bool at_once);
  bool send(std::string bytes);
  void send_whole(Response response, const Request& request);
  std::string head_of(const Response& response, const Request& request,
                      std::optional<size_t> size) const;
  void flush();
  void ended(bool whole);
  void next();
  void linger();
  void close();
  void arm(double seconds);
  void disarm();
  void late();

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  const std::string remote_, group_;
  HttpContext& context_;

  Phase phase_ = Phase::idle;
  std::string in_;  // bytes that were read and not understood yet
  std::array<char, 16384> piece_;
  bool reading_ = false, at_end_ = false;
  size_t discarded_ = 0;
  uint64_t alarm_ = 0;

  std::optional<RequestReader> reader_;
  Request request_;
  Admission admission_;
  std::string encoding_, range_;
  bool head_only_ = false, http11_ = true, keep_ = false;
  size_t accounted_ = 0;
  std::shared_ptr<std::atomic<bool>> client_left_;

  SendQueue out_;
  std::string writing_;
  size_t written_ = 0;
  bool answered_ = false;
};

}  // namespace stet::serve

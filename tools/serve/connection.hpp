// A connection, whose requests are read and answered one after another. All of it runs in the
// server's thread. Other threads compute answers and pass their bytes to it.
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

// Shared by the connections of a server. Only the server's thread uses it, except `bodies`.
struct HttpContext {
  explicit HttpContext(const HttpLimits& limits_) : limits(limits_), work(limits_.threads) {}
  virtual void ended(Connection& connection) = 0;  // called when it has closed and is unused

  const HttpLimits limits;
  HttpServer::Admit admit;
  std::atomic<size_t> bodies{0};  // bytes of request bodies in memory
  boost::asio::io_context io{1};
  boost::asio::thread_pool work, beside{1};
  bool draining = false;

 protected:
  ~HttpContext() = default;
};

// The bytes that the body of a request takes, counted among those of all requests.
class BodyRoom {
 public:
  explicit BodyRoom(HttpContext& context) : context_(context) {}
  BodyRoom(const BodyRoom&) = delete;
  BodyRoom& operator=(const BodyRoom&) = delete;
  ~BodyRoom() { set(0); }
  // Changes the number of bytes. Throws a RequestError (503) if the bodies of all requests would
  // then have too many.
  void set(size_t bytes);

 private:
  HttpContext& context_;
  size_t bytes_ = 0;
};
// Returns the error for a body that finds no room.
RequestError no_body_room();

// Bytes on their way to a client. The thread that computes them first writes as many as the system
// takes, so that a token waits for no other thread. The server's thread writes the rest.
class SendQueue {
 public:
  explicit SendQueue(int socket) : socket_(socket) {}
  // Waits while many bytes are queued. Returns false once the connection has failed. Sets `idle` if
  // bytes are queued and no thread is writing; the caller must then start the writing.
  bool put(std::string bytes, bool* idle);
  std::string take();  // returns "" if nothing is queued, which ends the writing
  void fail();         // ends all writes to the socket, so that it may be closed
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
  void drain();  // closes: at once if nothing is being answered, else after the answer
  void cut();    // closes at once; threads that work for the client see it disconnected
  const std::string& group() const { return group_; }  // addresses that count as one client
  bool waits() const { return phase_ == Phase::idle; }
  bool asks() const { return phase_ == Phase::head || phase_ == Phase::body; }

 private:
  enum class Phase : uint8_t { idle, head, body, answering, lingering, closed };

  // Returns a handler of an event. An exception of `work` ends the connection.
  template <class Work>
  void guarded(Work work) {
    try {
      work();
    } catch (...) {  // such as a lack of memory
      cut();
    }
  }
  void read();
  void took(const boost::system::error_code& error, size_t n);
  void advance();
  void begin_request();
  void admit();
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
  std::string in_;  // bytes read and not parsed yet
  std::array<char, 16384> piece_;
  bool reading_ = false, at_end_ = false;
  size_t discarded_ = 0;
  uint64_t alarm_ = 0;

  std::optional<RequestReader> reader_;
  Request request_;
  Admission admission_;
  std::string encoding_, range_;
  bool head_only_ = false, http11_ = true, keep_ = false;
  BodyRoom room_;
  std::shared_ptr<std::atomic<bool>> client_left_;

  SendQueue out_;
  std::string writing_;
  size_t written_ = 0;
  bool answered_ = false;
};

}  // namespace stet::serve

// Reading of requests, from bytes to the thread that answers; closing of connections.
#include "tools/serve/connection.hpp"

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <chrono>

namespace stet::serve {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr size_t kMostAhead = 65536;          // bytes of further requests while one is answered
constexpr size_t kMostDiscarded = 256 << 10;  // bytes of a refused body
constexpr double kLingerSeconds = 1;

}  // namespace

// ---------------------------------------------------------------- room for bodies

RequestError no_body_room() {
  return {503, "too_many_bodies",
          "expected room for the bodies of all requests, found none: try again later"};
}

void BodyRoom::set(size_t bytes) {
  context_.bodies += bytes;
  context_.bodies -= std::exchange(bytes_, bytes);
  if (bytes > 0 && context_.bodies > context_.limits.bodies_bytes) throw no_body_room();
}

// ---------------------------------------------------------------- the life of a connection

Connection::Connection(tcp::socket socket, std::string remote, std::string group,
                       HttpContext& context)
    : socket_(std::move(socket)),
      timer_(context.io),
      remote_(std::move(remote)),
      group_(std::move(group)),
      context_(context),
      room_(context),
      client_left_(std::make_shared<std::atomic<bool>>(false)),
      out_(socket_.native_handle()) {}

void Connection::begin() {
  guarded([&] {
    arm(context_.limits.idle_seconds);
    begin_request();
    read();
  });
}

void Connection::begin_request() {
  phase_ = Phase::idle;
  reader_.emplace(context_.limits.head_bytes);
  request_ = {};
  admission_ = {};
  answered_ = false;
}

void Connection::drain() {
  if (waits() || asks()) close();
}

void Connection::cut() {
  client_left_->store(true);
  out_.fail();
  close();
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  const ConnectionPtr self = shared_from_this();
  phase_ = Phase::closed;
  client_left_->store(true);
  out_.fail();
  room_.set(0);
  disarm();
  error_code ignored;
  socket_.close(ignored);
  context_.ended(*this);
}

// Reads and discards the client's bytes for a while. If the connection closed at once, the system
// would drop an answer that the client has not read yet.
void Connection::linger() {
  phase_ = Phase::lingering;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  if (at_end_) return close();
  arm(kLingerSeconds);
  read();
}

void Connection::arm(double seconds) {
  timer_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds)));
  timer_.async_wait([self = shared_from_this(), alarm = ++alarm_](const error_code& error) {
    if (!error && alarm == self->alarm_) self->guarded([&] { self->late(); });
  });
}

void Connection::disarm() {
  ++alarm_;
  timer_.cancel();
}

void Connection::late() {
  if (!asks()) return cut();
  refuse({408, "request_timeout", "the request did not arrive in time"}, true);
}

// ---------------------------------------------------------------- requests

void Connection::read() {
  if (reading_ || at_end_ || phase_ == Phase::closed) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(piece_),
                          [self = shared_from_this()](const error_code& error, size_t n) {
                            self->reading_ = false;
                            self->guarded([&] { self->took(error, n); });
                          });
}

void Connection::took(const error_code& error, size_t n) {
  if (phase_ == Phase::closed) return;
  if (error) {
    // A peer that has shut down its side only also ends here: no client of this API does that.
    at_end_ = true;
    client_left_->store(true);
    if (phase_ != Phase::answering) close();
    return;
  }
  if (phase_ == Phase::lingering) {
    discarded_ += n;
    return discarded_ > kMostDiscarded ? close() : read();
  }
  in_.append(piece_.data(), n);
  if (phase_ != Phase::answering) return advance();
  return in_.size() > kMostAhead ? cut() : read();
}

void Connection::advance() {
  bool head_is_read = false;
  try {
    if (phase_ == Phase::idle && !in_.empty()) {
      phase_ = Phase::head;
      arm(context_.limits.request_seconds);
    }
    if (phase_ == Phase::head && reader_->read_head(in_)) {
      head_is_read = true;
      admit();
      head_is_read = false;
    }
    if (phase_ == Phase::body) {
      const bool whole = reader_->read_body(in_, admission_.body_bytes);
      room_.set(reader_->body_bytes());
      if (whole) return dispatch();
    }
  } catch (...) {
    return refuse(current_error(), !head_is_read || reader_->head().has_body());
  }
  read();
}

// Checks everything for which a request can be refused before its body is read.
void Connection::admit() {
  const Head& head = reader_->head();
  head_only_ = head.method == "HEAD";
  http11_ = head.http11;
  keep_ = false;  // close after a malformed address
  range_ = head.method == "GET" && head.field("if-range").empty() ? head.field("range") : "";
  encoding_ = head.field("content-encoding");
  Request& r = request_;
  r.method = head_only_ ? "GET" : head.method;
  r.has_body = head.has_body();
  r.authorization = head.field("authorization");
  if (const std::string key = head.field("x-api-key"); r.authorization.empty() && !key.empty())
    r.authorization = "Bearer " + key;  // the form that Anthropic's clients send
  r.host = head.field("host");
  r.origin = head.field("origin");
  r.content_type = head.field("content-type");
  r.remote = remote_;
  r.connection = ClientConnection(client_left_);
  Address address = parse_target(head.target);
  r.path = std::move(address.path);
  r.query = std::move(address.query);
  keep_ = head.keep_alive;
  admission_ = context_.admit(r);
  if (!head.has_body()) return dispatch();
  if (head.length.value_or(0) > admission_.body_bytes)
    throw RequestError(
        413, "body_too_large",
        fmt::format("the body has {} bytes; the limit is {}", *head.length, admission_.body_bytes));
  if (context_.bodies + head.length.value_or(0) > context_.limits.bodies_bytes)
    throw no_body_room();
  phase_ = Phase::body;
  const auto size = static_cast<double>(head.length.value_or(admission_.body_bytes));
  arm(context_.limits.request_seconds + size / context_.limits.body_bytes_per_second);
  if (head.expects_continue && in_.empty()) send("HTTP/1.1 100 Continue\r\n\r\n");
}

void Connection::dispatch() {
  phase_ = Phase::answering;
  disarm();
  request_.body = reader_->take_body();
  const auto work = [self = shared_from_this()] {
    self->answer(std::move(self->request_), self->admission_.lane == Lane::at_once);
  };
  switch (admission_.lane) {
    case Lane::at_once:
      work();
      break;
    case Lane::beside:
      asio::post(context_.beside, work);
      break;
    case Lane::work:
      asio::post(context_.work, work);
      break;
  }
  read();  // to detect that the client disconnects
}

}  // namespace stet::serve

#include "tools/serve/connection.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/status.hpp>
#include <chrono>

namespace stet::serve {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr size_t kMostAhead = 65536;          // bytes of further requests while one is answered
constexpr size_t kMostQueued = 1 << 20;       // bytes of a stream that its client has not taken
constexpr size_t kMostPiece = 256 << 10;      // of an answer that one deadline is for
constexpr size_t kMostDiscarded = 256 << 10;  // of a body that nobody wants
constexpr double kLingerSeconds = 1;

std::string chunk(std::string_view bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

RequestError no_room() {
  return {503, "too_many_bodies",
          "expected room for the bodies of all requests, found none: try again later"};
}

// How many of the bytes the system takes without waiting. An error is left to who writes the rest.
size_t written_at_once(int socket, std::string_view bytes) {
  if (bytes.empty()) return 0;
  const ssize_t n = ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return n > 0 ? static_cast<size_t>(n) : 0;
}

}  // namespace

// ---------------------------------------------------------------- bytes to the client

bool Outbox::put(std::string bytes, bool* idle) {
  *idle = false;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failed_ || bytes_ < kMostQueued; });
  if (failed_) return false;
  if (!writing_) bytes.erase(0, written_at_once(socket_, bytes));
  if (bytes.empty()) return true;
  bytes_ += bytes.size();
  queue_.push_back(std::move(bytes));
  *idle = !std::exchange(writing_, true);
  return true;
}

std::string Outbox::take() {
  const std::lock_guard lock(mutex_);
  writing_ = !queue_.empty();
  if (queue_.empty()) return "";
  std::string bytes = std::move(queue_.front());
  queue_.pop_front();
  bytes_ -= bytes.size();
  changed_.notify_all();
  return bytes;
}

void Outbox::fail() {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  changed_.notify_all();
}

bool Outbox::empty() {
  const std::lock_guard lock(mutex_);
  return !writing_;
}

// ---------------------------------------------------------------- the life of a connection

Link::Link(tcp::socket socket, std::string remote, std::string group, Hub& hub)
    : socket_(std::move(socket)),
      timer_(hub.io),
      remote_(std::move(remote)),
      group_(std::move(group)),
      hub_(hub),
      gone_(std::make_shared<std::atomic<bool>>(false)),
      out_(socket_.native_handle()) {}

template <class Work>
void Link::guarded(Work work) {
  try {
    work();
  } catch (...) {  // no memory, say
    cut();
  }
}

void Link::begin() {
  guarded([&] {
    arm(hub_.limits.idle_seconds);
    begin_request();
    read();
  });
}

void Link::begin_request() {
  phase_ = Phase::idle;
  reader_.emplace(hub_.limits.head_bytes);
  request_ = {};
  admission_ = {};
  answered_ = false;
}

void Link::drain() {
  if (waits() || asks()) close();
}

void Link::cut() {
  gone_->store(true);
  out_.fail();
  close();
}

void Link::close() {
  if (phase_ == Phase::closed) return;
  const LinkPtr self = shared_from_this();
  phase_ = Phase::closed;
  gone_->store(true);
  out_.fail();
  account(0);
  disarm();
  error_code ignored;
  socket_.close(ignored);
  hub_.ended(*this);
}

// What the client still sends is taken for a while: closing at once would have the system throw
// away an answer that the client has not read.
void Link::linger() {
  phase_ = Phase::lingering;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  if (at_end_) return close();
  arm(kLingerSeconds);
  read();
}

void Link::arm(double seconds) {
  timer_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds)));
  timer_.async_wait([self = shared_from_this(), alarm = ++alarm_](const error_code& error) {
    if (!error && alarm == self->alarm_) self->guarded([&] { self->late(); });
  });
}

void Link::disarm() {
  ++alarm_;
  timer_.cancel();
}

void Link::late() {
  if (!asks()) return cut();
  refuse({408, "request_timeout", "expected a whole request in time, found a part of one"}, true);
}

// ---------------------------------------------------------------- requests

void Link::read() {
  if (reading_ || at_end_ || phase_ == Phase::closed) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(piece_),
                          [self = shared_from_this()](const error_code& error, size_t n) {
                            self->reading_ = false;
                            self->guarded([&] { self->took(error, n); });
                          });
}

void Link::took(const error_code& error, size_t n) {
  if (phase_ == Phase::closed) return;
  if (error) {
    // A peer that has shut down its side, too: no client of this interface does so and waits.
    at_end_ = true;
    gone_->store(true);
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

void Link::advance() {
  bool head_is_read = false;
  try {
    if (phase_ == Phase::idle && !in_.empty()) {
      phase_ = Phase::head;
      arm(hub_.limits.request_seconds);
    }
    if (phase_ == Phase::head && reader_->read_head(in_)) {
      head_is_read = true;
      admit();
      head_is_read = false;
    }
    if (phase_ == Phase::body) {
      const bool whole = reader_->read_body(in_, admission_.body_bytes);
      account(reader_->body_bytes());
      if (whole) return dispatch();
    }
  } catch (...) {
    return refuse(current_error(), !head_is_read || reader_->head().has_body());
  }
  read();
}

// Everything that a request can be refused for before its body is read.
void Link::admit() {
  const Head& head = reader_->head();
  head_only_ = head.method == "HEAD";
  http11_ = head.http11;
  keep_ = false;  // after an address that is none
  range_ = head.method == "GET" && head.field("if-range").empty() ? head.field("range") : "";
  encoding_ = head.field("content-encoding");
  Request& r = request_;
  r.method = head_only_ ? "GET" : head.method;
  r.has_body = head.has_body();
  r.authorization = head.field("authorization");
  if (const std::string key = head.field("x-api-key"); r.authorization.empty() && !key.empty())
    r.authorization = "Bearer " + key;  // Anthropic's
  r.host = head.field("host");
  r.origin = head.field("origin");
  r.content_type = head.field("content-type");
  r.remote = remote_;
  r.connection = Connection(gone_);
  Address address = parse_target(head.target);
  r.path = std::move(address.path);
  r.query = std::move(address.query);
  keep_ = head.keep_alive;
  admission_ = hub_.admit(r);
  if (!head.has_body()) return dispatch();
  if (head.length.value_or(0) > admission_.body_bytes)
    throw RequestError(413, "body_too_large",
                       fmt::format("expected a body of at most {} bytes, found one of {}",
                                   admission_.body_bytes, *head.length));
  if (hub_.bodies + head.length.value_or(0) > hub_.limits.bodies_bytes) throw no_room();
  phase_ = Phase::body;
  const auto size = static_cast<double>(head.length.value_or(admission_.body_bytes));
  arm(hub_.limits.request_seconds + size / hub_.limits.body_bytes_per_second);
  if (head.expects_continue && in_.empty()) send("HTTP/1.1 100 Continue\r\n\r\n");
}

void Link::account(size_t body_bytes) {
  hub_.bodies += body_bytes;
  hub_.bodies -= std::exchange(accounted_, body_bytes);
  if (body_bytes > 0 && hub_.bodies > hub_.limits.bodies_bytes) throw no_room();
}

void Link::dispatch() {
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
      asio::post(hub_.beside, work);
      break;
    case Lane::work:
      asio::post(hub_.work, work);
      break;
  }
  read();  // to notice that the client leaves
}

// ---------------------------------------------------------------- answers

void Link::refuse(const RequestError& error, bool body_is_left) {
  phase_ = Phase::answering;
  disarm();
  keep_ = keep_ && !body_is_left;
  send_whole(error_response(error), request_);
  ended(true);
}

// In the thread that computes it.
void Link::answer(Request request, bool at_once) {
  bool whole = true;
  try {
    Response response;
    try {
      request.body = decoded_body(std::move(request.body), encoding_, admission_.body_bytes);
      response = hub_.handler(request);
    } catch (...) {
      response = error_response(current_error());
    }
    if (!response.stream) {
      send_whole(std::move(response), request);
    } else {
      keep_ = keep_ && http11_;  // else the connection's end is that of the answer
      whole = send(head_of(response, request, std::nullopt));
      Writer writer([&](std::string_view bytes) {
        return bytes.empty() || send(http11_ ? chunk(bytes) : std::string(bytes));
      });
      response.stream(writer);
      whole = whole && writer.good() && (!http11_ || send("0\r\n\r\n"));
    }
  } catch (...) {
    whole = false;
  }
  if (at_once) return ended(whole);
  asio::post(hub_.io,
             [self = shared_from_this(), whole] { self->guarded([&] { self->ended(whole); }); });
}

void Link::send_whole(Response response, const Request& request) {
  if (!range_.empty() && response.status == 200) {
    try {
      if (const auto part = parse_range(range_, response.body.size())) {
        response.headers.emplace_back(
            "Content-Range", fmt::format("bytes {}-{}/{}", part->first,
                                         part->first + part->second - 1, response.body.size()));
        response.body = response.body.substr(part->first, part->second);
        response.status = 206;
      }
    } catch (const RequestError& error) {
      const size_t size = response.body.size();
      response = error_response(error);
      response.headers.emplace_back("Content-Range", fmt::format("bytes */{}", size));
    }
  }
  std::string bytes = head_of(response, request, response.body.size());
  if (!head_only_) bytes += response.body;
  send(std::move(bytes));
}

std::string Link::head_of(const Response& response, const Request& request,
                          std::optional<size_t> size) const {
  const auto reason = boost::beast::http::obsolete_reason(
      boost::beast::http::int_to_status(static_cast<unsigned>(response.status)));
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", response.status,
                                 std::string_view(reason.data(), reason.size()), response.type);
  if (size)
    head += fmt::format("Content-Length: {}\r\n", *size);
  else if (http11_)
    head += "Transfer-Encoding: chunked\r\n";
  for (const HeaderList* list : {&response.headers, &request.reply_headers})
    for (const auto& [name, value] : *list) head += fmt::format("{}: {}\r\n", name, value);
  return head + fmt::format("X-Content-Type-Options: nosniff\r\nConnection: {}\r\n\r\n",
                            keep_ ? "keep-alive" : "close");
}

bool Link::send(std::string bytes) {
  bool idle = false;
  if (!out_.put(std::move(bytes), &idle)) return false;
  if (idle)
    asio::post(hub_.io, [self = shared_from_this()] { self->guarded([&] { self->flush(); }); });
  return true;
}

void Link::flush() {
  if (phase_ == Phase::closed) return;
  if (written_ == writing_.size()) {
    writing_ = out_.take();
    written_ = 0;
    if (phase_ == Phase::answering) disarm();
    if (writing_.empty()) return answered_ ? next() : void();
  }
  if (phase_ == Phase::answering) arm(hub_.limits.write_seconds);
  const size_t n = std::min(writing_.size() - written_, kMostPiece);
  socket_.async_write_some(asio::buffer(writing_.data() + written_, n),
                           [self = shared_from_this()](const error_code& error, size_t done) {
                             if (error) return self->cut();
                             self->written_ += done;
                             self->guarded([&] { self->flush(); });
                           });
}

void Link::ended(bool whole) {
  if (phase_ == Phase::closed) return;
  if (!whole) return cut();
  answered_ = true;
  if (out_.empty()) next();
}

// After an answer.
void Link::next() {
  account(0);
  if (!keep_ || at_end_ || hub_.draining) return linger();
  gone_ = std::make_shared<std::atomic<bool>>(false);
  begin_request();
  arm(hub_.limits.idle_seconds);
  advance();
}

}  // namespace stet::serve

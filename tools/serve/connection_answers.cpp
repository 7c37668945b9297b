// Writing of answers, from a Response to bytes on the socket.
#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/status.hpp>

#include "tools/serve/connection.hpp"

namespace stet::serve {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kMostQueued = 1 << 20;   // bytes of a stream not yet taken by the client
constexpr size_t kMostPiece = 256 << 10;  // bytes of an answer per write deadline

std::string chunk(std::string_view bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

// Returns the number of bytes that the system takes without waiting. Errors are left to later
// writes.
size_t written_at_once(int socket, std::string_view bytes) {
  if (bytes.empty()) return 0;
  const ssize_t n = ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return n > 0 ? static_cast<size_t>(n) : 0;
}

}  // namespace

// ---------------------------------------------------------------- queued bytes

bool SendQueue::put(std::string bytes, bool* idle) {
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

std::string SendQueue::take() {
  const std::lock_guard lock(mutex_);
  writing_ = !queue_.empty();
  if (queue_.empty()) return "";
  std::string bytes = std::move(queue_.front());
  queue_.pop_front();
  bytes_ -= bytes.size();
  changed_.notify_all();
  return bytes;
}

void SendQueue::fail() {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  changed_.notify_all();
}

bool SendQueue::empty() {
  const std::lock_guard lock(mutex_);
  return !writing_;
}

// ---------------------------------------------------------------- answers

void Connection::refuse(const RequestError& error, bool body_is_left) {
  phase_ = Phase::answering;
  disarm();
  keep_ = keep_ && !body_is_left;
  send_whole(error_response(error), request_);
  ended(true);
}

// Runs in the thread that computes the answer.
void Connection::answer(Request request, bool at_once) {
  bool whole = true;
  BodyRoom room(context_);  // for the expanded body
  try {
    Response response;
    try {
      request.body = decoded_body(std::move(request.body), encoding_, admission_.body_bytes,
                                  [&room](size_t bytes) { room.set(bytes); });
      response = admission_.answer(request);
    } catch (...) {
      response = error_response(reported_error());
    }
    if (!response.stream) {
      send_whole(std::move(response), request);
    } else {
      keep_ = keep_ && http11_;  // in HTTP/1.0 the connection's end marks the answer's
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
  asio::post(context_.io,
             [self = shared_from_this(), whole] { self->guarded([&] { self->ended(whole); }); });
}

void Connection::send_whole(Response response, const Request& request) {
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

std::string Connection::head_of(const Response& response, const Request& request,
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

bool Connection::send(std::string bytes) {
  bool idle = false;
  if (!out_.put(std::move(bytes), &idle)) return false;
  if (idle)
    asio::post(context_.io, [self = shared_from_this()] { self->guarded([&] { self->flush(); }); });
  return true;
}

void Connection::flush() {
  if (phase_ == Phase::closed) return;
  if (written_ == writing_.size()) {
    writing_ = out_.take();
    written_ = 0;
    if (phase_ == Phase::answering) disarm();
    if (writing_.empty()) return answered_ ? next() : void();
  }
  if (phase_ == Phase::answering) arm(context_.limits.write_seconds);
  const size_t n = std::min(writing_.size() - written_, kMostPiece);
  socket_.async_write_some(asio::buffer(writing_.data() + written_, n),
                           [self = shared_from_this()](const error_code& error, size_t done) {
                             if (error) return self->cut();
                             self->written_ += done;
                             self->guarded([&] { self->flush(); });
                           });
}

void Connection::ended(bool whole) {
  if (phase_ == Phase::closed) return;
  if (!whole) return cut();
  answered_ = true;
  if (out_.empty()) next();
}

// Starts the next request after an answer.
void Connection::next() {
  room_.set(0);
  if (!keep_ || at_end_ || context_.draining) return linger();
  client_left_ = std::make_shared<std::atomic<bool>>(false);
  begin_request();
  arm(context_.limits.idle_seconds);
  advance();
}

}  // namespace stet::serve

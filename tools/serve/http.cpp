#include "tools/serve/http.hpp"

#include <fcntl.h>
#include <httplib.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <optional>

#include "stet/base/error.hpp"

namespace stet::serve {
namespace {

thread_local int current_socket = -1;
// A body was not read to its end: what is left of it is no request.
thread_local bool half_read = false;

std::chrono::steady_clock::time_point after(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
}

// Bytes of one connection. A request has until a deadline to arrive, however slowly its bytes drip.
class SocketStream : public httplib::Stream {
 public:
  SocketStream(int socket, const HttpLimits& limits) : socket_(socket), limits_(limits) {}

  // Waits for the first byte of the next request.
  bool wait_for_request(double seconds) {
    if (at_ < end_) return true;
    deadline_ = after(seconds);
    const bool there = wait(POLLIN);
    deadline_ = after(limits_.request_seconds);
    return there;
  }

  bool is_readable() const override { return at_ < end_ || wait(POLLIN); }
  bool is_writable() const override { return !Connection(socket_).gone(); }

  ssize_t read(char* to, size_t size) override {
    if (at_ == end_) {
      if (!wait(POLLIN)) return -1;
      const ssize_t n = ::recv(socket_, buffer_, sizeof buffer_, 0);
      if (n <= 0) return n;
      at_ = 0;
      end_ = static_cast<size_t>(n);
    }
    const size_t n = std::min(size, end_ - at_);
    std::copy_n(buffer_ + at_, n, to);
    at_ += n;
    return static_cast<ssize_t>(n);
  }

  ssize_t write(const char* from, size_t size) override {
    deadline_ = after(limits_.write_seconds);
    if (!wait(POLLOUT)) return -1;
    return ::send(socket_, from, size, MSG_NOSIGNAL);
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    ip.clear();
    port = 0;
    if (::getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
    char text[64] = "";
    char service[8] = "";
    if (::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof text, service,
                      sizeof service, NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
      ip = text;
      port = std::atoi(service);
    }
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  socket_t socket() const override { return socket_; }

 private:
  bool wait(short events) const {
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline_ - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      pollfd p{socket_, events, 0};
      const int n = ::poll(&p, 1, static_cast<int>(left.count()));
      if (n > 0) return (p.revents & (events | POLLHUP | POLLERR)) != 0;
      if (n < 0 && errno != EINTR) return false;
    }
  }

  int socket_;
  const HttpLimits& limits_;
  mutable std::chrono::steady_clock::time_point deadline_ = after(limits_.request_seconds);
  char buffer_[16384];
  size_t at_ = 0, end_ = 0;
};

constexpr double kKeepAliveSeconds = 5;

class Library : public httplib::Server {
 public:
  explicit Library(const HttpLimits& limits) : limits_(limits) {}
  // The library itself lets five connections wait to be accepted, and the system refuses the sixth.
  void widen() { ::listen(svr_sock_, SOMAXCONN); }

 private:
  bool process_and_close_socket(socket_t sock) override {
    current_socket = sock;
    SocketStream stream(sock, limits_);
    bool closed = false;
    half_read = false;
    for (int i = 0; i < 1000 && !closed && stream.wait_for_request(kKeepAliveSeconds); ++i) {
      if (!process_request(stream, !is_running(), closed, nullptr) || half_read) break;
    }
    current_socket = -1;
    ::shutdown(sock, SHUT_WR);
    ::close(sock);
    return true;
  }

  const HttpLimits& limits_;
};

// The library would read bodies that curl calls forms up to 8 KB only, and what it unpacks without
// end. Nothing where the body is at fault: the reader has said how in its status.
std::optional<std::string> read_body(const httplib::Request& from,
                                     const httplib::ContentReader& read, size_t most) {
  if (from.is_multipart_form_data()) {
    // Read all the same: what is left of it would be taken for the next request.
    read([](const auto&) { return true; }, [](const char*, size_t) { return true; });
    throw RequestError(415, "unsupported_media_type", "expected JSON, found a multipart form");
  }
  std::string body;
  if (!from.has_header("Content-Length") && !from.has_header("Transfer-Encoding")) return body;
  bool fits = true;
  const bool whole = read([&](const char* bytes, size_t n) {
    fits = n <= most - body.size();
    if (fits) body.append(bytes, n);
    return fits;
  });
  half_read = !whole;
  if (!fits)
    throw RequestError(413, "bad_request", "expected a body within the limit, found a larger one");
  if (!whole && from.has_header("Content-Encoding"))
    throw RequestError(400, "bad_request",
                       "expected a body as its Content-Encoding says, found another");
  return whole ? std::optional(std::move(body)) : std::nullopt;
}

Request read_request(const httplib::Request& from, std::string body) {
  Request r;
  r.method = from.method == "HEAD" ? "GET" : from.method;  // the library leaves out the body
  r.path = from.path;
  r.body = std::move(body);
  // Of the address alone: the library takes bodies for forms, too, where curl says that they are.
  httplib::Params query;
  const size_t mark = from.target.find('?');
  if (mark != std::string::npos)
    httplib::detail::parse_query_text(from.target.substr(mark + 1), query);
  for (const auto& [name, value] : query) r.query[name] = value;
  r.authorization = from.get_header_value("Authorization");
  if (r.authorization.empty() && from.has_header("x-api-key"))  // Anthropic's
    r.authorization = "Bearer " + from.get_header_value("x-api-key");
  r.host = from.get_header_value("Host");
  r.origin = from.get_header_value("Origin");
  r.content_type = from.get_header_value("Content-Type");
  r.remote = from.remote_addr;
  r.connection = Connection(current_socket);
  return r;
}

void write_response(Response&& from, httplib::Response& to) {
  to.status = from.status;
  for (const auto& [name, value] : from.headers) to.set_header(name, value);
  to.set_header("X-Content-Type-Options", "nosniff");
  if (!from.stream) return to.set_content(from.body, from.type);
  to.set_chunked_content_provider(
      from.type, [stream = std::move(from.stream)](size_t, httplib::DataSink& sink) {
        Writer writer(
            [&sink](std::string_view bytes) { return sink.write(bytes.data(), bytes.size()); });
        stream(writer);
        if (writer.good()) sink.done();
        return writer.good();
      });
}

}  // namespace

Json RequestError::json() const {
  const char* type = status == 401   ? "authentication_error"
                     : status == 403 ? "permission_error"
                     : status == 404 ? "not_found_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  return {{"type", "error"},
          {"error",
           {{"message", what()},
            {"type", type},
            {"param", pointer.empty() ? Json(nullptr) : Json(pointer)},
            {"code", code}}}};
}

RequestError current_error() {
  try {
    throw;
  } catch (const RequestError& e) {
    return e;
  } catch (const Error& e) {
    const bool theirs = e.kind == ErrorKind::argument || e.kind == ErrorKind::capacity ||
                        e.kind == ErrorKind::unsupported || e.kind == ErrorKind::mismatch ||
                        e.kind == ErrorKind::format;
    if (e.kind == ErrorKind::io)
      return {500, "io", "expected a file of the server, found an error"};
    return {theirs ? 400 : 500,
            e.kind == ErrorKind::capacity ? "context_length_exceeded" : "invalid",
            Error(e.kind, "", e.field, e.expected, e.found).what()};
  } catch (const Cancelled&) {
    return {499, "cancelled", "expected a client that waits, found none, or no time left"};
  } catch (const std::bad_alloc&) {
    return {503, "out_of_memory", "expected enough memory, found none left"};
  } catch (const std::exception&) {
    return {500, "internal", "an error of the server's"};
  }
}

// A peer that has shut down its side, too: no client of this interface does so and waits.
bool Connection::gone() const {
  if (socket_ < 0) return false;
  char byte;
  const ssize_t n = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

std::string Request::query_or(const std::string& name, const std::string& fallback) const {
  const auto found = query.find(name);
  return found == query.end() ? fallback : found->second;
}

bool Writer::event(const Json& data, std::string_view name) {
  std::string text;
  if (!name.empty()) text = "event: " + std::string(name) + "\n";
  return write(text + "data: " + tool::dump(data) + "\n\n");
}

Response json_response(const Json& json, int status) {
  Response r;
  r.status = status;
  r.body = tool::dump(json) + "\n";
  return r;
}

Response error_response(const RequestError& error) {
  Response r = json_response(error.json(), error.status);
  if (error.status == 429 || error.status == 503) r.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
  return r;
}

Response event_stream(std::function<void(Writer&)> stream) {
  Response r;
  r.type = "text/event-stream";
  r.headers = {{"Cache-Control", "no-store"}};
  r.stream = std::move(stream);
  return r;
}

struct HttpServer::Impl {
  explicit Impl(const HttpLimits& l) : limits(l), server(limits) {}
  HttpLimits limits;
  Library server;
};

HttpServer::HttpServer(const HttpLimits& limits, Handler handler)
    : impl_(std::make_unique<Impl>(limits)) {
  httplib::Server& s = impl_->server;
  s.new_task_queue = [threads = limits.threads] { return new httplib::ThreadPool(threads); };
  s.set_payload_max_length(limits.body_bytes);
  s.set_keep_alive_max_count(1000);
  s.set_tcp_nodelay(true);
  // All requests, of any method and path, come here; nothing is left to the library's own routes.
  const auto answer = [handler = std::move(handler), most = limits.body_bytes](
                          const httplib::Request& from, httplib::Response& to,
                          const httplib::ContentReader* read) {
    try {
      std::optional<std::string> body = read == nullptr ? "" : read_body(from, *read, most);
      if (!body) return;
      Request request = read_request(from, *std::move(body));
      write_response(handler(request), to);
    } catch (...) {
      write_response(error_response(current_error()), to);
    }
  };
  const httplib::Server::Handler plain = [answer](const auto& from, auto& to) {
    answer(from, to, nullptr);
  };
  const httplib::Server::HandlerWithContentReader with_body =
      [answer](const auto& from, auto& to, const auto& read) { answer(from, to, &read); };
  s.Delete(".*", with_body);
  s.Patch(".*", with_body);
  s.Put(".*", with_body);
  s.Post(".*", with_body);
  s.Get(".*", plain);
  s.Options(".*", plain);
  s.set_error_handler([](const httplib::Request&, httplib::Response& to) {
    if (!to.body.empty() || to.content_length_ > 0) return;
    const int status = to.status;
    const char* what = status == 413   ? "expected a body within the limit, found a larger one"
                       : status == 414 ? "expected a shorter address"
                       : status == 404 ? "expected a known address, found another"
                                       : "expected an HTTP request, found something else";
    Response r = error_response({status, "bad_request", what});
    to.set_content(r.body, r.type);
  });
}

HttpServer::~HttpServer() = default;

int HttpServer::bind(const std::string& host, int port) {
  const bool any = port == 0;
  const int bound = any ? impl_->server.bind_to_any_port(host) : port;
  if ((any && bound <= 0) || (!any && !impl_->server.bind_to_port(host, port))) {
    throw Error(ErrorKind::io, "", "--port", "an address that can be had",
                host + ":" + std::to_string(port));
  }
  impl_->server.widen();
  return bound;
}

void HttpServer::run() { impl_->server.listen_after_bind(); }
void HttpServer::stop() { impl_->server.stop(); }

}  // namespace stet::serve

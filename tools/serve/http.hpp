// HTTP/1.1 as the server needs it: whole requests within limits in, one answer or a stream of
// pieces out. http.cpp hides the library.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/command.hpp"

namespace stet::serve {

using tool::Json;

// A request that is not to be answered as it was asked: {"error": {...}} with this status.
// `pointer` leads to the field at fault (RFC 6901), "" where it is none.
class RequestError : public std::runtime_error {
 public:
  RequestError(int status_, std::string code_, const std::string& message,
               std::string pointer_ = "")
      : std::runtime_error(message),
        status(status_),
        code(std::move(code_)),
        pointer(std::move(pointer_)) {}
  Json json() const;  // {"type": "error", "error": {...}}

  int status;
  std::string code, pointer;
};

// Thrown out of what waits, once whoever waited has gone.
struct Cancelled {};

// The error of an exception that is being handled, whatever it is; nothing internal is told.
RequestError current_error();

// The two ways in which a request's client can be told to have gone: before and while a reply is
// written. Of any thread.
class Connection {
 public:
  explicit Connection(int socket) : socket_(socket) {}
  bool gone() const;

 private:
  int socket_;
};

struct Request {
  std::string method, path, body;
  std::map<std::string, std::string> query;
  std::string authorization, host, origin, content_type, remote;
  Connection connection{-1};
  std::string client;  // of the API key, once that is known

  std::string query_or(const std::string& name, const std::string& fallback) const;
};

// Pieces of a reply that has begun. write() is false once the client is gone.
class Writer {
 public:
  explicit Writer(std::function<bool(std::string_view)> write) : write_(std::move(write)) {}
  bool write(std::string_view bytes) { return good_ = good_ && write_(bytes); }
  bool event(const Json& data, std::string_view name = "");  // of a text/event-stream
  bool good() const { return good_; }

 private:
  std::function<bool(std::string_view)> write_;
  bool good_ = true;
};

struct Response {
  int status = 200;
  std::string type = "application/json", body;
  std::vector<std::pair<std::string, std::string>> headers;
  std::function<void(Writer&)> stream;  // in place of `body`, where there is one
};
Response json_response(const Json& json, int status = 200);
Response error_response(const RequestError& error);
Response event_stream(std::function<void(Writer&)> stream);

struct HttpLimits {
  size_t body_bytes = size_t{256} << 20;
  double request_seconds = 30;  // a request must have come in this time
  double write_seconds = 30;    // and a client must take a piece of the answer in this
  size_t threads = 128;         // connections at once; more wait
};

class HttpServer {
 public:
  using Handler = std::function<Response(Request&)>;

  HttpServer(const HttpLimits& limits, Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Port 0: any that is free. Returns the port; an io Error where the address cannot be had.
  int bind(const std::string& host, int port);
  void run();   // until stop()
  void stop();  // from any thread

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stet::serve

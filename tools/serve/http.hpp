// HTTP/1.1 for the server: reads whole requests within limits, and writes one answer or a stream.
// http.cpp hides the library.
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

#include "tools/command/command.hpp"

namespace stet::serve {

using tool::Json;

// An error response, {"error": {...}} with this status. `pointer` is the JSON pointer of the wrong
// field (RFC 6901), or "".
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

// Thrown by functions that wait, once the client has disconnected or the deadline has passed.
struct Cancelled {};

// Returns the error for the exception being handled. It reveals nothing internal.
RequestError current_error();
// Returns the same, and logs details for the operator, such as a file that could not be written.
RequestError reported_error();

// Tells whether a request's client has closed its connection. Any thread may ask.
class ClientConnection {
 public:
  ClientConnection() = default;
  explicit ClientConnection(std::shared_ptr<const std::atomic<bool>> closed)
      : closed_(std::move(closed)) {}
  bool closed() const { return closed_ != nullptr && closed_->load(); }

 private:
  std::shared_ptr<const std::atomic<bool>> closed_;
};

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method, path, body;
  std::map<std::string, std::string> query;
  std::string authorization, host, origin, content_type, remote;
  bool has_body = false;
  ClientConnection connection;
  std::string client;        // the owner of the API key, once known
  HeaderList reply_headers;  // sent with any answer

  std::string query_or(const std::string& name, const std::string& fallback) const;
};

// Writes a streamed answer. write() returns false once the client has disconnected.
class Writer {
 public:
  explicit Writer(std::function<bool(std::string_view)> write) : write_(std::move(write)) {}
  bool write(std::string_view bytes) { return good_ = good_ && write_(bytes); }
  bool event(const Json& data, std::string_view name = "");  // writes one of a text/event-stream
  bool good() const { return good_; }

 private:
  std::function<bool(std::string_view)> write_;
  bool good_ = true;
};

struct Response {
  int status = 200;
  std::string type = "application/json", body;
  HeaderList headers;
  std::function<void(Writer&)> stream;  // used instead of `body` unless null
};
Response json_response(const Json& json, int status = 200);
Response error_response(const RequestError& error);
Response event_stream(std::function<void(Writer&)> stream);

struct HttpLimits {
  size_t head_bytes = 16384;                // maximum for a request line and its fields
  size_t bodies_bytes = size_t{512} << 20;  // maximum for all request bodies in memory
  double idle_seconds = 75;                 // between two requests of a connection
  double request_seconds = 30;              // limit for reading a head, and again for a body
  double body_bytes_per_second = 1 << 20;   // a body of this size gets another second
  double write_seconds = 30;                // limit for the client to take a part of its answer
  size_t connections = 1024;                // open ones
  size_t per_address = 256;                 // open ones of one address
  size_t threads = 128;                     // requests being answered; more wait
};

// The thread that answers a request. `at_once`: the server's own, for answers that neither wait nor
// compute. `beside`: one that is never occupied by computation. `work`: any other.
enum class Lane : uint8_t { at_once, beside, work };

// The decision on a request whose head was read.
struct Admission {
  Lane lane = Lane::work;
  size_t body_bytes = 0;  // the maximum
  std::function<Response(const Request&)> answer;
};

class HttpServer {
 public:
  // Called by the server's thread. A RequestError refuses the request, whose body is then not read.
  using Admit = std::function<Admission(Request&)>;

  HttpServer(const HttpLimits& limits, Admit admit);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Listens on a port (0: any free one) and returns it. Throws an io Error if that fails.
  int bind(const std::string& host, int port);
  // Serves until stop(), or after drain() until all connections have ended. Throws if the server
  // cannot listen any more.
  void run();
  // Accepts no more connections. Ends idle ones and those within a request, and the others after
  // their answers. Any thread may call it.
  void drain();
  void stop();  // ends all connections; any thread may call it

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stet::serve

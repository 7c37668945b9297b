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

#include "tools/command/command.hpp"

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

// Thrown out of what waits, once its client has left or its time is over.
struct Cancelled {};

// The error of an exception that is being handled, whatever it is; nothing internal is told.
RequestError current_error();
// The same, and what its operator has to know, such as the file that could not be written, is in
// the log of the server.
RequestError reported_error();

// Whether a request's client has closed its connection. Any thread may ask.
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
  std::string client;        // of the API key, once that is known
  HeaderList reply_headers;  // of whatever is answered

  std::string query_or(const std::string& name, const std::string& fallback) const;
};

// Pieces of a reply that has begun. write() is false once the client has left.
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
  HeaderList headers;
  std::function<void(Writer&)> stream;  // in place of `body`, where there is one
};
Response json_response(const Json& json, int status = 200);
Response error_response(const RequestError& error);
Response event_stream(std::function<void(Writer&)> stream);

struct HttpLimits {
  size_t head_bytes = 16384;                // of a request line and its fields
  size_t bodies_bytes = size_t{512} << 20;  // of all bodies that are in memory
  double idle_seconds = 75;                 // between two requests of a connection
  double request_seconds = 30;              // a head must have come in this time, and a body
  double body_bytes_per_second = 1 << 20;   // may take as long again for each so many bytes
  double write_seconds = 30;                // a client must take some of its answer in this
  size_t connections = 1024;                // at once
  size_t per_address = 256;                 // of these from one address
  size_t threads = 128;                     // requests at once; more wait
};

// Where a request is answered. `at_once`: by the thread that reads and writes, for what neither
// waits nor computes. `beside`: by one that no work occupies.
enum class Lane : uint8_t { at_once, beside, work };

// What becomes of a request of which the head alone was read.
struct Admission {
  Lane lane = Lane::work;
  size_t body_bytes = 0;  // as many at most
  std::function<Response(const Request&)> answer;
};

class HttpServer {
 public:
  // Called by the thread that reads and writes; a RequestError refuses the request, and its body
  // is not read.
  using Admit = std::function<Admission(Request&)>;

  HttpServer(const HttpLimits& limits, Admit admit);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Port 0: any that is free. Returns the port; an io Error where the address cannot be had.
  int bind(const std::string& host, int port);
  // Until stop(), or until all connections have ended after drain(). Throws where the server cannot
  // listen any more.
  void run();
  // From any thread: takes no more connections, ends those that wait or have sent half a request,
  // and the others after their answers.
  void drain();
  void stop();  // from any thread: ends all connections; whoever works for one finds it closed

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stet::serve
